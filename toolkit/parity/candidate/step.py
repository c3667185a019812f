"""One train-mode step of the port, in a dtype, with the reference's draws."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import paddle
from paddle import nn

from models.operations import precision
from models.operations.ops import is_on_cpu
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.scores import scores_of
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.handover import Sender
from toolkit.parity.job.job import Job
from toolkit.parity.job.outputs import parts_of
from toolkit.parity.job.results import CandidateFacts, Place
from toolkit.parity.measure.evaluation import TRAINING, WHOLE, name_in_run
from toolkit.parity.measure.naming import ModuleStack

#: Called with the name and value of each computed tensor, to send it; it is measured in the comparator.
Measure = Callable[[str, np.ndarray], None]
#: Called after a module with its path, the name of its output, itself and the output. A value that it returns
#: replaces the output.
OnLeave = Callable[[str, str, nn.Layer, Any], Any]
#: Called before a module with its first argument; returns its replacement.
OnEnter = Callable[[Any], Any]
#: The backward among :attr:`Step.backwards` that recomputes nothing.
PLAIN = "autograd"


class CallWatch(Protocol):
    """Receives events of a run for the calls that :meth:`Step.watched_calls` sends."""

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Inside the ``with`` block no call is sent."""

    def note(self, name: str, value: paddle.Tensor) -> None:
        """Note the call that computed a tensor."""

    def copy_source(self, value: paddle.Tensor, source: paddle.Tensor) -> None:
        """Record that ``value`` comes from the same call as ``source``."""


def make_step(job: Job, folder: Path, dtype: str, backward: str | None = None) -> Step:
    """Return the step of the job's family."""
    return step_class(job.model)(job, folder, dtype, backward)


def step_class(model: str) -> type[Step]:
    """Return the class of a family's steps."""
    return family_part(model, "candidate").STEP


class Step:
    """A port with the job's weights and batch: one of the families here (:class:`.ported.PortedStep`), or a user's.

    Attributes:
        model: the port.
        batch: the job's, as tensors.
        dtype: ``float64``, ``float32``, or ``bfloat16``, which is float32 except for the products in ``lowered``.
        backwards: ways to compute the gradients, including :data:`PLAIN`; training uses the first.
        sender: receives the draws that a run asks for, and its choices.
        recorded_draws: R64's draws, by run and name.
        rates: rates of R64's dropout masks, by name.
        constants: by name, the port's own constants before the reference's replace them.
    """

    model: nn.Layer
    batch: Mapping[str, paddle.Tensor]
    dtype: str
    backwards: tuple[str, str]
    lowered: Sequence[str]
    brief: bool
    recorded_draws: Mapping[str, Mapping[str, np.ndarray]]
    rates: Mapping[str, float]
    constants: dict[str, np.ndarray]
    #: The module whose output is the embedded input.
    embedded = ""
    #: Whether the run evaluates texts without the padding that changes nothing.
    reads_without_padding = False
    #: Whether the model, in evaluation, skips outputs of its last layer that its head does not read.
    is_narrowed = False
    #: Whether the step is a forward in evaluation mode, and trains nothing.
    forward_only = False
    sender = Sender(None)
    _order: Mapping[str, Sequence[str]] | None = None

    def __init__(self, job: Job, folder: Path, dtype: str, backward: str | None = None) -> None:
        """
        Args:
            folder: job folder, with the reference's files.
            backward: one of :attr:`backwards`; by default the first.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def replay_draws(
        self, on_leave: OnLeave, run: str = TRAINING, on_enter: OnEnter | None = None, **options: Any
    ) -> Iterator[RecordedDraws]:
        """Inside the ``with`` block the model draws and chooses as R64 did in that run, with hooks
        (:func:`watch`). With an ``order`` of draws, no layer has a hook.

        Args:
            on_leave, on_enter: functions called after and before each module, as in :func:`watch`.
            options: keyword arguments of :meth:`draws_of`.
        """
        draws = self.draws_of(run, **options)
        uses_hooks = options.get("order") is None
        with (
            self.apply_draws(draws),
            watch(self.model, draws.stack, on_leave, on_enter=on_enter) if uses_hooks else contextlib.nullcontext(),
        ):
            yield draws

    def draws_of(
        self,
        run: str,
        recorded_draws: Mapping[str, np.ndarray] | None = None,
        sender: Sender | None = None,
        order: Mapping[str, Sequence[str]] | None = None,
    ) -> RecordedDraws:
        """Return ``recorded_draws``, or by default R64's draws of a run, as a source of draws."""
        return self.named_draws(
            self.recorded_draws[run] if recorded_draws is None else recorded_draws, sender, run, order
        )

    @staticmethod
    def leaks() -> list[str]:
        """Return the places where float64 steps would lose precision."""
        return []

    @staticmethod
    def limited_lines() -> list[str]:
        """Return the port's lines whose losses are compared without the limit of Paddle's kernels."""
        return []

    def named_draws(self, recorded_draws: Mapping[str, np.ndarray], *arguments: Any) -> RecordedDraws:
        """Return draws by the port's names; the arguments are the last of :class:`.RecordedDraws`."""
        raise NotImplementedError

    def apply_draws(self, draws: RecordedDraws) -> contextlib.AbstractContextManager[None]:
        """Inside the ``with`` block the model uses these draws and choices."""
        raise NotImplementedError

    @contextlib.contextmanager
    def apply_choices(self, draws: RecordedDraws) -> Iterator[None]:
        """Inside the ``with`` block, send the port's discrete choices and use R64's."""
        yield

    def watched_calls(
        self, draws: RecordedDraws, sender: Sender
    ) -> contextlib.AbstractContextManager[CallWatch | None]:
        """Inside the ``with`` block, send every call of a function of Paddle. If the port marks its
        operations, nothing is sent."""
        return contextlib.nullcontext()

    def recorded_of(self, run: str, rows: Sequence[int], length: int) -> Mapping[str, np.ndarray]:
        """Return R64's draws and choices in a run, for the first ``length`` tokens of some rows of the batch."""
        return self.recorded_draws[run]

    def outputs_of(self, name: str, layer: nn.Layer, output: Any) -> dict[str, paddle.Tensor] | None:
        """Return the tensors to compare if a module's output is not a tensor or tuple of tensors; otherwise None."""
        return None

    def places(self) -> dict[str, Place]:
        """Return the places of the port's modules, and the other places by tensor name, kind or verdict."""
        raise NotImplementedError

    def facts(self) -> CandidateFacts:
        """Return other facts of the port for the verdict."""
        raise NotImplementedError

    def compute(self, inputs: Mapping[str, paddle.Tensor]) -> Any:
        """Return the model's output, with its ``loss`` if there are labels."""
        return self.model(**inputs)

    def evaluations(self) -> dict[str, dict[str, paddle.Tensor]]:
        """Return the batch of each evaluation, by its name."""
        raise NotImplementedError

    def is_scored(self, batch: Mapping[str, paddle.Tensor]) -> bool:
        """Return whether an evaluation has a loss."""
        raise NotImplementedError

    def parameter_names(self) -> list[str]:
        """Return the reference's names of all parameters."""
        raise NotImplementedError

    def parameter_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and gradient of every parameter that has a gradient, in the reference's layout."""
        raise NotImplementedError

    def held_parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the port's value of each parameter that it was given, in the reference's layout."""
        raise NotImplementedError

    def train_on(self, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
        """Continue training after :meth:`run` with R64's gradients, for the job's number of updates."""
        raise NotImplementedError

    def laid_out(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return an output of the port in the reference's layout."""
        return value

    def in_own_layout(self, name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return an output of the reference in the port's layout, of this shape."""
        return value.reshape(shape)

    def name_of(self, call_name: str) -> str:
        """Return the reference's name for a name of a port's module; the ports of this project share the names."""
        return call_name

    def run(self, measure: Measure, with_hooks: bool = True) -> None:
        """Run forward and backward. Without ``with_hooks``, measure only the loss and the gradients. If the step
        has run with hooks before, no layer has a hook then, as in training."""
        self.embedded_output = None
        self.start()
        self.model.clear_gradients()
        order, sender = (None, self.sender) if with_hooks else (self._order, None)
        with self.replay_draws(self._on_leave(measure if with_hooks else None), sender=sender, order=order) as draws:
            self.recording = with_hooks
            output = self.compute(self.batch)
            self.recording = False
            for name, value in scores_of(output).items() if with_hooks else ():
                measure(name, value)
            self.backward(output, measure)
        self._order = draws.order if with_hooks else self._order
        self._measure_gradients(measure)

    def start(self) -> None:
        """Put the model into the mode of the step."""
        self.model.eval() if self.forward_only else self.model.train()

    def backward(self, output: Any, measure: Callable[[str, np.ndarray], object]) -> None:
        """Measure the loss and compute the gradients."""
        if output.loss is not None:
            measure("loss", output.loss.numpy())
        if not self.forward_only:
            output.loss.backward()

    def evaluate(self, measure: Measure) -> None:
        """Run the model in evaluation mode (:mod:`toolkit.parity.measure.evaluation`)."""
        self.model.eval()
        for run, batch in self.evaluations().items():

            def measure_of_run(name: str, value: np.ndarray, run: str = run) -> None:
                measure(name_in_run(run, name), value)

            self.recording = True
            with paddle.no_grad(), self.replay_draws(self._on_leave(measure_of_run), run, sender=self.sender):
                output = self.compute(batch)
            self.recording = False
            for name, value in scores_of(output).items():
                measure_of_run(name, value)
            if self.is_scored(batch):
                measure_of_run("loss", output.loss.numpy())
            if run == WHOLE:
                self.score_again(batch, output, measure)
        with paddle.no_grad(), precision.cast_to_bfloat16(self.lowered):
            self.decode(measure)
        self.merge(measure)
        self.model.train()

    def score_again(self, batch: Mapping[str, paddle.Tensor], output: Any, measure: Measure) -> None:
        """Measure the scores of a batch as the run's evaluations compute them, if these leave anything out."""

    def merge(self, measure: Measure) -> None:
        """Measure the weights of an adapted model as they are saved."""

    def decode(self, measure: Measure) -> None:
        """Measure the scores of tokens decoded one by one, with cached keys and values if the model has a cache."""

    def _on_leave(self, measure: Measure | None) -> OnLeave:
        def on_leave(name: str, call_name: str, layer: nn.Layer, output: Any) -> None:
            if name == self.embedded and self.embedded_output is None and not output.stop_gradient:
                self.embedded_output = output
                output.retain_grads()
            if measure is None or not self.recording or name == "":
                return
            several = self.outputs_of(name, layer, output)
            if several is not None:
                for key, value in several.items():
                    measure(key, value.numpy())
                return
            tensor = first_tensor(output)
            if tensor is not None:
                measure(call_name, values_of(tensor))

        return on_leave

    def _measure_gradients(self, measure: Measure) -> None:
        if self.embedded_output is not None and self.embedded_output.grad is not None:
            measure(f"gradient:{self.embedded}", self.embedded_output.grad.numpy())
        for name, value in self.parameter_gradients():
            measure(f"gradient:{name}", value)


def ignore(name: str, call_name: str, layer: nn.Layer, output: Any) -> None:
    """Measure nothing of a module's output."""


@contextlib.contextmanager
def apply_signs(model: nn.Layer, draws: RecordedDraws) -> Iterator[None]:
    """Inside the ``with`` block R64 decides which inputs of a ReLU are positive."""
    layers = [layer for layer in model.sublayers(include_self=True) if isinstance(layer, nn.ReLU)]
    for layer in layers:
        layer.forward = lambda x, plain=layer.forward: draws.relu(x, plain(x))
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


@contextlib.contextmanager
def watch(
    model: nn.Layer, stack: ModuleStack, on_leave: OnLeave, prefix: str = "", on_enter: OnEnter | None = None
) -> Iterator[None]:
    """Inside the ``with`` block ``stack`` knows which module is running.

    Args:
        prefix: the path of ``model`` in the whole model; "" for the whole.
        entered: called before each module, for its input.
    """

    def on_entering(names: Sequence[str]) -> Callable[[nn.Layer, tuple], tuple | None]:
        def hook(layer: nn.Layer, args: tuple) -> tuple | None:
            stack.enter(stack.choose_name(names))
            if on_enter is None or not args:
                return None
            replacement = on_enter(args[0])  # an attention may be given its input as query, key and value
            return tuple(replacement if one is args[0] else one for one in args)

        return hook

    hooks = []
    for layer, names in paths_of(model, prefix).items():
        hooks.append(layer.register_forward_pre_hook(on_entering(names)))
        hooks.append(
            layer.register_forward_post_hook(
                lambda layer, args, output, name=names[0]: on_leave(name, stack.leave(), layer, output)
            )
        )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def paths_of(model: nn.Layer, prefix: str = "") -> dict[nn.Layer, list[str]]:
    """Return all paths of every layer within the model, the model itself first."""
    paths: dict[nn.Layer, list[str]] = {}

    def visit(layer: nn.Layer, path: str) -> None:
        paths.setdefault(layer, []).append(path)
        for name, child in layer.named_children():
            visit(child, ".".join(filter(None, [path, name])))

    visit(model, prefix)
    return paths


def values_of(tensor: paddle.Tensor) -> np.ndarray:
    """Return the current values of a tensor, not copied if in host memory: the largest take 2.5 GB."""
    return np.from_dlpack(tensor.detach()) if is_on_cpu(tensor) else tensor.numpy()


def first_tensor(output: Any) -> paddle.Tensor | None:
    """Return the tensor that represents a module's output: itself, or the first of a tuple or model output."""
    if isinstance(output, paddle.Tensor):
        return output
    return next((value for value in parts_of(output) if isinstance(value, paddle.Tensor)), None)
