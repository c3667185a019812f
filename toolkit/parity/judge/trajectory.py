"""Judgment of a pair's training: both sides train independently, and their tensors must stay close.

The loss and the gradients of each step, and the parameters after it, must remain within a band around R64. The further
runs of the reference determine the band. The noise of a step is the largest noise of all steps up to it: a difference
that has entered the weights stays there, although a later loss may agree with the truth by luck.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile

import numpy as np

from toolkit.parity.exchange.results import FirstDivergence, Place, Training
from toolkit.parity.judge.bounds import Comparison, compare, is_measured
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.naming import TensorName, append_number

#: The tensors of a training by name, each float64, (steps, elements).
StepTensors = Mapping[str, np.ndarray]
#: Name under which each loss is compared, since the bound of ``loss#2`` suits a single number.
SCALAR_NAME = append_number("loss", 2)
#: Kinds of the tensors that a step computes before its updates: outputs, scores, losses and gradients.
KINDS_BEFORE_UPDATES = ("output", "logits", "loss", "losses", "gradient")


def compare_trajectories(
    true_steps: StepTensors,
    reference_runs: Mapping[str, Sequence[StepTensors]],
    ours: Mapping[str, StepTensors],
    parameter_order: Sequence[str],
    optimizer: Place,
) -> Training:
    """Return the comparison of a port's training with the reference's, step by step.

    Args:
        true_steps: trajectory of R64.
        reference_runs: trajectories of further runs of the reference, by dtype.
        ours: trajectory of the port, by dtype.
        parameter_order: names of the reference's parameters in the order of their use.
        optimizer: source location of the port's optimizer.
    """
    names = [
        "loss",
        *(f"gradient:{name}" for name in reversed(parameter_order)),
        *(f"updated:{name}" for name in parameter_order),
    ]
    records = {
        name: [
            *_records(
                true_steps[name], {d: [one[name] for one in trajectories] for d, trajectories in reference_runs.items()}
            )
        ]
        for name in names
    }
    result = Training(
        steps=len(true_steps["loss"]), optimizer=optimizer, losses={"R64": _loss_values(true_steps["loss"])}
    )
    for dtype, trajectory in ours.items():
        result.losses[f"P{dtype[-2:]}"] = _loss_values(trajectory["loss"])
        result.bands[dtype] = [
            compare(SCALAR_NAME, record, TensorStats([1], True, 0.0, 0.0, 0.0), dtype).bound
            if is_measured(record, dtype)
            else None
            for record in records["loss"]
        ]
        finite = (all(is_measured(records[name][step], dtype) for name in names) for step in range(result.steps))
        result.compared[dtype] = sum(takewhile(bool, finite))
        parting, margin = _first_parting(names, records, true_steps, trajectory, dtype)
        result.margins[dtype] = margin
        if parting is not None:
            result.partings.append(parting)
    return result


def _first_parting(
    names: Sequence[str],
    records: Mapping[str, list[TensorRecord]],
    true_steps: StepTensors,
    trajectory: StepTensors,
    dtype: str,
) -> tuple[FirstDivergence | None, float]:
    """Return the first tensor of a port's training that leaves its band, if any, and the largest margin before it.

    A margin is an error divided by its bound, without a unit; a tensor leaves its band above 1.

    Args:
        names: names of the tensors, in the order of their comparison in a step.
        records: records of the reference's tensors, one for each step, by name.
        true_steps: trajectory of R64.
        trajectory: trajectory of the port.
        dtype: dtype of the port's training.
    """
    largest = 0.0
    for step in range(len(true_steps["loss"])):
        for name in names:
            record = records[name][step]
            if not is_measured(record, dtype):
                return None, largest
            if name not in trajectory or not np.isfinite(trajectory[name][step]).all():
                return FirstDivergence(dtype, step + 1, name, "missing, or holds NaN or Inf"), largest
            comparison = compare(
                SCALAR_NAME if name == "loss" else name,
                record,
                _magnitudes(trajectory[name][step] - true_steps[name][step]),
                dtype,
            )
            if not comparison.passed:
                return FirstDivergence(dtype, step + 1, name, _describe_parting(name, comparison)), largest
            largest = max(largest, comparison.margin if comparison.informative else 0.0)
    return None, largest


def _describe_parting(name: str, comparison: Comparison) -> str:
    """Describe the error of the first tensor beyond its band, and which tensors agree before it."""
    error_text = f"off by {comparison.relative:.1e} of its size, {comparison.margin:.3g} times the bound"
    kind = TensorName.parse(name).kind
    if kind == "loss":
        return f"{error_text}, though all parameters agree before this step"
    return f"{error_text}, though the {'loss agrees' if kind == 'gradient' else 'gradients of this step agree'}"


def _records(truth: np.ndarray, trajectories_by_dtype: Mapping[str, Sequence[np.ndarray]]) -> Iterator[TensorRecord]:
    """Yield the record of a tensor in each step, whose noise is the largest of all steps up to it.

    Args:
        truth: the tensor in R64, (steps, elements).
        trajectories_by_dtype: the tensor in further runs of the reference, (steps, elements) each, by dtype.
    """
    largest_errors: dict[str, list[list[float | None]]] = {dtype: [[], []] for dtype in trajectories_by_dtype}
    for step, value in enumerate(truth):
        record = TensorRecord.of(_magnitudes(value))
        for dtype, trajectories in trajectories_by_dtype.items():
            errors = [_magnitudes(one[step] - value) for one in trajectories]
            sizes = ([error.rms for error in errors], [error.max for error in errors])
            largest_errors[dtype] = [
                _largest(earlier, current) for earlier, current in zip(largest_errors[dtype], sizes, strict=True)
            ]
            record.noise[dtype], record.noise_max[dtype] = largest_errors[dtype]
        yield record


def _largest(earlier_errors: Sequence[float | None], errors: Sequence[float | None]) -> list[float | None]:
    """Return the larger of the earlier and the current error of each run; None if either is not finite."""
    if not earlier_errors:
        return list(errors)
    return [None if None in pair else max(pair) for pair in zip(earlier_errors, errors, strict=True)]  # type: ignore[type-var]


def _magnitudes(value: np.ndarray) -> TensorStats:
    """Return the RMS, mean and maximum of an array's magnitudes."""
    if not np.isfinite(value).all():
        return TensorStats([*value.shape], False)
    magnitudes = np.abs(value)
    rms = float(np.sqrt((magnitudes**2).mean()))
    return TensorStats([*value.shape], True, rms, float(magnitudes.mean()), float(magnitudes.max()))


def _loss_values(loss: np.ndarray) -> list[float]:
    """Return the losses of all steps as a list, given the array (steps, 1)."""
    return [float(value) for value in loss[:, 0]]


def _describe_compared_steps(training: Training, dtype: str) -> str:
    """Describe the number of compared steps in a dtype; empty if all steps were compared."""
    steps = training.compared.get(dtype, training.steps)
    return "" if steps == training.steps else f" in {steps} steps; then the reference is not finite"


def judge_trajectory(training: Training, verdict: Verdict) -> None:
    """Add the result of a pair's training to a verdict: the first divergence, or a note with the margins.

    An accepted difference in a tensor of a training step may grow from step to step. Such a training is not judged. An
    accepted difference in a buffer or in an evaluation does not reach the gradients, so the training is judged.

    Args:
        training: comparison of the port's training with the reference's.
        verdict: verdict to add to.
    """
    margins = ", ".join(
        f"{dtype} at {margin:.2g} of its band{_describe_compared_steps(training, dtype)}"
        for dtype, margin in training.margins.items()
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
    """Return whether a training step computes the tensor with this name on the way to the gradients."""
    tensor_name = TensorName.parse(name)
    return not tensor_name.evaluation and tensor_name.kind in KINDS_BEFORE_UPDATES
