"""Run gates in tests: quietly, many with one pair of worker processes, or with the real command on edited source."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
from rich.console import Console

from models.families import part
from toolkit.parity import gate
from toolkit.parity.exchange import files
from toolkit.parity.families.reformer.family import NOTHING_AHEAD
from toolkit.parity.families.reformer.trial import SMALL_REFORMER as REFORMER_TRIAL
from toolkit.parity.followup import trace
from toolkit.parity.inputs.synthetic import SyntheticWeights, random_batch, randomize_constants
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.report.report import Report
from toolkit.parity.request.build import workers_of, write_request
from toolkit.parity.request.request import GateRequest

ROOT = Path(__file__).resolve().parents[1]
#: The configuration of the fixture ``tiny_config``, for fixtures of a whole module.
TINY_REFORMER = {**REFORMER_TRIAL, "attn_layers": ["local", "lsh"], "hidden_act": "relu"}


def quiet() -> Console:
    return Console(file=io.StringIO())


def request_for(model: str, head: str, config: Mapping, length: int, kind: str = "random", **options) -> GateRequest:
    """Return the request for a gate of synthetic weights on a batch of three examples."""
    if model == "reformer":
        causal = head == "causal_lm"
        config = {**config, "is_decoder": causal, **(NOTHING_AHEAD if causal else {})}
    weights = SyntheticWeights(part(model, "schema").resolve(config), head, 0, kind, model)
    return GateRequest(model, head, config, weights, random_batch(config, head, 3, length, 0, model), **options)


def reformer_request(config: Mapping, head: str = "sequence_classification", kind: str = "random", **options):
    return request_for("reformer", head, config, int(np.prod(config["axial_pos_shape"])), kind, **options)


def run(request: GateRequest, folder: Path, width: int = 200) -> tuple[Report, str]:
    """Run a gate; return its report and its printed output."""
    out = io.StringIO()
    return gate.run_gate(request, folder, Console(file=out, width=width)), out.getvalue()


class PreparedGates:
    """Gates whose jobs a single pair of worker processes has run before; a second pair has run the operation traces.

    Each gate does the rest itself: it writes its job, compares, follows up differences, and reports.
    """

    def __init__(self, folder: Path, requests: Sequence[GateRequest]) -> None:
        self._jobs: dict[tuple[str, ...], Path] = {}
        jobs = [folder / str(number) for number in range(len(requests))]
        for request, job in zip(requests, jobs, strict=True):
            write_request(request, randomize_constants(request.weights, request.seed)[0], job)
            self._jobs[_identity(job)] = job
        workers = workers_of(requests[0])
        run_workers(jobs, quiet(), workers)
        if jobs_with_trace := [job for request, job in zip(requests, jobs, strict=True) if request.trace]:
            run_workers(jobs_with_trace, quiet(), workers, task=trace.TASK)

    def run(self, request: GateRequest, folder: Path) -> tuple[Report, str]:
        """Run a gate; return its report and its printed output.

        Raises:
            KeyError: the gate was not prepared.
        """
        with (
            mock.patch.object(gate, "run_workers", self._copy_results),
            mock.patch.object(trace, "run_workers", self._copy_results),
        ):
            return run(request, folder)

    def _copy_results(
        self,
        jobs: Sequence[Path],
        console: Console,
        interpreters: Mapping[str, str],
        watch: Callable[[], None] | None = None,
        task: str = files.RESULT,
    ) -> None:
        (job,) = jobs
        prepared_job = self._jobs[_identity(job)]
        if not all(files.result_path(prepared_job, side, task).exists() for side in interpreters):
            return run_workers(jobs, console, interpreters, watch, task)
        for side in interpreters:
            shutil.copytree(prepared_job / side, job / side, dirs_exist_ok=True)


def _identity(job: Path) -> tuple[str, ...]:
    """Return the digests of the input files of a job's workers."""
    return tuple(files.file_sha256(job / name) for name in ("job.json", "weights.safetensors", "batch.safetensors"))


def copied_source(folder: Path, file: str, *edits: tuple[str, str]) -> Path:
    """Copy the project, and apply each of ``edits`` once in ``file``, as a developer would.

    The copy includes the compiled loops, whose names identify their source.
    """
    for package in ("models", "toolkit"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("*.pyc"))
    source = folder / file
    text = source.read_text()
    for original, replacement in edits:
        assert original in text
        text = text.replace(original, replacement, 1)
    source.write_text(text)
    return folder


def toolkit_in(folder: Path, *arguments: object) -> subprocess.CompletedProcess:
    """Run the real command on the source in ``folder``."""
    return subprocess.run(
        [sys.executable, "-m", "toolkit", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
