"""The operation trace, which finds the operations of the port that are wrong in isolation.

In a free run an error spreads to everything that is computed from it. In the trace each operation and module of the
port receives R64's own input, in the forward and in the backward, so it has only its own error. The error is judged
like any tensor of the gate. The noise baseline is the reference's float32 error in the same operation, on the same
input.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from toolkit.errors import Inconclusive
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import Fingerprints, ForcedInputDtype, ForcedInputResult, read_reference
from toolkit.parity.followup.functions import find_faulty_function, leads_to_right_numbers
from toolkit.parity.job.job import Job
from toolkit.parity.judge.bounds import Comparison, compare, is_lost, is_measured
from toolkit.parity.judge.findings import ALONE, OF_TENSORS, Finding, Verdict
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.naming import TensorName, is_gradient
from toolkit.parity.processes.processes import run_workers

#: Largest number of faulty operations that the report shows.
MAX_SHOWN = 6
#: Name of the dtype of mixed precision. The products before LSH hashing are computed in it.
MIXED_PRECISION_DTYPE = "bfloat16"
#: Name of the task of both workers that measures the operations.
TASK = "forced_input"


@dataclass(frozen=True)
class FaultyOp:
    """An operation of the port that is wrong in isolation.

    Attributes:
        name: name of the operation's tensor: ``scores:MODULE`` or ``output:MODULE``, with ``gradient:`` in front for
            the backward into it; ``gradient:input:MODULE`` for the backward of a module; ``gradient:PARAMETER``; or
            ``loss``.
        where: source line of the port.
        dtype: dtype of the port's run.
        message: description of the error.
        margin: error in units of its bound; infinite without a bound.
        function: function of a user's port between two modules that is wrong, at the line ``where``; otherwise empty.
    """

    name: str
    where: str
    dtype: str
    message: str
    margin: float = math.inf
    function: str = ""

    def text(self) -> str:
        """Return a line for the report: the operation in words, its source line and its error."""
        return f"{self.what}{f' ({self.where})' if self.where else ''}: {self.message}"

    @property
    def what(self) -> str:
        """Name of the operation in words, such as ``the backward of encoder.layers.0``."""
        return (
            f"{self.function}, on the way to {describe_operation(self.name)},"
            if self.function
            else describe_operation(self.name)
        )


@dataclass(frozen=True)
class OperationTrace:
    """The result of an operation trace.

    Attributes:
        compared: number of compared tensors.
        alone: names of tensors that only one side has.
        not_finite: number of tensors that are not finite in the reference, by dtype.
        faulty: faulty operations in execution order.
        worst: largest error of a correct operation, in units of its bound.
        problem: reason why there is no trace; None if there is one.
        interfaces: modules of the reference whose outputs the port holds in another form, without a fault in them.
    """

    compared: int = 0
    alone: list[str] = field(default_factory=list)
    not_finite: dict[str, int] = field(default_factory=dict)
    faulty: list[FaultyOp] = field(default_factory=list)
    worst: float = 0.0
    problem: str | None = None
    interfaces: list[str] = field(default_factory=list)


def describe_operation(name: str) -> str:
    """Return an operation in words, given the name of its tensor.

    For example: ``scores:MODULE`` -> ``scores of MODULE``, and ``gradient:scores:MODULE`` -> ``the backward into scores
    of MODULE``.
    """
    tensor_name = TensorName.parse(name)
    if tensor_name.gradient_of == "input":
        return f"the backward of {tensor_name.module}{tensor_name.call}"
    if tensor_name.gradient_of:
        return f"the backward into {describe_operation(name.removeprefix('gradient:'))}"
    module = tensor_name.module + tensor_name.call
    if tensor_name.kind == "gradient":
        return f"the gradient of {module}"
    return f"{tensor_name.kind.replace('_', ' ')} of {module}" if tensor_name.module else name


def trace_operations(
    job: Path, verdict: Verdict, console: Console, interpreters: Mapping[str, str], *, is_requested: bool
) -> OperationTrace | None:
    """Return the operation trace of a job that both workers have run.

    Return None unless a tensor of the step differs or the trace is requested.

    Args:
        job: folder of the job.
        verdict: verdict of the gate.
        is_requested: whether to trace a port without a difference, too.
        console: console for progress.
        interpreters: interpreter of each side.
    """
    if not (is_requested or is_wanted(verdict)):
        return None
    if (content := files.read_job(job)).spare_memory and content.pair is None:
        reason = "the text is too long for all of its tensors to be kept; take a shorter one (--length)"
        return OperationTrace(problem=reason)
    moved_outputs = _moved_outputs(content, verdict)
    try:
        [(reference, candidate)] = _measure_with(job, content, moved_outputs, console, interpreters)
        if verdict.findings and moved_outputs:
            ours, theirs = candidate.dtypes.get("float64"), fingerprints_of(job)
            confirmed_outputs = {
                name: one
                for name, one in moved_outputs.items()
                if one.is_padded or (ours and theirs and leads_to_right_numbers(one.name_of_port, ours, theirs))
            }
            if confirmed_outputs.keys() != moved_outputs.keys():  # in the others the fault may lie
                [(reference, candidate)] = _measure_with(job, content, confirmed_outputs, console, interpreters)
            moved_outputs = confirmed_outputs
    except Inconclusive as error:
        return OperationTrace(problem=str(error))
    slack = read_reference(job).facts.bucket_slack
    resized_outputs = [one.name_of_port for one in moved_outputs.values() if one.is_resized]
    operation_trace = summarize_trace(reference, candidate.dtypes, slack, fingerprints_of(job), resized_outputs)
    return replace(operation_trace, interfaces=sorted(moved_outputs))


@dataclass(frozen=True)
class MovedOutput:
    """An output of a pair whose numbers the port holds at other positions, or that the verdict has set aside.

    Attributes:
        name_of_port: name of the output in the port if its module has no counterpart.
        is_resized: whether the port's output has another shape.
        is_padded: whether the output also holds rows of padding (:attr:`.findings.Verdict.padded_outputs`).
    """

    name_of_port: str
    is_resized: bool
    is_padded: bool


def _moved_outputs(job_content: Job, verdict: Verdict) -> dict[str, MovedOutput]:
    """Return the moved outputs of a job's step, by the reference's path of their modules.

    Args:
        job_content: content of the job.
        verdict: verdict of the gate.
    """
    if job_content.pair is None or job_content.pair.map is None:
        return {}
    findings = {finding.name: finding.verdict for finding in (*verdict.findings, *verdict.set_aside)}
    names = verdict.same_numbers | {finding.name for finding in verdict.set_aside}
    tensor_names = [name for name in map(TensorName.parse, sorted(names)) if not (name.evaluation or name.call)]
    modules = job_content.pair.map.modules
    return {
        name.module: MovedOutput(
            str(name._replace(module=f"port {modules[name.module]}")),
            findings.get(str(name)) == "structure",
            str(name) in verdict.padded_outputs,
        )
        for name in tensor_names
        if name.module in modules
    }


def _measure_with(
    job: Path, job_content: Job, moved_modules: Collection[str], console: Console, interpreters: Mapping[str, str]
) -> list[tuple[dict[str, TensorRecord], ForcedInputResult]]:
    """Run the operation trace of one job without R64's replacement for the outputs of some modules.

    R64's outputs of these modules would have an order that the port does not expect. The result is the same as of
    :func:`measure_operations`.

    Args:
        job: folder of the job.
        job_content: content of the job, with all modules.
        moved_modules: modules of the reference whose outputs are not replaced.
        console: console for progress.
        interpreters: interpreter of each side.
    """
    if job_content.pair is not None and job_content.pair.map is not None:
        remaining_modules = {
            theirs: ours for theirs, ours in job_content.pair.map.modules.items() if theirs not in moved_modules
        }
        pair = replace(job_content.pair, map=replace(job_content.pair.map, modules=remaining_modules))
        files.write_json(job / "job.json", replace(job_content, pair=pair))
    for side in ("reference", "candidate"):  # the port waits for the result of the reference
        files.remove_result(job, side, TASK)
    return measure_operations([job], console, interpreters)


def fingerprints_of(job: Path) -> Fingerprints | None:
    """Return the fingerprints of a pair's reference in a job folder; None before the reference was traced."""
    path = job / "reference" / files.FINGERPRINTS
    return files.read(path, Fingerprints) if path.exists() else None


def explain_missing_trace(verdict: Verdict, *, is_requested: bool, is_recorded: bool) -> OperationTrace | None:
    """Return a trace that has only the reason why the operations could not be traced.

    The reference is recorded, or was run stage by stage. Return None unless a tensor of the step differs or the trace
    is requested.

    Args:
        verdict: verdict of the gate.
        is_requested: whether the user requested a trace.
        is_recorded: whether the reference is recorded, otherwise the model was compared stage by stage.
    """
    if not (is_requested or is_wanted(verdict)):
        return None
    if is_recorded:
        return OperationTrace(problem="the reference is a recorded one, which does not hold them")
    reason = "the model went through the gate stage by stage; take one that fits memory (--layers)"
    return OperationTrace(problem=reason)


def is_wanted(verdict: Verdict) -> bool:
    """Return whether a trace may find the cause of a verdict, since a tensor of the step differs.

    A wrong parameter, draw, text or reference needs no trace.
    """
    names = ((f, TensorName.parse(f.name)) for f in verdict.findings)
    of_step = (f for f, name in names if not (name.is_of_training or name.evaluation))
    return not verdict.inconclusive and any(finding.verdict in OF_TENSORS for finding in of_step)


def lacks_gradients(verdict: Verdict) -> bool:
    """Return whether a finding reports a missing gradient.

    Such a finding only shows where the backward has ended, not why.
    """
    missing = (TensorName.parse(finding.name) for finding in verdict.findings if finding.verdict == "structure")
    return any(name.kind == "gradient" for name in missing)


def first_faulty_operation(operation_trace: OperationTrace | None, culprit: Finding) -> FaultyOp | None:
    """Return the first operation that is wrong in isolation in the dtype of a finding, as the finding's cause.

    Return None unless the finding is on a tensor of the step: a wrong parameter, draw or choice is itself the cause.

    Args:
        operation_trace: trace of the port; None without a trace.
        culprit: finding that is nearest to the cause.
    """
    if operation_trace is not None and culprit.verdict == "precision":
        return next(one for one in operation_trace.faulty if (one.name, one.dtype) == (culprit.name, culprit.dtype))
    if culprit.message == ALONE:  # a tensor that only the port has is itself the cause
        return None
    name = TensorName.parse(culprit.name)
    of_step = name.kind in ("output", "stream", "gradient", "logits", "start_logits", "end_logits", "loss", "losses")
    if (
        operation_trace is None
        or culprit.verdict not in (*OF_TENSORS, "structure")
        or not of_step
        or name.is_of_training
    ):
        return None
    return next((operation for operation in operation_trace.faulty if operation.dtype == culprit.dtype), None)


def measure_operations(
    jobs: Sequence[Path], console: Console, interpreters: Mapping[str, str]
) -> list[tuple[dict[str, TensorRecord], ForcedInputResult]]:
    """Run both sides of each job with R64's input for each operation, and return their measurements.

    Args:
        jobs: folders of jobs that both workers have run.
        console: console for progress.
        interpreters: interpreter of each side.

    Returns:
        For each job, the record of each of the reference's tensors by name, and the measurements of the port.

    Raises:
        Inconclusive: a worker failed.
    """
    run_workers(jobs, console, interpreters, task=TASK)
    return [
        (
            files.read(files.result_path(job, "reference", TASK), dict[str, TensorRecord]),
            files.read(files.result_path(job, "candidate", TASK), ForcedInputResult),
        )
        for job in jobs
    ]


def summarize_trace(
    reference_records: Mapping[str, TensorRecord],
    dtypes: Mapping[str, ForcedInputDtype],
    bucket_slack: Mapping[str, float] | None = None,
    fingerprints: Fingerprints | None = None,
    resized_outputs: Collection[str] = (),
) -> OperationTrace:
    """Return the operation trace of measured operations, with the operations that are wrong.

    Args:
        reference_records: record of each of the reference's tensors, by name.
        dtypes: measurements of the port, by dtype.
        bucket_slack: largest margin between two buckets that the rounding of float32 can flip, by LSH module. Hashing
            in bfloat16 is judged by it, since the step cannot show it.
        fingerprints: fingerprints of a pair's reference; None without them.
        resized_outputs: names of outputs that hold the right numbers in another shape
            (:func:`.functions.find_faulty_function`).
    """
    order = sort_by_execution(list(reference_records))
    port_names = {name for ours in dtypes.values() for name in ours.tensors}
    records = merge_skipped_steps({name: reference_records[name] for name in order}, port_names)
    comparisons: list[Comparison] = []
    faulty: list[FaultyOp] = []
    num_not_finite: dict[str, int] = {}
    for dtype, ours in dtypes.items():
        names = [name for name in order if name in ours.tensors]
        noise = {name for name in names if dtype == "float64" and is_lost(records[name])}
        measured_names = [name for name in names if is_measured(records[name], dtype) and name not in noise]
        if len(names) > len(measured_names):
            num_not_finite[dtype] = len(names) - len(measured_names)
        for name in measured_names:
            error, theirs = ours.tensors[name], records[name]
            if error.rms is None:
                faulty.append(FaultyOp(name, _find_source_line(name, ours), dtype, _describe_unmeasured(error, theirs)))
                continue
            comparisons.append(compare(name, theirs, error, dtype))
            if not comparisons[-1].passed:
                message = (
                    f"off by {comparisons[-1].relative:.1e} of its size, {comparisons[-1].margin:.3g} times the bound"
                )
                faulty.append(FaultyOp(name, _find_source_line(name, ours), dtype, message, comparisons[-1].margin))
        if ours.calls and fingerprints is not None:
            sizes = {name: records[name].rms for name in names}
            faulty = [
                one for one in faulty if one.dtype != dtype or not _is_interface(one, ours, records, fingerprints)
            ]
            faulty = [
                _with_function(one, ours, fingerprints, sizes, resized_outputs) if one.dtype == dtype else one
                for one in faulty
            ]
        if dtype == MIXED_PRECISION_DTYPE:
            faulty += _find_wrong_buckets(ours, bucket_slack or {})
    passed_margins = [one.margin for one in comparisons if one.passed and one.informative]
    own = {name: None for ours in dtypes.values() for name in ours.lines if name not in reference_records}
    alone = [*(name for name in order if name not in port_names), *own]
    return OperationTrace(len(comparisons), alone, num_not_finite, faulty, max(passed_margins, default=0.0))


def _is_interface(
    operation: FaultyOp, ours: ForcedInputDtype, reference_records: Mapping[str, TensorRecord], theirs: Fingerprints
) -> bool:
    """Return whether only the shape of an output differs, and the port computes the reference's numbers from it.

    The operation may also be the gradient into such an output.

    Args:
        operation: operation that seems to be wrong.
        ours: measurements of the port.
        reference_records: record of each of the reference's tensors, by name.
        theirs: fingerprints of the reference.
    """
    name = TensorName.parse(operation.name)
    output = str(name._replace(kind="output", gradient_of=""))
    is_of_output = "output" in (name.kind, name.gradient_of)
    if not is_of_output or ours.tensors[operation.name].shape == reference_records[operation.name].shape:
        return False
    return leads_to_right_numbers(output, ours, theirs)


def _with_function(
    operation: FaultyOp,
    ours: ForcedInputDtype,
    theirs: Fingerprints,
    sizes: Mapping[str, float | None],
    resized_outputs: Collection[str],
) -> FaultyOp:
    """Return a faulty operation of a user's port, with the function that makes it wrong if that function is known.

    Args:
        operation: the faulty operation.
        ours: measurements of the port.
        theirs: fingerprints of the reference.
        sizes: RMS of each of the reference's tensors, by name.
        resized_outputs: names of outputs that hold the right numbers in another shape.
    """
    error, size = ours.tensors[operation.name].rms, sizes[operation.name]
    call = find_faulty_function(operation.name, ours, theirs, error / size if error and size else None, resized_outputs)
    return operation if call is None else replace(operation, function=call.function, where=call.where)


def _find_wrong_buckets(ours: ForcedInputDtype, slack: Mapping[str, float]) -> Iterator[FaultyOp]:
    """Yield each LSH attention whose buckets for R64's vectors differ by more than float32's rounding.

    In a bfloat16 step the vectors have such errors that hardly any bucket is certain. Here the vectors are R64's, and
    hashing stays in float32. The following operations use R64's buckets, so that no other error comes from them.

    Args:
        ours: measurements of the port in bfloat16.
        slack: largest margin between two buckets that the rounding of float32 can flip, by LSH module.
    """
    for module, flips in ours.bucket_flips.items():
        slack_of_module, name = slack.get(module, math.inf), f"buckets:{module}"
        if flips.shape is not None:
            yield FaultyOp(name, _find_source_line(name, ours), MIXED_PRECISION_DTYPE, f"shape {flips.shape} differs")
        elif flips.count and not flips.largest_margin <= slack_of_module:
            rounding_text = f"float32's rounding: {slack_of_module:.1e}"
            margin_text = f"one where the best bucket led by {flips.largest_margin:.1e}; {rounding_text}"
            margin = flips.largest_margin / slack_of_module if slack_of_module else math.inf
            message = f"{flips.count} of {flips.of} differ, {margin_text}"
            yield FaultyOp(name, _find_source_line(name, ours), MIXED_PRECISION_DTYPE, message, margin)


def merge_skipped_steps(
    reference_records: Mapping[str, TensorRecord], port_names: Collection[str]
) -> dict[str, TensorRecord]:
    """Return the reference's records of the tensors that the port has, with the errors of skipped steps added.

    The port computes mask and softmax in one operation. Its backward step ends at the scores. The reference's backward
    step ends at the masked scores, and the next step, to the scores, is only a copy. So the reference's errors in
    gradients that the port skips are added to the next gradient of this shape in the same module.

    Args:
        reference_records: record of each of the reference's tensors, by name in execution order.
        port_names: names of the port's tensors.
    """
    records: dict[str, TensorRecord] = {}
    skipped_gradients: list[str] = []
    for name, record in reference_records.items():
        if name not in port_names:
            skipped_gradients.append(name)
            continue
        steps = [
            record,
            *(reference_records[other] for other in skipped_gradients if _leads_to(other, name, reference_records)),
        ]
        noise, noise_max = (_sum_errors([getattr(step, key) for step in steps]) for key in ("noise", "noise_max"))
        records[name] = replace(record, noise=noise, noise_max=noise_max)
        skipped_gradients = []
    return records


def _leads_to(gradient: str, later: str, reference_records: Mapping[str, TensorRecord]) -> bool:
    """Return whether a skipped gradient belongs to the same backward step as a later gradient of the port.

    Both must have the same shape and module.

    Args:
        gradient: name of the skipped gradient.
        later: name of the later tensor.
        reference_records: record of each of the reference's tensors, by name.
    """
    gradient_name, later_name = TensorName.parse(gradient), TensorName.parse(later)
    same_module = (
        gradient_name.module + gradient_name.call.partition("@")[0]
        == later_name.module + later_name.call.partition("@")[0]
    )
    return (
        gradient_name.kind == later_name.kind == "gradient"
        and same_module
        and reference_records[gradient].shape == reference_records[later].shape
    )


def _sum_errors(steps: Sequence[Mapping[str, Sequence[float | None]]]) -> dict[str, list[float | None]]:
    """Return the sum of several steps' errors, by dtype, for each run of the reference.

    A sum is None if an error is not finite.

    Args:
        steps: for each step, the errors of the runs by dtype.
    """
    return {
        dtype: [
            None if None in errors else sum(error or 0.0 for error in errors)
            for errors in zip(*(step[dtype] for step in steps), strict=True)
        ]
        for dtype in steps[0]
    }


def _describe_unmeasured(difference_stats: TensorStats, theirs: TensorRecord) -> str:
    """Return a description of a port's tensor whose error cannot be measured.

    Args:
        difference_stats: measurement of the port's tensor.
        theirs: record of the reference's tensor.
    """
    if difference_stats.missing:
        return "no gradient comes back"
    if difference_stats.shape != theirs.shape:
        return f"shape {difference_stats.shape}, the reference's is {theirs.shape}"
    return "holds NaN or Inf"


def sort_by_execution(names: Sequence[str]) -> list[str]:
    """Return the names of tensors in the order of their execution.

    The gradient of a parameter follows the gradient of its module's output.

    Args:
        names: names of a trace's tensors, in the order of the reference's records.
    """
    parameters = [name for name in names if is_gradient(name) and not TensorName.parse(name).gradient_of]
    parameter_names = set(parameters)
    order = [name for name in names if name not in parameter_names]
    last: dict[str, str] = {}
    for name in order:
        tensor_name = TensorName.parse(name)
        if (tensor_name.kind, tensor_name.gradient_of) == ("gradient", "output"):
            last[tensor_name.module] = name
    for name in parameters:
        after = last.get(TensorName.parse(name).module.rpartition(".")[0])
        order.insert(order.index(after) + 1 if after else len(order), name)
    return order


def _find_source_line(name: str, ours: ForcedInputDtype) -> str:
    """Return the source line of an operation or its module, or of the computation of scores and losses.

    The result is empty if the line is not known.

    Args:
        name: name of the operation's tensor.
        ours: measurements of the port.
    """
    point = name.removeprefix("gradient:")
    if point in ours.lines:
        return ours.lines[point]
    tensor_name = TensorName.parse(name)
    module = tensor_name.module or tensor_name.kind
    while module and module not in ours.modules:
        module = module.rpartition(".")[0]
    return ours.modules[module].where if module else ""


def describe_trace(operation_trace: OperationTrace | None, cause: str = "") -> list[str]:
    """Return the lines of the report on an operation trace.

    Args:
        operation_trace: the trace; None without a trace.
        cause: name of a wrong parameter or draw that may cause wrong operations; empty if there is none.
    """
    if operation_trace is None:
        return []
    if operation_trace.problem is not None:
        return [f"operation trace unavailable: {operation_trace.problem}"]
    of = f"of {operation_trace.compared} operations and gradients, each on the reference's own input,"
    counts = [f"{count} in {dtype}" for dtype, count in operation_trace.not_finite.items()]
    not_finite_lines = [f"not finite in the reference, and not compared: {', '.join(counts)}"] if counts else []
    if not operation_trace.faulty:
        return [f"{of} all are right, the worst at {operation_trace.worst:.2g} of its bound", *not_finite_lines]
    count = len(operation_trace.faulty)
    if cause:
        return [f"{of} {count} {'is' if count == 1 else 'are'} wrong, which may follow from {cause}", *not_finite_lines]
    report_lines = [f"{of} {count} {'is' if count == 1 else 'are'} wrong; in the order of execution:"]
    report_lines += [f"  {one.dtype} {one.text()}" for one in operation_trace.faulty[:MAX_SHOWN]]
    further_lines = [f"  and {count - MAX_SHOWN} more, in parity.json"] if count > MAX_SHOWN else []
    return [*report_lines, *further_lines, *not_finite_lines]
