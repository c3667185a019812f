"""Write the port as Paddle's static inference graph, `model.json` and `model.pdiparams`, and run such a graph."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import paddle

import models
from models import families
from models.operations import randomness
from toolkit.commands.export.rotations import ConstantGenerator

#: Names of the graph's inputs, in order; each is int64 (batch, length).
INPUTS = ("input_ids", "attention_mask")
#: Head of the port -> names of the graph's outputs, in float32.
OUTPUTS = {
    "sequence_classification": ("logits",),
    "question_answering": ("start_logits", "end_logits"),
    "causal_lm": ("logits",),
    "masked_lm": ("logits",),
    "token_classification": ("logits",),
}
#: Name of the graph's files, without the extension.
FILE_STEM = "model"


class ExportedModel(paddle.nn.Layer):
    """A port with constant LSH rotations, whose outputs are a tuple of logits divided by a temperature.

    Args:
        model: port.
        rotations: LSH rotations of all layers.
        temperature: divisor of the logits.
    """

    def __init__(self, model: paddle.nn.Layer, rotations: Sequence[paddle.Tensor], temperature: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.rotations = len(rotations)
        for index, value in enumerate(rotations):
            self.register_buffer(f"rotations_{index}", value)

    def forward(self, input_ids: paddle.Tensor, attention_mask: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        """Return the logits of the head, in the order of :data:`OUTPUTS`.

        Args:
            input_ids: token ids, int64 (B, T).
            attention_mask: 1 for tokens and 0 for padding, int64 (B, T).
        """
        constants = [getattr(self, f"rotations_{index}") for index in range(self.rotations)]
        with randomness.use_rng(ConstantGenerator(constants)):
            output = self.model(input_ids, attention_mask)
        logits = (getattr(output, name) for name in OUTPUTS[self.model.head])
        return tuple(tensor if self.temperature == 1 else tensor / self.temperature for tensor in logits)


def save_graph(exported_model: ExportedModel, length: int, folder: Path) -> None:
    """Write the graph of an exported model for texts of ``length`` tokens, in batches of any size."""
    base_model = getattr(exported_model.model, exported_model.model.base_model_prefix)
    for name in families.family(
        exported_model.model.config.model_type
    ).constants:  # store only the rows of a table in use
        setattr(base_model, name, getattr(base_model, name)[:length])
    exported_model.eval()
    inputs = [paddle.static.InputSpec([None, length], "int64", name, stop_gradient=True) for name in INPUTS]
    # The ports are traced without conversion of their code: Paddle's conversion for branches on tensors loses static
    # shapes.
    paddle.jit.ignore_module([models])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Paddle warns of methods of eager tensors that have no effect in a graph
        paddle.jit.save(
            paddle.jit.to_static(exported_model, input_spec=inputs, full_graph=True), str(folder / FILE_STEM)
        )


def run_graph(folder: Path, batches: Sequence[dict[str, np.ndarray]]) -> list[tuple[np.ndarray, ...]]:
    """Return the outputs of Paddle Inference on the CPU, for each batch."""
    from paddle import inference

    config = inference.Config(str(folder / f"{FILE_STEM}.json"), str(folder / f"{FILE_STEM}.pdiparams"))
    config.disable_gpu()
    config.disable_mkldnn()  # its passes create pd_op.fused_transpose; Paddle 3.3.1 lacks a kernel for it
    config.disable_glog_info()
    predictor = inference.create_predictor(config)
    outputs = []
    for batch in batches:
        for name in INPUTS:
            predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(batch[name]))
        predictor.run()
        outputs.append(tuple(predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()))
    return outputs
