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
from toolkit.parity.measure.evaluation import TRAINING, WHOLE, named
from toolkit.parity.measure.naming import ModuleStack

#: Called with the name and value of each computed tensor, to hand it over; it is measured elsewhere.
Measure = Callable[[str, np.ndarray], None]
#: Called after a module with its path, the name of its output, itself and the output. What it returns, if anything,
#: replaces the output.
OnLeave = Callable[[str, str, nn.Layer, Any], Any]
#: Called before a module with its first argument; returns its replacement.
OnEnter = Callable[[Any], Any]
#: The one of :attr:`Step.backwards` that recomputes nothing.
PLAIN = "autograd"


class CallWatch(Protocol):
    """What a run tells of the calls that :meth:`Step.watched_calls` hands over."""

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Inside the ``with`` block no call is handed over."""

    def note(self, name: str, value: paddle.Tensor) -> None:
        """Note the call that computed a tensor."""

    def copy_source(self, value: paddle.Tensor, as_this: paddle.Tensor) -> None:
        """Let a tensor come from where another does."""


def make_step(job: Job, folder: Path, dtype: str, backward: str | None = None) -> Step:
    """The step of the job's family."""
    return step_class(job.model)(job, folder, dtype, backward)


def step_class(model: str) -> type[Step]:
    """The steps of a family."""
    return family_part(model, "candidate").STEP


class Step:
    """A port with the job's weights and batch: one of the families here (:class:`.ported.PortedStep`), or a user's.

    Attributes:
        model: the port.
        batch: the job's, as tensors.
        dtype: ``float64``, ``float32``, or ``bfloat16``: float32 but for the products in ``lowered``.
        backwards: ways to compute the gradients, that of training first, :data:`PLAIN` among them.
        over: is told what draws a run asks for and what it chooses.
        recorded, rates: R64's draws in each run, and the rates of its dropout masks.
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
    #: Whether the model, in evaluation, leaves out in its last layer what its head does not read.
    is_narrowed = False
    #: Whether the step is a forward in evaluation mode, and trains nothing.
    forward_only = False
    sender = Sender(None)
    _order: Mapping[str, Sequence[str]] | None = None

    def __init__(self, job: Job, folder: Path, dtype: str, backward: str | None = None) -> None:
        """
        Args:
            folder: of the job, with what the reference wrote.
            backward: one of :attr:`backwards`; by default the first.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def replay_draws(
        self, on_leave: OnLeave, run: str = TRAINING, on_enter: OnEnter | None = None, **options: Any
    ) -> Iterator[RecordedDraws]:
        """Inside the ``with`` block the model draws and chooses as R64 did in that run, and is watched
        (:func:`watch`); or, with an ``order`` of draws, no layer has a hook.

        Args:
            options: of :meth:`draws_of`.
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
        """R64's draws of a run, or those ``recorded``; ``over`` and ``order`` as in :class:`.RecordedDraws`."""
        return self.named_draws(
            self.recorded_draws[run] if recorded_draws is None else recorded_draws, sender, run, order
        )

    @staticmethod
    def leaks() -> list[str]:
        """Where float64 steps would lose precision."""
        return []

    @staticmethod
    def limited_lines() -> list[str]:
        """Return the port's lines at which losses are compared without the limit of Paddle's kernels."""
        return []

    def named_draws(self, recorded_draws: Mapping[str, np.ndarray], *arguments: Any) -> RecordedDraws:
        """Return draws by the port's names; the arguments are the last of :class:`.RecordedDraws`."""
        raise NotImplementedError

    def apply_draws(self, draws: RecordedDraws) -> contextlib.AbstractContextManager[None]:
        """Inside the ``with`` block the model uses these draws and choices."""
        raise NotImplementedError

    @contextlib.contextmanager
    def apply_choices(self, draws: RecordedDraws) -> Iterator[None]:
        """Inside the ``with`` block, hand over the port's discrete choices and use R64's."""
        yield

    def watched_calls(
        self, draws: RecordedDraws, sender: Sender
    ) -> contextlib.AbstractContextManager[CallWatch | None]:
        """Inside the ``with`` block, send every call of a function of Paddle; nothing where the port marks its
        operations itself."""
        return contextlib.nullcontext()

    def recorded_of(self, run: str, rows: Sequence[int], length: int) -> Mapping[str, np.ndarray]:
        """R64's draws and choices in a run, for the first ``length`` tokens of some rows of the batch."""
        return self.recorded_draws[run]

    def outputs_of(self, name: str, layer: nn.Layer, output: Any) -> dict[str, paddle.Tensor] | None:
        """Tensors to compare of a module whose output is no tensor or tuple of tensors; else None."""
        return None

    def places(self) -> dict[str, Place]:
        """Places of the port's modules, and by tensor name or kind, or by verdict, of what is in none."""
        raise NotImplementedError

    def facts(self) -> CandidateFacts:
        """Other facts of the port for the verdict."""
        raise NotImplementedError

    def compute(self, inputs: Mapping[str, paddle.Tensor]) -> Any:
        """The model's output, with its ``loss`` where there are labels."""
        return self.model(**inputs)

    def evaluations(self) -> dict[str, dict[str, paddle.Tensor]]:
        """The batch of each evaluation, by its name."""
        raise NotImplementedError

    def is_scored(self, batch: Mapping[str, paddle.Tensor]) -> bool:
        """Whether an evaluation has a loss."""
        raise NotImplementedError

    def parameter_names(self) -> list[str]:
        """The reference's names of all parameters."""
        raise NotImplementedError

    def parameter_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and gradient of every parameter that has one, in the reference's layout."""
        raise NotImplementedError

    def held_parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        """The port's value of each parameter that it was given, in the reference's layout."""
        raise NotImplementedError

    def train_on(self, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
        """Go on from :meth:`run` with R64's gradients for the job's number of updates."""
        raise NotImplementedError

    def laid_out(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return an output of the port in the reference's layout."""
        return value

    def in_own_layout(self, name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return an output of the reference in the port's layout, of this shape."""
        return value.reshape(shape)

    def name_of(self, call_name: str) -> str:
        """The reference's name for a name made from a port's module: the ports here share them."""
        return call_name

    def run(self, measure: Measure, with_hooks: bool = True) -> None:
        """Run forward and backward. Without ``watched``, hand on only the loss and the gradients; if the step was
        watched before, no layer has a hook then, as in training."""
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
        """Hand on the loss, and compute the gradients."""
        if output.loss is not None:
            measure("loss", output.loss.numpy())
        if not self.forward_only:
            output.loss.backward()

    def evaluate(self, measure: Measure) -> None:
        """Run the model in evaluation mode (:mod:`toolkit.parity.measure.evaluation`)."""
        self.model.eval()
        for run, batch in self.evaluations().items():

            def measure_of_run(name: str, value: np.ndarray, run: str = run) -> None:
                measure(named(run, name), value)

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
        with paddle.no_grad(), precision.lowered(self.lowered):
            self.decode(measure)
        self.merge(measure)
        self.model.train()

    def score_again(self, batch: Mapping[str, paddle.Tensor], output: Any, measure: Measure) -> None:
        """Hand on the scores of a batch as the run's evaluations compute them, if those leave anything out."""

    def merge(self, measure: Measure) -> None:
        """Hand on the weights of an adapted model as they are saved."""

    def decode(self, measure: Measure) -> None:
        """Hand on the scores of tokens decoded one by one, with the keys and values of those before if kept."""

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
            stack.enter(stack.called_as(names))
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
    """Every layer, the model's own first, and all the paths by which it is part of the model."""
    paths: dict[nn.Layer, list[str]] = {}

    def visit(layer: nn.Layer, path: str) -> None:
        paths.setdefault(layer, []).append(path)
        for name, child in layer.named_children():
            visit(child, ".".join(filter(None, [path, name])))

    visit(model, prefix)
    return paths


def values_of(tensor: paddle.Tensor) -> np.ndarray:
    """Values of a tensor as they are now, not copied if in host memory: the largest take 2.5 GB."""
    return np.from_dlpack(tensor.detach()) if is_on_cpu(tensor) else tensor.numpy()


def first_tensor(output: Any) -> paddle.Tensor | None:
    """The tensor that a module's output is compared by: itself, or the first of a tuple or model output."""
    if isinstance(output, paddle.Tensor):
        return output
    return next((value for value in parts_of(output) if isinstance(value, paddle.Tensor)), None)
