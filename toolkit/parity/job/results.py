"""Results of the workers: the content of ``result.json`` and of a follow-up's files."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.parity.job import files
from toolkit.parity.job.pair import KnownDifference
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.fingerprint import Fingerprint
from toolkit.parity.measure.initial_values import NewValues
from toolkit.parity.measure.loop_accuracy import LoopError
from toolkit.parity.measure.ulp import BitDifference

#: A row of attention is saturated if all positions but one share less than this: float32 has 4 bits left for them.
SATURATED_BELOW = 2.0**-20
#: Magnitudes beyond which normal numbers are counted.
BEYOND = (1, 2, 3)


@dataclass(frozen=True)
class Note:
    """A note for the report's reader: a kind of :data:`toolkit.parity.judge.notes.TEXTS`, and its data."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Tokens:
    """A tokenizer's output for a text.

    Attributes:
        text: its input.
        ids: token ids of the text.
        decoded: text that the ids decode to.
        right, left: ids and mask padded on either side; empty if padding is not compared.
        offsets: characters of each token (id, first, past the last); None if they are not compared.
        error: the error that it raised, if any.
        starts: for a text too long to be shown whole, the starts of the port's tokens. Not compared.
    """

    text: str = ""
    ids: list[int] = field(default_factory=list)
    decoded: str = ""
    right: list[list[int]] = field(default_factory=list)
    left: list[list[int]] = field(default_factory=list)
    offsets: list[list[int]] | None = None
    error: str | None = None
    starts: list[int] = field(default_factory=list)


@dataclass
class OwnLoss:
    """R64's loss as ``given``, and as ``defined`` by its own logits; the difference in ``units`` of rounding,
    the ``allowed`` units, and the ``place`` that computes the loss."""

    given: float
    defined: float
    units: float
    allowed: float
    place: str


@dataclass
class Flips:
    """Discrete choices of the port that differ from R64's: number, number of all, and R64's largest margin for its own.
    If the ``shape`` differs, nothing else is given."""

    count: int = 0
    of: int = 0
    largest_margin: float = 0.0
    shape: list[int] | None = None


@dataclass
class Facts:
    """Properties of a side besides its tensors.

    Attributes:
        epsilons: of its layer norms, by module.
        num_buckets: of its hash; None without.
    """

    epsilons: dict[str, float] = field(default_factory=dict)
    num_buckets: Any = None


@dataclass
class ReferenceFacts(Facts):
    """Properties of the reference.

    Attributes:
        decayed: parameters that weight decay applies to.
        saturation: by attention module, the share of R64's rows whose other positions together get less than
            :data:`SATURATED_BELOW`.
        bucket_slack: by LSH module, how small a margin rounding can turn around in float32.
        relu_moved: by ReLU, the most that rounding moves an input, in units of float32's.
        bucket_slack_lowered, relu_moved_lowered: the same in bfloat16.
        choice_moved: as ``relu_moved``, for the scores of a choice (argmax, top-k, sort), by module.
        first_nan: the operation of a pair's R64 that is the first to give NaN, with its line.
        read: by output of a pair's step, the share of its rows (vectors along the last axis) that the loss depends on,
            by R64's gradient; 0 of an output that the model itself returns.
        read_beside: names of such outputs of several tensors if the loss depends on another tensor than the first.
    """

    decayed: list[str] = field(default_factory=list)
    saturation: dict[str, float] = field(default_factory=dict)
    bucket_slack: dict[str, float] = field(default_factory=dict)
    relu_moved: dict[str, float] = field(default_factory=dict)
    bucket_slack_lowered: dict[str, float] = field(default_factory=dict)
    relu_moved_lowered: dict[str, float] = field(default_factory=dict)
    choice_moved: dict[str, float] = field(default_factory=dict)
    first_nan: str = ""
    read: dict[str, float] = field(default_factory=dict)
    read_beside: list[str] = field(default_factory=list)


@dataclass
class CandidateFacts(Facts):
    """Properties of the port; by module, the differences of its buckets, ReLU signs and other choices from R64's."""

    bucket_flips: dict[str, Flips] = field(default_factory=dict)
    relu_flips: dict[str, Flips] = field(default_factory=dict)
    choice_flips: dict[str, Flips] = field(default_factory=dict)


@dataclass
class Execution:
    """How a worker ran: versions by package, flags by name, seconds, peak memory in bytes, and of a pair the user's
    files that it imported."""

    versions: dict[str, str] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int | None = None
    imported: list[str] = field(default_factory=list)


@dataclass
class ReferenceResult:
    """Measurements of the reference's worker.

    Attributes:
        tensors: every tensor of R64 in the order of execution (gradients: of the parameters), with the noise baseline.
        parameters: name -> shape.
        buffers: names of its tensors that are not parameters, which are not compared.
        leaks: source lines that would have computed in float32 in a float64 model, and were prevented.
        narrowings: source lines that left float64 all the same.
        own_loss: the loss compared with its definition; None if it was not checked.
        saturated_rows: number of attention rows with only masked scores.
        unhooked: names of tensors that hooks change.
        own_backward: dtype -> gradient -> how far the reference's own backward lies from plain autograd.
        streamed: whether it ran stage by stage.
        tokens: of every text of the job.
        accept: known differences of a pair, from its map.
    """

    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    parameters: dict[str, list[int]] = field(default_factory=dict)
    buffers: list[str] = field(default_factory=list)
    facts: ReferenceFacts = field(default_factory=ReferenceFacts)
    leaks: list[str] = field(default_factory=list)
    narrowings: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    own_loss: OwnLoss | None = None
    saturated_rows: int = 0
    unhooked: list[str] = field(default_factory=list)
    own_backward: dict[str, dict[str, float]] = field(default_factory=dict)
    streamed: bool = False
    tokens: list[Tokens] | None = None
    accept: dict[str, KnownDifference] = field(default_factory=dict)
    execution: Execution = field(default_factory=Execution)


@dataclass
class TrajectoryFacts:
    """Facts about the training of a side, in addition to its trajectories.

    Attributes:
        runs: of the reference, by dtype.
        order: of the reference, its parameters.
        optimizer: of the port.
    """

    runs: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    optimizer: Place = field(default_factory=lambda: Place("", ""))


@dataclass(frozen=True)
class FirstDivergence:
    """Where a port leaves the band first: the tensor (``loss``, ``gradient:NAME``, ``updated:NAME``) of a step."""

    dtype: str
    step: int
    name: str
    message: str


@dataclass
class Training:
    """Independent training of a pair's two sides.

    Attributes:
        losses: of each step, ``R64``, ``P64`` and ``P32``.
        bands: by dtype, how far from R64's the port's loss of each step may be; None if it is not finite.
        compared: by dtype, the number of steps with finite values of the reference.
        margins: by dtype, the largest of any tensor before a parting, in units of its bound.
        partings: at most one by dtype.
        optimizer: the port's.
    """

    steps: int
    optimizer: Place
    losses: dict[str, list[float]] = field(default_factory=dict)
    bands: dict[str, list[float | None]] = field(default_factory=dict)
    compared: dict[str, int] = field(default_factory=dict)
    margins: dict[str, float] = field(default_factory=dict)
    partings: list[FirstDivergence] = field(default_factory=list)


@dataclass
class RoundedConstants:
    """Effect of rounding a reference's constants to float32.

    Attributes:
        tensors: by name, the distance from R64 as noise of float64.
        constants: by its key, each that moves any as ``operation constant (file.py:LINE)``.
    """

    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Class of a module of the port, and the source lines that make and define it. For other code, such as a
    tokenizer's method: its name and source location."""

    kind: str
    where: str


@dataclass
class ReplayError:
    """A gradient of the backward that computes layers again, with the port's own draws: its difference from plain
    autograd's, and how large that is."""

    error: TensorStats
    size: TensorStats


@dataclass(frozen=True)
class OutputDifference:
    """How an output of a pair's port that differs from R64's relates to it.

    Attributes:
        shared: common part of the two: ``rows``, ``columns``, ``numbers``, or ``""`` if nothing is common
            (:mod:`toolkit.parity.measure.same_numbers`).
        unread: number of differing elements, or of rows or columns in another order, that the loss does not depend on.
            None if the shapes differ, or for an output of an evaluation, which has no gradient.
    """

    shared: str
    unread: int | None


@dataclass
class CandidateDtype:
    """Measurements of the port in one dtype.

    Attributes:
        tensors: name -> the difference from R64, with the port's own shape.
        parameter_errors: largest difference of each of the port's parameters from the given parameter.
        constant_errors: error of its own constants, in units of rounding of the inputs of their computation.
        draw_problems: description of each wrong request for a draw, by the draw's name.
        unused_draws: draws of the reference that it never asked for.
        hooks_change_nothing: whether a run without hooks, as in training, is the same bit for bit.
        unwatched: if not, the distance of its loss and gradients from R64.
        recomputed, replay: gradient -> distance of a backward that recomputes layers from plain autograd, with the
            recorded draws and with the port's own generator.
        plain: gradient -> distance of plain autograd's from R64; empty if ``tensors`` has these already.
        places: places of its modules, and other places by tensor name, kind or verdict.
        apart: of hidden states, logits and loss stage by stage, the distance from the reference in the same dtype.
        differing_outputs: of a pair's outputs with another shape or other numbers, how they differ.
    """

    tensors: dict[str, TensorStats] = field(default_factory=dict)
    parameter_errors: dict[str, float] = field(default_factory=dict)
    constant_errors: dict[str, float] = field(default_factory=dict)
    draw_problems: dict[str, str] = field(default_factory=dict)
    unused_draws: list[str] = field(default_factory=list)
    facts: CandidateFacts = field(default_factory=CandidateFacts)
    hooks_change_nothing: bool = True
    unwatched: dict[str, TensorStats] = field(default_factory=dict)
    recomputed: dict[str, TensorStats] = field(default_factory=dict)
    replay: dict[str, ReplayError] = field(default_factory=dict)
    plain: dict[str, TensorStats] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)
    apart: dict[str, TensorStats] = field(default_factory=dict)
    differing_outputs: dict[str, OutputDifference] = field(default_factory=dict)


@dataclass
class DrawStats:
    """Counts of one module's random draws.

    Attributes:
        shape: shape of each draw.
        draws: number of draws.
        neighbours: by axis, counted from the last as -1: for masks, the number of rare cells with a rare neighbor,
            and the number of rare neighbors; for rotations, the sum of the products and the sum of the neighbors'
            squares.
        modules, steps: likewise, with the previous draw of equal shape as the neighbor, or the module's draw of the
            previous step.
        problems: deviations that chance does not explain.
    """

    shape: list[int]
    draws: int = 0
    neighbours: dict[str, list[float]] = field(default_factory=dict)
    modules: list[float] = field(default_factory=lambda: [0, 0])
    steps: list[float] = field(default_factory=lambda: [0, 0])
    problems: list[str] = field(default_factory=list)


@dataclass
class MaskStats(DrawStats):
    """Counts of dropout masks.

    Attributes:
        rate: of dropped cells, as asked for.
        rare: number of cells in the rarer state, and of all.
    """

    rate: float = 0.0
    rare: list[float] = field(default_factory=lambda: [0, 0])


@dataclass
class RotationStats(DrawStats):
    """Of normal numbers: ``count``, ``sum``, sum of ``squares``, how many lie ``beyond`` a magnitude of :data:`BEYOND`;
    ``seeded`` numbers are the same each time."""

    seeded: bool = False
    count: int = 0
    sum: float = 0.0
    squares: float = 0.0
    beyond: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, BEYOND), 0))


@dataclass
class GeneratorStats:
    """Counts of all draws of a few training steps, by name, and of ``sequences`` of masks outside of modules."""

    masks: dict[str, MaskStats] = field(default_factory=dict)
    rotations: dict[str, RotationStats] = field(default_factory=dict)
    sequences: dict[str, MaskStats] = field(default_factory=dict)


@dataclass
class NewWeights:
    """Newly initialized parameters of both sides, by name; ``place`` is the file that initializes the port's."""

    place: str = ""
    parameters: dict[str, NewValues] = field(default_factory=dict)


@dataclass
class PortResult:
    """Measurements of the port; ``loading_problems``: parameters that its loader and the reference's read
    differently from the checkpoint, with the difference; ``loops``: errors of its compiled loops in isolation."""

    dtypes: dict[str, CandidateDtype] = field(default_factory=dict)
    generators: GeneratorStats = field(default_factory=GeneratorStats)
    loading_problems: dict[str, str] = field(default_factory=dict)
    new_weights: NewWeights = field(default_factory=NewWeights)
    tokens: list[Tokens] | None = None
    loops: list[LoopError] = field(default_factory=list)


@dataclass
class MutantResult(PortResult):
    """Results with a fault in force: ``dtypes`` and ``generators``, only ``tokens``, only ``loading_problems`` or only
    ``new_weights``, and ``loops``; or the error ``raised``. ``moved``: for a pair, the distance of the loss and each
    gradient from the values without the fault."""

    raised: str | None = None
    moved: dict[str, TensorStats] = field(default_factory=dict)


@dataclass(frozen=True)
class Judged:
    """Description of the port and the trainer that were judged for a run.

    Attributes:
        device, threads: of its step; with others its last digits differ.
        examples: number of the run's first examples in the step; they fit into one micro-batch.
        length: number of tokens of each.
        fields: name of a field -> its value, written out.
        step: ``loss`` or a parameter's name -> digest of the loss or of the gradient, of one step with the generators'
            own draws from the run's seed.
    """

    device: str
    threads: int
    examples: int
    length: int
    fields: dict[str, str]
    step: dict[str, str]


@dataclass
class CandidateResult(PortResult):
    """Measurements of the port's worker; ``tokenizer_places``: the method behind each ``tokenizer:...``; ``leaks``:
    source lines of a pair's port that would have left float64, and were kept from it; ``limited_lines``: source lines
    whose losses were compared without the limit of Paddle's kernels; ``judged``: the port that the following run
    trains, if there is a run."""

    mutants: dict[str, MutantResult] = field(default_factory=dict)
    tokenizer_places: dict[str, Place] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    limited_lines: list[str] = field(default_factory=list)
    judged: Judged | None = None
    execution: Execution = field(default_factory=Execution)


@dataclass
class FunctionCall:
    """A call of one of Paddle's functions by a user's port.

    Attributes:
        function: its name.
        where: the port's line that leads to it.
        inputs: the calls that its tensors come from, by their number. Tensors of other origin do not count: the batch,
            a parameter, R64's own replacements.
        layer: Paddle's own layer that is running, by the reference's name; empty without such a layer.
        taken: number of its input tensors. A call without input tensors creates a constant.
        result: fingerprint of its output.
    """

    function: str
    where: str
    inputs: list[int]
    layer: str
    taken: int
    result: Fingerprint | None


@dataclass
class Fingerprints:
    """Fingerprints of a pair's R64: of its batch, parameters, buffers and all results in its forward; by module, of
    the first tensor that it is given at its first call; and of the inputs of a loss in a single kernel."""

    results: list[Fingerprint] = field(default_factory=list)
    inputs: dict[str, Fingerprint] = field(default_factory=dict)
    taken_by_losses: list[Fingerprint] = field(default_factory=list)


@dataclass
class ForcedInputDtype:
    """The port operation by operation on R64's own input: the error of each, the source line of each that is no
    module's, the places of the rest (:attr:`CandidateDtype.places`), and the buckets that differ from R64's. Of a
    user's port in float64 also every call in order, the number of the call that computed a tensor, and by the name of a
    module's input the line that calls the module."""

    tensors: dict[str, TensorStats]
    lines: dict[str, str]
    modules: dict[str, Place]
    bucket_flips: dict[str, Flips] = field(default_factory=dict)
    calls: list[FunctionCall] = field(default_factory=list)
    computed_by: dict[str, int] = field(default_factory=dict)
    entered_at: dict[str, str] = field(default_factory=dict)


@dataclass
class ForcedInputResult:
    """By dtype; and by mutant, likewise."""

    dtypes: dict[str, ForcedInputDtype] = field(default_factory=dict)
    mutants: dict[str, dict[str, ForcedInputDtype]] = field(default_factory=dict)


@dataclass
class AttributionResult:
    """Distance of each tensor of P32 from R64 with one part replaced, by the part; only parts that the model uses.

    Attributes:
        kernels: by kind of kernel, of :data:`.kernel_messages.KINDS`, that is the reference's.
        loops: by compiled loop, of :data:`models.operations.compiled.LOOPS`, that is composed of Paddle's operations.
    """

    kernels: dict[str, dict[str, TensorStats]] = field(default_factory=dict)
    loops: dict[str, dict[str, TensorStats]] = field(default_factory=dict)


@dataclass
class BitwiseResult:
    """The port's float32 step with the reference's kernels, against R32.

    Attributes:
        tensors: in the order of execution.
        extra: names missing in R32.
        calls: how often each kernel was asked for.
    """

    tensors: dict[str, BitDifference]
    extra: list[str]
    calls: dict[str, int]
    places: dict[str, Place]
    execution: Execution = field(default_factory=Execution)


def read_results(job: Path, task: str = files.RESULT) -> tuple[ReferenceResult, CandidateResult]:
    """Return the measurements of both workers of a job. Raises ValueError if a file is invalid."""
    return read_reference(job, task), files.read(files.result_path(job, "candidate", task), CandidateResult)


def read_reference(job: Path, task: str = files.RESULT) -> ReferenceResult:
    """Return the measurements of the reference's worker."""
    return files.read(files.result_path(job, "reference", task), ReferenceResult)
