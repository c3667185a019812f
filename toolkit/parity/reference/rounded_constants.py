"""Runs of the reference with constants that are rounded to float32.

Many of Paddle's kernels store a constant of an operation in float32, even for float64 tensors: elu's alpha, hardtanh's
limits, an exponent, the 1/49 of an average, the weights of an interpolation. In float64, a correct port then differs by
up to 1e-8, which its author cannot change. A run of the reference with the rounded constant shows how far each tensor
moves. A constant that is wrong by more than its rounding moves the tensors further.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import RoundedConstants
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.reference.float64_checks import calling_line
from toolkit.parity.reference.noise import measure_runs
from toolkit.parity.reference.paddle_kernels import (
    InterpolatedAxis,
    cross_entropy_of_soft_labels,
    smooth_labels,
)
from toolkit.parity.reference.points import Keep, keep_nothing
from toolkit.parity.reference.step import make_step

aten = torch.ops.aten

#: Ratio of a tensor's move by rounded constants to the tensor's difference between port and R64. A larger ratio shows
#: that the port does not round these constants.
MIN_RATIO = 8.0
#: Largest number of runs of the reference. Constants that these runs do not test count as rounded by the port.
MAX_RUNS = 100
#: Exact epsilon of each norm layer in the reference's code, by the epsilon rounded to float32, which R64 uses. A port
#: that computes a norm layer without Paddle's kernel has the exact epsilon.
EXACT_EPSILONS: dict[float, float] = {}
#: Number that the backward of Paddle's vector norm adds to the norm.
NORM_EPSILON = 1e-12
#: By the name of each operation that computes a vector norm: the index of the argument with the norm's order.
NORMS = {"linalg_vector_norm": 1, "norm": 1, "dist": 2}
#: Names of the autograd nodes that compute the backward of a vector norm, without their trailing digits.
NORM_BACKWARDS = ("LinalgVectorNormBackward", "NormBackward", "DistBackward")
#: Prefixes of the operations whose constants are not rounded, because they only move, select or compare elements.
EXEMPT = ("full", "fill", "masked_fill", "constant_pad", "arange", "scalar_tensor", "where", "lt", "gt", "le", "ge")
#: Backwards of average pools, whose result Paddle multiplies by 1 over the number of elements in a window.
POOL_BACKWARDS = (
    *("avg_pool2d_backward", "avg_pool3d_backward"),
    *("_adaptive_avg_pool2d_backward", "_adaptive_avg_pool3d_backward"),
)
#: The slope of Paddle's hard sigmoid, 0.1666667 in float32.
HARD_SLOPE = float(np.float32(0.1666667))
#: torch's names of the interpolations whose weights Paddle computes partly in float32.
INTERPOLATIONS = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")


def run(job: Job, folder: Path) -> RoundedConstants:
    """Return how far each tensor moves from R64 if the reference rounds the constants that the port may round.

    A tensor of the port refutes a group of constants if it agrees with R64 although their rounding would move it. This
    does not hold if the moves of all constants cancel. A refuted group is halved, down to a single constant that the
    port stores in float64.

    Args:
        job: job of a pair that both workers have run.
        folder: folder of the job, with the port's errors in ``constants-measured.json``.
    """
    step = make_step(job, folder)
    truth = TensorFile(folder / "reference" / "float64.safetensors")
    limits_by_name: dict[str, tuple[float, float]] = files.read_json(folder / "reference" / files.MEASURED_CONSTANTS)
    step.run("float64", keep_nothing)  # sets the signs and choices of all other runs
    step.evaluate(keep_nothing)

    def measure_moves(rounding: ConstantRounding) -> dict[str, TensorRecord]:
        """Return the distance from R64 of each tensor that a run with rounded constants has, by name."""
        records = {name: TensorRecord(shape=[]) for name in truth}

        def run_rounded(dtype: str, number: int, nudge: int, measure: Keep) -> None:
            """Run the step and its evaluation with the rounded constants, and pass each tensor to ``measure``."""
            with rounding:
                step.run(dtype, measure)
                step.evaluate(measure)

        measure_runs(run_rounded, truth, records, {"float64": range(1)})
        return {name: record for name, record in records.items() if record.noise}

    def is_refuted(moves: Mapping[str, TensorRecord]) -> bool:
        """Return whether a tensor of the port is much nearer to R64 than rounding of these constants would move it."""
        is_beyond = (
            min(_size(moves[name]), _size(all_moves[name])) > MIN_RATIO * max(limits)
            for name, limits in limits_by_name.items()
            if name in moves and name in all_moves
        )
        return any(is_beyond)

    all_constants = ConstantRounding()
    all_moves = measure_moves(all_constants)
    groups: list[tuple[list[str], dict[str, TensorRecord]]] = []
    pending, num_runs = [list(all_constants.descriptions)], 1
    while pending:
        keys = pending.pop()
        moves = all_moves if len(keys) == len(all_constants.descriptions) else measure_moves(ConstantRounding(keys))
        num_runs += 1
        if num_runs > MAX_RUNS or not is_refuted(moves):
            groups.append((keys, moves))
        elif len(keys) > 1:
            pending += [keys[: len(keys) // 2], keys[len(keys) // 2 :]]
    reported_keys = [
        key
        for keys, moves in groups
        if any(_size(moves[name]) > bound for name, (_, bound) in limits_by_name.items() if name in moves)
        for key in keys
    ]
    descriptions = {key: all_constants.descriptions[key] for key in reported_keys}
    return RoundedConstants(_add_groups([moves for _, moves in groups]), descriptions)


def _size(record: TensorRecord) -> float:
    """Return the RMS of a tensor's move in a run with rounded constants; 0 if it was not measured."""
    return record.noise["float64"][0] or 0.0


def _add_groups(groups: Sequence[Mapping[str, TensorRecord]]) -> dict[str, TensorRecord]:
    """Return the sum of the moves by several groups of constants, as float64 noise of each tensor by name.

    Args:
        groups: for each group of constants, the moves of the tensors by name.
    """

    def total(numbers: Sequence[float | None]) -> dict[str, list[float | None]]:
        """Return the sum of numbers as float64 noise of a single run; None if a number is None."""
        return {"float64": [None if None in numbers else sum(filter(None, numbers))]}

    names = dict.fromkeys(name for group in groups for name in group)
    records_by_name = {name: [group[name] for group in groups if name in group] for name in names}
    return {
        name: TensorRecord(
            shape=[],
            noise=total([record.noise["float64"][0] for record in records]),
            noise_max=total([record.noise_max["float64"][0] for record in records]),
        )
        for name, records in records_by_name.items()
    }


def split_constants(constant_keys: Sequence[str]) -> list[Sequence[str]]:
    """Return the groups of constants for traced runs: all constants, and two halves of them.

    The effects of two constants may cancel in a run with both of them.

    Args:
        constant_keys: keys of the constants (:attr:`ConstantRounding.descriptions`).
    """
    return [constant_keys, constant_keys[::2], constant_keys[1::2]] if len(constant_keys) > 1 else [constant_keys]


class Norm(NamedTuple):
    """A vector norm that a run has computed, which its backward needs again.

    Attributes:
        order: order of the norm in the reference's code, such as 2.0.
        held_order: order that this run uses, perhaps rounded to float32.
        place: source line that computes the norm; None if it is not known.
        floor: number that replaces a smaller norm, as the ``eps`` of ``normalize``; 0 without such a number.
    """

    order: float
    held_order: float
    place: str | None
    floor: float = 0.0


class ConstantRounding(TorchDispatchMode):
    """Inside the ``with`` block, float64 operations use constants that are rounded to float32.

    Args:
        keys: keys of the constants to round; None for all constants.

    Attributes:
        descriptions: text for the report on each rounded constant, by its key, such as ``elu 1.67326 (model.py:12)``.
            The key has the operation, the constant and its source line.
    """

    def __init__(self, constant_keys: Collection[str] | None = None) -> None:
        super().__init__()
        self.keys = constant_keys
        self.descriptions: dict[str, str] = {}
        self._norms: dict[int, Norm] = {}  # by the memory address of the norm
        self._norm: Norm | None = None  # the norm whose own backward is running
        self._caller: FrameType | None = None
        self._losses = RoundedLossMode(self)

    def __enter__(self) -> ConstantRounding:
        self._losses.__enter__()
        return super().__enter__()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        self._losses.__exit__(*raised)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self._caller = sys._getframe(1)
        try:
            return self._compute(function, args, kwargs or {})
        finally:
            self._caller = None

    def _compute(self, function: Any, args: tuple, kwargs: dict) -> Any:
        """Return the result of a dispatched operation, with its constants rounded as Paddle's kernel rounds them."""
        name = function.overloadpacket.__name__
        inputs = [tensor for tensor in args if isinstance(tensor, torch.Tensor)]
        if name.startswith(EXEMPT) or not any(tensor.dtype == torch.float64 for tensor in inputs):
            return function(*args, **kwargs)
        if name.removesuffix("_backward") in INTERPOLATIONS:
            return self._interpolate(function, name, args, kwargs)
        if name in NORMS:
            return self._compute_norm(function, name, args, kwargs)
        if name == "_weight_norm_interface":
            weight, norm = function(*args, **kwargs)
            self._norms[norm.data_ptr()] = Norm(2.0, 2.0, calling_line(self._caller))
            return weight, norm
        if name == "_weight_norm_interface_backward":
            return self._weight_norm_backward(function, *args)
        if name in ("clamp_min", "clamp") and isinstance(floor := args[1], (int, float)):
            address = args[0].data_ptr()
            if address in self._norms:
                self._norms[address] = self._norms[address]._replace(floor=float(floor))
        if _is_norm_backward():
            return self._norm_backward(function, name, args, kwargs)
        is_backward = torch._C._current_autograd_node() is not None
        if is_backward and name == "div" and isinstance(args[1], int) and args[1]:  # of a pool of one window
            return function(args[0], 1 / self._round(name, 1 / args[1]), *args[2:], **kwargs)
        if name in POOL_BACKWARDS:
            return self._pool_backward(function, name, args, kwargs)
        if name.removesuffix("_").removesuffix("_backward") == "hardsigmoid":
            return self._hardsigmoid(function, name, args, kwargs)
        result = function(*self._round_all(name, args), **self._round_all(name, kwargs))
        if name.removesuffix("_backward") in ("smooth_l1_loss", "huber_loss"):  # Paddle also divides by the width
            width = args[-1]
            result = result * (self._round(f"{name}'s divisor", width) / width)
        return result

    def _pool_backward(self, function: Any, name: str, args: tuple, kwargs: dict) -> torch.Tensor:
        """Return the gradient of an average pool, which Paddle multiplies by 1 / count in float32."""
        counts = _counts(name, *args)
        factors = (1 / counts).astype(np.float32) * counts
        least = 1 / float(counts.max())
        if (factors == 1).all() or not self._rounds(name, least, f"{name.strip('_')} {least:.6g}"):
            return function(*args, **kwargs)
        return function(args[0] * torch.from_numpy(factors).to(args[0]), *args[1:], **kwargs)

    def _hardsigmoid(self, function: Any, name: str, args: tuple, kwargs: dict) -> torch.Tensor:
        """Return the hard sigmoid, or its gradient, with Paddle's slope instead of 1 / 6."""
        if not self._rounds(name, HARD_SLOPE, f"{name.strip('_')} {HARD_SLOPE:.6g}"):
            return function(*args, **kwargs)
        if name.endswith("_backward"):  # torch's backward also has 1 / 6 in float32
            return args[0] * HARD_SLOPE * (args[1].abs() < 3)
        result = (args[0] * HARD_SLOPE + 0.5).clamp(0, 1)
        return args[0].copy_(result) if name.endswith("_") else result

    def _round_all(self, name: str, arguments: Any) -> Any:
        """Return an operation's arguments with each float rounded if this run rounds it (:meth:`_round`)."""
        return tree_map(lambda value: self._round(name, value) if isinstance(value, float) else value, arguments)

    def _round(self, name: str, constant: float) -> float:
        """Return a constant of an operation, rounded to float32 if this run rounds it.

        The epsilon of a norm layer is already rounded. For such an epsilon, the result is the exact epsilon if this run
        changes it.

        Args:
            name: name of the operation.
            constant: the constant in the operation's arguments.
        """
        if (epsilon := EXACT_EPSILONS.get(constant)) is not None:
            is_exact = self._rounds(name, epsilon, f"the epsilon {epsilon:.6g} of {name.removeprefix('native_')}")
            return epsilon if is_exact else constant
        rounded_constant = float(np.float32(constant))
        if rounded_constant == constant or not math.isfinite(rounded_constant):
            return constant
        return rounded_constant if self._rounds(name, constant, f"{name.strip('_')} {constant:.6g}") else constant

    def _rounds(self, name: str, constant: float, label: str, place: str | None = None) -> bool:
        """Return whether this run rounds a constant of an operation; if so, record the constant's description.

        Args:
            name: name of the operation.
            constant: the exact constant.
            label: text for the report, such as ``elu 1.67326``.
            place: source line of the operation; None for the running line. A backward has no source line.
        """
        place = place or calling_line(self._caller)
        key = f"{name}:{constant!r}:{place}"
        if self.keys is not None and key not in self.keys:
            return False
        is_backward = torch._C._current_autograd_node() is not None
        self.descriptions[key] = f"{label} ({place})" if place else f"{label} of a backward" if is_backward else label
        return True

    def _compute_norm(self, function: Any, name: str, args: tuple, kwargs: dict) -> torch.Tensor:
        """Return a vector norm with its order and the reciprocal of the order in float32, as in Paddle's kernel."""
        number = NORMS[name]
        order = 2.0 if len(args) <= number or args[number] is None else float(args[number])
        held_order = self._round(name, order)
        if held_order != order:
            args = (*args[:number], held_order, *args[number + 1 :])
        result = function(*args, **kwargs)
        if math.isfinite(order) and order:
            root = self._round(f"{name}'s root", 1 / held_order)
            result = result if root == 1 / held_order else result ** (root * held_order)
        self._norms[result.data_ptr()] = Norm(order, held_order, calling_line(self._caller))
        return result

    def _norm_backward(self, function: Any, name: str, args: tuple, kwargs: dict) -> torch.Tensor:
        """Return the result of an operation in a norm's backward, sign(x) |x|^(order - 1) / norm^(order - 1)."""
        if name == "detach":  # autograd fetches the norm before it computes
            self._norm = self._norms.get(args[0].data_ptr())
        if (norm := self._norm) is None:
            return function(*args, **kwargs)
        order_change = norm.held_order - norm.order
        if name == "pow_":  # of |x|
            return function(args[0], args[1] + order_change)
        if name == "pow":
            if norm.order < 1:  # torch multiplies
                return 1 / (1 / function(args[0], args[1] - order_change) + self._norm_epsilon(norm))
            return function(args[0], args[1] + order_change) + self._norm_epsilon(norm)
        if name == "div" and norm.order == 2:
            return function(args[0], args[1] + self._norm_epsilon(norm))
        result = function(*args, **kwargs)
        return result / (1 + self._norm_epsilon(norm)) if name == "mul" and norm.order == 1 else result

    def _norm_epsilon(self, norm: Norm) -> float:
        """Return the number that this run adds to a norm in its backward.

        Paddle adds :data:`NORM_EPSILON`. Its ``normalize`` also adds the smallest allowed norm.
        """
        place, extra = norm.place, norm.floor - NORM_EPSILON
        epsilon = 0.0
        if self._rounds("norm_backward", NORM_EPSILON, f"norm's {NORM_EPSILON:g}", place):
            epsilon += NORM_EPSILON
        if extra > 0 and self._rounds("normalize_backward", norm.floor, f"normalize's {norm.floor:g}", place):
            epsilon += extra
        return epsilon

    def _weight_norm_backward(
        self, function: Any, gradient: torch.Tensor, v: torch.Tensor, g: torch.Tensor, norm: torch.Tensor, axis: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the gradients of v and g for the weight g v / norm, with Paddle's epsilon.

        Args:
            function: torch's operation for this backward.
            gradient: gradient of the weight.
            v: direction of the weight.
            g: length of the weight.
            norm: norm of ``v`` along all axes except ``axis``.
            axis: axis of ``g``.
        """
        v_gradient, g_gradient = function(gradient, v, g, norm, axis)
        epsilon = self._norm_epsilon(self._norms[norm.data_ptr()])
        return v_gradient + g_gradient * g * v / norm**2 * (1 - norm / (norm + epsilon)), g_gradient

    def _interpolate(self, function: Any, name: str, args: tuple, kwargs: dict) -> torch.Tensor:
        """Return an interpolation, or its gradient, with the weights of Paddle's kernels."""
        operation, is_backward = name.removesuffix("_backward"), name.endswith("_backward")
        x, target_lengths = args[0], args[1]
        lengths, (align_corners, *scales) = (args[2][2:], args[3:]) if is_backward else (x.shape[2:], args[2:])
        if list(lengths) == list(target_lengths) or not self._rounds(name, 1.0, f"weights of {operation}"):
            return function(*args, **kwargs)
        for number, (length, target_length) in enumerate(zip(lengths, target_lengths, strict=True)):
            if length == target_length and operation != "upsample_bicubic2d":  # torch copies along the axis
                continue
            scale = scales[number] if number < len(scales) else None
            axis = InterpolatedAxis(operation, is_backward, number, length, target_length, align_corners, scale)
            weights = torch.from_numpy(axis.weights()).to(x)
            result = torch.tensordot(x, weights.T if is_backward else weights, dims=([number + 2], [0]))
            x = result.movedim(-1, number + 2)
        return x


class RoundedLossMode(TorchFunctionMode):
    """Inside the ``with`` block, cross entropies of smoothed or soft labels are computed as in Paddle's kernels.

    Soft labels are probabilities of all classes.

    Args:
        constants: mode that decides which constants the run rounds.
    """

    def __init__(self, constants: ConstantRounding) -> None:
        super().__init__()
        self.constants = constants

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is functional.cross_entropy:
            loss = self._cross_entropy(calling_line(sys._getframe(1)), *args, **kwargs)
            return function(*args, **kwargs) if loss is None else loss
        return function(*args, **kwargs)

    def _cross_entropy(
        self,
        place: str | None,
        scores: torch.Tensor,
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: Any = None,
        ignore_index: int = -100,
        reduce: Any = None,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> torch.Tensor | None:
        """Return the cross entropy with the constants that this run rounds; None if it rounds no constant.

        ``place`` is the source line of the call. All other arguments have the same meaning as in torch's
        ``cross_entropy``.
        """
        is_soft = target.is_floating_point()
        classes = 0 if scores.ndim == 1 else 1
        if scores.dtype != torch.float64 or size_average is not None or reduce is not None:
            return None
        if label_smoothing and not self._rounds("label_smoothing", label_smoothing, place):
            return None
        scores, is_counted = scores.movedim(classes, -1), target != ignore_index
        if is_soft:
            labels = target.movedim(classes, -1)
        else:
            labels = functional.one_hot(target.where(is_counted, 0), scores.shape[-1]).to(scores)
            if label_smoothing and self._rounds("one_hot_labels", 1.0, place):  # Paddle's are float32
                labels = labels.to(torch.float32)
        labels = smooth_labels(labels, label_smoothing).to(scores) if label_smoothing else labels
        if weight is None and self._ignores_total(labels, place):
            losses = cross_entropy_of_soft_labels(scores, labels)
        elif label_smoothing:
            losses = -(labels * scores.log_softmax(-1) * (1 if weight is None else weight)).sum(-1)
        else:
            return None
        if is_soft:
            total = losses.new_tensor(losses.numel())
        else:
            losses = losses.where(is_counted, 0)
            counts = is_counted.to(scores)
            total = (counts if weight is None else counts * weight[target.where(is_counted, 0)]).sum()
        return losses if reduction == "none" else losses.sum() if reduction == "sum" else losses.sum() / total

    def _rounds(self, name: str, constant: float, place: str | None) -> bool:
        """Return whether this run rounds a constant of a loss, as in :meth:`ConstantRounding._rounds`."""
        return self.constants._rounds(name, constant, f"{name} {constant:.6g}", place)

    def _ignores_total(self, labels: torch.Tensor, place: str | None) -> bool:
        """Return whether the gradient is to be computed as if rounded probabilities summed to 1.

        Args:
            labels: probabilities, (..., classes).
            place: source line of the loss.
        """
        missing = float((1 - labels.detach().sum(-1)).abs().max()) if labels.numel() else 0.0
        is_rounding = 0 < missing <= labels.shape[-1] * float(np.finfo(np.float32).eps)
        return is_rounding and self._rounds("total_of_labels", 1.0, place)


def _is_norm_backward() -> bool:
    """Return whether autograd is now computing the backward of a vector norm."""
    node = torch._C._current_autograd_node()
    return node is not None and type(node).__name__.rstrip("0123456789") in NORM_BACKWARDS


def _counts(name: str, gradient: torch.Tensor, x: torch.Tensor, *options: Any) -> np.ndarray:
    """Return the number of elements in each window of an average pool.

    The result has the shape of the windows along the pooled axes, or is one number.

    Args:
        name: name of the pool's backward.
        gradient: gradient of the averages.
        x: tensor that is averaged.
        options: size, stride, padding, ceil_mode, count_include_pad and divisor_override, unless the pool is adaptive.
    """
    num_axes = 3 if "3d" in name else 2
    lengths, windows = x.shape[-num_axes:], gradient.shape[-num_axes:]
    if name.startswith("_adaptive"):
        axis_counts = [_adaptive_counts(*axis) for axis in zip(lengths, windows, strict=True)]
    else:
        sizes, strides, paddings, _, includes_padding, divisor = options
        if divisor:  # Paddle divides in float64
            return np.ones(1)
        sizes, strides, paddings = (_for_axes(option, num_axes) for option in (sizes, strides or sizes, paddings))
        axes = zip(lengths, windows, sizes, strides, paddings, strict=True)
        axis_counts = [_pool_counts(*axis, includes_padding) for axis in axes]
    return math.prod(np.ix_(*axis_counts), start=np.ones(()))


def _for_axes(option: Sequence[int], num_axes: int) -> Sequence[int]:
    """Return a pool's option as a sequence with one number for each axis; a single number is repeated."""
    return option if len(option) == num_axes else [*option] * num_axes


def _pool_counts(length: int, windows: int, size: int, stride: int, padding: int, includes_padding: bool) -> np.ndarray:
    """Return the number of elements in each window of a pool along an axis, float64 (windows,).

    Args:
        length: number of elements along the axis.
        windows: number of windows along the axis.
        size: number of elements of a window.
        stride: distance of two windows.
        padding: number of padding elements at each end.
        includes_padding: whether padding elements count.
    """
    first = np.arange(windows) * stride - padding
    past = np.minimum(first + size, length + padding)
    counts = past - first if includes_padding else np.minimum(past, length) - np.maximum(first, 0)
    return counts.astype(np.float64)


def _adaptive_counts(length: int, windows: int) -> np.ndarray:
    """Return the number of elements in each window of an adaptive pool along an axis, float64 (windows,).

    Args:
        length: number of elements along the axis.
        windows: number of windows along the axis.
    """
    numbers = np.arange(windows)
    return np.ceil((numbers + 1) * length / windows) - np.floor(numbers * length / windows)
