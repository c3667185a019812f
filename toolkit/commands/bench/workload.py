"""The workload of a measurement: a model, a batch and the work. All sides import it, so it imports no framework."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from models import families

#: Kind of work. ``step``: a training step (forward, backward, AdamW). ``start``: the same in a process that is started
#: for it. ``generate``: greedy generation with cached keys and values; ``generate-without-cache`` recomputes them.
#: ``tokenize``: tokenization of texts.
Work = Literal["step", "start", "generate", "generate-without-cache", "tokenize"]


#: Kinds of work that generate tokens.
GENERATION = ("generate", "generate-without-cache")
#: Parts of a work whose time alone is known, with the unit of their speed; and kind of work -> the part that limits it.
PRODUCTS, WEIGHTS = "matrix products", "reading the weights"
PARTS = {PRODUCTS: "GFLOP/s", WEIGHTS: "GB/s"}
PART_OF: dict[Work, str] = {"step": PRODUCTS, "generate": WEIGHTS, "generate-without-cache": PRODUCTS}


@dataclass(frozen=True)
class Workload:
    """The workload of both sides.

    Attributes:
        model: model family.
        head: head of the model, such as ``causal_lm``.
        config: resolved configuration, with Hugging Face's names.
        batch_size: number of rows of the batch, B; 1 for generation.
        length: number of tokens of each row, T; for generation, of the prompt.
        work: kind of work.
        new_tokens: number of tokens to generate.
        threads: number of CPU threads of each side.
        backward: backward of the port, ``reversible`` or ``autograd``.
        folder: folder with ``model.safetensors`` and ``batch.safetensors``, the same for both sides; for tokenization
            with :data:`TEXTS` and :data:`TOKENIZER`.
        texts: number of texts to tokenize.
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
        return families.part(self.model, "weights").num_layers(self.config)

    @property
    def generates(self) -> bool:
        """Whether tokens are generated."""
        return self.work in GENERATION

    @property
    def amount(self) -> int:
        """Number of tokens in one measurement; for tokenization, the number of texts."""
        if self.work == "tokenize":
            return self.texts
        return self.new_tokens if self.generates else self.batch_size * self.length

    @property
    def weight_bytes(self) -> int:
        """Bytes of the float32 weights that are read for a generated token.

        A token reads all weights, except an input embedding that is not tied to the output layer: it reads only one
        row of it.
        """
        table = families.part(self.model, "weights").parameters(self.config, self.head)
        embedding = next(name for name, (_, role) in table.items() if role == "embedding")
        unread_weights = () if self.config["tie_word_embeddings"] else (embedding,)
        return 4 * sum(math.prod(shape) for name, (shape, _) in table.items() if name not in unread_weights)

    def to_json(self) -> dict[str, Any]:
        """Return the workload as values for JSON, as it is sent to a side."""
        return {**asdict(self), "config": dict(self.config)}


#: Name of the file with the texts to tokenize, and of the folder with the tokenizer.
TEXTS, TOKENIZER = "texts.json", "tokenizer"
#: AdamW's settings, the same on all sides.
ADAMW = {"learning_rate": 1e-4, "weight_decay": 0.01, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}
#: Maximum norm of the gradients. Larger gradients are clipped.
MAX_GRAD_NORM = 1.0
