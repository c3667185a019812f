"""Measurements of a model larger than memory, which runs stage by stage (:mod:`toolkit.parity.exchange.stages`).

A stage is the embedding, a layer, or the head, forward or backward. This process writes a stage's file when the port
has sent the whole stage. The stage is then done, and its R64 tensors are released.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from toolkit.parity.comparator.array_differences import difference, largest_difference
from toolkit.parity.comparator.choices import Choices
from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.comparator.requested_draws import RequestedDraws
from toolkit.parity.comparator.result import Side
from toolkit.parity.exchange import files, stages
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.messages import BEGIN, DrawRequest
from toolkit.parity.exchange.results import CandidateDtype, CandidateFacts, CandidateResult, Flips, Place
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure import constants, error_stats
from toolkit.parity.measure.error_stats import RunningStats, TensorStats
from toolkit.parity.measure.evaluation import TRAINING

#: Type of the values of dictionaries that are merged.
Value = TypeVar("Value")


@dataclass
class StageMeasurements:
    """Measurements of a stage in one dtype.

    Attributes:
        tensors: difference of each tensor from R64, by name.
        apart: distance of each hidden state, of the logits and of the loss from the reference in the same dtype, by
            name.
        parameter_errors: largest difference of each parameter from its initial value, by name.
        draw_problems: description of each wrong request for a draw, by the draw's name.
        unused_draws: names of R64's draws that the port did not request.
        relu_flips: signs of ReLU inputs that differ from R64's, by module.
        partial: statistics of the rows of the output layer's gradient that have come so far.
    """

    tensors: dict[str, TensorStats] = field(default_factory=dict)
    apart: dict[str, TensorStats] = field(default_factory=dict)
    parameter_errors: dict[str, float] = field(default_factory=dict)
    draw_problems: dict[str, str] = field(default_factory=dict)
    unused_draws: list[str] = field(default_factory=list)
    relu_flips: dict[str, Flips] = field(default_factory=dict)
    partial: RunningStats = field(default_factory=RunningStats)


@dataclass
class MeasuredStage:
    """Measurements of a stage in all dtypes.

    Attributes:
        dtypes: measurements by dtype.
        places: source locations of the stage's modules, by path.
    """

    dtypes: dict[str, StageMeasurements] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)


class StageReferenceFiles:
    """R64's draws in a stage, and the rates of its dropout masks (:class:`.requested_draws.ReferenceDraws`).

    Args:
        job: the job.
        side: files of the port's worker.
        stage: name of the stage, such as ``layer-003``.

    Attributes:
        draws: R64's draws, by run and name; the only run is the step.
        rates: rates of R64's dropout masks, by name.
    """

    def __init__(self, job: Job, side: stages.Side, stage: str) -> None:
        self.job = job
        path = side.other / "draws" / f"{stage}.safetensors"
        self.draws = {TRAINING: TensorFile(path)}
        self.rates: dict[str, float] = files.read_json(path.with_suffix(".json"))


class StageLedger(MessageHandler):
    """Measures a stage in one dtype.

    Args:
        job: the job.
        side: files of the port's worker.
        stage: name of the stage, such as ``layer-003``.
        dtype: dtype of the port's run.
        rows: token ids of the batch: indices of the embedding's rows that have a gradient.

    Attributes:
        measurements: measurements so far.
    """

    def __init__(self, job: Job, side: stages.Side, stage: str, dtype: str, rows: np.ndarray) -> None:
        self.side, self.stage, self.dtype, self.rows = side, stage, dtype, rows
        self.measurements = StageMeasurements()
        self._truth = side.truth(stage)
        self._facts = CandidateFacts()
        reference = StageReferenceFiles(job, side, stage)
        self._draws, self._choices = RequestedDraws(reference), Choices(reference, self._facts)

    @handles("asked")
    def _check_request(self, message: Message, request: DrawRequest) -> None:
        """Compare a requested draw with R64's draw of its name (:class:`.RequestedDraws`).

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            request: draw that the port asks for: its kind, shape and rate.
        """
        self._draws.handle(message)

    @handles("signs")
    def _compare_signs(self, message: Message, content: None) -> None:
        """Compare the signs of a ReLU's inputs with R64's (:class:`.Choices`).

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self._choices.handle(message)

    @handles("tensor")
    def _handle_tensor(self, message: Message, content: None) -> None:
        """Record the difference of a tensor from R64's, and in float32 also from the reference's float32 tensor.

        The reference has float32 tensors for hidden states, logits and the loss.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        name, truth = message.name, self._truth.get(message.name)
        theirs = self._truth.get(f"float32:{name}") if self.dtype == "float32" else None
        if theirs is None:
            self.measurements.tensors[name] = difference(message, truth)
            return
        value = message.value()
        self.measurements.tensors[name] = error_stats.measure_error(value, np.empty(0) if truth is None else truth)
        self.measurements.apart[name] = error_stats.measure_error(value, theirs)

    @handles("held")
    def _handle_held(self, message: Message, content: None) -> None:
        """Record the largest difference of a parameter from its initial value.

        A tied output layer has the embedding's initial value.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        weights = stages.open_weights(self.side.job, self.stage)
        if message.name not in weights:
            weights = stages.open_weights(self.side.job, stages.EMBEDDING)
        self.measurements.parameter_errors[message.name] = largest_difference(message, weights)

    @handles("rows")
    def _handle_rows(self, message: Message, content: list[Any]) -> None:
        """Add the difference of some rows of the output layer's gradient from R64's.

        If the output layer is tied to the embedding, the rows of the batch's tokens are compared when the embedding's
        gradient has been added to them.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: first row, and whether the output layer is tied to the embedding.
        """
        start, tied = content
        truth = self.side.truth("head-table").rows(message.name, start, start + message.shape[0])
        left_out = self.rows if tied else np.array([], int)
        self.measurements.partial.add_rows(message.value(), start, left_out, truth)

    @handles("all rows")
    def _handle_all_rows(self, message: Message, gradient_shape: list[int]) -> None:
        """Record the difference of the gradient of an output layer that is not tied, after its last rows.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            gradient_shape: shape of the gradient.
        """
        self.measurements.tensors[f"gradient:{message.name}"] = self.measurements.partial.stats(tuple(gradient_shape))

    @handles("own rows")
    def _handle_own_rows(self, message: Message, content: list[Any]) -> None:
        """Record the difference of the embedding's gradient, given its rows of the batch's tokens.

        All other rows are 0, or the rows of a tied output layer's gradient, which the head stage has measured.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: shape of the gradient, and whether the output layer is tied to the embedding.
        """
        shape, tied = content
        total = RunningStats((shape[0] - len(self.rows)) * shape[1])
        if tied:
            total = self.side.measurements(stages.HEAD, MeasuredStage).dtypes[self.dtype].partial
        total.add(RunningStats.of(message.value(), self._truth[f"rows:{message.name}"]))
        self.measurements.tensors[f"gradient:{message.name}"] = total.stats(tuple(shape))

    def result(self) -> StageMeasurements:
        """Return all measurements of the stage in this dtype."""
        self.measurements.draw_problems, self.measurements.unused_draws = self._draws.problems, self._draws.unused()
        self.measurements.relu_flips = self._facts.relu_flips
        return self.measurements


class Ledger(MessageHandler):
    """Measures all stages in turn, and the messages that belong to no stage, such as tokens.

    Args:
        job: the job.
        folder: job folder.

    Attributes:
        side: files of the port's worker.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job, self.folder = job, folder
        self.side = stages.Side(folder, "candidate")
        self._rows = np.unique(files.read_tensors(folder / "batch.safetensors")["input_ids"])
        self._of_no_stage = Side(None)  # type: ignore[arg-type]  # only texts, which need no files
        self._constants: dict[str, float] = {}
        self._places: dict[str, Place] = {}
        self._stage, self._dtype = "", ""
        self._now: dict[str, StageLedger] = {}
        self._stage_places: dict[str, Place] = {}

    def handle(self, message: Message) -> None:
        """Handle a message, which belongs to the stage and dtype of the last ``begin`` message.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
        """
        if self.can_handle(message.kind):
            super().handle(message)
        elif not self._stage:
            self._of_no_stage.handle(message)
        else:
            if self._dtype not in self._now:
                self._now[self._dtype] = StageLedger(self.job, self.side, self._stage, self._dtype, self._rows)
            self._now[self._dtype].handle(message)

    @handles(BEGIN)
    def _begin(self, message: Message, part: list[str]) -> None:
        """Record the stage and the dtype of the next messages; both are empty for messages outside of all stages."""
        self._stage, self._dtype = part or ("", "")

    @handles("places")
    def _add_places(self, message: Message, places: dict[str, Place]) -> None:
        """Record source locations of the current stage's modules, or outside of a stage of other code.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            places: source location of each module, by its name.
        """
        own_places = self._stage_places if self._stage else self._places
        own_places |= places

    @handles("constant")
    def _compare_constant(self, message: Message, content: None) -> None:
        """Record the error of a position table that the port computes itself, in units of rounding of the angle.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        theirs = files.read_tensors(self.folder / "reference" / "constants.safetensors")[message.name]
        self._constants[message.name] = constants.measure_angle_error(message.value(), theirs)

    @handles("done")
    def _finish(self, message: Message, content: None) -> None:
        """Write the measurements of the current stage, which is complete, and release its R64 tensors.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        stages_measured = {dtype: ledger.result() for dtype, ledger in self._now.items()}
        self.side.finish(self._stage, MeasuredStage(stages_measured, self._stage_places))
        self.side.release_truth([self._stage, "head-table"] if self._stage == stages.HEAD else [self._stage])
        self._now, self._stage_places = {}, {}

    def result(self) -> CandidateResult:
        """Return the measurements of all stages together, including stages that an earlier process measured."""
        stages_measured = [self.side.measurements(stage, MeasuredStage) for stage in self.side.stages()]
        places = {name: place for one in stages_measured for name, place in one.places.items()} | self._places
        dtypes = {
            dtype: _join_stages([one.dtypes[dtype] for one in stages_measured], places, self._constants)
            for dtype in self.job.dtypes
        }
        return replace(self._of_no_stage.own_report, dtypes=dtypes)


def _join_stages(
    parts: Sequence[StageMeasurements], places: dict[str, Place], constant_errors: dict[str, float]
) -> CandidateDtype:
    """Return the measurements of all stages in one dtype together.

    Args:
        parts: measurements of each stage.
        places: source locations of all modules, by path.
        constant_errors: error of each constant, by name.
    """
    return CandidateDtype(
        tensors=_merge_dicts([part.tensors for part in parts]),
        apart=_merge_dicts([part.apart for part in parts]),
        parameter_errors=_merge_dicts([part.parameter_errors for part in parts]),
        constant_errors=constant_errors,
        draw_problems=_merge_dicts([part.draw_problems for part in parts]),
        unused_draws=[name for part in parts for name in part.unused_draws],
        facts=CandidateFacts(relu_flips=_merge_dicts([part.relu_flips for part in parts])),
        places=places,
    )


def _merge_dicts(parts: Sequence[dict[str, Value]]) -> dict[str, Value]:
    """Return one dictionary with the entries of all parts; a later part replaces equal keys."""
    return {name: value for part in parts for name, value in part.items()}
