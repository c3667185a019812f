"""The step of CTRL's reference: its position table, its masks and their rounding."""

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

from toolkit.parity.exchange.results import Note
from toolkit.parity.measure.evaluation import DECODING, name_in_run, split_for_decoding
from toolkit.parity.measure.naming import ModuleStack, append_number
from toolkit.parity.reference.points import Keep, Operation, OperationWatch, to_numpy
from toolkit.parity.reference.recorder import Recorder, set_attribute
from toolkit.parity.reference.step import Step

#: Number that the released CTRL adds to the attention scores of later tokens.
LATER_SCORE = -1e4
#: Functions that scale the attention scores, in different versions of transformers.
SCALE_FUNCTIONS = (torch.Tensor.div, torch.Tensor.__truediv__, torch.Tensor.mul, torch.Tensor.__mul__)
#: Functions that normalize the attention scores, in different versions of transformers.
SOFTMAX_FUNCTIONS = (torch.softmax, torch.nn.functional.softmax)


class CTRLStep(Step):
    """A forward and a backward of CTRL's reference in transformers, with recorded draws."""

    heads: ClassVar = {
        "causal_lm": modeling_ctrl.CTRLLMHeadModel,
        "sequence_classification": modeling_ctrl.CTRLForSequenceClassification,
    }
    embedding_module = "transformer.dropout"
    aliases: ClassVar = {"lm_head.weight": "transformer.w.weight"}

    def configuration(self, keys: Mapping[str, Any]) -> CTRLConfig:
        """Return the configuration of transformers for the job's configuration keys."""
        return make_config(keys)

    def constants(self) -> dict[str, np.ndarray]:
        """Return the position table by name, float32 (positions, n_embd).

        The reference computes it in float32 when it builds the model. If it is a buffer, a float64 model has the same
        numbers in float64.
        """
        return {"transformer.pos_encoding": to_numpy(self.model.transformer.pos_encoding).astype(np.float32)}

    @property
    def notes(self) -> list[Note]:
        """The note for the report if CTRL's own mask had to replace the mask of transformers."""
        return mask_notes()

    def operation(self, module: str, function: Callable, arguments: tuple) -> Operation | None:
        """Return the operation of a call of a torch function that a trace compares; None for other calls.

        Args:
            module: dotted path of the running module.
            function: torch function.
            arguments: arguments of the call.
        """
        return find_operation(module, function, arguments)

    @contextlib.contextmanager
    def clean(self, recorder: Recorder, plain: bool) -> Iterator[None]:
        """Use CTRL's own mask inside the ``with`` block.

        Args:
            recorder: unused.
            plain: unused.
        """
        with use_own_mask():
            yield

    def decode(self, keep: Keep) -> None:
        """Keep the logits of a text that is decoded token by token with cached keys and values.

        Only a language model decodes. The first call computes the beginning of the text, and each further call one
        token.

        Args:
            keep: function that receives the name and value of each tensor.
        """
        if not isinstance(self.model, modeling_ctrl.CTRLLMHeadModel):
            return
        past = None
        with use_own_mask():
            for number, inputs in enumerate(split_for_decoding(self._inputs()), 1):
                output = self.model(**inputs, past_key_values=past, use_cache=True)
                past = output.past_key_values
                keep(append_number(name_in_run(DECODING, "logits"), number), to_numpy(output.logits))

    def vary_rounding(self, recorder: Recorder, nudge: int) -> contextlib.AbstractContextManager:
        """Vary the rounding of masked attention scores inside the ``with`` block, unless ``nudge`` is 0.

        Args:
            recorder: recorder of the run, which knows the running module.
            nudge: number of the noise run; 0 for no change.
        """
        return vary_masked_scores(recorder.stack, nudge)


def find_operation(module: str, function: Callable, arguments: tuple) -> Operation | None:
    """Return the operation of a call of a torch function that a trace compares; None for other calls.

    Args:
        module: dotted path of the running module.
        function: torch function.
        arguments: arguments of the call.
    """
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
    if function in SCALE_FUNCTIONS:
        return Operation("scale", ("scaled_scores", None))
    return Operation("softmax", ("probabilities",), enters="masked_scores") if function in SOFTMAX_FUNCTIONS else None


def vary_masked_scores(stack: ModuleStack, nudge: int) -> contextlib.AbstractContextManager:
    """Vary the rounding of attention scores that a mask moves to -1e4 inside the ``with`` block.

    At -1e4, the distance of neighboring numbers is 1e-3 in float32 and 1e-12 in float64, so the rounding of a score is
    arbitrary. If a position sees only padding, its attention weights depend on this rounding. The rounding would be the
    same in every noise run, because nudged weights move a score by much less. So before the mask is added, all scores
    of an attention are moved by the same random fraction of this distance. Softmax does not depend on such a move.

    Args:
        stack: running modules.
        nudge: number of the noise run; 0 for no change.
    """
    return OperationWatch(_ScoreShifter(stack, nudge), find_operation) if nudge else contextlib.nullcontext()


class _ScoreShifter:
    """Moves attention scores by a random fraction of the distance of neighboring numbers at -1e4.

    It replaces the recorder of :class:`.points.OperationWatch`.

    Args:
        stack: running modules.
        nudge: number of the noise run.
    """

    def __init__(self, stack: ModuleStack, nudge: int) -> None:
        self.stack = stack
        self.nudge = nudge

    def pass_operation(self, operation: str, x: torch.Tensor) -> torch.Tensor:
        """Return the moved scores if the operation is `scaled_scores`, otherwise ``x``.

        The fraction depends only on the running module and on the nudge.

        Args:
            operation: name of the tensor, such as `scaled_scores`.
            x: the tensor; scores are (B, H, T, T).
        """
        if operation != "scaled_scores":
            return x
        unit = torch.finfo(x.dtype).eps * 2.0 ** math.floor(math.log2(-LATER_SCORE))
        draw = np.random.default_rng([self.nudge, *self.stack.module.encode()])  # the same layer by layer
        return x + unit * draw.random()


def make_config(keys: Mapping[str, Any]) -> CTRLConfig:
    """Return the reference's configuration, with eager attention if transformers has other kernels, too.

    Args:
        keys: keys and values of the configuration.
    """
    return CTRLConfig(**keys, use_cache=False, attn_implementation="eager")


def uses_shared_mask() -> bool:
    """Return whether CTRL in this version of transformers uses the mask function that all models share."""
    return hasattr(modeling_ctrl, "create_causal_mask")


def mask_notes() -> list[Note]:
    """Return the note for the report if CTRL's own mask had to replace the mask of transformers, in a list."""
    return [Note("reference-mask")] if uses_shared_mask() else []


@contextlib.contextmanager
def use_own_mask() -> Iterator[None]:
    """Use CTRL's own mask inside the ``with`` block.

    The mask adds -1e4 to the scores of later tokens, and the smallest number of the dtype to the scores of padding.
    """
    restore = set_attribute(modeling_ctrl, "create_causal_mask", additive_mask) if uses_shared_mask() else lambda: None
    try:
        yield
    finally:
        restore()


def additive_mask(
    config: CTRLConfig,
    inputs_embeds: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    past_key_values: Any = None,
    **_: object,
) -> torch.Tensor:
    """Return the mask that is added to the attention scores, (B or 1, 1, T, past + T).

    It replaces the mask function of transformers and has its signature.

    Args:
        config: unused.
        inputs_embeds: embedded input, (B, T, n_embd).
        attention_mask: 1 for tokens and 0 for padding, (B, past + T); None without padding.
        past_key_values: cache of earlier tokens; None without earlier tokens.
    """
    past = 0 if past_key_values is None else past_key_values.get_seq_length()
    total = past + inputs_embeds.shape[1]
    mask = torch.triu(inputs_embeds.new_ones(total, total), 1)[None, None, past:] * LATER_SCORE
    if attention_mask is not None:
        keep_mask = attention_mask[:, None, None, :].to(inputs_embeds.dtype)
        mask = mask + (1.0 - keep_mask) * torch.finfo(inputs_embeds.dtype).min
    return mask


#: Class of the step of CTRL's reference.
STEP = CTRLStep
