"""Records a user's reference where torch is, and judges a port by it where torch is not.

Only the reference's file is run to record it. It is not known then which of its modules will have a counterpart, so the
outputs of all that could have one are recorded. The map is made when a port is there.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from toolkit.errors import UserError
from toolkit.parity.job import files
from toolkit.parity.job.build import job_of, workers_of
from toolkit.parity.job.bundle import Recording, check_weights_free, new_bundle, seal
from toolkit.parity.job.left_out import beside
from toolkit.parity.job.pair import Pair, PairMap, ParameterMatch
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import ReferenceResult
from toolkit.parity.job.synthetic import randomize_constants
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.pairs.describe import Sides, ask, description_of, settled, weights_of, write_pair
from toolkit.parity.pairs.match import propose
from toolkit.parity.pairs.size import is_large


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
    command = "judge {0} PORT" if request.pair.any_framework else "replay {0} --port FILE"
    if request.pair.small:
        check_weights_free(folder)
        command = "judge {0} FOLDER" if request.pair.any_framework else f"{command} --weights {beside(Path('{0}'))}"
    with new_bundle(folder, console, command) as job:
        ask([request], [job], console, alone)
        own = description_of(job, "reference")
        large = is_large(own.parameters, request)
        own_map = propose(own, own)
        tables = {one.name for one in own.buffers} & {one.name for one in own.parameters}
        own_map.buffers += [ParameterMatch(name, name) for name in sorted(tables)]  # a port may make them buffers
        itself = Sides(own, own, own_map, weights_of(job), large)
        weights, num_randomized = randomize_constants(itself.weights, request.seed)
        write_pair(request, itself, weights, job)
        run_workers([job], console, alone)
        seal(job, num_randomized, beside(folder) if request.pair.small else None)


def describe_port(recording: Recording, request: GateRequest, job: Path, console: Console) -> Sides:
    """Build and run a port once on the recorded batch, match it with the recorded reference, and tell its worker what
    corresponds to what.

    Args:
        job: a job folder in which the recording is laid out.

    Raises:
        UserError: the port cannot be built or run, the user's map has an unknown name, or the port is of another
            layout than the recorded reference.
    """
    assert request.pair is not None
    ask([request], [job], console, {"candidate": sys.executable})
    try:
        sides = settled(request, job, {})
    except UserError as problem:
        raise UserError(f"{recording.folder}: {problem}") from None
    files.write_json(job / "job.json", job_of(replace(request, pair=sides.pair_of(request))))
    return sides


def of_counterparts(reference: ReferenceResult, found: PairMap, pair: Pair) -> ReferenceResult:
    """Return what was recorded of a reference, without what the port has no counterpart of: modules, and the logits if
    its file has a loss of its own; with the differences that are known of this port."""
    facts = reference.facts
    return replace(
        reference,
        tensors={
            name: record
            for name, record in reference.tensors.items()
            if found.compares(name) and not (pair.has_loss and TensorName.parse(name).in_its_run.kind == "logits")
        },
        facts=replace(facts, epsilons={name: one for name, one in facts.epsilons.items() if name in found.modules}),
        accept=pair.accept,
    )
