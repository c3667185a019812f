"""Estimate the memory that a model takes, by its shapes and one table of bytes, before anything is allocated.

A run trains the model, and the parity gate compares it with the reference in two workers. The numbers of the table were
fitted to the peaks of small models: of runs (tests/finetune/test_memory_estimate.py repeats two of them), and of both
workers on models of 10^6 to 2 * 10^7 parameters. The examples of a run are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models import families
from toolkit.machine.memory import physical_memory
from toolkit.machine.sizes import format_bytes, format_gigabytes

# -- bytes of a process without a model -------------------------------------------------------------------------------
#: Bytes of a run: Paddle, PaddleNLP, data sets; and of a worker of the gate.
RUN_BYTES, WORKER_BYTES = 600e6, 900e6
#: Bytes that LLVM takes once the compiled loops are loaded (:mod:`models.operations.loop_code`); while they are still
#: to be compiled, Numba takes 0.1 GB more.
LOOP_BYTES = 50e6

# -- bytes of each parameter ------------------------------------------------------------------------------------------
#: Bytes of its weight: in a model, or in host memory until a model holds it; and of its gradient.
WEIGHT_BYTES, GRADIENT_BYTES = 4, 4
#: Bytes of the optimizer's moments (Adafactor's are of rows and columns).
MOMENT_BYTES = {"adamw": 8, "lion": 4, "sgd": 4, "adafactor": 0}
#: Bytes of each number: of the largest parameter while it is put into the model or written to a file, in both layouts;
#: of the largest matrix that an adapter is added to, in float64.
COPY_BYTES, MERGE_BYTES = 8, 32
#: Bytes in a worker of the gate, and the least in both workers of a model that is compared as a whole.
WORKER_PARAMETER_BYTES, MIN_GATE_PARAMETER_BYTES = 45, 60
#: Bytes in the gate of a pair: in the larger worker of a large pair, which holds it in float32 and float64 at once
#: while it is built (2.0 GB seen with 1.0 * 10^8 parameters); in both workers of any other pair together (5.6 GB seen
#: with 4.6 * 10^7).
LARGE_PAIR_BYTES, PAIR_BYTES = 14, 126
#: Bytes of each weight of the output layer in a gate stage by stage.
STAGE_BYTES = 8

# -- bytes of each element that a layer computes (`layer_elements` of a family's schema) ------------------------------
#: Bytes of every layer, if all activations are kept for the backward: in a run, the reference, and the port's worker.
KEPT_BYTES, REFERENCE_KEPT_BYTES, PORT_KEPT_BYTES = 32, 76, 38
#: Bytes of the largest layer, if layers are recomputed: in a run, and in a worker.
RECOMPUTED_BYTES, WORKER_RECOMPUTED_BYTES = 55, 60

# -- bytes of each element of the hidden states, if layers are recomputed ---------------------------------------------
#: Bytes of each layer's input (``recompute``); of both streams and their gradients, for any number of layers
#: (``reversible``); of each layer in a worker of the gate.
INPUT_BYTES, STREAM_BYTES, WORKER_STREAM_BYTES = 4, 64, 80

# -- bytes of each score of a language model's vocabulary -------------------------------------------------------------
#: Bytes of logits, their copies in the loss, and their gradients (16.1 and 15.6 seen for CTRL and Reformer); the same
#: if a compiled loop computes the loss without copies (12.6 and 8.1 seen); and in a gate stage by stage. For CTRL's
#: own vocabulary, such a gate is estimated to take 5.4 GB on 5 texts of 54 tokens and 18.6 GB on 4 texts of 512 tokens;
#: 5.4 GB and 18.2 GB were measured.
SCORE_BYTES, SCORE_BYTES_IN_LOOPS, STAGE_SCORE_BYTES = 20, 14, 30

# -- numbers of parameters above which the gate compares less ---------------------------------------------------------
#: Largest number of parameters of a family's model that is not large. Larger models are compared stage by stage, or
#: with fewer checks (:attr:`~toolkit.parity.job.job.Job.brief`), since a worker takes 60 bytes of each parameter.
MAX_PARAMETERS = 10**8
#: Largest number of parameters of a pair that is not large. Larger pairs are compared with fewer checks, one process
#: after the other, without all gradients at once.
MAX_PAIR_PARAMETERS = 3 * 10**7

#: Share of the activations' memory that bfloat16 leaves: sums, norms and softmax stay in float32.
IN_BFLOAT16 = 0.75
#: Parts below this share of all are not named.
MIN_NAMED_SHARE = 0.01


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model, and of its activations for a batch.

    Attributes:
        num_parameters: number of parameters.
        largest_parameter: number of elements of the largest parameter.
        num_texts: number of texts in the batch.
        layer_elements: number of elements that each layer computes for one text.
        hidden_elements: number of elements of the hidden states at one layer, for one text.
    """

    num_parameters: int
    largest_parameter: int
    num_texts: int
    layer_elements: list[float]
    hidden_elements: int

    @classmethod
    def of(
        cls, model: str, config: Mapping[str, Any], head: str, length: int, num_texts: int, stored_share: float = 1
    ) -> ModelShape:
        """Return the sizes of a model.

        Args:
            model: name of the model family.
            config: resolved configuration with Hugging Face's keys.
            head: name of the model's head.
            length: number of tokens of each text.
            num_texts: number of texts in the batch.
            stored_share: share of the elements that the layers store.
        """
        schema = families.part(model, "schema")
        layer_elements = [stored_share * elements for elements in schema.layer_elements(config, length)]
        sizes = parameter_sizes(model, config, head)
        return cls(sum(sizes), max(sizes), num_texts, layer_elements, length * schema.hidden_width(config))

    def kept_bytes(self, bytes_per_element: float) -> float:
        """Return the bytes of the activations, if every layer keeps its elements for the backward."""
        return self.num_texts * (bytes_per_element * sum(self.layer_elements))

    def recomputed_bytes(self, bytes_per_element: float, bytes_per_hidden_element: float) -> float:
        """Return the bytes of the activations, if the backward computes one layer at a time again.

        Args:
            bytes_per_element: bytes of each element of the largest layer.
            bytes_per_hidden_element: bytes that all layers together keep of each element of the hidden states.
        """
        largest_layer_bytes = bytes_per_element * max(self.layer_elements)
        return self.num_texts * (largest_layer_bytes + bytes_per_hidden_element * self.hidden_elements)


def count_parameters(model: str, config: Mapping[str, Any], head: str) -> int:
    """Count the parameters of a model that is described by a resolved configuration."""
    return sum(parameter_sizes(model, config, head))


def parameter_sizes(model: str, config: Mapping[str, Any], head: str) -> list[int]:
    """Return the number of elements of each parameter of a model that is described by a resolved configuration."""
    return [math.prod(shape) for shape, _ in families.part(model, "weights").parameters(config, head).values()]


# -- training ---------------------------------------------------------------------------------------------------------
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
            f"{format_bytes(size)} {name}" for name, size in parts.items() if size >= MIN_NAMED_SHARE * self.total
        )
        return f"about {format_bytes(self.total)}: {named_parts}"


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
    in_loops = uses_compiled_loops and not on_gpu and not bfloat16
    stored_share = getattr(families.part(model, "schema"), "SHARE_IN_LOOPS", 1) if in_loops else 1
    shape = ModelShape.of(model, config, head, length, texts, stored_share)
    num_trained = shape.num_parameters if num_trained is None else num_trained
    num_shards = processes if sharding is not None else 1
    weight_bytes, copy_bytes = WEIGHT_BYTES * shape.num_parameters, COPY_BYTES * shape.largest_parameter
    constant_parts: dict[str, float] = {} if on_gpu else {"the program": RUN_BYTES}
    constant_parts["weights"] = weight_bytes
    start = {} if on_gpu else {**constant_parts, "the first weights": weight_bytes, "a copy of one": copy_bytes}
    if uses_compiled_loops and not on_gpu:  # loops are loaded after the model has its weights
        constant_parts["the compiled loops"] = LOOP_BYTES
    constant_parts["gradients"] = GRADIENT_BYTES * num_trained / (num_shards if sharding == "stage2" else 1)
    constant_parts["moments"] = MOMENT_BYTES[optimizer] * num_trained / num_shards
    if backward == "autograd":
        activation_bytes = shape.kept_bytes(KEPT_BYTES)
    else:
        hidden_bytes = STREAM_BYTES if backward == "reversible" else INPUT_BYTES * len(shape.layer_elements)
        activation_bytes = shape.recomputed_bytes(RECOMPUTED_BYTES, hidden_bytes)
    step = {f"activations ({backward})": (IN_BFLOAT16 if bfloat16 else 1.0) * activation_bytes}
    if head in ("causal_lm", "masked_lm"):
        score_bytes = SCORE_BYTES_IN_LOOPS if uses_compiled_loops and not on_gpu else SCORE_BYTES
        step["scores of the vocabulary"] = score_bytes * texts * length * config["vocab_size"]
    alternative_parts = {"clipped gradients": GRADIENT_BYTES * num_trained / num_shards if clips_gradients else 0.0}
    if not on_gpu:
        alternative_parts["a tensor that is written"] = float(max(copy_bytes, MERGE_BYTES * num_merged))
    return TrainingMemory(constant_parts, step, alternative_parts, start)


# -- the parity gate --------------------------------------------------------------------------------------------------
def gate_memory_bytes(model_shape: ModelShape, *, is_reduced: bool, runs_in_turn: bool) -> float:
    """Return the estimated number of bytes of a gate whose model is compared as a whole.

    The estimate is for both workers together if they run at the same time, otherwise for the larger worker. For
    google/reformer-enwik8 on 2,048 tokens, 19.3 GB are estimated and 16.8 GB were measured; for 16,384 tokens of a
    narrow model, 4.6 GB and 7.8 GB.

    Args:
        model_shape: sizes of the model and its batch.
        is_reduced: whether both workers recompute layers, since less of a large model is compared.
        runs_in_turn: whether the workers run one after the other, and the reference recomputes layers.
    """
    worker_bytes = WORKER_BYTES + WORKER_PARAMETER_BYTES * model_shape.num_parameters
    hidden_bytes = WORKER_STREAM_BYTES * len(model_shape.layer_elements)
    recomputing_worker_bytes = worker_bytes + model_shape.recomputed_bytes(WORKER_RECOMPUTED_BYTES, hidden_bytes)
    if is_reduced:
        return recomputing_worker_bytes
    port_bytes = worker_bytes + model_shape.kept_bytes(PORT_KEPT_BYTES)
    if runs_in_turn:
        return max(recomputing_worker_bytes, port_bytes)
    return worker_bytes + model_shape.kept_bytes(REFERENCE_KEPT_BYTES) + port_bytes


def stage_memory_bytes(num_weights: int, num_scores: int) -> float:
    """Return the estimated number of bytes of the larger worker in a gate stage by stage.

    The output layer needs most, since no stage divides it.

    Args:
        num_weights: number of weights of the output layer.
        num_scores: number of its scores for the whole batch.
    """
    return WORKER_BYTES + STAGE_BYTES * num_weights + STAGE_SCORE_BYTES * num_scores


def pair_memory_bytes(num_parameters: int, *, is_large: bool) -> float:
    """Return the estimated number of bytes of a pair's gate, without the activations of its model.

    Args:
        num_parameters: number of parameters of the pair.
        is_large: whether less of the pair is compared, one worker after the other.
    """
    if is_large:
        return WORKER_BYTES + LARGE_PAIR_BYTES * num_parameters
    return 2 * WORKER_BYTES + PAIR_BYTES * num_parameters


# -- sizes that cannot be right ---------------------------------------------------------------------------------------
def explain_too_large(
    model: str, config: Mapping[str, Any], head: str, length: int, num_texts: int, bytes_per_parameter: int
) -> str | None:
    """Return in a sentence why this machine's memory cannot hold a model; None if it may fit.

    The estimate is a lower bound that finds typing errors such as an additional zero; a model may still not fit.

    Args:
        model: name of the model family.
        config: resolved configuration with Hugging Face's keys.
        head: name of the model's head.
        length: number of tokens of each text.
        num_texts: number of texts in a batch; 0 if a GPU computes them.
        bytes_per_parameter: bytes of memory for each parameter.
    """
    memory_bytes = physical_memory()
    if memory_bytes is None:
        return None
    num_parameters = count_parameters(model, config, head)
    activation_bytes = num_texts * families.part(model, "schema").activation_bytes(
        config, length, causal_lm=head == "causal_lm"
    )
    if num_parameters * bytes_per_parameter + activation_bytes <= memory_bytes:
        return None
    return (
        f"{num_parameters:,} parameters take {format_gigabytes(num_parameters * bytes_per_parameter)}, and what is "
        f"computed of {num_texts} texts of {length} tokens {format_gigabytes(activation_bytes)} at the least; this "
        f"machine has {format_gigabytes(memory_bytes)}"
    )
