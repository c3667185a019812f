"""The port operation by operation, each on R64's own input.

Where an operation's result has been measured, R64's goes on in its place; in the backward likewise. So an error is that
of one operation and of nothing before it.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import paddle
from paddle import nn
from paddle.autograd import PyLayer

from models import compiled
from models.trace import observed
from toolkit.parity.candidate.scores import scores_of
from toolkit.parity.candidate.step import PLAIN, Step, first_tensor, make_step
from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import Flips, ForcedInputDtype, ForcedInputResult
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorStats
from toolkit.parity.measure.masked_scores import compared
from toolkit.parity.mutants import by_name

ROOT = Path(__file__).resolve().parents[3]
#: Its functions compute for whoever calls them: the place of an operation is there.
OPERATIONS = str(ROOT / "models" / "ops.py")


def run(job: Job, folder: Path, kernels: object = None) -> ForcedInputResult:
    """The port in each dtype, and with each mutant; nothing of those that concern no tensor or stop by themselves."""
    files.wait_for_reference(folder, "forced_input.json", "forced_input")
    truth = TensorFile(folder / "reference" / "forced_input.safetensors")
    return ForcedInputResult(
        dtypes={dtype: measure(job, folder, truth, dtype) for dtype in job.dtypes},
        mutants={name: _measure_mutant(job, folder, truth, name) for name in job.mutants},
    )


def measure(job: Job, folder: Path, truth: Mapping[str, np.ndarray], dtype: str) -> ForcedInputDtype:
    """One step in ``dtype``; where compiled loops compute in it, once as training runs it, and what lies inside of the
    loops from once more with all of them taken apart."""
    step = make_step(job, folder, dtype, PLAIN)
    points = Points(truth)
    bucket_flips = _run(step, points, apart=True)
    if dtype != "float64" and compiled.is_chosen():
        whole = Points(truth)
        bucket_flips = _run(step, whole, apart=False)
        points.take_over(whole)
    points.add_missing()
    return ForcedInputDtype(points.errors, points.lines, step.places(), bucket_flips)


def _measure_mutant(job: Job, folder: Path, truth: Mapping[str, np.ndarray], name: str) -> dict[str, ForcedInputDtype]:
    mutant = by_name(name)
    with mutant.in_force():
        try:
            return {mutant.dtype: measure(job, folder, truth, mutant.dtype)} if mutant.is_of_the_step else {}
        except Exception:
            return {}  # what it was, the gate says


class Points:
    """Where the port's tensors are measured and replaced.

    Attributes:
        errors: by name, how far each lies from the truth.
        lines: by name, ``file:line`` of an operation that is no module of its own.
        awaited: the gradients that are to come back.
    """

    def __init__(self, truth: Mapping[str, np.ndarray]) -> None:
        self.truth = truth
        self.errors: dict[str, TensorStats] = {}
        self.lines: dict[str, str] = {}
        self.awaited: set[str] = set()

    def measure(self, name: str, value: np.ndarray) -> np.ndarray | None:
        """Compare a tensor with R64's, which is returned; None where that has none of that name. The two sides may lay
        a tensor out in other axes, as long as its elements are in the same order."""
        truth = self.truth.get(name)
        if truth is None:
            return None
        value = value.reshape(truth.shape) if value.size == truth.size else value
        for part, own, true in compared(name, value, truth, self.truth):
            self.errors[part] = error_stats.difference(own, true)
            if name in self.lines:
                self.lines[part] = self.lines[name]
        return truth

    def pass_through(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        """What the run goes on with in place of ``x``; in the backward its gradient passes through, too."""
        if x.stop_gradient:
            return self.replaced(name, x)
        self.awaited.add(f"gradient:{name}")
        return _Point.apply(x, self, name)

    def add_missing(self) -> None:
        """A gradient that the reference has and that never came back is an error without size."""
        for name in self.awaited & self.truth.keys() - self.errors.keys():
            self.errors[name] = TensorStats([], missing=True)

    def take_over(self, others: Points) -> None:
        """Put what ``others`` have measured in the place of what was measured here."""
        self.errors |= others.errors
        self.lines |= others.lines
        self.awaited |= others.awaited

    def replaced(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        """Measure a tensor, and give what goes on in its place."""
        true = self.measure(name, x.numpy())
        if true is None or true.size != x.size:
            return x.clone()
        return paddle.to_tensor(true.reshape(x.shape)).astype(x.dtype)


class _Point(PyLayer):
    """The operation that passes a tensor through."""

    @staticmethod
    def forward(ctx, x, points, name):
        ctx.points, ctx.name = points, name
        return points.replaced(name, x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.points.replaced(f"gradient:{ctx.name}", grad)


def _run(step: Step, points: Points, apart: bool) -> dict[str, Flips]:
    """Forward and backward, with everything passing through ``points``; returns by LSH module where its buckets are not
    R64's, of whose vectors they were made. ``apart`` as of :func:`models.trace.observed`."""

    def at(operation: str, result: paddle.Tensor) -> paddle.Tensor:
        if not result.is_floating_point():
            return result
        name = step.name_of(draws.stack.draw(operation))
        points.lines[name] = _line(sys._getframe(2))
        return points.pass_through(name, result)

    def left(name: str, called: str, layer: nn.Layer, output: Any) -> Any:
        if name == "":
            return None
        if isinstance(output, paddle.Tensor):
            return points.pass_through(step.name_of(called), output)
        tensor = first_tensor(output) if type(output) is tuple else None
        return None if tensor is None else (points.pass_through(step.name_of(called), tensor), *output[1:])

    def entered(x: Any) -> Any:
        """What a module's own backward gives, before it is added to what other readers of its input give: the reference
        has the gradient of it alone."""
        if not isinstance(x, paddle.Tensor) or not x.is_floating_point() or x.stop_gradient:
            return x
        return points.pass_through(step.name_of(draws.stack.draw("input")), x)

    step.model.clear_gradients()
    with step.given(left, entered=entered) as draws, observed(at, apart):
        output = step.compute(step.batch)
        for name, value in scores_of(output).items():
            points.measure(name, value)
        points.measure("loss", output.loss.numpy())
        output.loss.backward()
    points.awaited |= {f"gradient:{name}" for name in step.parameter_names()}
    for name, value in step.parameter_gradients():
        points.measure(f"gradient:{name}", value)
    return draws.bucket_flips


def _line(frame: FrameType) -> str:
    """``file:line`` of the code that asks for an operation, relative to the repository."""
    while frame.f_code.co_filename == OPERATIONS and frame.f_back is not None:
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    return f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}:{frame.f_lineno}"
