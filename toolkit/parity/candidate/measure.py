"""What is measured of the port: every tensor against the truth, its own backward against plain autograd."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from toolkit import runtime
from toolkit.parity.candidate.places import places
from toolkit.parity.candidate.step import Step
from toolkit.parity.candidate.tokens import tokens
from toolkit.parity.measure import error_stats


def make_step(job: dict, folder: Path, dtype: str, backward: str | None = None) -> Step:
    """The family's step (see :class:`.step.Step`)."""
    family = importlib.import_module(f"toolkit.parity.candidate.{job['model']}")
    return family.STEP(job, folder, dtype, backward)


def measure_dtype(job: dict, folder: Path, truth: Mapping[str, np.ndarray], dtype: str) -> dict:
    """Run the step in ``dtype`` as training will, once more unwatched and on from there for a few updates, and once
    with its other backward."""
    step = make_step(job, folder, dtype)
    seen: dict[str, dict] = {}
    values: dict[str, np.ndarray] = {}

    def measure(name: str, value: np.ndarray) -> None:
        if name.startswith("gradient:") or name == "loss":
            values[name] = value  # gradients of parameters, which are few beside outputs
        seen[name] = (
            {**error_stats.difference(value, truth[name]), "shape": list(value.shape)}
            if name in truth
            else {"shape": list(value.shape), "finite": bool(np.isfinite(value).all()), "rms": None, "max": None}
        )

    draws = step.run(measure)
    result = {
        "tensors": seen,
        "parameter_errors": step.parameter_errors(),
        "constant_errors": step.constant_errors,
        "draw_problems": draws.problems,
        "unused_draws": draws.unused(),
        "facts": {**step.facts(), "relu_flips": draws.relu_flips},
    }
    unwatched: dict[str, np.ndarray] = {}
    step.run(unwatched.__setitem__, watched=False)
    step.train_on(measure, truth)
    return {
        **result,
        "hooks_change_nothing": all(np.array_equal(values[n], unwatched.get(n), equal_nan=True) for n in values),
        "recomputed": other_backward(step, job, folder, dtype, values),
        "replay": replay_differences(step, job, folder, dtype),
        "places": places(step.model),
    }


def measure_mutant(job: dict, folder: Path, truth: Mapping[str, np.ndarray], name: str) -> dict:
    """What comes out with a fault in force: ``{"tokens": ...}`` as :func:`.tokens.tokens`, or ``{"dtypes": ...}`` with
    :func:`measure_dtype` in float64 and ``generators`` with :func:`.generators.measure`. A port that stops by itself
    gives ``{"raised": ...}``."""
    from toolkit.parity.candidate import generators
    from toolkit.parity.mutants import by_name

    mutant = by_name(name)
    with mutant.in_force():
        try:
            if mutant.tokenizer:
                return {"tokens": tokens(job["tokenizer"])}
            measured = measure_dtype(job, folder, truth, "float64")
            return {"dtypes": {"float64": measured}, "generators": generators.measure(job, folder)}
        except Exception as error:
            return {"raised": f"{type(error).__name__}: {str(error).strip().splitlines()[-1]}"}


def other_backward(step: Step, job: dict, folder: Path, dtype: str, values: dict[str, np.ndarray]) -> dict[str, float]:
    """The gradients of a step whose layers are computed again in the backward, against plain autograd's."""
    first, second = step.backwards
    other: dict[str, np.ndarray] = {}
    make_step(job, folder, dtype, second).run(other.__setitem__, watched=False)
    return gradient_differences(other, values) if first == "autograd" else gradient_differences(values, other)


def replay_differences(step: Step, job: dict, folder: Path, dtype: str) -> dict[str, float]:
    """As :func:`other_backward`, with the port's own generator in place of the recorded draws.

    Recorded draws repeat by name whatever the port does; here only a port that replays its generator comes out equal.
    """
    gradients = {}
    for backward in step.backwards:
        own = make_step(job, folder, dtype, backward)
        runtime.seed_everything(job["seed"])
        gradients[backward] = own.own_gradients()
    plain = gradients.pop("autograd")
    return gradient_differences(gradients.popitem()[1], plain)


def gradient_differences(values: dict[str, np.ndarray], plain: dict[str, np.ndarray]) -> dict[str, float]:
    """For every gradient of ``plain``, how far that of ``values`` is off, relative to its norm."""
    return {name: relative_norm(values[name], plain[name]) for name in plain if name.startswith("gradient:")}


def relative_norm(value: np.ndarray, truth: np.ndarray) -> float:
    """|value - truth| / |truth| in Frobenius norms; 0 where both are 0."""
    error = float(np.linalg.norm(value.astype("float64") - truth.astype("float64")))
    return error / max(float(np.linalg.norm(truth.astype("float64"))), 1e-300) if error else 0.0
