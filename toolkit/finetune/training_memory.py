"""Estimate a run's memory from start to end, by the shapes of the model and of a batch, before anything is allocated.

The bytes of each parameter follow from what is held of it. Those of what the layers compute were fitted to the peaks of
small runs (tests/finetune/test_memory_estimate.py runs two of them again). The examples themselves are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models import families
from toolkit.machine.memory import parameters_of

#: Bytes that the program takes with nothing to do: Paddle, PaddleNLP, data sets.
IDLE = 600e6
#: Bytes that LLVM takes once the compiled loops are loaded (:mod:`models.operations.loop_code`); while they are still
#: to be compiled, Numba takes 0.1 GB more.
LOOPS = 50e6
#: Bytes of each parameter: of its weight; and of its first weight, in host memory until the model holds it.
WEIGHT, FIRST = 4, 4
#: Bytes of each parameter that is trained: its gradient; the optimizer's moments (Adafactor's are of rows and columns).
GRADIENT, MOMENTS = 4, {"adamw": 8, "lion": 4, "sgd": 4, "adafactor": 0}
#: Bytes of each number: of the largest parameter while it is put into the model or written to a file, in both layouts;
#: of the largest matrix that an adapter is added to, in float64.
COPIED, MERGED = 8, 32
#: Bytes of each element that a layer computes (``layer_elements`` of the family's schema): of every layer, if all
#: activations are kept for the backward; of the largest, if layers are recomputed.
KEPT, AGAIN = 32, 55
#: Bytes of each number of a position's hidden state: of each layer's input, kept to recompute it (``recompute``); of
#: both streams and their gradients, for any number of layers (``reversible``).
INPUTS, STREAMS = 4, 64
#: Bytes of each score of a language model's vocabulary: logits, what the loss keeps of them, their gradients; and where
#: a compiled loop computes the loss, which keeps nothing of them (12.6 and 8.1 seen for CTRL and Reformer; 16.1, 15.6).
SCORES, SCORES_OF_LOOPS = 20, 14
#: Share of the activations' memory that bfloat16 leaves: sums, norms and softmax stay in float32.
IN_BFLOAT16 = 0.75
#: Parts below this share of all are not named.
NAMED = 0.01


@dataclass(frozen=True)
class TrainingMemory:
    """Bytes of one process.

    Attributes:
        held: parts held all the time, by name.
        step: parts added while gradients are computed, by name.
        instead: parts in place of ``step``, each at another time, by name: while gradients are clipped, and while a
            tensor of a checkpoint or of the trained model is written.
        start: all parts when the model is given its first weights, by name.
    """

    held: Mapping[str, float]
    step: Mapping[str, float]
    instead: Mapping[str, float]
    start: Mapping[str, float]

    @property
    def total(self) -> float:
        """The peak."""
        return max(sum(self._training.values()), sum(self.start.values()))

    @property
    def _training(self) -> dict[str, float]:
        """Parts at the peak of training, or of writing what it has made."""
        times: list[Mapping[str, float]] = [self.step, *({name: size} for name, size in self.instead.items())]
        sizes = [sum(parts.values()) for parts in times]
        return {**self.held, **times[sizes.index(max(sizes))]}

    @property
    def text(self) -> str:
        """The peak and what it is made of, for a reader."""
        parts = self._training
        if sum(self.start.values()) > sum(parts.values()):
            parts = dict(self.start)
        named = ", ".join(f"{amount(size)} {name}" for name, size in parts.items() if size >= NAMED * self.total)
        return f"about {amount(self.total)}: {named}"


def training_memory(
    model: str,
    config: Mapping[str, Any],
    head: str,
    length: int,
    texts: int,
    backward: str,
    *,
    trained: int | None = None,
    merged: int = 0,
    clipped: bool = True,
    bfloat16: bool = False,
    on_gpu: bool = False,
    compiled: bool = False,
    processes: int = 1,
    sharding: str | None = None,
    optimizer: str = "adamw",
) -> TrainingMemory:
    """Memory of one process of a run.

    Args:
        config: Hugging Face's keys, resolved, of the model that trains.
        texts: number computed at once: a micro-batch.
        backward: ``autograd`` keeps all activations, ``reversible`` and ``recompute`` compute layers again.
        trained: number of trained parameters; None: all.
        merged: numbers of the largest matrix that an adapter is added to at the end.
        clipped: gradients are clipped (``max_grad_norm``), which copies them.
        bfloat16: matrix products are computed in it.
        on_gpu: count the memory of the GPU, not that of the machine.
        compiled: a CPU uses compiled loops (:mod:`models.operations.kernels`); a GPU never does.
        processes: number that train together. They share the moments if ``sharding`` is ``stage1``, with ``stage2`` the
            gradients, too.
    """
    parameters = parameters_of(model, config, head)
    trained = parameters if trained is None else trained
    shared = processes if sharding is not None else 1
    largest = max(math.prod(one.shape) for one in families.part(model, "weights").parameters(config, head).values())
    held: dict[str, float] = {} if on_gpu else {"the program": IDLE}
    held |= {"weights": WEIGHT * parameters}
    start = {} if on_gpu else {**held, "the first weights": FIRST * parameters, "a copy of one": COPIED * largest}
    if compiled and not on_gpu:  # none has run when the model is given its weights
        held |= {"the compiled loops": LOOPS}
    held |= {
        "gradients": GRADIENT * trained / (shared if sharding == "stage2" else 1),
        "moments": MOMENTS[optimizer] * trained / shared,
    }
    share = IN_BFLOAT16 if bfloat16 else 1.0
    in_loops = compiled and not on_gpu and not bfloat16
    step = {f"activations ({backward})": share * texts * _activations(model, config, length, backward, in_loops)}
    if head in ("causal_lm", "masked_lm"):
        each = SCORES_OF_LOOPS if compiled and not on_gpu else SCORES
        step["scores of the vocabulary"] = each * texts * length * config["vocab_size"]
    instead = {"clipped gradients": GRADIENT * trained / shared if clipped else 0.0}
    if not on_gpu:
        instead["a tensor that is written"] = float(max(COPIED * largest, MERGED * merged))
    return TrainingMemory(held, step, instead, start)


def _activations(model: str, config: Mapping[str, Any], length: int, backward: str, in_loops: bool) -> float:
    """Bytes of the layers' activations for one text in float32; ``in_loops``: compiled loops compute attention."""
    schema = families.part(model, "schema")
    share = getattr(schema, "SHARE_IN_LOOPS", 1.0) if in_loops else 1.0
    layers = [share * elements for elements in schema.layer_elements(config, length)]
    if backward == "autograd":
        return KEPT * sum(layers)
    between = STREAMS if backward == "reversible" else INPUTS * len(layers)
    return AGAIN * max(layers) + between * length * schema.width(config)


def amount(size: float) -> str:
    """A number of bytes for a reader, in GB, or in MB below one."""
    return f"{size / 1e9:,.1f} GB" if size >= 1e9 else f"{size / 1e6:,.0f} MB"
