"""What is timed: a model, a batch and what is done with them. Known to all sides; imports no framework."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from models import families

#: What is done: a training step (forward, backward, AdamW); the same in a process that is started for it; tokens
#: generated one after another, greedily, with the keys and values of earlier tokens cached or recomputed; or texts
#: tokenized.
Work = Literal["step", "start", "generate", "generate-without-cache", "tokenize"]


#: Those that make tokens.
GENERATION = ("generate", "generate-without-cache")
#: Parts of works that take a known time alone, with the unit of their speed; and which part limits a work.
PRODUCTS, WEIGHTS = "matrix products", "reading the weights"
PARTS = {PRODUCTS: "GFLOP/s", WEIGHTS: "GB/s"}
PART_OF: dict[Work, str] = {"step": PRODUCTS, "generate": WEIGHTS, "generate-without-cache": PRODUCTS}


@dataclass(frozen=True)
class Workload:
    """What both sides do.

    Attributes:
        model, head: of the family, as in :class:`toolkit.parity.job.request.GateRequest`.
        config: the configuration by Hugging Face's names, resolved.
        batch_size, length: B and T of the batch; for generation, 1 and the tokens of the prompt.
        work: what is done with it.
        new_tokens: number generated.
        texts: number tokenized.
        threads: of each side.
        backward: how the port makes gradients, where it has a choice.
        folder: holds ``model.safetensors`` and ``batch.safetensors``, the same for both sides; for tokenization
            :data:`TEXTS` and :data:`TOKENIZER`.
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
    texts: int = 0

    @property
    def layers(self) -> int:
        """Number of layers."""
        return families.part(self.model, "weights").depth(self.config)

    @property
    def generates(self) -> bool:
        """Whether tokens are generated."""
        return self.work in GENERATION

    @property
    def amount(self) -> int:
        """Number of tokens in one measurement; for tokenization, of texts."""
        if self.work == "tokenize":
            return self.texts
        return self.new_tokens if self.generates else self.batch_size * self.length

    @property
    def weight_bytes(self) -> int:
        """Bytes of the float32 weights that a generated token needs: all; but of an embedding that is not the output
        layer's too, a row."""
        table = families.part(self.model, "weights").parameters(self.config, self.head)
        embedding = next(name for name, (_, role) in table.items() if role == "embedding")
        spared = () if self.config["tie_word_embeddings"] else (embedding,)
        return 4 * sum(math.prod(shape) for name, (shape, _) in table.items() if name not in spared)

    def to_json(self) -> dict[str, Any]:
        """Return the form sent to a side."""
        return {**asdict(self), "config": dict(self.config)}


#: File with a list of texts, and folder of the tokenizer that is timed on them.
TEXTS, TOKENIZER = "texts.json", "tokenizer"
#: AdamW's settings, the same on all sides.
ADAMW = {"learning_rate": 1e-4, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
#: Gradients are clipped to this norm.
MAX_GRAD_NORM = 1.0
