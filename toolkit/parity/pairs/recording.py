"""A reference of the user's, recorded where torch is, and a port that is judged by it where torch is not.

The reference's file alone is run to record it. Which of its modules will have a counterpart nobody knows then, so that
of all that could have one the outputs are recorded; the map is made when a port is there.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from toolkit.errors import UserError
from toolkit.parity.job import files
from toolkit.parity.job.build import job_of, workers_of
from toolkit.parity.job.bundle import Recording, new_bundle, seal
from toolkit.parity.job.pair import PairMap
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import ReferenceResult
from toolkit.parity.job.synthetic import randomize_constants
from toolkit.parity.pairs.describe import Sides, ask, description_of, settled, weights_of, write_pair
from toolkit.parity.pairs.match import propose


def record_pair(request: GateRequest, folder: Path, console: Console) -> None:
    """Run the reference of a pair alone and leave what it computed in ``folder``: all of it, or nothing.

    Raises:
        UserError: the batch is made by the port's file; the reference cannot be built or run; or ``folder`` holds
            something that is not a bundle.
        Inconclusive: the reference's interpreter lacks torch.
    """
    assert request.pair is not None
    if request.pair.batch_from != "reference":
        raise UserError(
            f"{request.pair.port} has batch(config, rng), and is not run where the reference is recorded; move it to "
            f"{request.pair.reference}"
        )
    alone = {"reference": workers_of(request)["reference"]}
    with new_bundle(folder, console, " --port FILE") as job:
        ask([request], [job], console, alone)
        own = description_of(job, "reference")
        itself = Sides(own, own, propose(own, own), weights_of(job))
        weights, randomized = randomize_constants(itself.weights, request.seed)
        write_pair(request, itself, weights, job)
        run_workers([job], console, alone)
        seal(job, randomized)


def describe_port(recording: Recording, request: GateRequest, job: Path, console: Console) -> Sides:
    """Let a port be built and run once on the recorded batch, match it with the recorded reference, and tell its worker
    what corresponds to what.

    Args:
        job: a job folder in which the recording is laid out.

    Raises:
        UserError: the port cannot be built or run, a name of the user's map is none, or the port is of another layout
            than the reference that was recorded.
    """
    assert request.pair is not None
    ask([request], [job], console, {"candidate": sys.executable})
    try:
        sides = settled(request, job, {})
    except UserError as problem:
        raise UserError(f"{recording.folder}: {problem}") from None
    files.write_json(job / "job.json", job_of(replace(request, pair=replace(request.pair, map=sides.map))))
    return sides


def of_counterparts(reference: ReferenceResult, found: PairMap) -> ReferenceResult:
    """What was recorded of a reference, without the modules that the port has no counterpart of."""
    facts = reference.facts
    return replace(
        reference,
        tensors={name: record for name, record in reference.tensors.items() if found.compares(name)},
        facts=replace(facts, epsilons={name: one for name, one in facts.epsilons.items() if name in found.modules}),
    )
