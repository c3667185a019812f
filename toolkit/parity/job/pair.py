"""A pair: a user's Paddle layer and torch module, and the facts about each that precede a comparison."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from toolkit.parity.job import user_code
from toolkit.parity.measure.mask_comparisons import MaskFacts
from toolkit.parity.measure.naming import TensorName

Tensor = TypeVar("Tensor", bound=Any)

#: The model name of a job for a pair, instead of a family's name.
PAIR = "pair"
#: Kinds of random draws, and of discrete choices that R64 makes for the port, such as the signs under a ReLU.
RANDOM = ("dropout", "normal", "uniform", "multinomial")
CHOICES = ("relu", "choice")
#: Default time limit of user code in seconds: a large model takes minutes, and a hanging one never ends.
TIME_LIMIT = 1800.0
#: Batches that a file may give for one step.
MAX_BATCHES = 16
#: The task of building a side and describing it.
DESCRIBE = "describe"
#: The task of training each side independently for some steps.
TRAJECTORY = "trajectory"


@dataclass(frozen=True)
class ParameterFacts:
    """A parameter of a side.

    Attributes:
        name: on its own side; the first of several if tied.
        shape: in torch's layout.
        role: ``linear``, ``embedding``, ``norm``, ``conv`` or ``other``, by the type of its layer.
        transposed: whether the side holds the transpose of torch's layout: a Paddle ``Linear`` does.
        module: that holds it.
        kind: that module's class.
        order: when the module first ran, counted among those that hold parameters; None if it did not.
        tied: the other names that it has.
        constant: its number, if all of its elements are the same when it is built; None otherwise.
    """

    name: str
    shape: list[int]
    role: str
    transposed: bool
    module: str
    kind: str
    order: int | None
    tied: list[str] = field(default_factory=list)
    constant: float | None = None


@dataclass(frozen=True)
class BufferFacts(ParameterFacts):
    """A buffer of a side.

    Attributes:
        is_state: whether a checkpoint holds it, or a training-mode step changes it: a port must hold it, too.
        is_drawn: whether another seed gives it other values.
        is_real: whether it holds real numbers, and no integers, truth values or complex numbers.
    """

    is_state: bool = False
    is_drawn: bool = False
    is_real: bool = False


@dataclass(frozen=True)
class ModuleFacts:
    """A module that ran.

    Attributes:
        name: its path.
        kind: its class.
        shape: of the output's first tensor, if of floats.
        has: settings that a fault can change: ``epsilon``, ``activation``, ``dropout`` or ``mask``.
        layout: of its data, if its class tells: ``NCHW``, ``NLC``.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None
    has: tuple[str, ...] = ()
    layout: str = ""


@dataclass(frozen=True)
class DrawFacts:
    """A random draw or a discrete choice, in the order of execution.

    Attributes:
        name: by its kind, module and call; :mod:`toolkit.parity.measure.naming`.
        rate: of dropout.
    """

    name: str
    shape: list[int]
    rate: float | None = None

    @property
    def kind(self) -> str:
        """One of :data:`RANDOM` or :data:`CHOICES`, or a function's name for a draw that can only be reported."""
        return TensorName.parse(self.name).kind


@dataclass
class Description:
    """Parts of a side: modules in the order of their end, and draws in the order of execution.

    Attributes:
        buffers: its buffers, and parameters that are not trained.
        masks: the comparisons that its forward makes masks with.
        num_operations: number of calls of Paddle's functions in a port's own code, each place counted once.
    """

    parameters: list[ParameterFacts] = field(default_factory=list)
    modules: list[ModuleFacts] = field(default_factory=list)
    draws: list[DrawFacts] = field(default_factory=list)
    buffers: list[BufferFacts] = field(default_factory=list)
    masks: list[MaskFacts] = field(default_factory=list)
    num_operations: int = 0


@dataclass(frozen=True)
class ParameterMatch:
    """A parameter of the reference and the port's, or a piece of either.

    Attributes:
        transpose: whether the port's array is the transpose of the reference's.
        certain: whether its name and its place in the order of execution agree.
        rows: of the reference's parameter, from the first to behind the last, if the port's is a piece of it.
        port_rows: likewise of the port's, if the reference's is a piece of that.
        axis: of the reference's array, along which rows are counted.
        offset: number that the port adds to the reference's numbers: 1 if a norm's weight is held as its distance from
            1 in the reference alone.
    """

    reference: str
    port: str
    transpose: bool = False
    certain: bool = True
    rows: tuple[int, ...] | None = None
    port_rows: tuple[int, ...] | None = None
    axis: int = 0
    offset: float = 0.0


@dataclass(frozen=True)
class OutputOrder:
    """Order of the features of an output in the port.

    Attributes:
        axis: of the reference's output.
        places: by feature of the reference, its place in the port.
    """

    axis: int
    places: list[int]


@dataclass
class PairMap:
    """Correspondence of the parts of both sides.

    Attributes:
        modules: the reference's path -> the port's, of modules whose outputs are compared.
        shapes: of these outputs in the reference.
        axes: axes of the port's outputs and draws in the reference's order, if they differ, by the reference's name.
        orders: by the reference's name of a module, the order of its output's features where a map permutes the rows of
            its weight.
        draws: the port's name of a draw -> the reference's.
        drawn: all draws of the reference that change its result.
        buffers: matching buffers.
        reference_state, port_state: buffers of either side that should have a counterpart and have none.
        drawn_buffers: the reference's names of buffers that both sides draw at random when they are built, and of
            frozen parameters that the reference draws.
    """

    parameters: list[ParameterMatch] = field(default_factory=list)
    buffers: list[ParameterMatch] = field(default_factory=list)
    reference_state: list[str] = field(default_factory=list)
    port_state: list[str] = field(default_factory=list)
    drawn_buffers: list[str] = field(default_factory=list)
    shapes: dict[str, list[int]] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    axes: dict[str, list[int]] = field(default_factory=dict)
    orders: dict[str, OutputOrder] = field(default_factory=dict)
    draws: dict[str, str] = field(default_factory=dict)
    drawn: list[str] = field(default_factory=list)

    def compares(self, name: str) -> bool:
        """Return whether a tensor of the reference is compared: an output if its module has a counterpart, a buffer if
        it has one or should have one."""
        tensor_name = TensorName.parse(name).without_run
        if tensor_name.kind == "buffer":
            return tensor_name.module in {*(match.reference for match in self.buffers), *self.reference_state}
        return tensor_name.kind != "output" or tensor_name.module in self.modules


@dataclass(frozen=True)
class KnownDifference:
    """Difference that a map accepts for the tensors that match a pattern.

    Attributes:
        why: in the user's words; every report repeats it.
        within: the largest error that is accepted, as a part of the tensor's size.
    """

    why: str
    within: float


@dataclass(frozen=True)
class Pair:
    """Where a pair is, and how its sides correspond.

    Attributes:
        port, reference: a Python file, or a module's dotted name; each has ``build(config)``.
        batch_from: the side whose file has ``batch(config, rng)``: ``port`` or ``reference``.
        map: None as long as both are only described.
        time_limit: seconds that its processes have for a step, after which they are ended.
        accept: pattern of tensors' names -> a known difference.
        has_loss: a file has ``loss(model, batch)``, which gives no logits: none are compared.
        forward_only: whether only the forward in evaluation mode is compared, without training.
        any_framework: record for ports in any framework: the reference's epsilons are not rounded as Paddle's kernels
            round theirs.
        small: record sketches of large tensors, and no weights (:mod:`.left_out`).
        steps: number of steps that each side then trains independently.
        is_large: whether it has so many parameters that less is compared (:attr:`.job.Job.brief`).
    """

    port: str
    reference: str
    batch_from: str
    map: PairMap | None = None
    time_limit: float = TIME_LIMIT
    has_loss: bool = False
    forward_only: bool = False
    any_framework: bool = False
    small: bool = False
    steps: int = 0
    is_large: bool = False
    accept: dict[str, KnownDifference] = field(default_factory=dict)

    def source_of(self, side: str) -> str:
        """Return the file or module of the worker's side, ``reference`` or ``candidate``."""
        return self.reference if side == "reference" else self.port


def batch_of(source: Any, config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return the result of a file's ``batch`` function.

    It may list or yield several batches. Then each name starts with the number of its batch, as ``2/labels``
    (:func:`batches_in`).

    Raises:
        UserCodeError: if it is not a mapping of names to arrays.
    """
    with user_code.running(source):
        batch_value = source.batch(config, np.random.default_rng(seed))
        is_one = isinstance(batch_value, dict) or not isinstance(batch_value, Iterable)
        several = [batch_value] if is_one else [*islice(batch_value, MAX_BATCHES + 1)]
        if not 0 < len(several) <= MAX_BATCHES:
            what = "more than" if several else "no batch; it is to give one, and at most"
            raise user_code.UserCodeError(
                f"{user_code.display_path(source)}: batch() gave {what} {MAX_BATCHES} batches"
            )
        batches = [_as_arrays(source, value) for value in several]
    if len(batches) == 1:
        return batches[0]
    return {f"{number}/{name}": value for number, batch in enumerate(batches, 1) for name, value in batch.items()}


def batches_in(batch: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
    """Return the batches of a step (:func:`batch_of`)."""
    batches: dict[str, dict[str, Tensor]] = {}
    for key, value in batch.items():
        number, separator, name = key.partition("/")
        is_one_of_several = separator and number.isdigit()
        batches.setdefault(number if is_one_of_several else "", {})[name if is_one_of_several else key] = value
    return list(batches.values())


def _as_arrays(source: Any, value: Any) -> dict[str, np.ndarray]:
    """Return one batch as arrays, floats in float32."""
    if not isinstance(value, dict) or not value or not all(isinstance(name, str) for name in value):
        description = "an empty dict" if value == {} else type(value).__name__
        raise user_code.UserCodeError(
            f"{user_code.display_path(source)}: batch() gave {description}; it is to give a dict of NumPy arrays"
        )
    batch = {name: np.asarray(value) for name, value in value.items()}
    for name, value in batch.items():
        if value.dtype.kind not in "biuf":
            raise user_code.UserCodeError(
                f"{user_code.display_path(source)}: batch()[{name!r}] holds {value.dtype}; it is to hold numbers"
            )
    return {name: value.astype(np.float32) if value.dtype.kind == "f" else value for name, value in batch.items()}
