"""Record a user's reference on a machine with torch, and compare a port with it on a machine without torch.

Recording runs only the reference's file. It is not yet known which of its modules have a counterpart, so the outputs of
all possible modules are recorded. The map is computed when a port is compared.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from toolkit.errors import UserError
from toolkit.parity.bundle.bundle import Recording, check_weights_free, new_bundle, seal_bundle
from toolkit.parity.bundle.external_weights import weights_path_of
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import ReferenceResult
from toolkit.parity.inputs.synthetic import randomize_constants
from toolkit.parity.job.pair import Pair, PairMap, ParameterMatch
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.pairs.describe import Sides, description_of, match_sides, run_sides, weights_of, write_pair
from toolkit.parity.pairs.match import propose_map
from toolkit.parity.pairs.size import is_large
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.request.build import job_of, workers_of
from toolkit.parity.request.request import GateRequest


def record_pair(request: GateRequest, folder: Path, console: Console) -> None:
    """Run only the reference of a pair, and write its results as a bundle, which is complete or not written at all.

    Args:
        request: request of the pair.
        folder: folder of the bundle.
        console: console for progress.

    Raises:
        UserError: the port's file defines the batch; the reference cannot be built or run; or ``folder`` holds
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
        command = (
            "judge {0} FOLDER" if request.pair.any_framework else f"{command} --weights {weights_path_of(Path('{0}'))}"
        )
    with new_bundle(folder, console, command) as job:
        run_sides([request], [job], console, alone)
        own = description_of(job, "reference")
        large = is_large(own.parameters, request)
        own_map = propose_map(own, own)
        tables = {one.name for one in own.buffers} & {one.name for one in own.parameters}
        own_map.buffers += [ParameterMatch(name, name) for name in sorted(tables)]  # a port may make them buffers
        itself = Sides(own, own, own_map, weights_of(job), large)
        weights, num_randomized = randomize_constants(itself.weights, request.seed)
        write_pair(request, itself, weights, job)
        run_workers([job], console, alone)
        seal_bundle(job, num_randomized, weights_path_of(folder) if request.pair.small else None)


def describe_port(recording: Recording, request: GateRequest, job: Path, console: Console) -> Sides:
    """Build and run a port once on the recorded batch, match it with the recorded reference, and write its job.

    Args:
        recording: recorded reference.
        request: request of the pair.
        job: job folder that contains the files of the recording.
        console: console for progress.

    Raises:
        UserError: the port cannot be built or run, the user's map has an unknown name, or the port is of another
            layout than the recorded reference.
    """
    assert request.pair is not None
    run_sides([request], [job], console, {"candidate": sys.executable})
    try:
        sides = match_sides(request, job, {})
    except UserError as error:
        raise UserError(f"{recording.folder}: {error}") from None
    files.write_json(job / "job.json", job_of(replace(request, pair=sides.pair_of(request))))
    return sides


def keep_counterparts(reference: ReferenceResult, pair_map: PairMap, pair: Pair) -> ReferenceResult:
    """Return the recorded results of the modules that have a counterpart in the port.

    The logits are left out if the port's file defines its own loss. The result accepts the known differences of the
    port.
    """
    facts = reference.facts
    return replace(
        reference,
        tensors={
            name: record
            for name, record in reference.tensors.items()
            if pair_map.compares(name) and not (pair.has_loss and TensorName.parse(name).without_run.kind == "logits")
        },
        facts=replace(facts, epsilons={name: one for name, one in facts.epsilons.items() if name in pair_map.modules}),
        accept=pair.accept,
    )
