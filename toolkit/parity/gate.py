"""The gate: run the reference and the port on the same step, judge the port, investigate a drift, and report."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from toolkit.errors import UserError
from toolkit.files.strict_json import replace_nonfinite
from toolkit.machine.disk import find_write_obstacle
from toolkit.parity.bundle import cache
from toolkit.parity.bundle.bundle import Recording, check_unchanged
from toolkit.parity.exchange import files
from toolkit.parity.exchange.hashes import hash_job_files
from toolkit.parity.exchange.results import CandidateResult, ReferenceResult, Training, read_results
from toolkit.parity.followup.attribution import Substitution, attribute_drift
from toolkit.parity.followup.constants import with_rounded_constants
from toolkit.parity.followup.precision import is_judged, judge_operations
from toolkit.parity.followup.remeasure import note_unmeasured, remeasure_near_bounds
from toolkit.parity.followup.trace import OperationTrace, explain_missing_trace, lacks_gradients, trace_operations
from toolkit.parity.followup.trajectory import train_sides
from toolkit.parity.job.family import ported_family
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.judge.trajectory import judge_trajectory
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.other_frameworks.output_errors import compare_outputs, find_tensor_files, read_outputs
from toolkit.parity.other_frameworks.run import run_port
from toolkit.parity.pairs import measurement_cache
from toolkit.parity.pairs.prepare import prepare_job
from toolkit.parity.pairs.recording import describe_port, keep_counterparts
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.report.json import as_content
from toolkit.parity.report.junit import build_junit
from toolkit.parity.report.page import build_page
from toolkit.parity.report.report import CONSTANTS, JSON, JUNIT, PAGE, Report, remove_report
from toolkit.parity.report.terminal import print_report
from toolkit.parity.request import streaming
from toolkit.parity.request.build import (
    NUM_ADDED,
    added_examples,
    batch_of,
    is_brief,
    is_streamed,
    job_of,
    labels_of,
    make_sides,
    scratch_job,
    streamed_job_of,
    workers_of,
)
from toolkit.parity.request.request import GateRequest
from toolkit.parity.request.stretch import fit_to_memory


@dataclass
class Measurement:
    """Results of both workers and of the follow-ups.

    Attributes:
        reference: results of the reference.
        candidate: results of the port.
        randomized: number of constant parameters whose values were replaced by random values.
        hashes: SHA-256 of each file of tensors that both sides read.
        attribution: effect of each replaced kernel if float32 drifts.
        trace: trace of the operations; None if they were not traced.
        training: trajectories of a pair whose sides were also trained independently; None otherwise.
        imported: SHA-256 of each of the user's files that a pair imported.
    """

    reference: ReferenceResult
    candidate: CandidateResult
    randomized: int
    hashes: dict[str, str]
    attribution: list[Substitution] = field(default_factory=list)
    trace: OperationTrace | None = None
    training: Training | None = None
    imported: dict[str, str] = field(default_factory=dict)


@dataclass
class MeasurementWithConstants:
    """A measurement with the constants that the reference computes once.

    Attributes:
        measurement: results of both workers.
        constants: constants of the reference, by name.
        cache_key: key of the measurement in the cache; None if it is not cached.
        is_from_cache: whether an earlier gate with the same key measured it.
    """

    measurement: Measurement
    constants: Mapping[str, np.ndarray]
    cache_key: str | None = None
    is_from_cache: bool = False


def run_gate(
    request: GateRequest, folder: Path, console: Console, recording: Recording | None = None, *, brief: bool = False
) -> Report:
    """Compare the port with the reference on one training step, and print and write the report.

    The report is ``folder/parity.json``. ``junit.xml`` has the same content for a CI system, and ``parity.html`` for a
    person. An earlier report is removed before anything runs.

    The constants that the reference computes once are written to ``folder``, too (:data:`CONSTANTS`). The port was
    compared with these constants, and must be trained with them.

    Args:
        request: model, weights, batch and settings of the comparison.
        folder: folder of the report.
        console: console for progress and the verdict.
        recording: recorded reference to compare with; None to run the reference.
        brief: whether to print only one line if the gate passes.

    Raises:
        Inconclusive: a worker could not run; the message has the end of its output.
        UserError: the report cannot be written to the folder.
    """
    start_seconds = time.monotonic()
    if problem := find_write_obstacle(folder):
        raise UserError(f"{folder}: {problem}; name another folder")
    remove_report(folder)
    if recording is not None:
        measured_gate = _measure_recorded(recording, request, console)
    else:
        request, memory_note = (request, "") if request.pair else fit_to_memory(request)
        if (memory_note and console.is_terminal) or request.length_notes:
            console.print(f"parity gate: {memory_note}", highlight=False, soft_wrap=True)
        by_stages = is_streamed(request)
        request = without_bfloat16(request) if by_stages else request
        measured_gate = _measure_streamed(request, folder, console) if by_stages else _measure_whole(request, console)
    report = _judge_and_report(request, measured_gate, folder, start_seconds, recording)
    print_report(report, folder / PAGE, console, is_brief=brief)
    return report


def judge_outputs(
    recording: Recording, port_path: Path, folder: Path, console: Console, python: str | None, time_limit: float | None
) -> Report:
    """Compare a port in any framework with a recorded reference, and print and write the report (:func:`run_gate`).

    Args:
        recording: recorded reference.
        port_path: folder of the port's outputs (:mod:`.other_frameworks.output_errors`), or a file that computes them.
        folder: folder of the report.
        console: console for progress and the verdict.
        python: interpreter with the port's framework; None for the running interpreter.
        time_limit: seconds for each run of the port; None for the default.

    Raises:
        UserError: the port cannot be run, or its outputs cannot be compared.
        Inconclusive: the interpreter lacks the port's framework.
    """
    start_seconds = time.monotonic()
    if recording.request.pair is not None and not recording.request.pair.any_framework:
        raise UserError(f"{recording.folder}: is recorded for a port in Paddle; record it again with --any-framework")
    if recording.lacks_weights and not port_path.is_dir():
        raise UserError(
            f"{recording.folder}: is recorded --small, without weights; judge a folder of the port's outputs"
        )
    remove_report(folder)
    with scratch_job() as scratch, console.status("parity gate: running the port"):
        outputs_path: Path = port_path
        versions: dict[str, str] = {}
        if not port_path.is_dir():
            outputs_path, versions = run_port(
                port_path, recording, scratch, recording.request.dtypes, python, time_limit
            )
            check_unchanged(recording)
        errors = read_outputs(outputs_path, recording, port_path)
        reference, candidate = compare_outputs(recording, errors, versions)
        hashes = {path.name: files.file_sha256(path) for path in find_tensor_files(outputs_path).values()}
    num_randomized = recording.manifest["describes"]["randomized_parameters"]
    measurement = Measurement(reference, candidate, num_randomized, {**hashes, "bundle.json": recording.identity})
    request = replace(recording.request, dtypes=tuple(errors))
    report = _judge_and_report(request, MeasurementWithConstants(measurement, {}), folder, start_seconds, recording)
    print_report(report, folder / PAGE, console)
    return report


def _judge_and_report(
    request: GateRequest,
    measured_gate: MeasurementWithConstants,
    folder: Path,
    start_seconds: float,
    recording: Recording | None,
) -> Report:
    """Judge a measurement, and write the report.

    Args:
        request: options of the gate.
        measured_gate: results of both workers, and the constants.
        folder: folder for the report.
        start_seconds: time when the gate started, in seconds.
        recording: recorded reference to write; None without one.
    """
    measurement = measured_gate.measurement
    verdict = judge(measurement.reference, measurement.candidate)
    for note in request.not_run:
        verdict.note("not-run", what=note)
    for note in request.length_notes:
        verdict.note("length", what=note)
    is_run_once = recording is not None or is_streamed(request)
    if is_run_once:
        note_unmeasured(verdict)
        measurement.trace = explain_missing_trace(
            verdict, is_requested=request.trace, is_recorded=recording is not None
        )
    if is_judged(request.dtypes):
        judge_operations(verdict, measurement.trace)
    if measurement.training is not None:
        judge_trajectory(measurement.training, verdict)
    elif request.pair is not None and request.pair.steps:
        verdict.note("not-trained", steps=request.pair.steps)
    note_extent(verdict, request)
    if measured_gate.cache_key and not measured_gate.is_from_cache and verdict.passed:
        cache.store(measured_gate.cache_key, measurement, measured_gate.constants)
    interfaces = () if measurement.trace is None else measurement.trace.interfaces
    verdict.same_numbers = {name for name in verdict.same_numbers if TensorName.parse(name).module in interfaces}
    report = Report(
        request=request,
        verdict=verdict,
        culprit=first_at_fault(verdict, list(measurement.reference.tensors)),
        reference=measurement.reference,
        candidate=measurement.candidate,
        randomized=measurement.randomized,
        seconds=time.monotonic() - start_seconds,
        hashes=measurement.hashes,
        cached=measured_gate.is_from_cache,
        attribution=measurement.attribution,
        trace=measurement.trace,
        training=measurement.training,
    )
    _write_report(report, folder, measured_gate.constants)
    return report


def note_extent(verdict: Verdict, request: GateRequest) -> None:
    """Add notes on the extent of the comparison: synthetic examples, a reduced comparison, few updates.

    Args:
        verdict: verdict to add the notes to.
        request: options of the gate.
    """
    if is_brief(request):
        verdict.note("brief")
    if request.widened:
        num_added = added_examples(request)
        verdict.note(
            "widened" if num_added >= NUM_ADDED else "narrow", given=len(request.batch["input_ids"]), added=num_added
        )
    if request.pair is not None and request.pair.forward_only:
        verdict.note("forward-only")
        return
    training = request.training
    if is_streamed(request):  # it has no updates; another note reports that
        return
    if training.max_steps == 1:
        verdict.note("one-update")
    if request.pair is None and training.gradient_accumulation_steps > 1:
        examples = len(next(iter(labels_of(request).values())))
        if examples <= training.batch_size:
            steps, size = training.gradient_accumulation_steps, training.batch_size
            verdict.note("one-micro-batch", steps=steps, size=size, examples=examples)


def without_bfloat16(request: GateRequest) -> GateRequest:
    """Return the request without bfloat16, for a model that is compared stage by stage.

    Args:
        request: options of the gate.
    """
    if not is_judged(request.dtypes):
        return request
    dtypes = tuple(dtype for dtype in request.dtypes if dtype != "bfloat16")
    reason = "it computes in bfloat16; stage by stage, that is not compared"
    return replace(request, dtypes=dtypes, not_run=(*request.not_run, reason))


def _write_report(report: Report, folder: Path, constants: Mapping[str, np.ndarray]) -> None:
    """Write the report's files: ``parity.json``, the JUnit file, the page, and the constants if there are any.

    Args:
        report: result of the gate.
        folder: folder for the files.
        constants: constants of the reference, by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if constants:
        files.write_tensors(folder / CONSTANTS, constants)
    content = replace_nonfinite(as_content(report))
    files.write_report(folder / JSON, content)
    files.write_text(folder / JUNIT, build_junit(content))
    files.write_text(folder / PAGE, build_page(content))


def _measure_whole(request: GateRequest, console: Console) -> MeasurementWithConstants:
    """Measure a model as a whole, or return the cached measurement of an equal gate.

    The files of a pair may read data, so its measurement is reused only if the request allows it.
    """
    key = measurement_cache.key_of(request) if request.pair and request.reuse else None
    if (
        key
        and (cached_results := cache.load(key, Measurement))
        and measurement_cache.is_unchanged(cached_results[0].imported)
    ):
        return MeasurementWithConstants(*cached_results, key, is_from_cache=True)
    with scratch_job() as job:
        prepared_job = prepare_job(request, job, console)
        sides = prepared_job.sides
        key = key if sides else cache.key_of(job, request.reference_python)
        if key and not sides and not request.trace and (cached_results := cache.load(key, Measurement)):
            return MeasurementWithConstants(*cached_results, key, is_from_cache=True)
        interpreters = workers_of(request)
        measurement, verdict = _run_and_remeasure(job, prepared_job.randomized, interpreters, console)
        needs_trace = request.trace or is_judged(request.dtypes)
        if sides:
            measurement.reference.notes += sides.notes()
            needs_trace = needs_trace or lacks_gradients(verdict)
            workers = (measurement.reference.execution, measurement.candidate.execution)
            measurement.imported = measurement_cache.hashes_of([name for worker in workers for name in worker.imported])
        else:
            measurement.attribution = attribute_drift(
                job, verdict, measurement.reference, measurement.candidate, console
            )
        measurement.trace = trace_operations(job, verdict, console, interpreters, is_requested=needs_trace)
        if request.pair and request.pair.steps and verdict.passed:
            measurement.training = train_sides(job, interpreters, console)
        return MeasurementWithConstants(measurement, {} if sides else _read_constants(job), key)


def _run_and_remeasure(
    job: Path, num_randomized: int, interpreters: Mapping[str, str], console: Console
) -> tuple[Measurement, Verdict]:
    """Run both workers on a job, and judge the results.

    If the port is near a bound, the reference measures its own rounding noise again before the verdict.

    Args:
        job: folder of the job.
        num_randomized: number of constant parameters that were randomized.
        interpreters: path of the Python of each worker, by its name.
        console: console for progress.
    """
    with hash_job_files(job) as hashes:
        run_workers([job], console, interpreters)
    measurement = Measurement(*read_results(job), num_randomized, hashes.all())
    python = interpreters["reference"]
    measurement.reference = with_rounded_constants(job, measurement.reference, measurement.candidate, console, python)
    first_verdict = judge(measurement.reference, measurement.candidate)
    [measurement.reference] = remeasure_near_bounds([job], [(measurement.reference, first_verdict)], console, python)
    return measurement, judge(measurement.reference, measurement.candidate)


def _measure_streamed(request: GateRequest, folder: Path, console: Console) -> MeasurementWithConstants:
    """Measure a model stage by stage, in a job folder that is kept after an interruption."""
    folder.mkdir(parents=True, exist_ok=True)
    content = streamed_job_of(request)
    batch = batch_of(request)
    key = cache.key_of_request(content, batch, request.weights, request.reference_python)
    if cached_results := cache.load(key, Measurement):
        return MeasurementWithConstants(*cached_results, key, is_from_cache=True)
    job = streaming.open_job(folder, content, key, batch, console)
    model_family = ported_family(request.model)
    depth = model_family.depth(content.config)
    writer = streaming.WeightsWriter(job, model_family, request.weights, depth, request.seed)
    bars = streaming.Bars(job, depth, console)
    try:
        with bars.progress, hash_job_files(job) as hashes, streaming.run_writer(writer):
            run_workers([job], console, workers_of(request), bars.update)
            bars.update()
    except KeyboardInterrupt:
        message = f"the same command goes on from here; {job} is kept for it, and may be deleted"
        console.print(f"parity gate: {message}", highlight=False, soft_wrap=True)
        raise
    measurement = Measurement(*read_results(job), writer.num_randomized(), hashes.all())
    measured_gate = MeasurementWithConstants(measurement, _read_constants(job), key)
    streaming.remove_job(job)  # tens of gigabytes
    return measured_gate


def _measure_recorded(recording: Recording, request: GateRequest, console: Console) -> MeasurementWithConstants:
    """Measure the port, and compare it with the reference's recorded results."""
    with scratch_job() as job:
        recording.lay_out(job)
        make_sides(job)
        files.write_json(job / "job.json", job_of(request))
        sides = describe_port(recording, request, job, console) if request.pair else None
        with hash_job_files(job) as hashes:
            run_workers([job], console, {"candidate": workers_of(request)["candidate"]})
        num_randomized = recording.manifest["describes"]["randomized_parameters"]
        measurement = Measurement(*read_results(job), num_randomized, hashes.all())
        if sides is not None and request.pair is not None:
            measurement.reference = keep_counterparts(measurement.reference, sides.map, request.pair)
            measurement.reference.notes += sides.notes()
        constants = _read_constants(job)
    return MeasurementWithConstants(
        replace(measurement, hashes={**measurement.hashes, "bundle.json": recording.identity}), constants
    )


def _read_constants(job: Path) -> dict[str, np.ndarray]:
    """Return the constants that the reference has written into a job's folder, by name."""
    return files.read_tensors(job / "reference" / "constants.safetensors")
