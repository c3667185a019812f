"""Checks of the recorded facts about a bundle's tensors against the tensors' values.

A forged bundle may have forged hashes, too. So all facts that follow from the values are computed again. The noise does
not follow from them, but it must be plausible for a reference. Otherwise an RMS of 1e300 would be a bound that admits
any error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from toolkit.parity.exchange.results import ReferenceResult, read_reference
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.evaluation import RUNS, TRAINING
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.measure.sketch import Sketch

#: Largest allowed relative difference of a recorded figure, since two computers may add in another order.
ROUNDING = 1e-9
#: Largest allowed noise of a run, by dtype, in units of the largest RMS of a tensor of the same kind. Measured were
#: 0.026 and 4.9e-11 with large gains, which saturate attention; 1.5e-6 and 2.6e-15 with heavy tails; 3.3e-5 and 8.9e-14
#: for CTRL.
NOISE_LIMIT = {"float32": 1.0, "float64": 1e-8}
#: Largest allowed change by rounding of a deciding number (an input of ReLU, a margin of buckets, a score), in units of
#: the largest such number. With large gains, 0.3 was measured.
MOVED_LIMIT = 16.0
#: Kind of the draws with the deciding numbers, by the attribute of the reference's facts that has their changes.
DECIDED_BY = {"relu_moved": "input", "bucket_slack": "margin", "choice_moved": "scores"}


def check_recorded(folder: Path, job: Job) -> None:
    """Check the recorded facts about a reference's tensors against their values.

    Args:
        folder: folder of the bundle.
        job: job of the bundle.

    Raises:
        ValueError: a fact is wrong or implausible.
    """
    reference = read_reference(folder)
    if reference.accept:
        pattern = next(iter(reference.accept))
        raise ValueError(f"reference/result.json accepts differences ({pattern}); only a --map of your own may do so")
    values = TensorFile(folder / "reference" / "float64.safetensors")
    if missing := sorted(reference.tensors.keys() ^ values.keys()):
        raise ValueError(f"{missing[0]} has values and no figures, or figures and no values")
    path = folder / "weights.safetensors"
    weights = TensorFile(path) if path.exists() else None  # a small bundle has hashes of them
    if weights is not None and {name: list(weights.shape(name)) for name in weights} != reference.parameters:
        raise ValueError("its parameters are not those that it has weights of")
    for name, record in reference.tensors.items():
        _check_figures(name, record, values[name])
        _check_noise(name, record, job.noise_runs)
    _check_sizes(reference.tensors)
    _check_moved(folder, reference)


def _check_figures(name: str, record: TensorRecord, value: np.ndarray | Sketch) -> None:
    """Check that a record has the figures of a tensor's values. Raises ValueError if one differs.

    Args:
        name: name of the tensor.
        record: recorded shape, RMS, mean and maximum of the tensor.
        value: values of the tensor, or its sketch.
    """
    stats = error_stats.describe(value)
    for key in ("shape", "finite", "rms", "mean", "max"):
        claim, actual = getattr(record, key), getattr(stats, key)
        is_equal = claim == actual
        if isinstance(claim, float) and isinstance(actual, float):
            is_equal = math.isclose(claim, actual, rel_tol=ROUNDING)
        if not is_equal:
            raise ValueError(f"{key} of {name} is said to be {claim}; of its values it is {actual}")


def _check_noise(name: str, record: TensorRecord, run_counts: Mapping[str, int]) -> None:
    """Check that a record has the noise of each run: an RMS and a maximum not below 0, or neither.

    Args:
        name: name of the tensor.
        record: record of the tensor.
        run_counts: number of runs, by dtype.

    Raises:
        ValueError: a number is missing or impossible.
    """
    for dtype, count in run_counts.items():
        noise, largest = record.noise.get(dtype, []), record.noise_max.get(dtype, [])
        if count < 1 or len(noise) != count or len(largest) != count:
            raise ValueError(f"{name} has the noise of {len(noise)} runs in {dtype}, not of {count}")
        for one, most in zip(noise, largest, strict=True):
            if (one is None) != (most is None) or not _is_size(one) or not _is_size(most):
                raise ValueError(f"{name} has noise of {one}, at most {most}, in {dtype}")
            if one is not None and most is not None and one > most * (1 + ROUNDING):
                raise ValueError(f"{name} has noise of {one} in {dtype}, more than its largest, {most}")


def _is_size(value: float | None) -> bool:
    """Return whether a number is a possible noise: finite and not below 0, or None."""
    return value is None or (math.isfinite(value) and value >= 0)


def _check_sizes(tensors: Mapping[str, TensorRecord]) -> None:
    """Check that no tensor's noise exceeds :data:`NOISE_LIMIT`. Raises ValueError if one does.

    Args:
        tensors: record of each tensor, by name.
    """
    largest: dict[str, float] = {}
    for name, record in tensors.items():
        kind = TensorName.parse(name).kind
        largest[kind] = max(largest.get(kind, 0.0), record.rms or 0.0)
    for name, record in tensors.items():
        size = largest[TensorName.parse(name).kind]
        for dtype, limit in NOISE_LIMIT.items():
            noise = max((one for one in record.noise.get(dtype, []) if one is not None), default=0.0)
            if noise > limit * size:
                raise ValueError(
                    f"{name} has noise of {noise:.3g} in {dtype}, where the largest tensor of its kind has {size:.3g}"
                )


def _check_moved(folder: Path, reference: ReferenceResult) -> None:
    """Check that no recorded change of a deciding number exceeds :data:`MOVED_LIMIT`. Raises ValueError if one does.

    Args:
        folder: folder of the bundle.
        reference: results of the reference.
    """
    draws = {run: TensorFile(folder / "reference" / f"draws-{run}.safetensors") for run in RUNS}
    for attribute, kind in DECIDED_BY.items():
        for place, movement in getattr(reference.facts, attribute).items():
            sizes = _largest_magnitudes(draws, place, kind)
            if not 0 <= movement <= MOVED_LIMIT * max(sizes, default=0.0):
                raise ValueError(
                    f"{attribute} of {place} is {movement}, of numbers up to {max(sizes, default=0.0):.3g}"
                )


def _largest_magnitudes(draw_files: Mapping[str, TensorFile], place: str, kind: str) -> Iterator[float]:
    """Yield the largest magnitude of each draw with the deciding numbers of a module.

    Args:
        draw_files: draws of each run, by the run's name.
        place: path of the module, with the name of its run in front, except for the training step.
        kind: kind of the draws, such as ``margin``.
    """
    run, _, module = place.rpartition("/")
    draw_names: Sequence[str] = list(draw_files[run or TRAINING])
    for name in draw_names:
        tensor_name = TensorName.parse(name)
        if tensor_name.kind == kind and tensor_name.module + tensor_name.call == module:
            yield float(np.abs(draw_files[run or TRAINING][name]).max(initial=0.0))
