"""Measurements of the port in one dtype, from the messages of the port's process."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from toolkit.parity.comparator.array_differences import difference, largest_difference
from toolkit.parity.comparator.choices import Choices
from toolkit.parity.comparator.handler import MessageHandler, handles
from toolkit.parity.comparator.requested_draws import RequestedDraws
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Message
from toolkit.parity.exchange.messages import DrawRequest
from toolkit.parity.exchange.results import CandidateDtype, CandidateFacts, OutputDifference, Place, ReplayError
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure import constants, error_stats, same_numbers
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.measure.evaluation import RUNS
from toolkit.parity.measure.naming import TensorName, is_gradient
from toolkit.parity.measure.sketch import Sketch

#: Arrays by the names of the tensors.
Tensors = dict[str, np.ndarray]

#: Smallest relative error (RMS) of a pair's output with R64's shape that counts as a different quantity, such as the
#: same rows in another order. A smaller difference is an error of the same quantity.
ANOTHER_THING = 1e-2


class ReferenceFiles:
    """Files of a job that the port's tensors are compared with, read on first use.

    The port sends its first messages before R64 exists.

    Args:
        job: the job.
        folder: job folder.
    """

    def __init__(self, job: Job, folder: Path) -> None:
        self.job = job
        self.folder = folder

    @functools.cached_property
    def truth(self) -> Mapping[str, np.ndarray]:
        """R64's tensors by name, each read on access."""
        files.wait_for_reference(self.folder, "order.json" if self.job.at_once else "result.json")
        return TensorFile(self.folder / "reference" / "float64.safetensors")

    @functools.cached_property
    def weights(self) -> TensorFile:
        """The float32 weights of both sides by parameter name, each read on access."""
        return TensorFile(self.folder / "weights.safetensors")

    @functools.cached_property
    def constants(self) -> Mapping[str, np.ndarray]:
        """The reference's precomputed constants by name; for a pair, its buffers as ``buffer:NAME``."""
        if self.job.pair is None:
            return files.read_tensors(self.folder / "reference" / "constants.safetensors")
        return self._buffers("buffers.safetensors")

    @functools.cached_property
    def float32_buffers(self) -> Mapping[str, np.ndarray]:
        """The buffers of a pair's reference as it computes them in float32, by ``buffer:NAME``."""
        return self._buffers("buffers-float32.safetensors")

    def _buffers(self, file_name: str) -> dict[str, np.ndarray]:
        """Return the buffers in a file of the reference's folder, by ``buffer:NAME``."""
        buffers = files.read_tensors(self.folder / "reference" / file_name)
        return {f"buffer:{name}": value for name, value in buffers.items()}

    @functools.cached_property
    def draws(self) -> dict[str, TensorFile]:
        """R64's draws and choices, by run and name."""
        return {run: TensorFile(self.folder / "reference" / f"draws-{run}.safetensors") for run in RUNS}

    def unread(self, name: str, shape: Sequence[int]) -> np.ndarray:
        """Return the mask of the elements of a pair's output that the loss does not depend on.

        All elements are True if this was not measured.

        Args:
            name: name of the output.
            shape: shape of the output and of the mask.
        """
        place = self.folder / "reference"
        is_measured = (place / files.UNREAD).exists()
        return files.read_unread(place, name, shape) if is_measured else np.ones(shape, bool)

    @functools.cached_property
    def rates(self) -> dict[str, float]:
        """The rates of R64's dropout masks, by name."""
        return files.read_json(self.folder / "reference" / "rates.json")


class DtypeLedger(MessageHandler):
    """Measures the port in one dtype, or a mutant in one dtype.

    Args:
        reference: files that the port is compared with.
        is_mutant: whether a fault is in force. Fewer tensors of a pair's mutant are compared.

    Attributes:
        measured: measurements so far.
        values: the loss and the gradients of the step, by name.
    """

    def __init__(self, reference: ReferenceFiles, *, is_mutant: bool = False) -> None:
        self.reference = reference
        self._is_ported = reference.job.pair is None
        self._is_mutant = is_mutant
        self._is_brief = reference.job.brief or (is_mutant and not self._is_ported)
        self.measured = CandidateDtype()
        self.values: Tensors = {}
        self._unwatched: Tensors = {}
        self._second: Tensors = {}
        self._own: dict[str, Tensors] = {"plain": {}, "again": {}}
        self._is_plain_first = True
        self._draws = RequestedDraws(reference)
        self._choices = Choices(reference, self.measured.facts)

    @handles("asked")
    def _check_request(self, message: Message, request: DrawRequest) -> None:
        """Compare a requested draw with R64's draw of its name (:class:`.RequestedDraws`).

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            request: draw that the port asks for: its kind, shape and rate.
        """
        self._draws.handle(message)

    @handles("signs", "buckets", "choice")
    def _compare_choice(self, message: Message, scores_shape: list[int] | None) -> None:
        """Compare the signs, buckets or indices that a module chose with R64's (:class:`.Choices`).

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            scores_shape: shape of the scores for indices; None for signs and buckets.
        """
        self._choices.handle(message)

    @handles("unwatched")
    def _keep_unwatched(self, message: Message, content: None) -> None:
        """Keep the loss or a gradient of the step without hooks, for the comparison with the step with hooks.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self._unwatched[message.name] = message.value()

    @handles("second")
    def _keep_second(self, message: Message, content: None) -> None:
        """Keep the loss or a gradient of the step's other backward, for the comparison of both backwards.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self._second[message.name] = message.value()

    @handles("own plain", "own again")
    def _keep_own(self, message: Message, content: None) -> None:
        """Keep a gradient of plain autograd or of the recomputing backward with the port's own draws.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        self._own[message.kind.removeprefix("own ")][message.name] = message.value()

    @handles("tensor")
    def _handle_tensor(self, message: Message, content: None) -> None:
        """Record the difference of a tensor from R64's; keep the value of a gradient or of the loss.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        truth = self.reference.truth.get(message.name)
        if is_gradient(message.name) or message.name == "loss":  # kept for later comparisons
            if self._is_brief and not self._is_ported and not self.reference.job.mutants:  # not compared later
                self.measured.tensors[message.name] = difference(message, truth)
                return
            value = self.values[message.name] = message.value()
            self.measured.tensors[message.name] = _difference(value, truth)
        elif (
            not self._is_ported
            and not self.reference.job.brief
            and TensorName.parse(message.name).without_run.kind == "output"
        ):
            self._compare_output(message.name, message.value(), truth)
        else:
            self.measured.tensors[message.name] = difference(message, truth)

    def _compare_output(self, name: str, value: np.ndarray, true_value: np.ndarray | Sketch | None) -> None:
        """Record the difference of a pair's output from R64's, and the common part if it is a different quantity.

        Args:
            name: name of the output.
            value: the port's output.
            true_value: R64's output or its sketch; None if R64 has no such output.
        """
        error = self.measured.tensors[name] = (
            _difference(value, None) if true_value is None else error_stats.measure_error(value, true_value)
        )
        if true_value is None or isinstance(true_value, Sketch) or not value.size or not true_value.size:
            return
        is_same_thing = error.rms is not None and error.rms < ANOTHER_THING * (
            error_stats.describe(true_value).rms or 0.0
        )
        if is_same_thing or not error.finite or value.dtype.kind != "f" or not np.isfinite(true_value).all():
            return
        common_part, unread = same_numbers.find_common_part(value, true_value), None
        if value.shape == true_value.shape and not TensorName.parse(name).evaluation:
            unread = same_numbers.count_unread_differences(
                value, true_value, self.reference.unread(name, true_value.shape), common_part
            )
        self.measured.differing_outputs[name] = OutputDifference(common_part, unread)

    @handles("held")
    def _handle_held(self, message: Message, content: None) -> None:
        """Record the largest difference of a parameter in the port from the weight that it was assigned.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        if message.name in self.reference.weights:
            self.measured.parameter_errors[message.name] = largest_difference(message, self.reference.weights)

    @handles("constant")
    def _handle_constant(self, message: Message, content: None) -> None:
        """Record the error of a constant that the port computes itself, in units of rounding.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            content: further content of the message; None if there is none.
        """
        name, own, exact = message.name, message.value(), self.reference.constants[message.name]
        self.measured.constant_errors[name] = (
            constants.measure_angle_error(own, exact)
            if self.reference.job.pair is None
            else constants.measure_table_error(own, exact, self.reference.float32_buffers[name])
        )

    @handles("is plain first")
    def _handle_backwards(self, message: Message, is_plain_first: bool) -> None:  # noqa: FBT001 (a handler of messages)
        """Record whether the step's own backward is plain autograd; otherwise the other backward is.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            is_plain_first: whether the step's own backward is plain autograd.
        """
        self._is_plain_first = is_plain_first

    @handles("facts")
    def _handle_facts(self, message: Message, facts: CandidateFacts) -> None:
        """Record the epsilons of the port's norms, and the number of its hash buckets.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            facts: settings of the port's modules.
        """
        self.measured.facts.epsilons, self.measured.facts.num_buckets = facts.epsilons, facts.num_buckets

    @handles("places")
    def _handle_places(self, message: Message, places: dict[str, Place]) -> None:
        """Record the source locations of the port's modules.

        Args:
            message: message of the port's process, with the name and, if it sends an array, the array.
            places: source location of each module, by its name.
        """
        self.measured.places = places

    def result(self) -> CandidateDtype:
        """Return the measurements of the dtype, with every expected tensor that never came marked as missing."""
        result = self.measured
        result.draw_problems, result.unused_draws = self._draws.problems, self._draws.unused()
        if self._is_ported:
            absent = self.reference.constants.keys() - result.constant_errors.keys()
            result.constant_errors |= dict.fromkeys(sorted(absent), float("inf"))
            self._compare_backwards()
        if not (self._is_brief or self._is_mutant):  # whether hooks change the port is known without a fault
            self._compare_unwatched()
        if self._is_ported and not self._is_brief and (not self._is_mutant or any(self._own.values())):
            self._compare_replays()
        return result

    def _compare_unwatched(self) -> None:
        """Record whether the step without hooks equals the step with hooks bit for bit, and otherwise its error."""
        needed_names = {name for name in self.values if name == "loss" or self._is_of_parameter(name)}
        hooked_values = {
            name: self.values[name] for name in needed_names | (self._unwatched.keys() & self.values.keys())
        }
        if _are_equal(hooked_values, self._unwatched):
            return
        self.measured.hooks_change_nothing = False
        self.measured.unwatched = {
            name: _difference(self._unwatched[name], self.reference.truth.get(name))
            if name in self._unwatched
            else TensorStats([], missing=True)
            for name in hooked_values | self._unwatched
        }

    def _is_of_parameter(self, name: str) -> bool:
        """Return whether a name is the gradient of a parameter. The embedded input has a gradient only with hooks."""
        return name.removeprefix("gradient:") in self.reference.weights

    def _compare_replays(self) -> None:
        """Record the differences of the two backwards' gradients with the port's own draws."""
        plain, again = self._own["plain"], self._own["again"]
        for name in filter(self._is_of_parameter, self.values):
            value = plain.get(name)
            self.measured.replay[name] = (
                ReplayError(TensorStats([], missing=True), TensorStats([]))
                if value is None
                else ReplayError(difference_from_plain(again, name, value), error_stats.describe(value))
            )

    def _compare_backwards(self) -> None:
        """Record the differences of the recomputing backward's gradients from plain autograd's, with recorded draws.

        If the step's own backward is the recomputing backward, plain autograd is also compared with R64.
        """
        first, second = self.values, self._second
        plain, again = (first, second) if self._is_plain_first else (second, first)
        gradients = [name for name in plain or again if is_gradient(name)]
        self.measured.recomputed = {
            name: difference_from_plain(again, name, plain[name]) if name in plain else TensorStats([], missing=True)
            for name in gradients
        }
        if not self._is_plain_first:
            truth = self.reference.truth
            self.measured.plain = {
                name: error_stats.measure_error(plain[name], truth[name]) for name in gradients if name in truth
            }


def difference_from_plain(again: Mapping[str, np.ndarray], name: str, plain: np.ndarray) -> TensorStats:
    """Return the difference of a recomputed tensor from the tensor of plain autograd.

    Args:
        again: recomputed tensors by name.
        name: name of the tensor; the result is marked as missing if ``again`` has no such tensor.
        plain: the tensor of plain autograd.
    """
    return error_stats.measure_error(again[name], plain) if name in again else TensorStats([], missing=True)


def _difference(value: np.ndarray, true_value: np.ndarray | None) -> TensorStats:
    """Return the difference of a tensor from its truth; without a truth, only its shape and whether it is finite."""
    if true_value is None:
        return TensorStats(list(value.shape), bool(np.isfinite(value).all()))
    return error_stats.measure_error(value, true_value)


def _are_equal(ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray]) -> bool:
    """Return whether two sets of tensors have equal names and values, bit for bit.

    Args:
        ours: tensors of the port, by name.
        theirs: tensors of the reference, by name.
    """
    return ours.keys() == theirs.keys() and all(
        np.array_equal(value, theirs[name], equal_nan=True) for name, value in ours.items()
    )
