"""The gate: run the reference and the port on the same step, judge, report. All commands enter here."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console

from models.families import part
from toolkit import runtime
from toolkit.parity.followup.attribution import attribute
from toolkit.parity.followup.remeasure import UNSETTLED, is_doubtful, settle
from toolkit.parity.followup.trace import follow, unfollowed
from toolkit.parity.job import cache, files, streaming
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.synthetic import stir
from toolkit.parity.judge.culprit import first_at_fault
from toolkit.parity.judge.verdict import judge
from toolkit.parity.measure.updates import SHARES
from toolkit.parity.report.junit import write_junit
from toolkit.parity.report.page import write_page
from toolkit.parity.report.report import PAGE, Report, as_json, print_report

if TYPE_CHECKING:
    from toolkit.parity.job.bundle import Recording

#: Runs of the reference by which its rounding is measured, beside the one that is the truth.
NOISE_RUNS = {"float32": 5, "float64": 2}
#: Likewise stage by stage, where each tensor has so many elements that few runs tell.
STREAMED_NOISE_RUNS = {"float32": 3, "float64": 1}
#: Updates of the parameters that are compared.
UPDATES = len(SHARES)
#: From so many tokens on the workers run one after the other, and keep little: 6 layers of 256 dimensions on 16,384
#: tokens took 8.8 and 8.3 GB at once, in float64 with all activations.
LONG = 2**14
#: The file of the reference's constants beside the report.
CONSTANTS = "constants.safetensors"
#: Texts of the run's own data whose tokens are compared, beside the adversarial ones.
TOKENIZER_TEXTS = 64


def run_gate(request: GateRequest, folder: Path, console: Console, recording: Recording | None = None) -> Report:
    """Compare the port with the reference on one training step, print the table, write ``folder/parity.json``.

    ``junit.xml`` and ``parity.html`` beside it say the same to a CI system and to a person.

    What the reference computes once and holds beside its parameters is left in ``folder`` too (:data:`CONSTANTS`): the
    port was compared with these in place of its own, and is to be trained with them.

    Args:
        recording: compare with this recorded reference, and run the port alone.

    Raises:
        Inconclusive: a worker could not run, with its last words.
    """
    started = time.monotonic()
    if recording is not None:
        measured, cached = _measure_against(recording, request, console), False
    else:
        measure = _measure_streamed if is_streamed(request) else _measure_whole
        measured, cached = measure(request, folder, console)
    reference, candidate = measured["reference"], measured["candidate"]
    verdict = judge(reference, candidate)
    if is_doubtful(verdict) and (recording is not None or is_streamed(request)):
        verdict.notes.append(UNSETTLED)
    if not cached and verdict.passed and measured["key"]:
        cache.store(measured["key"], measured)
    report = Report(
        request=request,
        verdict=verdict,
        culprit=first_at_fault(verdict, list(reference["tensors"])),
        places=next(iter(candidate["dtypes"].values()))["places"],
        reference=reference,
        candidate=candidate,
        stirred=measured["stirred"],
        seconds=time.monotonic() - started,
        hashes=measured["hashes"],
        cached=cached,
        attribution=measured.get("attribution", []),
        trace=measured.get("trace") or unfollowed(verdict, request.trace, recording is not None),
    )
    folder.mkdir(parents=True, exist_ok=True)
    if measured["constants"]:
        files.write_tensors(folder / CONSTANTS, measured["constants"])
    content = as_json(report)
    files.write_json(folder / "parity.json", content)
    write_junit(content, folder / "junit.xml")
    write_page(content, folder / PAGE)
    print_report(report, folder / PAGE, console)
    return report


def is_streamed(request: GateRequest) -> bool:
    """Whether the model is too large to be compared as a whole. Only CTRL's language model is ever that large."""
    if request.streamed is not None:
        return request.streamed
    table = part(request.model, "weights").parameters(
        part(request.model, "schema").resolve(request.config), request.head
    )
    large = sum(math.prod(shape) for shape, _ in table.values()) > streaming.STREAMED_ABOVE
    return large and (request.model, request.head) == ("ctrl", "causal_lm")


def _measure_whole(request: GateRequest, folder: Path, console: Console) -> tuple[dict[str, Any], bool]:
    """Both workers' results, and whether they are those of an earlier gate."""
    weights, stirred = stir(request.weights, request.seed)
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        job = Path(scratch)
        write_job(request, weights, job)
        key = cache.key_of(job, request.reference_python)
        if not request.trace and (kept := cache.load(key)):
            return kept, True
        interpreters = workers_of(request)
        run_workers([job], console, interpreters)
        results = _results(job)
        first = judge(results["reference"], results["candidate"])
        [results["reference"]] = settle([job], [(results["reference"], first)], console, interpreters["reference"])
        verdict = judge(results["reference"], results["candidate"])
        substitutions = attribute(job, verdict, results, console, interpreters["reference"])
        followed = follow(job, verdict, request.trace, console, interpreters)
        return {**results, "stirred": stirred, "key": key, "attribution": substitutions, "trace": followed}, False


def _measure_streamed(request: GateRequest, folder: Path, console: Console) -> tuple[dict[str, Any], bool]:
    """As :func:`_measure_whole`, stage by stage, in a job folder that outlives an interruption."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**job_of(request), "noise_runs": STREAMED_NOISE_RUNS, "updates": 0, "streamed": True}
    key = cache.key_of_request(content, request.batch, request.weights, request.reference_python)
    if kept := cache.load(key):
        return kept, True
    job = streaming.open_job(folder, content, key, request.batch, console)
    depth = content["config"]["n_layer"]
    writer = streaming.WeightsWriter(job, request.weights, depth, request.seed)
    bars = streaming.Bars(job, depth, console)
    try:
        with bars.progress, streaming.writing(writer):
            run_workers([job], console, workers_of(request), bars.update)
            bars.update()
    except KeyboardInterrupt:
        text = f"the same command goes on from here; {job} is kept for it, and may be deleted"
        console.print(f"parity gate: {text}", highlight=False, soft_wrap=True)
        raise
    measured = {**_results(job), "stirred": writer.stirred(), "key": key}
    streaming.close_job(job)
    return measured, False


def _measure_against(recording: Recording, request: GateRequest, console: Console) -> dict[str, Any]:
    """As :func:`_measure_whole`, with the reference's results as they were recorded."""
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        job = Path(scratch)
        recording.lay_out(job)
        (job / "candidate").mkdir()
        files.write_json(job / "job.json", job_of(request))
        run_workers([job], console, {"candidate": sys.executable})
        measured = _results(job)
    measured["hashes"]["bundle.json"] = recording.identity
    return {**measured, "stirred": recording.manifest["describes"]["stirred_parameters"], "key": None}


def _results(job: Path) -> dict[str, Any]:
    """Both workers' results, and the hashes of the tensors that both were given."""
    results = {side: files.read_json(job / side / "result.json") for side in ("reference", "candidate")}
    given = [path for path in sorted(job.rglob("*.safetensors")) if path.parent.name not in ("state", "truth")]
    return {
        **results,
        "constants": files.read_tensors(job / "reference" / "constants.safetensors"),
        "hashes": {str(path.relative_to(job)): files.sha256(path) for path in given},
    }


def write_job(request: GateRequest, weights: Mapping[str, np.ndarray], job: Path, mutants: Sequence[str] = ()) -> None:
    """Fill the job folder with what both workers need; ``mutants`` are also measured, by name."""
    for side in ("reference", "candidate"):
        (job / side).mkdir()
    files.write_tensors(job / "weights.safetensors", weights)
    files.write_tensors(job / "batch.safetensors", request.batch)
    files.write_json(job / "job.json", {**job_of(request), "mutants": list(mutants)})


def job_of(request: GateRequest) -> dict[str, Any]:
    """The content of ``job.json``."""
    config = part(request.model, "schema").resolve(request.config)
    for key in ("num_hidden_layers", "label2id", "id2label"):  # they follow from attn_layers and num_labels
        config.pop(key, None)
    return {
        "schema": files.SCHEMA,
        "model": request.model,
        "head": request.head,
        "config": config,
        "dtypes": list(request.dtypes),
        "device": request.device,
        "seed": request.seed,
        "noise_runs": NOISE_RUNS,
        "updates": UPDATES,
        "spare_memory": np.size(request.batch.get("input_ids", ())) >= LONG,
        "optimizer": {key: value and float(np.float32(value)) for key, value in request.optimizer.items()},
        "threads": runtime.physical_cores(),
        "judge_reference_reversible": request.judge_reference_reversible,
        "tokenizer": _tokenizer_job(request.tokenizer),
        "mutants": [],
        "streamed": False,
        "ops": None,
    }


def _tokenizer_job(tokenizer: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if tokenizer is None:
        return None
    from toolkit.parity.job.tokenizer_texts import ADVERSARIAL

    texts = [*list(tokenizer["texts"])[:TOKENIZER_TEXTS], *ADVERSARIAL]
    return {"path": None, **tokenizer, "texts": texts}


def workers_of(request: GateRequest) -> dict[str, str]:
    """Both sides, and the interpreter that runs each."""
    return {"reference": request.reference_python or sys.executable, "candidate": sys.executable}


def remove_report(folder: Path) -> None:
    """Delete an earlier report, so that an aborted gate leaves none that could be taken for its own."""
    shutil.rmtree(folder, ignore_errors=True)
