"""The port operation by operation, each on R64's own input.

After the result of an operation is sent, R64's result replaces it, also in the backward. So each error comes from
one operation.
"""

from __future__ import annotations

import contextlib
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
from models.operations.trace import observe_trace
from toolkit.parity.candidate.places import display_path
from toolkit.parity.candidate.scores import score_tensors, scores_of
from toolkit.parity.candidate.step import PLAIN, CallWatch, Step, first_tensor, make_step
from toolkit.parity.job import files
from toolkit.parity.job.handover import Sender
from toolkit.parity.job.job import Job
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.real_numbers import as_complex
from toolkit.parity.mutants import find_mutant

ROOT = Path(__file__).resolve().parents[3]
#: The place of an operation is where these functions are called.
OPERATIONS = str(ROOT / "models" / "operations" / "ops.py")


def run(job: Job, folder: Path, sender: Sender, kernels: object = None) -> None:
    """Run the port in each dtype and with each mutant.

    A mutant gives nothing if the port raises with it, or if no operation of a port of this toolkit is to be named.
    """
    files.wait_for_reference(folder, "forced_input.json", "forced_input")
    truth = TensorFile(folder / "reference" / "forced_input.safetensors")
    for dtype in job.dtypes:
        sender.begin("", dtype)
        send_step(job, folder, sender, truth, dtype, calls=dtype == "float64")
    for name in job.mutants:
        _send_mutant(job, folder, sender, truth, name)


def send_step(
    job: Job, folder: Path, sender: Sender, truth: Mapping[str, np.ndarray], dtype: str, calls: bool = False
) -> None:
    """Run one step in ``dtype`` and send its tensors, and also its calls of functions if ``calls`` is set.

    If the step uses compiled loops, the first run composes all of them from operations. A second run uses the loops as
    in training; its operations replace those that both runs have.
    """
    step = make_step(job, folder, dtype, PLAIN)
    points = Points(step, truth, sender)
    _run(step, points, with_composed_loops=True, calls=calls)
    if dtype != "float64" and compiled.is_chosen():
        _run(step, points, with_composed_loops=False)
    sender.send_json("awaited", sorted(points.awaited))
    sender.send_json("places", step.places())


def _send_mutant(job: Job, folder: Path, sender: Sender, truth: Mapping[str, np.ndarray], name: str) -> None:
    mutant = find_mutant(name)
    if not (mutant.is_of_the_step if job.pair is not None else mutant.is_of_an_operation):
        return
    sender.begin(name, mutant.dtype)
    with mutant.in_force():
        try:
            send_step(job, folder, sender, truth, mutant.dtype)
        except BrokenPipeError:
            raise
        except Exception as error:  # the gate reports it
            sender.send_json("raised", type(error).__name__)


class Points:
    """Sends the port's tensors and replaces them with R64's.

    Attributes:
        awaited: names of the expected gradients.
        calls: records the call that computed each tensor; None to record no calls.
    """

    def __init__(self, step: Step, truth: Mapping[str, np.ndarray], sender: Sender) -> None:
        self.step = step
        self.truth = truth
        self.sender = sender
        self.awaited: set[str] = set()
        self.calls: CallWatch | None = None

    def send(self, name: str, value: np.ndarray) -> np.ndarray | None:
        """Send a tensor; return R64's tensor of that name, or None."""
        truth = self.truth.get(name)
        if truth is not None:
            self.sender.send_array("tensor", name, value)
        return truth

    def pass_through(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        """Return what replaces ``x`` in the run; its gradient passes through in the backward, too."""
        if self.calls is None:
            return self._pass_tensor(name, x)
        self.calls.note(name, x)
        with self.calls.pause():
            replacement = self._pass_tensor(name, x)
        if name not in self.truth:
            self.calls.copy_source(replacement, x)
        return replacement

    def _pass_tensor(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        if x.stop_gradient:
            return self.replace_tensor(name, x)
        self.awaited.add(f"gradient:{name}")
        return _Point.apply(x, self, name)

    def replace_tensor(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        """Send a tensor and return its replacement."""
        truth_value = self.send(name, self.step.laid_out(name, x.numpy()))
        if truth_value is not None and x.is_complex():
            truth_value = as_complex(truth_value)
        if truth_value is None or truth_value.size != x.size:
            return x.clone()
        return paddle.to_tensor(self.step.in_own_layout(name, truth_value, x.shape)).astype(x.dtype)


class _Point(PyLayer):
    """The operation that passes a tensor through."""

    @staticmethod
    def forward(ctx, x, points, name):
        ctx.points, ctx.name = points, name
        return points.replace_tensor(name, x)

    @staticmethod
    def backward(ctx, grad):
        return ctx.points.replace_tensor(f"gradient:{ctx.name}", grad)


def _run(step: Step, points: Points, with_composed_loops: bool, calls: bool = False) -> None:
    """Run forward and backward with every tensor passing through ``points``. Send the buckets of R64's vectors,
    and the forward's ``calls`` if asked. ``with_composed_loops`` as in :func:`.observe_trace`."""

    def on_operation(operation: str, result: paddle.Tensor) -> paddle.Tensor:
        if not result.is_floating_point():
            return result
        name = step.name_of(draws.stack.next_name(operation))
        points.sender.send_json("lines", {name: _line(sys._getframe(2))})
        return points.pass_through(name, result)

    def on_leave(name: str, call_name: str, layer: nn.Layer, output: Any) -> Any:
        if name == "":
            return None
        if isinstance(output, paddle.Tensor):
            return points.pass_through(step.name_of(call_name), output)
        tensor = first_tensor(output) if type(output) is tuple else None
        return None if tensor is None else (points.pass_through(step.name_of(call_name), tensor), *output[1:])

    def on_enter(x: Any) -> Any:
        """Pass on the gradient of a module's own backward before others are added: the reference has it alone."""
        if not isinstance(x, paddle.Tensor) or not x.is_floating_point() or x.stop_gradient:
            return x
        return points.pass_through(step.name_of(draws.stack.next_name("input")), x)

    step.start()
    step.model.clear_gradients()
    with (
        step.replay_draws(on_leave, on_enter=on_enter, sender=points.sender) as draws,
        observe_trace(on_operation, with_composed_loops),
    ):
        with step.watched_calls(draws, points.sender) if calls else contextlib.nullcontext() as points.calls:
            output = step.compute(step.batch)
            if points.calls is not None:
                for name, value in {**score_tensors(output), "loss": output.loss}.items():
                    if value is not None:
                        points.calls.note(name, value)
        points.calls = None
        for name, value in scores_of(output).items():
            points.send(name, value)
        step.backward(output, points.send)
    points.awaited |= {f"gradient:{name}" for name in step.parameter_names()}
    for name, value in step.parameter_gradients():
        points.send(f"gradient:{name}", value)


def _line(frame: FrameType) -> str:
    """``file:line`` of the code that asks for an operation."""
    while frame.f_code.co_filename == OPERATIONS and frame.f_back is not None:
        frame = frame.f_back
    return f"{display_path(Path(frame.f_code.co_filename))}:{frame.f_lineno}"
