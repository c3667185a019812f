"""Whether two sides that train by themselves stay together: each step's loss and gradients, and the parameters after
it, within the band that the reference's own runs make.

The noise of a step is the largest of all steps up to it: a difference that has entered the weights stays there, though
a loss may hit the truth by luck.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np

from toolkit.parity.job.results import Parting, Place, Training
from toolkit.parity.judge.bounds import Comparison, compare, is_measured
from toolkit.parity.judge.verdict import Verdict
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.naming import TensorName, numbered

#: A trajectory: by name, float64 (steps, elements).
Run = Mapping[str, np.ndarray]
#: A number that is its own extreme value, as a loss after updates is.
SCALAR = numbered("loss", 2)
#: Kinds of the tensors that a step computes before its gradients, and of the gradients.
KINDS_BEFORE_UPDATES = ("output", "logits", "loss", "losses", "gradient")


def compare_trajectories(
    truth: Run, runs: Mapping[str, Sequence[Run]], ours: Mapping[str, Run], order: Sequence[str], optimizer: Place
) -> Training:
    """Compare a port's training with the reference's.

    Args:
        truth: R64.
        runs: by dtype, further runs of the reference.
        ours: the port's, by dtype.
        order: the reference's parameters.
    """
    names = ["loss", *(f"gradient:{name}" for name in reversed(order)), *(f"updated:{name}" for name in order)]
    records = {
        name: [*_records(truth[name], {d: [one[name] for one in found] for d, found in runs.items()})] for name in names
    }
    result = Training(steps=len(truth["loss"]), optimizer=optimizer, losses={"R64": _numbers(truth["loss"])})
    for dtype, kept in ours.items():
        result.losses[f"P{dtype[-2:]}"] = _numbers(kept["loss"])
        result.bands[dtype] = [
            compare(SCALAR, record, TensorStats([1], True, 0.0, 0.0, 0.0), dtype).bound
            if is_measured(record, dtype)
            else None
            for record in records["loss"]
        ]
        finite = (all(is_measured(records[name][step], dtype) for name in names) for step in range(result.steps))
        result.compared[dtype] = sum(takewhile(bool, finite))
        parting, margin = _first_parting(names, records, truth, kept, dtype)
        result.margins[dtype] = margin
        if parting is not None:
            result.partings.append(parting)
    return result


def _first_parting(
    names: Sequence[str], records: Mapping[str, list[TensorRecord]], truth: Run, kept: Run, dtype: str
) -> tuple[Parting | None, float]:
    """Return where a port leaves the band first, None if it does not, and the largest margin inside."""
    largest = 0.0
    for step in range(len(truth["loss"])):
        for name in names:
            record = records[name][step]
            if not is_measured(record, dtype):
                return None, largest
            if name not in kept or not np.isfinite(kept[name][step]).all():
                return Parting(dtype, step + 1, name, "missing, or holds NaN or Inf"), largest
            one = compare(
                SCALAR if name == "loss" else name, record, _size(kept[name][step] - truth[name][step]), dtype
            )
            if not one.passed:
                return Parting(dtype, step + 1, name, _message(name, one)), largest
            largest = max(largest, one.margin if one.informative else 0.0)
    return None, largest


def _message(name: str, one: Comparison) -> str:
    what = f"off by {one.relative:.1e} of its size, {one.margin:.3g} times the bound"
    kind = TensorName.parse(name).kind
    if kind == "loss":
        return f"{what}, though all parameters agree before this step"
    return f"{what}, though the {'loss agrees' if kind == 'gradient' else 'gradients of this step agree'}"


def _records(truth: np.ndarray, runs: Mapping[str, Sequence[np.ndarray]]) -> Iterator[TensorRecord]:
    """Yield a record of each step, whose noise is the largest so far."""
    seen: dict[str, list[list[float | None]]] = {dtype: [[], []] for dtype in runs}
    for step, value in enumerate(truth):
        record = TensorRecord.of(_size(value))
        for dtype, found in runs.items():
            errors = [_size(one[step] - value) for one in found]
            sizes = ([error.rms for error in errors], [error.max for error in errors])
            seen[dtype] = [_largest(before, now) for before, now in zip(seen[dtype], sizes, strict=True)]
            record.noise[dtype], record.noise_max[dtype] = seen[dtype]
        yield record


def _largest(before: Sequence[float | None], now: Sequence[float | None]) -> list[float | None]:
    if not before:
        return list(now)
    return [None if None in pair else max(pair) for pair in zip(before, now, strict=True)]  # type: ignore[type-var]


def _size(value: np.ndarray) -> TensorStats:
    if not np.isfinite(value).all():
        return TensorStats([*value.shape], False)
    magnitudes = np.abs(value)
    rms = float(np.sqrt((magnitudes**2).mean()))
    return TensorStats([*value.shape], True, rms, float(magnitudes.mean()), float(magnitudes.max()))


def _numbers(loss: np.ndarray) -> list[float]:
    return [float(value) for value in loss[:, 0]]


def _until(training: Training, dtype: str) -> str:
    """Say how many steps were compared, if not all."""
    steps = training.compared.get(dtype, training.steps)
    return "" if steps == training.steps else f" in {steps} steps; then the reference is not finite"


def judge_trajectory(training: Training, verdict: Verdict) -> None:
    """Add the result of a port's training to a verdict: the first divergence, or the margin to the tolerance band.

    An accepted difference in a tensor of a training step may grow from step to step. Such a training is not judged.
    An accepted difference in a buffer or in an evaluation does not reach the gradients, so the training is judged.
    """
    margins = ", ".join(
        f"{dtype} at {margin:.2g} of its band{_until(training, dtype)}" for dtype, margin in training.margins.items()
    )
    first, last = training.losses["R64"][0], training.losses["R64"][-1]
    data = {"steps": training.steps, "first": first, "last": last, "margins": margins}
    if training.partings and any(reaches_training(one.finding.name) for one in verdict.accepted):
        verdict.training_unjudged_from = training.partings[0].step
        verdict.note("trained-with-differences", **data, step=training.partings[0].step)
    elif training.partings:
        for parting in training.partings:
            verdict.find("trajectory", f"step {parting.step}/{parting.name}", parting.message, parting.dtype)
    else:
        verdict.note("trained", **data)


def reaches_training(name: str) -> bool:
    """Return whether a tensor is computed by a training step on the way to the gradients."""
    tensor_name = TensorName.parse(name)
    return not tensor_name.evaluation and tensor_name.kind in KINDS_BEFORE_UPDATES
