"""The port's discrete choices against R64's: buckets, signs under ReLU, and indices chosen by scores (verdict 4)."""

from __future__ import annotations

import numpy as np

from toolkit.parity.comparator.asked_draws import ReferenceDraws
from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.job.handover import Message
from toolkit.parity.job.results import CandidateFacts, Flips
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.evaluation import TRAINING
from toolkit.parity.measure.naming import TensorName

#: Sign of a ReLU's input: positive, or NaN, which shows in the output.
POSITIVE, NAN = 1, -1


class Choices(MessageHandler):
    """Records in ``facts`` the port's choices that differ from R64's."""

    def __init__(self, reference: ReferenceDraws, facts: CandidateFacts) -> None:
        self.reference = reference
        self.facts = facts

    @handles("signs")
    def _compare_signs(self, message: Message, content: None) -> None:
        """Compare the signs of a ReLU's inputs (int8: :data:`POSITIVE`, 0, :data:`NAN`)."""
        name, recorded_draws = self._in_run(message)
        truth = recorded_draws.get(str(name))
        ours = message.value()
        if truth is None or truth.size != ours.size:
            return  # whatever is wrong shows in the output
        is_flipped = ((ours == POSITIVE) != (truth.reshape(ours.shape) > 0)) & (ours != NAN)
        if is_flipped.any():
            inputs = recorded_draws[str(name._replace(kind="input"))].reshape(ours.shape)
            self.facts.relu_flips[_place(message)] = _flips(is_flipped, np.abs(inputs[is_flipped]))

    @handles("buckets")
    def _compare_buckets(self, message: Message, content: None) -> None:
        """Compare the buckets of a module's vectors."""
        name, recorded_draws = self._in_run(message)
        truth = recorded_draws.get(str(name))
        ours = message.value()
        if truth is None or truth.shape != ours.shape:
            self.facts.bucket_flips[_place(message)] = Flips(shape=list(ours.shape))
            return
        is_flipped = ours != truth
        margins = recorded_draws[str(name._replace(kind="margin"))][is_flipped]
        self.facts.bucket_flips[_place(message)] = _flips(is_flipped, margins)

    @handles("choice")
    def _compare_choice(self, message: Message, scores_shape: list[int]) -> None:
        """Compare the indices that were chosen along the last axis of scores of this shape."""
        name, recorded_draws = self._in_run(message)
        truth, scores = recorded_draws.get(str(name)), recorded_draws.get(str(name._replace(kind="scores")))
        ours, shape = message.value(), tuple(scores_shape)
        if truth is None or scores is None or truth.size != ours.size or scores.size != np.prod(shape):
            return  # whatever is wrong shows in the output
        truth, scores = truth.reshape(ours.shape), scores.reshape(shape)
        if str(name._replace(kind="unordered")) in recorded_draws:  # a top-k with sorted=False
            ours = _in_order_of(truth, ours)
        is_flipped = ours != truth
        if is_flipped.any():
            own, best = (np.take_along_axis(scores, index.astype(np.int64), -1) for index in (ours, truth))
            with np.errstate(invalid="ignore"):
                margins = np.where(own == best, 0.0, np.abs(own - best))[is_flipped]
            self.facts.choice_flips[_place(message)] = _flips(is_flipped, np.nan_to_num(margins, nan=np.inf))

    def _in_run(self, message: Message) -> tuple[TensorName, TensorFile]:
        name = TensorName.parse(message.name)
        return name.without_run, self.reference.draws[name.evaluation or TRAINING]


def _place(message: Message) -> str:
    """Return the name of the module that chose, with the name of its run as a prefix."""
    name = TensorName.parse(message.name)
    module = name.module + name.call
    return f"{name.evaluation}/{module}" if name.evaluation else module


def _in_order_of(truth: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return ``indices`` with each that is also in the same row of ``truth`` at its place there.

    The others fill the remaining places: `truth` [3, 0, 5], `indices` [5, 3, 7] -> [3, 7, 5].
    """
    equal = truth[..., :, None] == indices[..., None, :]
    is_shared_place, is_shared_index = equal.any(-1), equal.any(-2)
    places, order = (np.argsort(mask, -1, kind="stable") for mask in (is_shared_place, is_shared_index))
    remaining = np.take_along_axis(indices, order, -1)
    is_shared = np.take_along_axis(is_shared_place, places, -1)
    aligned_indices = np.empty_like(truth)
    np.put_along_axis(
        aligned_indices, places, np.where(is_shared, np.take_along_axis(truth, places, -1), remaining), -1
    )
    return aligned_indices


def _flips(is_flipped: np.ndarray, margins: np.ndarray) -> Flips:
    return Flips(int(is_flipped.sum()), int(is_flipped.size), float(margins.max(initial=0.0)))
