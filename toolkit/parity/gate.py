"""The gate: run the reference and the port on the same step, judge, report. All commands enter here."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from models.families import part
from toolkit import runtime
from toolkit.errors import Inconclusive
from toolkit.parity import bundle, cache, stream
from toolkit.parity.attribution import attribute
from toolkit.parity.report import Report, as_json, print_report
from toolkit.parity.request import GateRequest
from toolkit.parity.stress import stir
from toolkit.parity.verdict import first_at_fault, judge

#: Runs of the reference by which its rounding is measured, beside the one that is the truth.
NOISE_RUNS = {"float32": 5, "float64": 2}
#: Likewise stage by stage, where each tensor has so many elements that few runs tell.
STREAMED_NOISE_RUNS = {"float32": 3, "float64": 1}
#: The file of the reference's constants beside the report.
CONSTANTS = "constants.safetensors"
#: Texts of the run's own data whose tokens are compared, beside the adversarial ones.
TOKENIZER_TEXTS = 64


def run_gate(request: GateRequest, folder: Path, console: Console) -> Report:
    """Compare the port with the reference on one training step, print the table, write ``folder/parity.json``.

    What the reference computes once and holds beside its parameters is left in ``folder`` too (:data:`CONSTANTS`): the
    port was compared with these in place of its own, and is to be trained with them.

    Raises:
        Inconclusive: a worker could not run, with its last words.
    """
    started = time.monotonic()
    measure = _measure_streamed if is_streamed(request) else _measure_whole
    measured, cached = measure(request, folder, console)
    reference, candidate = measured["reference"], measured["candidate"]
    verdict = judge(reference, candidate)
    if not cached and verdict.passed:
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
    )
    folder.mkdir(parents=True, exist_ok=True)
    if measured["constants"]:
        bundle.write_tensors(folder / CONSTANTS, measured["constants"])
    bundle.write_json(folder / "parity.json", as_json(report))
    print_report(report, console)
    return report


def is_streamed(request: GateRequest) -> bool:
    """Whether the model is too large to be compared as a whole. Only CTRL's language model is ever that large."""
    if request.streamed is not None:
        return request.streamed
    table = part(request.model, "weights").parameters(
        part(request.model, "schema").resolve(request.config), request.head
    )
    large = sum(math.prod(shape) for shape, _ in table.values()) > stream.STREAMED_ABOVE
    return large and (request.model, request.head) == ("ctrl", "causal_lm")


def _measure_whole(request: GateRequest, folder: Path, console: Console) -> tuple[dict[str, Any], bool]:
    """Both workers' results, and whether they are those of an earlier gate."""
    weights, stirred = stir(request.weights, request.seed)
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        job = Path(scratch)
        write_job(request, weights, job)
        key = cache.key_of(job)
        if kept := cache.load(key):
            return kept, True
        run_workers(job, console)
        results = _results(job)
        substitutions = attribute(job, results["reference"], results["candidate"], console)
        return {**results, "stirred": stirred, "key": key, "attribution": substitutions}, False


def _measure_streamed(request: GateRequest, folder: Path, console: Console) -> tuple[dict[str, Any], bool]:
    """As :func:`_measure_whole`, stage by stage, in a job folder that outlives an interruption."""
    folder.mkdir(parents=True, exist_ok=True)
    content = {**job_of(request), "noise_runs": STREAMED_NOISE_RUNS, "streamed": True}
    key = cache.key_of_request(content, request.batch, request.weights)
    if kept := cache.load(key):
        return kept, True
    job = stream.open_job(folder, content, key, request.batch, console)
    depth = content["config"]["n_layer"]
    writer = stream.WeightsWriter(job, request.weights, depth, request.seed)
    bars = stream.Bars(job, depth, console)
    try:
        with bars.progress, stream.writing(writer):
            run_workers(job, console, bars.update)
            bars.update()
    except KeyboardInterrupt:
        text = f"the same command goes on from here; {job} is kept for it, and may be deleted"
        console.print(f"parity gate: {text}", highlight=False, soft_wrap=True)
        raise
    measured = {**_results(job), "stirred": writer.stirred(), "key": key}
    stream.close_job(job)
    return measured, False


def _results(job: Path) -> dict[str, Any]:
    """Both workers' results, and the hashes of the tensors that both were given."""
    results = {side: bundle.read_json(job / side / "result.json") for side in ("reference", "candidate")}
    given = [path for path in sorted(job.rglob("*.safetensors")) if path.parent.name not in ("state", "truth")]
    return {
        **results,
        "constants": bundle.read_tensors(job / "reference" / "constants.safetensors"),
        "hashes": {str(path.relative_to(job)): bundle.sha256(path) for path in given},
    }


def write_job(request: GateRequest, weights: Mapping[str, np.ndarray], job: Path, mutants: Sequence[str] = ()) -> None:
    """Fill the job folder with what both workers need; ``mutants`` are also measured, by name."""
    for side in ("reference", "candidate"):
        (job / side).mkdir()
    bundle.write_tensors(job / "weights.safetensors", weights)
    bundle.write_tensors(job / "batch.safetensors", request.batch)
    bundle.write_json(job / "job.json", {**job_of(request), "mutants": list(mutants)})


def job_of(request: GateRequest) -> dict[str, Any]:
    """The content of ``job.json``."""
    config = part(request.model, "schema").resolve(request.config)
    for key in ("num_hidden_layers", "label2id", "id2label"):  # they follow from attn_layers and num_labels
        config.pop(key, None)
    return {
        "schema": bundle.SCHEMA,
        "model": request.model,
        "head": request.head,
        "config": config,
        "dtypes": list(request.dtypes),
        "device": request.device,
        "seed": request.seed,
        "noise_runs": NOISE_RUNS,
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
    from toolkit.parity.tokenizers import ADVERSARIAL

    texts = [*list(tokenizer["texts"])[:TOKENIZER_TEXTS], *ADVERSARIAL]
    return {"path": None, **tokenizer, "texts": texts}


def run_workers(job: Path, console: Console, watch: Callable[[], None] | None = None) -> None:
    """Both workers at once; the Paddle one starts up while the reference still computes.

    Args:
        watch: called over and over while they run, to show what they do; by default a line says which of them runs.

    Raises:
        Inconclusive: one of them failed.
    """
    status = console.status("parity gate: running the reference and the port") if watch is None else None
    with status or contextlib.nullcontext(), _workers(job) as workers:
        started = time.monotonic()
        while any(worker.poll() is None for worker in workers.values()):
            if watch is not None:
                watch()
                continue
            running = " and ".join(side for side, worker in workers.items() if worker.poll() is None)
            status.update(f"parity gate: {running} running, {time.monotonic() - started:.0f} s")
            time.sleep(0.05)
    for side in workers:
        if not (job / side / "result.json").exists():
            failed = job / side / "failed"
            words = failed.read_text() if failed.exists() else (job / f"{side}.log").read_text()[-2000:]
            raise Inconclusive(f"parity gate: the {side} could not run: {words.strip()}")


@contextlib.contextmanager
def _workers(job: Path) -> Iterator[dict[str, subprocess.Popen]]:
    """Start both workers; whatever happens, none outlives the ``with`` block."""
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])}
    workers = {}
    try:
        for side in ("reference", "candidate"):
            with open(job / f"{side}.log", "w") as log:
                workers[side] = subprocess.Popen(
                    [sys.executable, "-m", f"toolkit.parity.{side}", str(job)],
                    env=environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    stdin=subprocess.DEVNULL,
                )
        yield workers
    finally:
        for worker in workers.values():
            if worker.poll() is None:
                worker.kill()
            worker.wait()


def remove_report(folder: Path) -> None:
    """Delete an earlier report, so that an aborted gate leaves none that could be taken for its own."""
    shutil.rmtree(folder, ignore_errors=True)
