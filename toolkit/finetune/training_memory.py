"""Estimate a run's memory from start to end, by the shapes of the model and of a batch, before allocating anything.

The bytes of each parameter follow from its copies. The bytes of the layers' activations were fitted to the peaks of
small runs (tests/finetune/test_memory_estimate.py runs two of them again). The examples themselves are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models import families
from toolkit.machine.memory import count_parameters

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
COPY_BYTES, MERGE_BYTES = 8, 32
#: Bytes of each element that a layer computes (``layer_elements`` of the family's schema): of every layer, if all
#: activations are kept for the backward; of the largest, if layers are recomputed.
KEPT_BYTES, AGAIN = 32, 55
#: Bytes of each number of a position's hidden state: of each layer's input, kept to recompute it (``recompute``); of
#: both streams and their gradients, for any number of layers (``reversible``).
INPUTS, STREAMS = 4, 64
#: Bytes of each score of a language model's vocabulary: logits, what the loss keeps of them, their gradients; and where
#: a compiled loop computes the loss, which keeps nothing of them (12.6 and 8.1 seen for CTRL and Reformer; 16.1, 15.6).
SCORES, SCORES_OF_LOOPS = 20, 14
#: Share of the activations' memory that bfloat16 leaves: sums, norms and softmax stay in float32.
IN_BFLOAT16 = 0.75
#: Parts below this share of all are not named.
MIN_NAMED_SHARE = 0.01


@dataclass(frozen=True)
class TrainingMemory:
    """Memory of one process, in bytes.

    Attributes:
        constant_parts: parts in memory all the time, by name.
        step: further parts while gradients are computed, by name.
        alternative_parts: parts that replace ``step`` at another time, by name: while gradients are clipped, and while
            a tensor of a checkpoint or of the trained model is written.
        start: all parts while the model gets its first weights, by name.
    """

    constant_parts: Mapping[str, float]
    step: Mapping[str, float]
    alternative_parts: Mapping[str, float]
    start: Mapping[str, float]

    @property
    def total(self) -> float:
        """Peak of the memory, in bytes."""
        return max(sum(self._training.values()), sum(self.start.values()))

    @property
    def _training(self) -> dict[str, float]:
        """Parts at the peak of training, or of writing the trained model."""
        times: list[Mapping[str, float]] = [self.step, *({name: size} for name, size in self.alternative_parts.items())]
        sizes = [sum(parts.values()) for parts in times]
        return {**self.constant_parts, **times[sizes.index(max(sizes))]}

    @property
    def text(self) -> str:
        """Description of the peak and its parts."""
        parts = self._training
        if sum(self.start.values()) > sum(parts.values()):
            parts = dict(self.start)
        named_parts = ", ".join(
            f"{amount(size)} {name}" for name, size in parts.items() if size >= MIN_NAMED_SHARE * self.total
        )
        return f"about {amount(self.total)}: {named_parts}"


def training_memory(
    model: str,
    config: Mapping[str, Any],
    head: str,
    length: int,
    texts: int,
    backward: str,
    *,
    num_trained: int | None = None,
    num_merged: int = 0,
    clips_gradients: bool = True,
    bfloat16: bool = False,
    on_gpu: bool = False,
    uses_compiled_loops: bool = False,
    processes: int = 1,
    sharding: str | None = None,
    optimizer: str = "adamw",
) -> TrainingMemory:
    """Estimate the memory of one process of a run.

    Args:
        model: name of the family.
        config: Hugging Face's keys, resolved, of the model that trains.
        head: name of the head.
        length: number of tokens of a text.
        texts: number of texts in a micro-batch.
        backward: ``autograd`` keeps all activations, ``reversible`` and ``recompute`` compute layers again.
        num_trained: number of trained parameters; None for all.
        num_merged: number of elements of the largest matrix that an adapter is added to at the end.
        clips_gradients: whether gradients are clipped (``max_grad_norm``), which copies them.
        bfloat16: whether matrix products are computed in bfloat16.
        on_gpu: whether to estimate the memory of the GPU instead of the machine's.
        uses_compiled_loops: whether a CPU uses compiled loops (:mod:`models.operations.kernels`); a GPU never does.
        processes: number of processes that train together. With ``sharding`` they share the moments (``stage1``), and
            with ``stage2`` the gradients, too.
        sharding: ``train.sharding``.
        optimizer: ``train.optimizer``.
    """
    parameters = count_parameters(model, config, head)
    num_trained = parameters if num_trained is None else num_trained
    num_shards = processes if sharding is not None else 1
    largest_parameter = max(
        math.prod(parameter.shape) for parameter in families.part(model, "weights").parameters(config, head).values()
    )
    constant_parts: dict[str, float] = {} if on_gpu else {"the program": IDLE}
    constant_parts |= {"weights": WEIGHT * parameters}
    start = (
        {}
        if on_gpu
        else {
            **constant_parts,
            "the first weights": FIRST * parameters,
            "a copy of one": COPY_BYTES * largest_parameter,
        }
    )
    if uses_compiled_loops and not on_gpu:  # loops are loaded after the model has its weights
        constant_parts |= {"the compiled loops": LOOPS}
    constant_parts |= {
        "gradients": GRADIENT * num_trained / (num_shards if sharding == "stage2" else 1),
        "moments": MOMENTS[optimizer] * num_trained / num_shards,
    }
    share = IN_BFLOAT16 if bfloat16 else 1.0
    in_loops = uses_compiled_loops and not on_gpu and not bfloat16
    step = {f"activations ({backward})": share * texts * _activations(model, config, length, backward, in_loops)}
    if head in ("causal_lm", "masked_lm"):
        bytes_per_score = SCORES_OF_LOOPS if uses_compiled_loops and not on_gpu else SCORES
        step["scores of the vocabulary"] = bytes_per_score * texts * length * config["vocab_size"]
    alternative_parts = {"clipped gradients": GRADIENT * num_trained / num_shards if clips_gradients else 0.0}
    if not on_gpu:
        alternative_parts["a tensor that is written"] = float(
            max(COPY_BYTES * largest_parameter, MERGE_BYTES * num_merged)
        )
    return TrainingMemory(constant_parts, step, alternative_parts, start)


def _activations(model: str, config: Mapping[str, Any], length: int, backward: str, in_loops: bool) -> float:
    """Bytes of the layers' activations for one text in float32; ``in_loops``: compiled loops compute attention."""
    schema = families.part(model, "schema")
    share = getattr(schema, "SHARE_IN_LOOPS", 1.0) if in_loops else 1.0
    layers = [share * elements for elements in schema.layer_elements(config, length)]
    if backward == "autograd":
        return KEPT_BYTES * sum(layers)
    between = STREAMS if backward == "reversible" else INPUTS * len(layers)
    return AGAIN * max(layers) + between * length * schema.hidden_width(config)


def amount(num_bytes: float) -> str:
    """Format a number of bytes, in GB, or in MB below one GB."""
    return f"{num_bytes / 1e9:,.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:,.0f} MB"
