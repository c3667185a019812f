"""The gate: run the reference and the port on the same step, judge, follow up, report. All commands enter here."""

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
from toolkit.parity.followup.attribution import Substitution, attribute
from toolkit.parity.followup.constants import with_rounded_constants
from toolkit.parity.followup.precision import is_judged, judge_operations
from toolkit.parity.followup.remeasure import note_unmeasured, remeasure
from toolkit.parity.followup.trace import OperationTrace, lacks_gradients, trace, unavailable
from toolkit.parity.followup.trajectory import train
from toolkit.parity.job import cache, files, streaming
from toolkit.parity.job.build import (
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
from toolkit.parity.job.bundle import Recording, check_unchanged
from toolkit.parity.job.family import ported
from toolkit.parity.job.hashes import hashing
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import CandidateResult, ReferenceResult, Training, read_results
from toolkit.parity.job.stretch import fit_to_memory
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.judge.trajectory import judge_trajectory
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.other_frameworks.given import compared, files_of, read_outputs
from toolkit.parity.other_frameworks.run import run_port
from toolkit.parity.pairs import cached
from toolkit.parity.pairs.prepare import prepare
from toolkit.parity.pairs.recording import describe_port, keep_counterparts
from toolkit.parity.report.json import as_content
from toolkit.parity.report.junit import build_junit
from toolkit.parity.report.page import build_page
from toolkit.parity.report.report import CONSTANTS, JSON, JUNIT, PAGE, Report, remove_report
from toolkit.parity.report.terminal import print_report


@dataclass
class Measurement:
    """Results of both workers and of the follow-ups.

    Attributes:
        randomized: number of constant parameters that were given random values.
        hashes: SHA-256 of the tensors given to both sides, by file.
        training: of a pair whose two sides were also trained by themselves.
        imported: of a pair, SHA-256 of other files of the user's that were imported.
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
class Measured:
    """A measurement with the reference's constants.

    Attributes:
        key: its cache key; None if it is not cached.
        cached: whether it is from an earlier, equal gate.
    """

    measurement: Measurement
    constants: Mapping[str, np.ndarray]
    key: str | None = None
    cached: bool = False


def run_gate(
    request: GateRequest, folder: Path, console: Console, recording: Recording | None = None, brief: bool = False
) -> Report:
    """Compare the port with the reference on one training step, print the verdict, write ``folder/parity.json``.

    ``junit.xml`` and ``parity.html`` beside it say the same to a CI system and to a person. An earlier report there is
    removed before anything runs.

    The constants that the reference computes once are left in ``folder`` too (:data:`CONSTANTS`): the port was compared
    with these in place of its own, and is to be trained with them.

    Args:
        recording: compare with this recorded reference, and run the port alone.
        brief: print one line if the gate passes.

    Raises:
        Inconclusive: a worker could not run, with its last words.
        UserError: the report cannot be written there.
    """
    started = time.monotonic()
    if refused := find_write_obstacle(folder):
        raise UserError(f"{folder}: {refused}; name another folder")
    remove_report(folder)
    if recording is not None:
        measured = _measure_against(recording, request, console)
    else:
        request, takes = (request, "") if request.pair else fit_to_memory(request)
        if (takes and console.is_terminal) or request.length_notes:
            console.print(f"parity gate: {takes}", highlight=False, soft_wrap=True)
        streamed = is_streamed(request)
        request = without_bfloat16(request) if streamed else request
        measured = _measure_streamed(request, folder, console) if streamed else _measure_whole(request, console)
    report = _judged(request, measured, folder, started, recording)
    print_report(report, folder / PAGE, console, brief)
    return report


def judge_outputs(
    recording: Recording, port: Path, folder: Path, console: Console, python: str | None, limit: float | None
) -> Report:
    """As :func:`run_gate`, of a port in any framework, by a recorded reference.

    Args:
        port: a folder with what it has computed (:mod:`.other_frameworks.given`), or a file that is run for it.
        python, limit: of :func:`.other_frameworks.run.run_port`.

    Raises:
        UserError: the port cannot be run, or what it gave cannot be compared.
        Inconclusive: the Python lacks the port's framework.
    """
    started = time.monotonic()
    if recording.request.pair is not None and not recording.request.pair.any_framework:
        raise UserError(f"{recording.folder}: is recorded for a port in Paddle; record it again with --any-framework")
    if recording.lacks_weights and not port.is_dir():
        raise UserError(
            f"{recording.folder}: is recorded --small, without weights; judge a folder of the port's outputs"
        )
    remove_report(folder)
    with scratch_job() as scratch, console.status("parity gate: running the port"):
        place: Path = port
        versions: dict[str, str] = {}
        if not port.is_dir():
            place, versions = run_port(port, recording, scratch, recording.request.dtypes, python, limit)
            check_unchanged(recording)
        errors = read_outputs(place, recording, port)
        reference, candidate = compared(recording, errors, versions)
        hashes = {path.name: files.file_sha256(path) for path in files_of(place).values()}
    randomized = recording.manifest["describes"]["randomized_parameters"]
    found = Measurement(reference, candidate, randomized, {**hashes, "bundle.json": recording.identity})
    request = replace(recording.request, dtypes=tuple(errors))
    report = _judged(request, Measured(found, {}), folder, started, recording)
    print_report(report, folder / PAGE, console)
    return report


def _judged(
    request: GateRequest, measured: Measured, folder: Path, started: float, recording: Recording | None
) -> Report:
    """Judge what was measured, and write the report."""
    found = measured.measurement
    verdict = judge(found.reference, found.candidate)
    for what in request.not_run:
        verdict.note("not-run", what=what)
    for what in request.length_notes:
        verdict.note("length", what=what)
    runs_once = recording is not None or is_streamed(request)
    if runs_once:
        note_unmeasured(verdict)
        found.trace = unavailable(verdict, request.trace, recording is not None)
    if is_judged(request.dtypes):
        judge_operations(verdict, found.trace)
    if found.training is not None:
        judge_trajectory(found.training, verdict)
    elif request.pair is not None and request.pair.steps:
        verdict.note("not-trained", steps=request.pair.steps)
    note_extent(verdict, request)
    if measured.key and not measured.cached and verdict.passed:
        cache.store(measured.key, found, measured.constants)
    interfaces = () if found.trace is None else found.trace.interfaces
    verdict.same_numbers = {name for name in verdict.same_numbers if TensorName.parse(name).module in interfaces}
    report = Report(
        request=request,
        verdict=verdict,
        culprit=first_at_fault(verdict, list(found.reference.tensors)),
        reference=found.reference,
        candidate=found.candidate,
        randomized=found.randomized,
        seconds=time.monotonic() - started,
        hashes=found.hashes,
        cached=measured.cached,
        attribution=found.attribution,
        trace=found.trace,
        training=found.training,
    )
    _write(report, folder, measured.constants)
    return report


def note_extent(verdict: Verdict, request: GateRequest) -> None:
    """Note how many compared examples are the run's own and how many made up, whether the comparison was brief, and
    what so few updates or micro-batches cannot show."""
    if is_brief(request):
        verdict.note("brief")
    if request.widened:
        added = added_examples(request)
        verdict.note("widened" if added >= NUM_ADDED else "narrow", given=len(request.batch["input_ids"]), added=added)
    if request.pair is not None and request.pair.forward_only:
        verdict.note("forward-only")
        return
    training = request.training
    if is_streamed(request):  # it has no updates, which another note says
        return
    if training.max_steps == 1:
        verdict.note("one-update")
    if request.pair is None and training.gradient_accumulation_steps > 1:
        examples = len(next(iter(labels_of(request).values())))
        if examples <= training.batch_size:
            steps, size = training.gradient_accumulation_steps, training.batch_size
            verdict.note("one-micro-batch", steps=steps, size=size, examples=examples)


def without_bfloat16(request: GateRequest) -> GateRequest:
    """Drop bfloat16 for a model that goes stage by stage, where operations are not judged singly."""
    if not is_judged(request.dtypes):
        return request
    dtypes = tuple(dtype for dtype in request.dtypes if dtype != "bfloat16")
    what = "it computes in bfloat16; stage by stage, that is not compared"
    return replace(request, dtypes=dtypes, not_run=(*request.not_run, what))


def _write(report: Report, folder: Path, constants: Mapping[str, np.ndarray]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if constants:
        files.write_tensors(folder / CONSTANTS, constants)
    content = replace_nonfinite(as_content(report))
    files.write_report(folder / JSON, content)
    files.write_text(folder / JUNIT, build_junit(content))
    files.write_text(folder / PAGE, build_page(content))


def _measure_whole(request: GateRequest, console: Console) -> Measured:
    """Measure a model as a whole. A pair is measured anew unless it may be reused: its files may read data."""
    key = cached.key_of(request) if request.pair and request.reuse else None
    if key and (kept := cache.load(key, Measurement)) and cached.is_unchanged(kept[0].imported):
        return Measured(*kept, key, cached=True)
    with scratch_job() as job:
        prepared = prepare(request, job, console)
        sides = prepared.sides
        key = key if sides else cache.key_of(job, request.reference_python)
        if key and not sides and not request.trace and (kept := cache.load(key, Measurement)):
            return Measured(*kept, key, cached=True)
        interpreters = workers_of(request)
        found, verdict = _measured(job, prepared.randomized, interpreters, console)
        asked = request.trace or is_judged(request.dtypes)
        if sides:
            found.reference.notes += sides.notes()
            asked = asked or lacks_gradients(verdict)
            workers = (found.reference.execution, found.candidate.execution)
            found.imported = cached.hashes_of([name for one in workers for name in one.imported])
        else:
            found.attribution = attribute(job, verdict, found.reference, found.candidate, console)
        found.trace = trace(job, verdict, asked, console, interpreters)
        if request.pair and request.pair.steps and verdict.passed:
            found.training = train(job, interpreters, console)
        return Measured(found, {} if sides else _read_constants(job), key)


def _measured(
    job: Path, randomized: int, interpreters: Mapping[str, str], console: Console
) -> tuple[Measurement, Verdict]:
    """Run both workers on a job, the reference more often if the port is near a bound, and judge the results."""
    with hashing(job) as hashes:
        run_workers([job], console, interpreters)
    found = Measurement(*read_results(job), randomized, hashes.all())
    python = interpreters["reference"]
    found.reference = with_rounded_constants(job, found.reference, found.candidate, console, python)
    first = judge(found.reference, found.candidate)
    [found.reference] = remeasure([job], [(found.reference, first)], console, python)
    return found, judge(found.reference, found.candidate)


def _measure_streamed(request: GateRequest, folder: Path, console: Console) -> Measured:
    """As :func:`_measure_whole`, stage by stage, in a job folder that outlives an interruption."""
    folder.mkdir(parents=True, exist_ok=True)
    content = streamed_job_of(request)
    batch = batch_of(request)
    key = cache.key_of_request(content, batch, request.weights, request.reference_python)
    if kept := cache.load(key, Measurement):
        return Measured(*kept, key, cached=True)
    job = streaming.open_job(folder, content, key, batch, console)
    known = ported(request.model)
    depth = known.depth(content.config)
    writer = streaming.WeightsWriter(job, known, request.weights, depth, request.seed)
    bars = streaming.Bars(job, depth, console)
    try:
        with bars.progress, hashing(job) as hashes, streaming.writing(writer):
            run_workers([job], console, workers_of(request), bars.update)
            bars.update()
    except KeyboardInterrupt:
        text = f"the same command goes on from here; {job} is kept for it, and may be deleted"
        console.print(f"parity gate: {text}", highlight=False, soft_wrap=True)
        raise
    found = Measurement(*read_results(job), writer.num_randomized(), hashes.all())
    measured = Measured(found, _read_constants(job), key)
    streaming.remove_job(job)  # tens of gigabytes
    return measured


def _measure_against(recording: Recording, request: GateRequest, console: Console) -> Measured:
    """As :func:`_measure_whole`, with the reference's recorded results."""
    with scratch_job() as job:
        recording.lay_out(job)
        make_sides(job)
        files.write_json(job / "job.json", job_of(request))
        sides = describe_port(recording, request, job, console) if request.pair else None
        with hashing(job) as hashes:
            run_workers([job], console, {"candidate": workers_of(request)["candidate"]})
        randomized = recording.manifest["describes"]["randomized_parameters"]
        found = Measurement(*read_results(job), randomized, hashes.all())
        if sides is not None and request.pair is not None:
            found.reference = keep_counterparts(found.reference, sides.map, request.pair)
            found.reference.notes += sides.notes()
        constants = _read_constants(job)
    return Measured(replace(found, hashes={**found.hashes, "bundle.json": recording.identity}), constants)


def _read_constants(job: Path) -> dict[str, np.ndarray]:
    return files.read_tensors(job / "reference" / "constants.safetensors")
