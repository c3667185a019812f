"""The port operation by operation, each on R64's own input.

Where an operation's result has been handed over, R64's goes on in its place; in the backward likewise. So an error is
that of one operation and of nothing before it.
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

from models.operations import compiled
from models.operations.trace import observed
from toolkit.parity.candidate.scores import scores_of
from toolkit.parity.candidate.step import PLAIN, Step, first_tensor, make_step
from toolkit.parity.job import files
from toolkit.parity.job.handover import Sender
from toolkit.parity.job.job import Job
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.mutants import by_name

ROOT = Path(__file__).resolve().parents[3]
#: Its functions compute for whoever calls them: the place of an operation is there.
OPERATIONS = str(ROOT / "models" / "operations" / "ops.py")


def run(job: Job, folder: Path, over: Sender, kernels: object = None) -> None:
    """The port in each dtype, and with each mutant; nothing of those that concern no tensor or stop by themselves."""
    files.wait_for_reference(folder, "forced_input.json", "forced_input")
    truth = TensorFile(folder / "reference" / "forced_input.safetensors")
    for dtype in job.dtypes:
        over.begin("", dtype)
        hand(job, folder, over, truth, dtype)
    for name in job.mutants:
        _hand_mutant(job, folder, over, truth, name)


def hand(job: Job, folder: Path, over: Sender, truth: Mapping[str, np.ndarray], dtype: str) -> None:
    """One step in ``dtype``; where compiled loops compute in it, first with all of them taken apart, then once as
    training runs it, whose operations count where both have them."""
    step = make_step(job, folder, dtype, PLAIN)
    points = Points(truth, over)
    _run(step, points, apart=True)
    if dtype != "float64" and compiled.is_chosen():
        _run(step, points, apart=False)
    over.say("awaited", sorted(points.awaited))
    over.say("places", step.places())


def _hand_mutant(job: Job, folder: Path, over: Sender, truth: Mapping[str, np.ndarray], name: str) -> None:
    mutant = by_name(name)
    if not mutant.is_of_the_step:
        return
    over.begin(name, mutant.dtype)
    with mutant.in_force():
        try:
            hand(job, folder, over, truth, mutant.dtype)
        except BrokenPipeError:
            raise
        except Exception as error:  # which the gate says, too
            over.say("raised", type(error).__name__)


class Points:
    """Where the port's tensors are handed over and replaced.

    Attributes:
        awaited: the gradients that are to come back.
    """

    def __init__(self, truth: Mapping[str, np.ndarray], over: Sender) -> None:
        self.truth = truth
        self.over = over
        self.awaited: set[str] = set()

    def hand(self, name: str, value: np.ndarray) -> np.ndarray | None:
        """Hand a tensor over; returns R64's, or None where that has none of that name."""
        truth = self.truth.get(name)
        if truth is not None:
            self.over.hand("tensor", name, value)
        return truth

    def pass_through(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        """What the run goes on with in place of ``x``; in the backward its gradient passes through, too."""
        if x.stop_gradient:
            return self.replaced(name, x)
        self.awaited.add(f"gradient:{name}")
        return _Point.apply(x, self, name)

    def replaced(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        """Hand a tensor over, and give what goes on in its place."""
        true = self.hand(name, x.numpy())
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


def _run(step: Step, points: Points, apart: bool) -> None:
    """Forward and backward, with everything passing through ``points``, and the buckets that are made of R64's vectors
    handed over. ``apart`` as of :func:`models.operations.trace.observed`."""

    def at(operation: str, result: paddle.Tensor) -> paddle.Tensor:
        if not result.is_floating_point():
            return result
        name = step.name_of(draws.stack.draw(operation))
        points.over.say("lines", {name: _line(sys._getframe(2))})
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
    with step.given(left, entered=entered, over=points.over) as draws, observed(at, apart):
        output = step.compute(step.batch)
        for name, value in scores_of(output).items():
            points.hand(name, value)
        points.hand("loss", output.loss.numpy())
        output.loss.backward()
    points.awaited |= {f"gradient:{name}" for name in step.parameter_names()}
    for name, value in step.parameter_gradients():
        points.hand(f"gradient:{name}", value)


def _line(frame: FrameType) -> str:
    """``file:line`` of the code that asks for an operation, relative to the repository."""
    while frame.f_code.co_filename == OPERATIONS and frame.f_back is not None:
        frame = frame.f_back
    file = Path(frame.f_code.co_filename)
    return f"{file.relative_to(ROOT) if file.is_relative_to(ROOT) else file}:{frame.f_lineno}"
