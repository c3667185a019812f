"""What is timed: a model, a batch and what is done with them. Known to all sides; imports no framework."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

#: What is done: a training step (forward, backward, AdamW); or tokens generated one after another, greedily, with the
#: keys and values of earlier tokens kept or computed again.
Work = Literal["step", "generate", "generate-without-cache"]


@dataclass(frozen=True)
class Workload:
    """What both sides do.

    Attributes:
        model, head: of the family, as in :class:`toolkit.parity.job.request.GateRequest`.
        config: the configuration by Hugging Face's names, resolved.
        batch_size, length: B and T of the batch; of generation, one text, and the tokens of the prompt.
        work: what is done with it.
        new_tokens: that are generated.
        threads: of each side.
        backward: how the port makes Reformer's gradients.
        folder: holds ``weights.safetensors`` and ``batch.safetensors``, the same for both sides.
    """

    model: str
    head: str
    config: Mapping[str, Any]
    batch_size: int
    length: int
    work: Work
    new_tokens: int
    threads: int
    backward: str
    folder: str

    @property
    def tokens(self) -> int:
        """That one measurement works through."""
        return self.batch_size * self.length if self.work == "step" else self.new_tokens

    def to_json(self) -> dict[str, Any]:
        """As it is sent to a side."""
        return {**asdict(self), "config": dict(self.config)}


#: AdamW's settings, the same on all sides.
ADAMW = {"learning_rate": 1e-4, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
#: Gradients are scaled down to this norm.
MAX_GRAD_NORM = 1.0
