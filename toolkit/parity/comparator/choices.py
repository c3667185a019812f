"""Comparison of the port's discrete choices with R64's (verdict 4): buckets, ReLU signs, and indices by scores.

Indices are chosen by scores with argmax, top-k or sort.
"""

from __future__ import annotations

import numpy as np

from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.comparator.requested_draws import ReferenceDraws
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.results import CandidateFacts, Flips
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.measure.evaluation import TRAINING
from toolkit.parity.measure.naming import TensorName

#: Values of the signs of ReLU inputs in a message: positive, or NaN, which the output shows. All others are 0.
POSITIVE, NAN = 1, -1


class Choices(MessageHandler):
    """Compares the port's choices with R64's, and records the different choices in ``facts``.

    Args:
        reference: R64's draws and choices.
        facts: properties of the port, which the different choices are added to.
    """

    def __init__(self, reference_draws: ReferenceDraws, facts: CandidateFacts) -> None:
        self.reference = reference_draws
        self.facts = facts

    @handles("signs")
    def _compare_signs(self, message: Message, content: None) -> None:
        """Record the ReLU inputs of a module whose sign differs from R64's, and the largest |R64| among them.

        The message has int8 values: :data:`POSITIVE`, 0 or :data:`NAN`.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        name, recorded_draws = self._in_run(message)
        truth = recorded_draws.get(str(name))
        ours = message.value()
        if truth is None or truth.size != ours.size:
            return  # the output shows the fault
        is_flipped = ((ours == POSITIVE) != (truth.reshape(ours.shape) > 0)) & (ours != NAN)
        if is_flipped.any():
            inputs = recorded_draws[str(name._replace(kind="input"))].reshape(ours.shape)
            self.facts.relu_flips[_place(message)] = _flips(is_flipped, np.abs(inputs[is_flipped]))

    @handles("buckets")
    def _compare_buckets(self, message: Message, content: None) -> None:
        """Record the hash buckets of a module's vectors that differ from R64's, and R64's largest margin among them.

        A margin is the distance of the best bucket from the second best.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
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
        """Record how many of the port's indices differ from R64's (float64 reference), and by how much in R64's scores.

        The indices were chosen along the last axis of scores, by argmax, top-k or sort. If R64's scores at both indices
        differ only by rounding, the choice was a near tie.

        Args:
            message: message of the port's process, with the name of the choice and the port's indices.
            scores_shape: shape of the scores that the module chose the indices from.
        """
        name, recorded_draws = self._in_run(message)
        truth, scores = recorded_draws.get(str(name)), recorded_draws.get(str(name._replace(kind="scores")))
        ours, shape = message.value(), tuple(scores_shape)
        if truth is None or scores is None or truth.size != ours.size or scores.size != np.prod(shape):
            return  # the output shows the fault
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
        """Return the name of a choice without its run, and R64's draws and choices of this run.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
        """
        name = TensorName.parse(message.name)
        return name.without_run, self.reference.draws[name.evaluation or TRAINING]


def _place(message: Message) -> str:
    """Return the path of the module that chose, with the run before it: ``evaluation/encoder.layers.0.attention``.

    The step has no run in the path. The number of the module's call follows the path, such as ``#1``.

    Args:
        message: message of the port's process, with the name and, if it sends an array, the array.
    """
    name = TensorName.parse(message.name)
    module = name.module + name.call
    return f"{name.evaluation}/{module}" if name.evaluation else module


def _in_order_of(true_value: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Return ``indices`` in another order, with each index that `true_value` also has at its position there.

    The rows along the last axis are sorted separately. The other indices fill the remaining positions: `true_value`
    [3, 0, 5], `indices` [5, 3, 7] -> [3, 7, 5].
    """
    equal = true_value[..., :, None] == indices[..., None, :]
    is_shared_place, is_shared_index = equal.any(-1), equal.any(-2)
    places, order = (np.argsort(mask, -1, kind="stable") for mask in (is_shared_place, is_shared_index))
    remaining = np.take_along_axis(indices, order, -1)
    is_shared = np.take_along_axis(is_shared_place, places, -1)
    aligned_indices = np.empty_like(true_value)
    np.put_along_axis(
        aligned_indices, places, np.where(is_shared, np.take_along_axis(true_value, places, -1), remaining), -1
    )
    return aligned_indices


def _flips(is_flipped: np.ndarray, margins: np.ndarray) -> Flips:
    """Return the count of the different choices and their largest margin.

    Args:
        is_flipped: mask of the different choices among all choices.
        margins: margin of each different choice.
    """
    return Flips(int(is_flipped.sum()), int(is_flipped.size), float(margins.max(initial=0.0)))
