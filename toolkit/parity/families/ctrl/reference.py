"""Parts of the reference's step that only CTRL needs: its position table and its masks."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from transformers import CTRLConfig
from transformers.models.ctrl import modeling_ctrl

from toolkit.parity.job.results import Note
from toolkit.parity.measure.evaluation import DECODING, name_in_run, split_for_decoding
from toolkit.parity.measure.naming import ModuleStack, append_number
from toolkit.parity.reference.points import Keep, Operation, OperationWatch, to_numpy
from toolkit.parity.reference.recorder import Recorder, set_attribute
from toolkit.parity.reference.step import Step

#: Number that a released CTRL adds to the score of a later token.
LATER = -1e4
#: Releases of transformers write the same step in different ways.
SCALED = (torch.Tensor.div, torch.Tensor.__truediv__, torch.Tensor.mul, torch.Tensor.__mul__)
SOFTMAX = (torch.softmax, torch.nn.functional.softmax)


class CTRLStep(Step):
    """A step of CTRL."""

    heads: ClassVar = {
        "causal_lm": modeling_ctrl.CTRLLMHeadModel,
        "sequence_classification": modeling_ctrl.CTRLForSequenceClassification,
    }
    embedded = "transformer.dropout"
    aliases: ClassVar = {"lm_head.weight": "transformer.w.weight"}

    def configuration(self, keys: Mapping) -> CTRLConfig:
        return config_of(keys)

    def constants(self) -> dict[str, np.ndarray]:
        """Return the position table: float32, computed when the model is made. If it is a buffer, a float64 model holds
        the same numbers in float64."""
        return {"transformer.pos_encoding": to_numpy(self.model.transformer.pos_encoding).astype(np.float32)}

    @property
    def notes(self) -> list[Note]:
        return mask_notes()

    def operation(self, module: str, function: Callable, arguments: tuple) -> Operation | None:
        return operation(module, function, arguments)

    @contextlib.contextmanager
    def clean(self, recorder: Recorder, plain: bool) -> Iterator[None]:
        with own_mask():
            yield

    def decode(self, keep: Keep) -> None:
        if not isinstance(self.model, modeling_ctrl.CTRLLMHeadModel):
            return
        past = None
        with own_mask():
            for number, inputs in enumerate(split_for_decoding(self._inputs()), 1):
                output = self.model(**inputs, past_key_values=past, use_cache=True)
                past = output.past_key_values
                keep(append_number(name_in_run(DECODING, "logits"), number), to_numpy(output.logits))

    def vary_rounding(self, recorder: Recorder, nudge: int) -> contextlib.AbstractContextManager:
        return masked_scores_rounded_otherwise(recorder.stack, nudge)


def operation(module: str, function: Callable, arguments: tuple) -> Operation | None:
    """As :meth:`.step.Step.operation`."""
    if re.fullmatch(r"transformer\.h\.\d+", module):
        return Operation("sum", ("stream", None)) if function in (torch.Tensor.add, torch.Tensor.__add__) else None
    if not module.endswith(".multi_head_attention"):
        return None
    if function is torch.Tensor.permute and arguments[1:] == ([0, 2, 1, 3],):
        return Operation("transpose", ("heads", "heads", "heads", "merged"))
    if function is torch.Tensor.transpose and arguments[1:] == (1, 2):
        return Operation("transpose", ("heads", "heads", "heads", "merged"))
    if function is torch.matmul:
        return Operation("matmul", ("scores", "context"))
    if function in SCALED:
        return Operation("scale", ("scaled_scores", None))
    return Operation("softmax", ("probabilities",), enters="masked_scores") if function in SOFTMAX else None


def masked_scores_rounded_otherwise(stack: ModuleStack, nudge: int) -> contextlib.AbstractContextManager:
    """Round the scores that a mask pushes to -1e4 another way inside the ``with`` block, unless ``nudge`` is 0.

    Down there the resolution of a score is 1e-3 in float32, 1e-12 in float64, and it is chance which way it is rounded.
    If a position sees only padding, its weights depend on that chance, which would be the same in every run: moving the
    weights by a unit in the last place moves a score by far less. So before the mask is added, all scores of an
    attention are moved by the same part of a unit of -1e4, which softmax does not see.
    """
    return OperationWatch(_MovedScores(stack, nudge), operation) if nudge else contextlib.nullcontext()


class _MovedScores:
    """Stands in for the recorder that :class:`.points.OperationWatch` takes."""

    def __init__(self, stack: ModuleStack, nudge: int) -> None:
        self.stack = stack
        self.nudge = nudge

    def pass_operation(self, operation: str, x: torch.Tensor) -> torch.Tensor:
        if operation != "scaled_scores":
            return x
        unit = torch.finfo(x.dtype).eps * 2.0 ** math.floor(math.log2(-LATER))
        draw = np.random.default_rng([self.nudge, *self.stack.module.encode()])  # the same layer by layer
        return x + unit * draw.random()


def config_of(keys: Mapping) -> CTRLConfig:
    """Return the configuration, with eager attention where the reference has other kernels too."""
    return CTRLConfig(**keys, use_cache=False, attn_implementation="eager")


def makes_its_mask_elsewhere() -> bool:
    """Whether the reference takes its mask from code that all of its models share, not from CTRL's own."""
    return hasattr(modeling_ctrl, "create_causal_mask")


def mask_notes() -> list[Note]:
    """Return the report's note if the reference had to be given CTRL's own mask."""
    return [Note("reference-mask")] if makes_its_mask_elsewhere() else []


@contextlib.contextmanager
def own_mask() -> Iterator[None]:
    """Use CTRL's mask inside the ``with`` block: -1e4 for later tokens, the dtype's smallest for padding."""
    undo = (
        set_attribute(modeling_ctrl, "create_causal_mask", additive_mask)
        if makes_its_mask_elsewhere()
        else lambda: None
    )
    try:
        yield
    finally:
        undo()


def additive_mask(
    config: CTRLConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    past_key_values: Any = None,
    **_: object,
) -> torch.Tensor:
    """Return what is added to the scores: (B or 1, 1, T, past + T)."""
    past = 0 if past_key_values is None else past_key_values.get_seq_length()
    total = past + inputs_embeds.shape[1]
    added = torch.triu(inputs_embeds.new_ones(total, total), 1)[None, None, past:] * LATER
    if attention_mask is not None:
        kept = attention_mask[:, None, None, :].to(inputs_embeds.dtype)
        added = added + (1.0 - kept) * torch.finfo(inputs_embeds.dtype).min
    return added


STEP = CTRLStep
