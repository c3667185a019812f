"""The operation trace of the port: each operation runs on R64's own input (forced input).

After the result of an operation is sent, R64's result replaces it, also in the backward. So each error comes from one
operation.
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
from toolkit.parity.exchange import files
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.job import Job
from toolkit.parity.measure.real_numbers import as_complex
from toolkit.parity.mutants import find_mutant

#: Folder of the project.
ROOT = Path(__file__).resolve().parents[3]
#: Path of the file whose functions are operations. The source line of an operation is the line that calls them.
OPERATIONS = str(ROOT / "models" / "operations" / "ops.py")


def run(job: Job, folder: Path, sender: Sender, kernels: object = None) -> None:
    """Send the tensors of each operation of the port on R64's input, in each dtype and with each mutant.

    Nothing is sent for a mutant if the port raises an error with it, or if the mutant changes no operation of a port of
    this project.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
        kernels: kernels of the reference; not used.
    """
    files.wait_for_reference(folder, "forced_input.json", "forced_input")
    truth = TensorFile(folder / "reference" / "forced_input.safetensors")
    for dtype in job.dtypes:
        sender.begin("", dtype)
        send_step(job, folder, sender, truth, dtype, calls=dtype == "float64")
    for name in job.mutants:
        _send_mutant(job, folder, sender, truth, name)


def send_step(
    job: Job, folder: Path, sender: Sender, truth: Mapping[str, np.ndarray], dtype: str, *, calls: bool = False
) -> None:
    """Run one step in ``dtype`` with forced input, and send the result and gradient of each operation.

    If the step uses compiled loops, the first run composes each loop from operations. A second run uses the loops as in
    training; its operations replace the same operations of the first run.

    Args:
        job: the job.
        folder: job folder, with the reference's files.
        sender: sending end of the pipe to the comparator.
        truth: R64's tensors by name.
        dtype: ``float64``, ``float32`` or ``bfloat16``.
        calls: whether to send the calls of Paddle's functions, too.
    """
    step = make_step(job, folder, dtype, PLAIN)
    points = Points(step, truth, sender)
    _run(step, points, with_composed_loops=True, calls=calls)
    if dtype != "float64" and compiled.is_chosen():
        _run(step, points, with_composed_loops=False)
    sender.send_json("awaited", sorted(points.awaited))
    sender.send_json("places", step.places())


def _send_mutant(job: Job, folder: Path, sender: Sender, truth: Mapping[str, np.ndarray], name: str) -> None:
    """Send the operations of the port with a mutant in force, or the class of the error that it raises.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator.
        truth: R64's tensors by name.
        name: name of the mutant.
    """
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
    """Sends each tensor of the port, and replaces it with R64's tensor of the same name.

    Args:
        step: the port's step.
        truth: R64's tensors by name.
        sender: sending end of the pipe to the comparator.

    Attributes:
        awaited: names of the gradients that the backward should send.
        calls: records the call that computed each tensor; None to record no calls.
    """

    def __init__(self, step: Step, truth: Mapping[str, np.ndarray], sender: Sender) -> None:
        self.step = step
        self.truth = truth
        self.sender = sender
        self.awaited: set[str] = set()
        self.calls: CallWatch | None = None

    def send(self, name: str, value: np.ndarray) -> np.ndarray | None:
        """Send a tensor if R64 has a tensor of its name, and return R64's tensor; None if R64 has none.

        Args:
            name: the reference's name of the tensor.
            value: the port's tensor in the reference's layout.
        """
        truth = self.truth.get(name)
        if truth is not None:
            self.sender.send_array("tensor", name, value)
        return truth

    def pass_through(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        """Send the tensor ``x``, and return R64's tensor of this name, or ``x`` if R64 has no such tensor.

        In the backward, the gradient of ``x`` is sent and replaced in the same way.
        """
        if self.calls is None:
            return self._pass_tensor(name, x)
        self.calls.note(name, x)
        with self.calls.pause():
            replacement = self._pass_tensor(name, x)
        if name not in self.truth:
            self.calls.copy_source(replacement, x)
        return replacement

    def _pass_tensor(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        """Return the replacement of ``x``, with an operation that replaces its gradient, too, if ``x`` has one."""
        if x.stop_gradient:
            return self.replace_tensor(name, x)
        self.awaited.add(f"gradient:{name}")
        return _Point.apply(x, self, name)

    def replace_tensor(self, name: str, x: paddle.Tensor) -> paddle.Tensor:
        """Send the tensor ``x``, and return R64's tensor with its dtype and shape; without R64's, a copy of ``x``."""
        truth_value = self.send(name, self.step.to_reference_layout(name, x.numpy()))
        if truth_value is not None and x.is_complex():
            truth_value = as_complex(truth_value)
        if truth_value is None or truth_value.size != x.size:
            return x.clone()
        return paddle.to_tensor(self.step.to_port_layout(name, truth_value, x.shape)).astype(x.dtype)


class _Point(PyLayer):
    """Operation whose forward and backward send a tensor and return R64's tensor of the same name."""

    @staticmethod
    def forward(ctx, x, points, name):
        """Send the tensor ``x`` as ``name``, and return its replacement."""
        ctx.points, ctx.name = points, name
        return points.replace_tensor(name, x)

    @staticmethod
    def backward(ctx, grad):
        """Send the gradient as ``gradient:NAME``, and return its replacement."""
        return ctx.points.replace_tensor(f"gradient:{ctx.name}", grad)


def _run(step: Step, points: Points, *, with_composed_loops: bool, calls: bool = False) -> None:
    """Run forward and backward, with every tensor sent and replaced by ``points``.

    The port's buckets of R64's vectors are sent, too.

    Args:
        step: the port's step.
        points: sends and replaces each tensor.
        with_composed_loops: whether compiled loops are composed of operations, as in :func:`.observe_trace`.
        calls: whether to send the calls of Paddle's functions in the forward.
    """

    def on_operation(operation: str, result: paddle.Tensor) -> paddle.Tensor:
        """Send the result of an operation and its source line, and return the replacement of the result."""
        if not result.is_floating_point():
            return result
        name = step.name_of(draws.stack.next_name(operation))
        points.sender.send_json("lines", {name: _line(sys._getframe(2))})
        return points.pass_through(name, result)

    def on_leave(name: str, call_name: str, layer: nn.Layer, output: Any) -> Any:
        """Send the output of a module, and return its replacement; None to keep the output."""
        if name == "":
            return None
        if isinstance(output, paddle.Tensor):
            return points.pass_through(step.name_of(call_name), output)
        tensor = first_tensor(output) if type(output) is tuple else None
        return None if tensor is None else (points.pass_through(step.name_of(call_name), tensor), *output[1:])

    def on_enter(x: Any) -> Any:
        """Send and replace a module's input, and in the backward the gradient that the module itself returns.

        This happens before other gradients of the same tensor are added: the reference, too, records the gradient
        alone.
        """
        if not isinstance(x, paddle.Tensor) or not x.is_floating_point() or x.stop_gradient:
            return x
        return points.pass_through(step.name_of(draws.stack.next_name("input")), x)

    step.start()
    step.model.clear_gradients()
    with (
        step.replay_draws(on_leave, on_enter=on_enter, sender=points.sender) as draws,
        observe_trace(on_operation, with_composed_loops),
    ):
        with step.watch_calls(draws, points.sender) if calls else contextlib.nullcontext() as points.calls:
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
    """Return the source line, ``file:line``, of the code that calls an operation, given the operation's frame."""
    while frame.f_code.co_filename == OPERATIONS and frame.f_back is not None:
        frame = frame.f_back
    return f"{display_path(Path(frame.f_code.co_filename))}:{frame.f_lineno}"
