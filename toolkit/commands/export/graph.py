"""The port as Paddle's static inference graph: `model.json` and `model.pdiparams`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import paddle

import models
from models import families
from models.operations import randomness
from toolkit.commands.export.rotations import Constant

#: Inputs of the graph, in this order: int64 [batch, length] each.
INPUTS = ("input_ids", "attention_mask")
#: Its outputs, by the head of the port; float32.
OUTPUTS = {
    "sequence_classification": ("logits",),
    "question_answering": ("start_logits", "end_logits"),
    "causal_lm": ("logits",),
    "masked_lm": ("logits",),
    "token_classification": ("logits",),
}
#: File name without the extension.
STEM = "model"


class Exported(paddle.nn.Layer):
    """A port and its rotations, with a tuple of outputs: logits divided by a temperature."""

    def __init__(self, model: paddle.nn.Layer, rotations: Sequence[paddle.Tensor], temperature: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.rotations = len(rotations)
        for index, value in enumerate(rotations):
            self.register_buffer(f"rotations_{index}", value)

    def forward(self, input_ids: paddle.Tensor, attention_mask: paddle.Tensor) -> tuple[paddle.Tensor, ...]:
        """int64 (B, T) each -> the head's logits, as :data:`OUTPUTS` lists them."""
        constants = [getattr(self, f"rotations_{index}") for index in range(self.rotations)]
        with randomness.use(Constant(constants)):
            output = self.model(input_ids, attention_mask)
        logits = (getattr(output, name) for name in OUTPUTS[self.model.head])
        return tuple(one if self.temperature == 1 else one / self.temperature for one in logits)


def save_graph(layer: Exported, length: int, folder: Path) -> None:
    """Write a layer's graph for texts of ``length`` tokens, in batches of any size."""
    body = getattr(layer.model, layer.model.base_model_prefix)
    for name in families.family(layer.model.config.model_type).constants:  # of a table in the graph the rows in use
        setattr(body, name, getattr(body, name)[:length])
    layer.eval()
    inputs = [paddle.static.InputSpec([None, length], "int64", name, stop_gradient=True) for name in INPUTS]
    # The ports are traced as they are: rewriting them for branches on tensors loses their known shapes.
    paddle.jit.ignore_module([models])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about eager tensors' methods that mean nothing in a graph
        paddle.jit.save(paddle.jit.to_static(layer, input_spec=inputs, full_graph=True), str(folder / STEM))


def run_graph(folder: Path, batches: Sequence[dict[str, np.ndarray]]) -> list[tuple[np.ndarray, ...]]:
    """Return the outputs of Paddle Inference on the CPU, run as on a server, for each batch."""
    from paddle import inference

    config = inference.Config(str(folder / f"{STEM}.json"), str(folder / f"{STEM}.pdiparams"))
    config.disable_gpu()
    config.disable_mkldnn()  # its passes make an operator that Paddle 3.3.1 has no kernel for: pd_op.fused_transpose
    config.disable_glog_info()
    predictor = inference.create_predictor(config)
    found = []
    for batch in batches:
        for name in INPUTS:
            predictor.get_input_handle(name).copy_from_cpu(np.ascontiguousarray(batch[name]))
        predictor.run()
        found.append(tuple(predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()))
    return found
