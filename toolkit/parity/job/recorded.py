"""Checks the recorded facts about a bundle's tensors against their values.

Whoever forges a bundle can forge its hashes, too. So what can be computed from its values is computed; and noise, which
cannot, must be plausible for a reference. Otherwise an RMS of R64 of 1e300 would be a bound that admits anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from toolkit.parity.job.job import Job
from toolkit.parity.job.results import ReferenceResult, read_reference
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.evaluation import RUNS, TRAINING
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.measure.sketch import Sketch

#: Relative difference of one sum between two computers that is allowed.
ROUNDING = 1e-9
#: How large the noise of a run may be, in units of the largest RMS of a tensor of its kind. Seen were 0.026 and 4.9e-11
#: with large gains, under which attention saturates; 1.5e-6 and 2.6e-15 with heavy tails; 3.3e-5 and 8.9e-14 of CTRL.
NOISE_LIMIT = {"float32": 1.0, "float64": 1e-8}
#: How far rounding may move what decides (an input of ReLU, a margin of buckets, a score), in units of its largest
#: number: with large gains 0.3 was seen.
MOVED_LIMIT = 16.0
#: Kind of the draws that each fact of a reference is about.
DECIDED_BY = {"relu_moved": "input", "bucket_slack": "margin", "choice_moved": "scores"}


def check_recorded(folder: Path, job: Job) -> None:
    """Check a recorded reference against its values. Raises ValueError if they disagree or are not
    plausible."""
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
    stats = error_stats.describe(value)
    for key in ("shape", "finite", "rms", "mean", "max"):
        claim, actual = getattr(record, key), getattr(stats, key)
        is_equal = claim == actual
        if isinstance(claim, float) and isinstance(actual, float):
            is_equal = math.isclose(claim, actual, rel_tol=ROUNDING)
        if not is_equal:
            raise ValueError(f"{key} of {name} is said to be {claim}; of its values it is {actual}")


def _check_noise(name: str, record: TensorRecord, runs: Mapping[str, int]) -> None:
    """Check that each run has an RMS and a maximum not below 0, or neither."""
    for dtype, count in runs.items():
        noise, largest = record.noise.get(dtype, []), record.noise_max.get(dtype, [])
        if count < 1 or len(noise) != count or len(largest) != count:
            raise ValueError(f"{name} has the noise of {len(noise)} runs in {dtype}, not of {count}")
        for one, most in zip(noise, largest, strict=True):
            if (one is None) != (most is None) or not _is_size(one) or not _is_size(most):
                raise ValueError(f"{name} has noise of {one}, at most {most}, in {dtype}")
            if one is not None and most is not None and one > most * (1 + ROUNDING):
                raise ValueError(f"{name} has noise of {one} in {dtype}, more than its largest, {most}")


def _is_size(value: float | None) -> bool:
    return value is None or (math.isfinite(value) and value >= 0)


def _check_sizes(tensors: Mapping[str, TensorRecord]) -> None:
    """No noise is larger than a reference's can be."""
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
    """Check that no choice is excused by more than the largest number that decides it."""
    draws = {run: TensorFile(folder / "reference" / f"draws-{run}.safetensors") for run in RUNS}
    for attribute, kind in DECIDED_BY.items():
        for place, movement in getattr(reference.facts, attribute).items():
            sizes = _largest_magnitudes(draws, place, kind)
            if not 0 <= movement <= MOVED_LIMIT * max(sizes, default=0.0):
                raise ValueError(
                    f"{attribute} of {place} is {movement}, of numbers up to {max(sizes, default=0.0):.3g}"
                )


def _largest_magnitudes(draws: Mapping[str, TensorFile], place: str, kind: str) -> Iterator[float]:
    """Yield the largest magnitudes of the numbers that decide at a module, in the run of its name's prefix."""
    run, _, module = place.rpartition("/")
    draw_names: Sequence[str] = list(draws[run or TRAINING])
    for name in draw_names:
        tensor_name = TensorName.parse(name)
        if tensor_name.kind == kind and tensor_name.module + tensor_name.call == module:
            yield float(np.abs(draws[run or TRAINING][name]).max(initial=0.0))
