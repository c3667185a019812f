"""Records about a pair, a user's Paddle layer and torch module that are compared.

They describe each of the two sides, and the correspondence of their parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from toolkit.parity.job import user_code
from toolkit.parity.measure.mask_comparisons import MaskFacts, UnreachedFacts
from toolkit.parity.measure.naming import TensorName

Tensor = TypeVar("Tensor", bound=Any)

#: Model name of a job for a pair, instead of a family's name.
PAIR = "pair"
#: Kinds of random draws; kinds of discrete choices that R64 makes for the port, such as the signs of a ReLU's inputs.
RANDOM = ("dropout", "normal", "uniform", "multinomial")
CHOICES = ("relu", "choice")
#: Default time limit of user code in seconds: a large model takes minutes, and a hanging one never ends.
TIME_LIMIT = 1800.0
#: Largest number of batches that a file may return for one step.
MAX_BATCHES = 16
#: Name of the workers' task that builds a side and describes it.
DESCRIBE = "describe"
#: Name of the workers' task that trains each side independently for some steps.
TRAJECTORY = "trajectory"


@dataclass(frozen=True)
class ParameterFacts:
    """Description of a parameter on one side of a pair.

    Attributes:
        name: name on its own side; the first name of a tied parameter.
        shape: shape in torch's layout.
        role: ``linear``, ``embedding``, ``norm``, ``conv`` or ``other``, by the type of its layer.
        transposed: whether the side holds the transpose of torch's layout, like a Paddle ``Linear``.
        module: path of the module that holds the parameter.
        kind: class of this module.
        order: position of the module's first call among modules with parameters; None if it was not called.
        tied: other names of a tied parameter.
        constant: initial value of every element if they are equal; None otherwise.
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
    """Description of a buffer on one side of a pair.

    Attributes:
        is_state: whether a checkpoint holds the buffer, or a training-mode step changes it. A port must hold it, too.
        is_drawn: whether another seed changes its values.
        is_real: whether it holds real numbers, not integers, booleans or complex numbers.
    """

    is_state: bool = False
    is_drawn: bool = False
    is_real: bool = False


@dataclass(frozen=True)
class ModuleFacts:
    """Description of a module that ran on one side of a pair.

    Attributes:
        name: path of the module.
        kind: class of the module.
        shape: shape of the output's first tensor; None if it does not hold floating-point numbers.
        has: settings that a mutant can change: ``epsilon``, ``activation``, ``dropout`` or ``mask``.
        layout: layout of the data, such as ``NCHW`` or ``NLC``; empty if the class does not define it.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None
    has: tuple[str, ...] = ()
    layout: str = ""


@dataclass(frozen=True)
class DrawFacts:
    """Description of a random draw or a discrete choice on one side of a pair.

    Attributes:
        name: name with kind, module and call, such as ``dropout:encoder.drop`` (:mod:`toolkit.parity.measure.naming`).
        shape: shape of the drawn tensor.
        rate: dropout rate; None for other draws.
    """

    name: str
    shape: list[int]
    rate: float | None = None

    @property
    def kind(self) -> str:
        """Kind of the draw (:data:`RANDOM`, :data:`CHOICES`), or the function of a draw that is only reported."""
        return TensorName.parse(self.name).kind


@dataclass
class Description:
    """Description of all parts of one side of a pair.

    Attributes:
        parameters: trained parameters.
        modules: modules that ran, in the order of their ends.
        draws: random draws and discrete choices, in execution order.
        buffers: buffers, and parameters that are not trained.
        masks: comparisons in the forward that produce masks.
        unreached_facts: limits and choices in the forward whose other outcome does not occur on the batch.
        num_operations: number of source locations in a port's own code that call Paddle's functions.
    """

    parameters: list[ParameterFacts] = field(default_factory=list)
    modules: list[ModuleFacts] = field(default_factory=list)
    draws: list[DrawFacts] = field(default_factory=list)
    buffers: list[BufferFacts] = field(default_factory=list)
    masks: list[MaskFacts] = field(default_factory=list)
    unreached_facts: list[UnreachedFacts] = field(default_factory=list)
    num_operations: int = 0


@dataclass(frozen=True)
class ParameterMatch:
    """A parameter of the reference with its counterpart in the port. Either may be a slice of a parameter.

    Attributes:
        reference: name of the reference's parameter.
        port: name of the port's parameter.
        transpose: whether the port's array is the transpose of the reference's array.
        certain: whether both the name and the execution order match.
        rows: start and end of the slice of the reference's parameter; None for the whole parameter.
        port_rows: start and end of the slice of the port's parameter; None for the whole parameter.
        axis: axis of the slices, in the reference's layout.
        offset: number that the port adds to the reference's values: 1 if only the reference holds a norm's weight as
            its distance from 1.
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
    """Order of the features in a module's output of the port, if it differs from the reference's.

    Attributes:
        axis: axis of the features in the reference's output.
        places: index in the port of each of the reference's features.
    """

    axis: int
    places: list[int]


@dataclass
class PairMap:
    """Correspondence of the parts of a pair's reference and port.

    Attributes:
        parameters: matching parameters.
        buffers: matching buffers.
        reference_state: names of the reference's buffers that should have a counterpart but have none.
        port_state: names of the port's buffers that should have a counterpart but have none.
        drawn_buffers: reference's names of buffers that both sides draw at random when they are built, and of frozen
            parameters that the reference draws.
        shapes: shapes of the compared outputs in the reference, by its module.
        modules: port's path of each module with a compared output, by the reference's path.
        axes: permutation of the axes of the port's outputs and draws to the reference's order if they differ, by the
            reference's name.
        orders: order of an output's features if a map permutes the rows of the weight, by the reference's module.
        draws: reference's name of each draw, by the port's name.
        drawn: names of all draws that change the reference's result.
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
        """Return whether a tensor of the reference is compared.

        An output is compared if its module has a counterpart, and a buffer if it has or should have a counterpart.
        """
        tensor_name = TensorName.parse(name).without_run
        if tensor_name.kind == "buffer":
            return tensor_name.module in {*(match.reference for match in self.buffers), *self.reference_state}
        return tensor_name.kind != "output" or tensor_name.module in self.modules


@dataclass(frozen=True)
class KnownDifference:
    """Difference that the user's map accepts for the tensors that match a pattern.

    Attributes:
        why: the user's reason, which every report repeats.
        within: largest accepted relative error of a tensor.
    """

    why: str
    within: float


@dataclass(frozen=True)
class Pair:
    """The files of a pair, the correspondence of its sides, and the settings of its comparison.

    Attributes:
        port: Python file or dotted module name of the port, with ``build(config)``.
        reference: Python file or dotted module name of the reference, with ``build(config)``.
        batch_from: side whose file has ``batch(config, rng)``: ``port`` or ``reference``.
        map: correspondence of the sides; None until both are described.
        time_limit: seconds until the processes of a step are ended.
        has_loss: whether a file has ``loss(model, batch)``. It returns no logits, so none are compared.
        forward_only: whether only the forward in evaluation mode is compared, without training.
        any_framework: whether the reference is recorded for ports in any framework. Its epsilons are then not rounded
            to float32, as Paddle's kernels round theirs.
        small: whether sketches of large tensors are recorded, and no weights (:mod:`.external_weights`).
        steps: number of steps that each side then trains independently; 0 for no training.
        is_large: whether it has so many parameters that less is compared (:attr:`.job.Job.brief`).
        accept: known difference of the tensors that match each pattern, by pattern.
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
        """Return the Python file or module name of a side, ``reference`` or ``candidate``."""
        return self.reference if side == "reference" else self.port


def batch_of(source: Any, config: Mapping[str, Any], seed: int) -> dict[str, np.ndarray]:
    """Return the arrays of a file's ``batch`` function, by name.

    The function may list or yield several batches. Then each name starts with the number of its batch, such as
    ``2/labels`` (:func:`batches_in`).

    Args:
        source: imported module of the file.
        config: configuration of the pair.
        seed: seed of the function's random generator.

    Raises:
        UserCodeError: the result is not a mapping of names to arrays.
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
    """Return the separate batches of a step, each by name.

    Args:
        batch: arrays or tensors whose names may start with the number of their batch, such as ``2/labels``.
    """
    batches: dict[str, dict[str, Tensor]] = {}
    for key, value in batch.items():
        number, separator, name = key.partition("/")
        is_one_of_several = separator and number.isdigit()
        batches.setdefault(number if is_one_of_several else "", {})[name if is_one_of_several else key] = value
    return list(batches.values())


def _as_arrays(source: Any, value: Any) -> dict[str, np.ndarray]:
    """Return one batch as arrays by name, with floating-point numbers in float32.

    Args:
        source: imported module of the file.
        value: result of the file's ``batch`` function.

    Raises:
        UserCodeError: the value is not a mapping of names to numbers.
    """
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
