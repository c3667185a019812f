"""Results of the workers: the content of ``result.json`` and of the result files of follow-ups."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.parity.exchange import files
from toolkit.parity.job.pair import KnownDifference
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.fingerprint import Fingerprint
from toolkit.parity.measure.initial_values import NewValues
from toolkit.parity.measure.loop_accuracy import LoopError
from toolkit.parity.measure.ulp import BitDifference

#: Sum of all attention weights of a row except the largest, below which the row counts as saturated. Float32 then has
#: at most 4 bits for these weights.
SATURATED_BELOW = 2.0**-20
#: Magnitudes for the counts of normal numbers with a larger magnitude (:attr:`RotationStats.beyond`).
BEYOND = (1, 2, 3)


@dataclass(frozen=True)
class Note:
    """A note in the report, which is not a finding.

    Attributes:
        kind: key of :data:`toolkit.parity.judge.notes.TEXTS`, which has the text.
        data: values that the text of the note contains, by their names in the text.
    """

    kind: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass
class Tokens:
    """The output of one side's tokenizer for a text.

    Attributes:
        text: input of the tokenizer.
        ids: token ids of the text.
        decoded: text that the ids decode to.
        right: ids and attention mask with padding on the right; empty if padding is not compared.
        left: ids and attention mask with padding on the left; empty if padding is not compared.
        offsets: id, first character and end of each token; None if offsets are not compared.
        error: error that the tokenizer raised; None if it raised none.
        starts: first characters of the port's tokens in a text that is too long for a message. They are not compared.
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
    """R64's loss, compared with the loss that the definition gives for its logits.

    Attributes:
        given: loss that the reference returned.
        defined: loss computed from the reference's logits by its definition.
        units: difference of the two in units of float64 rounding.
        allowed: largest allowed difference in units of float64 rounding.
        place: source location that computes the reference's loss.
    """

    given: float
    defined: float
    units: float
    allowed: float
    place: str


@dataclass
class Flips:
    """Discrete choices of a module of the port that differ from R64's choices.

    Attributes:
        count: number of different choices.
        of: number of all choices.
        largest_margin: largest margin, among the different choices, by which R64 preferred its own choice.
        shape: shape of the port's choices if it differs, so that they cannot be compared; None otherwise.
    """

    count: int = 0
    of: int = 0
    largest_margin: float = 0.0
    shape: list[int] | None = None


@dataclass
class Facts:
    """Properties of one side in addition to its tensors.

    Attributes:
        epsilons: epsilon of each layer norm, by module.
        num_buckets: number of buckets of the model's LSH attention; None for a model without LSH attention.
    """

    epsilons: dict[str, float] = field(default_factory=dict)
    num_buckets: Any = None


@dataclass
class ReferenceFacts(Facts):
    """Properties of the reference in addition to its tensors.

    Attributes:
        decayed: names of parameters with weight decay.
        saturation: share of R64's saturated rows (:data:`SATURATED_BELOW`), by attention module.
        bucket_slack: largest margin between two buckets that rounding can reverse in float32, by LSH module.
        relu_moved: largest change of an input by rounding, in units of float32, by ReLU module.
        bucket_slack_lowered: the same as ``bucket_slack`` in bfloat16.
        relu_moved_lowered: the same as ``relu_moved`` in bfloat16.
        choice_moved: largest change of the scores of a choice (argmax, top-k, sort) by rounding, in units of float32,
            by module.
        first_nan: first operation of a pair's R64 that returns NaN, with its source line; empty if there is none.
        read: share of the rows (vectors along the last axis) that the loss depends on according to R64's gradient, by
            output of a pair's step; 0 for an output that the model itself returns.
        read_beside: names of outputs with several tensors if the loss depends on another tensor than the first.
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
    """Properties of the port in addition to its tensors.

    Attributes:
        bucket_flips: LSH buckets that differ from R64's, by module.
        relu_flips: signs of ReLU inputs that differ from R64's, by module.
        choice_flips: other discrete choices that differ from R64's, by module.
    """

    bucket_flips: dict[str, Flips] = field(default_factory=dict)
    relu_flips: dict[str, Flips] = field(default_factory=dict)
    choice_flips: dict[str, Flips] = field(default_factory=dict)


@dataclass
class Execution:
    """Facts about a worker's process.

    Attributes:
        versions: version of each package, by name.
        flags: value of each flag of the framework, by name.
        seconds: duration of the measurement in seconds.
        peak_bytes: peak memory of the process in bytes; None if it is not known.
        imported: paths of the user's files that the worker of a pair imported.
    """

    versions: dict[str, str] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int | None = None
    imported: list[str] = field(default_factory=list)


@dataclass
class ReferenceResult:
    """Measurements of the reference's worker.

    Attributes:
        tensors: record of each tensor of R64 with its noise, by name, in execution order.
        parameters: shape of each parameter, by name.
        buffers: names of the model's buffers that are not compared.
        facts: properties of the reference in addition to its tensors.
        leaks: source lines that would have computed in float32 in a float64 model; the gate kept them in float64.
        narrowings: source lines that computed in less than float64, which the gate could not prevent.
        notes: notes for the report.
        own_loss: the loss compared with its definition; None if it was not checked.
        saturated_rows: number of attention rows with only masked scores.
        unhooked: names of tensors that differ in any bit in a run without hooks.
        own_backward: distance of the reference's own backward from plain autograd, by dtype and gradient.
        streamed: whether the reference ran stage by stage.
        tokens: tokens of every text of the job; None if no tokenizer is compared.
        accept: known differences of a pair, by the pattern of tensor names in its map.
        execution: facts about the process.
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
    """Facts about the training of one side of a pair, in addition to its trajectories.

    A trajectory is the loss and some elements of each gradient and parameter in each step.

    Attributes:
        runs: number of the reference's runs, by dtype.
        order: names of the reference's parameters, in execution order.
        optimizer: class and source location of the port's optimizer.
    """

    runs: dict[str, int] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    optimizer: Place = field(default_factory=lambda: Place("", ""))


@dataclass(frozen=True)
class FirstDivergence:
    """The first tensor of a training in which a port differs from R64 by more than the bound.

    Attributes:
        dtype: dtype of the port's training.
        step: number of the step, from 1.
        name: name of the tensor: ``loss``, ``gradient:NAME`` or ``updated:NAME``.
        message: description of the difference.
    """

    dtype: str
    step: int
    name: str
    message: str


@dataclass
class Training:
    """Comparison of the independent training of a pair's two sides.

    Attributes:
        steps: number of steps.
        optimizer: class and source location of the port's optimizer.
        losses: loss of each step, by run: ``R64``, ``P64`` and ``P32``.
        bands: largest allowed distance of the port's loss from R64's in each step, by dtype; None if it is not finite.
        compared: number of steps with finite values of the reference, by dtype.
        margins: largest error of any tensor before the first divergence, in units of its bound, by dtype.
        partings: first divergences, at most one for each dtype.
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
    """Effect of rounding constants in a pair's reference to float32.

    Attributes:
        tensors: distance of each tensor from R64 as noise of float64, by name.
        constants: description ``operation constant (file.py:LINE)`` of each constant that moves a tensor, by the
            constant's key.
    """

    tensors: dict[str, TensorRecord] = field(default_factory=dict)
    constants: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Place:
    """Source location of a module of the port, or of other code such as a tokenizer's method.

    Attributes:
        kind: class of the module, or name of the other code.
        where: source lines that create and define the module, or the source location of the other code.
    """

    kind: str
    where: str


@dataclass
class ReplayError:
    """Error of a gradient in the recomputing backward with the port's own draws.

    The recomputing backward computes layers again instead of storing their activations.

    Attributes:
        error: difference from the gradient of plain autograd.
        size: figures of the gradient of plain autograd.
    """

    error: TensorStats
    size: TensorStats


@dataclass(frozen=True)
class OutputDifference:
    """Relation of a module's output in a pair's port to R64's output, if the two differ.

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
        tensors: difference of each tensor from R64, with the port's shape, by name.
        parameter_errors: largest difference of each of the port's parameters from the reference's, by name.
        constant_errors: error of each of the port's own constants, in units of rounding of the constant's inputs.
        draw_problems: description of each wrong request for a draw, by the draw's name.
        unused_draws: names of draws of the reference that the port did not request.
        facts: properties of the port in addition to its tensors.
        hooks_change_nothing: whether a run without hooks, as in training, is equal bit for bit.
        unwatched: difference of the loss and the gradients from R64 in the run without hooks, by name; empty if
            ``hooks_change_nothing``.
        recomputed: distance of the recomputing backward from plain autograd with replayed draws, by gradient.
        replay: the same distance with the draws of the port's own generator, by gradient.
        plain: distance of plain autograd from R64, by gradient; empty if ``tensors`` has these gradients.
        places: source locations of modules by path, and other locations by tensor name, kind or verdict.
        apart: distance of hidden states, logits and loss from the reference in the same dtype, by name. Only for a
            model that is compared stage by stage.
        differing_outputs: relation to R64's output of each output with another shape or other numbers, by name; only
            for a pair.
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
    """Counts that describe the random draws of one module.

    The counts show correlations. Cells are rare if they are in the state, dropped or kept, that fewer cells have.

    Attributes:
        shape: shape of each draw.
        draws: number of draws.
        neighbors: two counts for each axis, by the axis counted from the last as `-1`. For masks: the number of rare
            cells with a rare neighbor, and the number of rare neighbors. For rotations: the sum of the products of
            neighbors, and the sum of the neighbors' squares.
        modules: the same two counts, with the previous draw of equal shape as the neighbor.
        steps: the same two counts, with the module's draw of the previous step as the neighbor.
        problems: descriptions of deviations that chance does not explain.
    """

    shape: list[int]
    draws: int = 0
    neighbors: dict[str, list[float]] = field(default_factory=dict)
    modules: list[float] = field(default_factory=lambda: [0, 0])
    steps: list[float] = field(default_factory=lambda: [0, 0])
    problems: list[str] = field(default_factory=list)


@dataclass
class MaskStats(DrawStats):
    """Counts that describe dropout masks.

    Attributes:
        rate: requested share of dropped cells.
        rare: number of cells in the rarer state, and number of all cells.
    """

    rate: float = 0.0
    rare: list[float] = field(default_factory=lambda: [0, 0])


@dataclass
class RotationStats(DrawStats):
    """Counts that describe the normal numbers of random rotations.

    Attributes:
        seeded: whether a fixed seed makes the numbers the same each time.
        count: number of numbers.
        sum: sum of the numbers.
        squares: sum of the squares.
        beyond: number of numbers whose magnitude is larger, by each magnitude of :data:`BEYOND` as text.
    """

    seeded: bool = False
    count: int = 0
    sum: float = 0.0
    squares: float = 0.0
    beyond: dict[str, int] = field(default_factory=lambda: dict.fromkeys(map(str, BEYOND), 0))


@dataclass
class GeneratorStats:
    """Counts of all random draws in a few training steps of the port.

    Attributes:
        masks: counts of dropout masks, by the draw's name.
        rotations: counts of random rotations, by the draw's name.
        sequences: counts of sequences of masks that are drawn outside of modules, by name.
    """

    masks: dict[str, MaskStats] = field(default_factory=dict)
    rotations: dict[str, RotationStats] = field(default_factory=dict)
    sequences: dict[str, MaskStats] = field(default_factory=dict)


@dataclass
class NewWeights:
    """Comparison of the newly initialized parameters of both sides.

    Attributes:
        place: source file that initializes the port's parameters.
        parameters: statistics of each parameter's values, by name.
    """

    place: str = ""
    parameters: dict[str, NewValues] = field(default_factory=dict)


@dataclass
class PortResult:
    """Measurements of the port, with or without a mutant.

    Attributes:
        dtypes: measurements of the step, by dtype.
        generators: counts of the port's own random draws.
        loading_problems: description of each parameter that the port and the reference load differently from the
            checkpoint, by name.
        new_weights: comparison of the newly initialized parameters.
        tokens: tokens of every text of the job; None if no tokenizer is compared.
        loops: errors of the compiled loops in isolation.
    """

    dtypes: dict[str, CandidateDtype] = field(default_factory=dict)
    generators: GeneratorStats = field(default_factory=GeneratorStats)
    loading_problems: dict[str, str] = field(default_factory=dict)
    new_weights: NewWeights = field(default_factory=NewWeights)
    tokens: list[Tokens] | None = None
    loops: list[LoopError] = field(default_factory=list)


@dataclass
class MutantResult(PortResult):
    """Measurements of the port with a mutant, which is a deliberate fault.

    Only the measurements that can show the fault are filled.

    Attributes:
        raised: error that the port raised; None if it raised none.
        moved: distance of a pair's loss and gradients from their values without the fault, by name.
    """

    raised: str | None = None
    moved: dict[str, TensorStats] = field(default_factory=dict)


@dataclass(frozen=True)
class JudgedTrainer:
    """Description of the port and the trainer that a gate has judged for a run.

    The run compares it with its own port and trainer.

    Attributes:
        device: device of the step, which changes the last digits.
        threads: number of threads of the step, which changes the last digits.
        examples: number of the run's first examples in the step; they fit into one micro-batch.
        length: number of tokens of each example.
        fields: value of each field as text, by name.
        step: digest of the loss (key ``loss``) and of each parameter's gradient (key: its name) in one step with the
            generators' own draws from the run's seed.
    """

    device: str
    threads: int
    examples: int
    length: int
    fields: dict[str, str]
    step: dict[str, str]


@dataclass
class CandidateResult(PortResult):
    """Measurements of the port's worker.

    Attributes:
        mutants: measurements with each mutant, by the mutant's name.
        tokenizer_places: source location of the port's method behind each finding ``tokenizer:...``, by the finding's
            name.
        leaks: source lines of a pair's port that would have left float64; the gate kept them in float64.
        limited_lines: source lines whose losses were compared without the limit of Paddle's kernels.
        judged: the port and trainer that the gate judges for the following run; None if no run follows.
        execution: facts about the process.
    """

    mutants: dict[str, MutantResult] = field(default_factory=dict)
    tokenizer_places: dict[str, Place] = field(default_factory=dict)
    leaks: list[str] = field(default_factory=list)
    limited_lines: list[str] = field(default_factory=list)
    judged: JudgedTrainer | None = None
    execution: Execution = field(default_factory=Execution)


@dataclass
class FunctionCall:
    """A call of one of Paddle's functions by a user's port.

    Attributes:
        function: name of the function.
        where: source line of the port that leads to the call.
        inputs: numbers of the earlier calls that computed the input tensors. Other tensors do not count: the batch,
            parameters and R64's replacements.
        layer: reference's name of the layer of Paddle's own that is running; empty if there is none.
        taken: number of input tensors. A call without input tensors creates a constant.
        result: fingerprint of the output; None if it has none.
    """

    function: str
    where: str
    inputs: list[int]
    layer: str
    taken: int
    result: Fingerprint | None


@dataclass
class Fingerprints:
    """Fingerprints of the results in a pair's R64, short summaries to recognize equal tensors by.

    Attributes:
        results: fingerprints of the batch, the parameters, the buffers and all results of the forward.
        inputs: fingerprint of the first input tensor of each module's first call, by module.
        taken_by_losses: fingerprints of the inputs of losses that are computed in a single kernel.
    """

    results: list[Fingerprint] = field(default_factory=list)
    inputs: dict[str, Fingerprint] = field(default_factory=dict)
    taken_by_losses: list[Fingerprint] = field(default_factory=list)


@dataclass
class ForcedInputDtype:
    """Measurements of the port's operations in isolation in one dtype, each on R64's own input.

    The last three attributes are only filled for a user's port in float64.

    Attributes:
        tensors: error of each operation's tensor, by name.
        lines: source line of each operation that is not a module, by name.
        modules: source locations of the modules (:attr:`CandidateDtype.places`).
        bucket_flips: buckets that differ from R64's, by LSH module.
        calls: calls of Paddle's functions, in order.
        computed_by: number of the call that computed each tensor, by name.
        entered_at: source line that calls each module, by the name of the module's input.
    """

    tensors: dict[str, TensorStats]
    lines: dict[str, str]
    modules: dict[str, Place]
    bucket_flips: dict[str, Flips] = field(default_factory=dict)
    calls: list[FunctionCall] = field(default_factory=list)
    computed_by: dict[str, int] = field(default_factory=dict)
    entered_at: dict[str, str] = field(default_factory=dict)


@dataclass
class ForcedInputResult:
    """Measurements of the port's operations in isolation, each on R64's own input.

    Attributes:
        dtypes: measurements without a fault, by dtype.
        mutants: measurements with each mutant, by the mutant's name and the dtype.
    """

    dtypes: dict[str, ForcedInputDtype] = field(default_factory=dict)
    mutants: dict[str, dict[str, ForcedInputDtype]] = field(default_factory=dict)


@dataclass
class AttributionResult:
    """Distances of P32's tensors from R64 with one part of the port replaced at a time.

    Only parts that the model uses are included.

    Attributes:
        kernels: distances by tensor, by the kind of kernels (:data:`.kernel_messages.KINDS`) that the reference
            computes.
        loops: distances by tensor, by the compiled loop (:data:`models.operations.compiled.LOOPS`) that is composed of
            Paddle's operations.
    """

    kernels: dict[str, dict[str, TensorStats]] = field(default_factory=dict)
    loops: dict[str, dict[str, TensorStats]] = field(default_factory=dict)


@dataclass
class BitwiseResult:
    """Comparison of the port's float32 step, computed with the reference's kernels, with R32.

    Attributes:
        tensors: difference of each tensor from R32, by name, in execution order.
        extra: names of tensors that R32 lacks.
        calls: number of calls of each of the reference's kernels, by the kernel's name.
        places: class and source line of each module of the port, by path.
        execution: facts about the process.
    """

    tensors: dict[str, BitDifference]
    extra: list[str]
    calls: dict[str, int]
    places: dict[str, Place]
    execution: Execution = field(default_factory=Execution)


def read_results(job: Path, task: str = files.RESULT) -> tuple[ReferenceResult, CandidateResult]:
    """Return the measurements of both workers of a job.

    Args:
        job: folder of the job.
        task: task of the workers.

    Raises:
        ValueError: a file is invalid.
    """
    return read_reference(job, task), files.read(files.result_path(job, "candidate", task), CandidateResult)


def read_reference(job: Path, task: str = files.RESULT) -> ReferenceResult:
    """Return the measurements of the reference's worker.

    Args:
        job: folder of the job.
        task: task of the worker.

    Raises:
        ValueError: the file is invalid.
    """
    return files.read(files.result_path(job, "reference", task), ReferenceResult)
