"""The first half of a pair's gate: build and run both sides once, and match their parameters, modules and draws."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console

from toolkit.errors import Inconclusive, UserError
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import Note
from toolkit.parity.exchange.tensor_file import TensorFile, TensorWriter
from toolkit.parity.inputs.synthetic import randomize_constant_buffers
from toolkit.parity.job.pair import DESCRIBE, RANDOM, Description, Pair, PairMap
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.pairs.match import propose_map
from toolkit.parity.pairs.size import is_large
from toolkit.parity.pairs.words import last_word, name_distance
from toolkit.parity.processes.processes import KILLED_MESSAGE, run_workers
from toolkit.parity.request.build import job_of, make_sides, workers_of
from toolkit.parity.request.request import GateRequest

#: Parts of messages with a cause outside of the user's file: the reference's interpreter has no torch, or memory was
#: short.
OTHER_CAUSES = ("--reference-python", KILLED_MESSAGE)


@dataclass
class Sides:
    """The descriptions of both sides, with the map between them.

    Attributes:
        reference: description of the reference.
        port: description of the port.
        map: matched parameters, modules and draws.
        weights: initial weights from the reference's ``build``, float32, by name.
        is_large: whether less is compared, in less memory (:mod:`.size`).
    """

    reference: Description
    port: Description
    map: PairMap
    weights: Mapping[str, np.ndarray]
    is_large: bool = False

    def pair_of(self, request: GateRequest) -> Pair:
        """Return the pair of a request with the map and the size of these sides.

        Args:
            request: options of the gate.
        """
        assert request.pair is not None
        return replace(request.pair, map=self.map, is_large=self.is_large)

    def alone(self) -> tuple[list[str], list[str]]:
        """Return parameters of the reference and of the port that have no counterpart."""
        matches = self.map.parameters
        theirs, ours = {match.reference for match in matches}, {match.port for match in matches}
        return (
            [one.name for one in self.reference.parameters if one.name not in theirs],
            [one.name for one in self.port.parameters if one.name not in ours],
        )

    def shared_state(self) -> list[str]:
        """Return the reference's names of the buffers of real numbers that a checkpoint holds and both sides have."""
        port = {one.name: one for one in self.port.buffers}
        reference = {one.name: one for one in self.reference.buffers}
        return [
            match.reference
            for match in self.map.buffers
            if reference[match.reference].is_state and reference[match.reference].is_real and port[match.port].is_real
        ]

    def notes(self) -> list[Note]:
        """Return the notes of a report on the map."""
        num_guessed = sum(not match.certain for match in self.map.parameters)
        data = {
            "parameters": len(self.map.parameters),
            "modules": len(self.map.modules),
            "draws": sum(TensorName.parse(name).kind in RANDOM for name in self.map.draws),
            "guessed": num_guessed,
        }
        unmatched_notes = (*self._unmatched_choices(), *self._unmatched_tables())
        names = ", ".join(self.map.drawn_buffers)
        drawn_notes = [Note("buffers-drawn", {"names": names})] if names else []
        brief_notes = [Note("brief-pair")] if self.is_large else []
        hints = (*self._other_initial_values(), *self._other_shapes())
        return [
            Note("pair-matched", data),
            *brief_notes,
            *unmatched_notes,
            *drawn_notes,
            *self._zero_rows(),
            *self._idle_masks(),
            *self._unreached_limits(),
            *self._offset_notes(),
            *hints,
        ]

    def _offset_notes(self) -> Iterator[Note]:
        """Yield a note on parameters that the port shifts by a number according to the map."""
        if names := [match.reference for match in self.map.parameters if match.offset]:
            yield Note("shifted", {"names": ", ".join(names)})

    def _other_initial_values(self) -> Iterator[Note]:
        """Yield hints at parameters that a loader may shift: the initial constants of the two sides differ."""
        sides = (self.reference, self.port)
        # A single element is constant even if it is drawn at random.
        theirs, ours = (
            {one.name: one.constant for one in side.parameters if math.prod(one.shape) > 1} for side in sides
        )
        for match in self.map.parameters:
            before, after = theirs.get(match.reference), ours.get(match.port)
            is_whole = match.rows is None and match.port_rows is None
            if is_whole and not match.offset and before is not None and after is not None and before != after:
                map_line = f"{match.reference}: {after - before:g} + {match.port}"
                numbers = {"theirs": f"{before:g}", "ours": f"{after:g}"}
                yield Note("other-initial-value", {"name": match.reference, **numbers, "map": map_line})

    def _other_shapes(self) -> Iterator[Note]:
        """Yield hints at parameters without a counterpart that have as many elements as one of the port's."""
        theirs, ours = map(set, self.alone())
        for one in self.reference.parameters:
            sizes = math.prod(one.shape)
            similar_parameters = [
                other for other in self.port.parameters if other.name in ours and math.prod(other.shape) == sizes
            ]
            if one.name in theirs and similar_parameters:
                other = min(similar_parameters, key=lambda other: name_distance(one.name, other.name))
                shapes = {"theirs": str(one.shape), "ours": str(other.shape)}
                yield Note("other-shape", {"name": one.name, "port": other.name, **shapes})

    def _zero_rows(self) -> Iterator[Note]:
        """Yield a note on each embedding with a row of zeros.

        For the ``padding_idx`` Paddle returns zeros, whatever its row holds, and torch returns the row.
        """
        for one in self.reference.parameters:
            value = self.weights.get(one.name)
            if one.role == "embedding" and value is not None and value.any() and not value.any(1).all():
                yield Note("zero-row", {"name": one.name, "row": int((~value.any(1)).argmax())})

    def _idle_masks(self) -> Iterator[Note]:
        """Yield notes on comparisons that build a mask and exclude nothing, so that any bound would pass."""
        for side, description in {"reference": self.reference, "port": self.port}.items():
            idle = (f"{mask.line} ({mask.operator})" for mask in description.masks if not mask.hides)
            if places := dict.fromkeys(idle):
                yield Note("masks-idle", {"side": side, "places": ", ".join(places)})

    def _unreached_limits(self) -> Iterator[Note]:
        """Yield notes on limits and choices that have the same outcome everywhere on the batch."""
        for side, description in {"reference": self.reference, "port": self.port}.items():
            for kind in ("limit", "choice"):
                lines = (f"{one.line} ({one.operator})" for one in description.unreached_facts if one.kind == kind)
                if places := dict.fromkeys(lines):
                    yield Note(f"{kind}s-idle", {"side": side, "places": ", ".join(places)})

    def _unmatched_choices(self) -> Iterator[Note]:
        """Yield notes on discrete choices of a side that the other side does not replay."""
        draws = {
            "reference": (self.reference.draws, self.map.draws.values()),
            "port": (self.port.draws, self.map.draws),
        }
        for side, (draws_of_side, matched_names) in draws.items():
            alone = [one for one in draws_of_side if one.kind not in RANDOM and one.name not in matched_names]
            names = (TensorName.parse(one.name) for one in alone)
            if places := dict.fromkeys(f"{name.module or 'the model itself'} ({name.kind})" for name in names):
                yield Note("choices-alone", {"side": side, "places": ", ".join(places)})

    def _unmatched_tables(self) -> Iterator[Note]:
        """Yield notes on unmatched buffers of a side that are not part of its state."""
        matches = self.map.buffers + self.map.parameters
        sides = {
            "reference": (self.reference.buffers, {match.reference for match in matches}),
            "port": (self.port.buffers, {match.port for match in matches}),
        }
        for side, (buffers, matched_names) in sides.items():
            parameters = {one.name for one in self.reference.parameters}  # a frozen one is missed as a parameter
            alone = dict.fromkeys(
                _of_any_layer(one.name)
                for one in buffers
                if not one.is_state
                and one.name not in matched_names
                and not (side == "reference" and one.name in parameters)
            )
            if alone:
                yield Note("buffers-alone", {"side": side, "names": ", ".join(alone)})


def _of_any_layer(name: str) -> str:
    """Return a name with each layer number replaced by ``*``: ``layers.0.weight`` -> ``layers.*.weight``."""
    return re.sub(r"\.\d+(?=\.)", ".*", name)


def describe_sides(request: GateRequest, job: Path, console: Console) -> Sides:
    """Build and run both sides of a pair once, and match them.

    Raises:
        UserError: a side cannot be built or run, the user's map has an unknown name, or the sides do not fit together.
        Inconclusive: the reference's interpreter lacks torch, or a side was killed.
    """
    run_sides([request], [job], console, workers_of(request))
    return match_sides(request, job, weights_of(job))


def run_sides(
    requests: Sequence[GateRequest], jobs: Sequence[Path], console: Console, workers: Mapping[str, str]
) -> None:
    """Build and run the sides of several pairs once, one pair after another, and write their descriptions.

    Args:
        requests: request of each pair.
        jobs: job folder of each pair.
        console: console for progress.
        workers: interpreter of each side to run: both sides, or one of them.

    Raises:
        UserError: a side cannot be built or run.
        Inconclusive: the reference's interpreter lacks torch, or a side was killed.
    """
    for request, job in zip(requests, jobs, strict=True):
        make_sides(job)
        files.write_json(job / "job.json", job_of(request))
    try:
        run_workers(jobs, console, workers, task=DESCRIBE)
    except Inconclusive as problem:
        if any(words in str(problem) for words in OTHER_CAUSES):
            raise
        words = str(problem).removeprefix("parity gate: ")
        raise UserError(words.replace("the candidate could not run", "the port could not run", 1)) from None


def match_sides(request: GateRequest, job: Path, weights: Mapping[str, np.ndarray]) -> Sides:
    """Match the two sides of a job by their descriptions.

    Args:
        request: request of the pair.
        job: job folder with the descriptions.
        weights: initial weights of the reference, by name.

    Raises:
        UserError: the user's map has an unknown name, or the sides do not fit together.
        Inconclusive: the model does not fit the memory.
    """
    reference, port = (description_of(job, side) for side in ("reference", "candidate"))
    parameter_names = {one.name for one in reference.parameters}
    if unknown := [name for name in request.pair_names if name not in parameter_names]:
        raise UserError(f"--map: the reference has no parameter {unknown[0]}; toolkit parity map lists them")
    try:
        pair_map = propose_map(reference, port, request.pair_names, request.pair_layouts)
    except ValueError as error:
        raise UserError(f"--map: {error}") from None
    sides = Sides(reference, port, pair_map, weights, is_large(reference.parameters, request))
    check_shapes(sides)
    return sides


def description_of(job: Path, side: str) -> Description:
    """Read a worker's description of its side."""
    return files.read(files.result_path(job, side, DESCRIBE), Description)


def weights_of(job: Path) -> Mapping[str, np.ndarray]:
    """Return the initial weights from the reference's ``build``, float32, which stay on disk until they are read.

    Args:
        job: folder of the job.
    """
    return TensorFile(job / "reference" / "weights.safetensors")


def check_shapes(sides: Sides) -> None:
    """Check that both sides are models of one size. A few parameters of another shape are findings of the gate.

    Args:
        sides: descriptions of both sides, and their match.

    Raises:
        UserError: most parameters have no counterpart.
    """
    theirs, ours = sides.alone()
    if 2 * len(theirs) > len(sides.reference.parameters) and 2 * len(ours) > len(sides.port.parameters):
        first = next(one for one in sides.reference.parameters if one.name in theirs)
        similar_parameters = [
            one for one in sides.port.parameters if one.name in ours and last_word(one.name) == last_word(first.name)
        ]
        counterpart_text = (
            f", and {similar_parameters[0].name} of the port is {similar_parameters[0].shape}"
            if similar_parameters
            else ""
        )
        raise UserError(
            f"{first.name} of the reference is {first.shape}{counterpart_text}: more than half of the parameters have "
            "no counterpart of their shape; build both from the same config"
        )


def write_pair(request: GateRequest, sides: Sides, weights: Mapping[str, np.ndarray], job: Path) -> None:
    """Write the weights, buffers and the job that both workers need for the comparison itself.

    Args:
        request: options of the gate.
        sides: descriptions of both sides, and their match.
        weights: weights by name.
        job: folder of the job.
    """
    assert request.pair is not None
    with TensorWriter(job / "weights.safetensors") as writer:
        for name, value in weights.items():
            writer.add(name, value)
    files.write_tensors(job / "labels.safetensors", {"labels": np.zeros(1, np.int64)})
    buffers = TensorFile(job / "reference" / "buffers.safetensors")
    # A port in another framework is sent no buffers: it writes such constants itself.
    state = {} if request.pair.any_framework else {name: buffers[name] for name in sides.shared_state()}
    frozen_values = {
        match.reference: weights[match.reference] for match in sides.map.buffers if match.reference in weights
    }
    initial = {**randomize_constant_buffers(state, request.seed), **frozen_values}
    files.write_tensors(job / files.INITIAL_BUFFERS, initial)
    files.write_json(job / "job.json", job_of(replace(request, pair=sides.pair_of(request))))
