"""One train-mode step of the port in one dtype, with R64's random draws and discrete choices."""

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
from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.results import CandidateFacts, Place
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job
from toolkit.parity.job.outputs import parts_of
from toolkit.parity.measure.evaluation import TRAINING, WHOLE, name_in_run
from toolkit.parity.measure.naming import ModuleStack

#: Function that is called with the name and value of each computed tensor. It sends the tensor to the comparator, which
#: measures it.
Measure = Callable[[str, np.ndarray], None]
#: Function that is called after each module with the module's path, the name of its output (``output:PATH#CALL``), the
#: module and the output. A returned value other than None replaces the output.
OnLeave = Callable[[str, str, nn.Layer, Any], Any]
#: Function that is called before each module with the module's first argument, and returns its replacement.
OnEnter = Callable[[Any], Any]
#: Name of the backward that recomputes nothing: plain autograd with stored activations. See :attr:`Step.backwards`.
PLAIN = "autograd"


class CallWatch(Protocol):
    """Interface of an object that records the calls of Paddle's functions in a run (:meth:`Step.watch_calls`)."""

    def pause(self) -> contextlib.AbstractContextManager[None]:
        """Inside the ``with`` block no call is recorded."""

    def note(self, name: str, value: paddle.Tensor) -> None:
        """Record the call that computed the tensor ``value`` under the tensor's name."""

    def copy_source(self, value: paddle.Tensor, source_tensor: paddle.Tensor) -> None:
        """Record that the tensor ``value`` comes from the same call as the tensor ``source_tensor``."""


def make_step(job: Job, folder: Path, dtype: str, backward: str | None = None) -> Step:
    """Return a new step of the job's family or pair.

    Args:
        job: the job.
        folder: job folder, with the reference's files.
        dtype: ``float64``, ``float32`` or ``bfloat16``.
        backward: name of the backward, one of :attr:`Step.backwards`; None for the first.
    """
    return step_class(job.model)(job, folder, dtype, backward)


def step_class(model: str) -> type[Step]:
    """Return the class of the steps of a family or pair, given its name."""
    return family_part(model, "candidate").STEP


class Step:
    """A port with the job's weights and batch: one of this project (:class:`.family_step.PortedStep`) or a user's port.

    Attributes:
        model: the port.
        batch: the job's batch, as Paddle tensors by name.
        dtype: ``float64``, ``float32``, or ``bfloat16``, which is float32 except for the products in ``lowered``.
        backwards: names of the two ways to compute the gradients, including :data:`PLAIN`; training uses the first.
        lowered: kinds of products that are computed in bfloat16.
        brief: whether the comparison is the reduced comparison of a large model.
        sender: sending end of the pipe; it gets the run's requests for draws and its choices.
        recorded_draws: R64's draws and choices, by run and name.
        rates: rates of R64's dropout masks, by name.
        constants: the port's own constants by name, which the reference's constants have replaced in the model.
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
    #: Path of the module whose output is the embedded input.
    embedding_module = ""
    #: Whether the run's evaluations omit padding that does not change the scores.
    reads_without_padding = False
    #: Whether the model, in evaluation, can skip outputs of its last layer that its head does not read.
    is_narrowed = False
    #: Whether the step is only a forward in evaluation mode, without gradients and updates.
    forward_only = False
    sender = Sender(None)
    #: Kind of draw -> names of the draws in the last run with hooks; None before such a run.
    _order: Mapping[str, Sequence[str]] | None = None

    def __init__(self, job: Job, folder: Path, dtype: str, backward: str | None = None) -> None:
        """Build the port and load the job's weights into it.

        Args:
            job: the job.
            folder: job folder, with the reference's files.
            dtype: ``float64``, ``float32`` or ``bfloat16``.
            backward: name of the backward, one of :attr:`backwards`; None for the first.
        """
        raise NotImplementedError

    @contextlib.contextmanager
    def replay_draws(
        self, on_leave: OnLeave, run: str = TRAINING, on_enter: OnEnter | None = None, **options: Any
    ) -> Iterator[RecordedDraws]:
        """Inside the ``with`` block the model replays R64's draws and choices of a run.

        The block gets the source of the draws. Hooks call functions before and after each module. With an ``order`` of
        draws in ``options``, no module has a hook.

        Args:
            on_leave: function called after each module, as in :func:`watch`.
            run: name of the run, such as ``training`` or ``evaluation``.
            on_enter: function called before each module, as in :func:`watch`; None for no function.
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
        """Return R64's draws of a run, as a source of draws for the model.

        Args:
            run: name of the run, such as ``training`` or ``evaluation``.
            recorded_draws: draws by name to use instead of R64's draws of the run.
            sender: sending end of the pipe for requests and choices; None to send nothing.
            order: names of the draws of an earlier run, as in :class:`.RecordedDraws`; None to name them by modules.
        """
        return self.make_draws(
            self.recorded_draws[run] if recorded_draws is None else recorded_draws, sender, run, order
        )

    @staticmethod
    def leaks() -> list[str]:
        """Return the source lines of the port that would have left float64 in a float64 step."""
        return []

    @staticmethod
    def limited_lines() -> list[str]:
        """Return the source lines whose losses are compared without a limit that Paddle's kernels have.

        The limit is described by the note ``limited-loss`` of :data:`toolkit.parity.judge.notes.TEXTS`.
        """
        return []

    def make_draws(self, recorded_draws: Mapping[str, np.ndarray], *arguments: Any) -> RecordedDraws:
        """Return a source of draws that names them after the port's modules.

        Args:
            recorded_draws: draws and choices by the reference's names.
            arguments: the arguments ``sender``, ``run`` and ``order`` of :class:`.RecordedDraws`.
        """
        raise NotImplementedError

    def apply_draws(self, draws: RecordedDraws) -> contextlib.AbstractContextManager[None]:
        """Inside the ``with`` block the model takes its random draws and discrete choices from ``draws``."""
        raise NotImplementedError

    @contextlib.contextmanager
    def apply_choices(self, draws: RecordedDraws) -> Iterator[None]:
        """Inside the ``with`` block, the port's discrete choices are sent, and R64's are used in the model."""
        yield

    def watch_calls(self, draws: RecordedDraws, sender: Sender) -> contextlib.AbstractContextManager[CallWatch | None]:
        """Inside the ``with`` block, every call of one of Paddle's functions is sent.

        Nothing is sent for a port of this project, which marks its operations itself.

        Args:
            draws: source of the draws, which knows the running module.
            sender: sending end of the pipe to the comparator.
        """
        return contextlib.nullcontext()

    def draws_of_rows(self, run: str, rows: Sequence[int], length: int) -> Mapping[str, np.ndarray]:
        """Return R64's draws and choices of a run for some texts of the batch, cut to a length.

        Args:
            run: name of the run, such as ``evaluation``.
            rows: indices of the texts in the batch.
            length: number of tokens of each text.
        """
        return self.recorded_draws[run]

    def outputs_of(self, name: str, layer: nn.Layer, output: Any) -> dict[str, paddle.Tensor] | None:
        """Return the tensors to compare by name, if a module's output is not a tensor or a tuple of tensors.

        The result is None if the output is one of these, so that its first tensor is compared.

        Args:
            name: path of the module.
            layer: the module.
            output: output of the module.
        """
        return None

    def places(self) -> dict[str, Place]:
        """Return the source locations of the port's modules by path, and others by tensor name, kind or verdict."""
        raise NotImplementedError

    def facts(self) -> CandidateFacts:
        """Return the properties of the port that are not tensors, such as the epsilons of its norms."""
        raise NotImplementedError

    def compute(self, inputs: Mapping[str, paddle.Tensor]) -> Any:
        """Return the model's output for a batch by name; it has a ``loss`` if there are labels."""
        return self.model(**inputs)

    def evaluations(self) -> dict[str, dict[str, paddle.Tensor]]:
        """Return the batch of each evaluation, as tensors by name, by the evaluation's name."""
        raise NotImplementedError

    def is_scored(self, batch: Mapping[str, paddle.Tensor]) -> bool:
        """Return whether the evaluation of a batch has a loss."""
        raise NotImplementedError

    def parameter_names(self) -> list[str]:
        """Return the reference's names of all parameters."""
        raise NotImplementedError

    def parameter_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and gradient of every parameter that has a gradient, in the reference's layout."""
        raise NotImplementedError

    def parameter_values(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield the name and value of each parameter that the job has weights for, in the reference's layout."""
        raise NotImplementedError

    def train_on(self, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
        """Train for the job's number of updates with R64's gradients, and measure the results.

        Args:
            job: the job.
            folder: job folder.
            measure: called with the name and value of each tensor.
            truth: R64's tensors by name, with its gradients.
        """
        raise NotImplementedError

    def to_reference_layout(self, name: str, value: np.ndarray) -> np.ndarray:
        """Return a tensor of the port in the reference's layout.

        Args:
            name: the reference's name of the tensor.
            value: the tensor in the port's layout.
        """
        return value

    def to_port_layout(self, name: str, value: np.ndarray, shape: Sequence[int]) -> np.ndarray:
        """Return a tensor of the reference in the port's layout.

        Args:
            name: the reference's name of the tensor.
            value: the tensor in the reference's layout.
            shape: shape of the port's tensor.
        """
        return value.reshape(shape)

    def name_of(self, call_name: str) -> str:
        """Return the reference's name of a tensor, given the name with the port's module path.

        The ports of this project have the reference's paths.
        """
        return call_name

    def run(self, measure: Measure, with_hooks: bool = True) -> None:
        """Run forward and backward, and measure the outputs, scores, loss and gradients.

        If the step has run with hooks before, a run without hooks has no hook on any layer, as in training.

        Args:
            measure: called with the name and value of each tensor.
            with_hooks: whether to measure the modules' outputs and the scores; otherwise only the loss and the
                gradients.
        """
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
        """Set the model to train mode, or to evaluation mode for a step that is only a forward."""
        self.model.eval() if self.forward_only else self.model.train()

    def backward(self, output: Any, measure: Callable[[str, np.ndarray], object]) -> None:
        """Measure the loss of a model's output, and compute the gradients of all parameters.

        Args:
            output: output of the model.
            measure: called with the name ``loss`` and its value.
        """
        if output.loss is not None:
            measure("loss", output.loss.numpy())
        if not self.forward_only:
            output.loss.backward()

    def evaluate(self, measure: Measure) -> None:
        """Run all evaluations of :mod:`toolkit.parity.measure.evaluation`, and measure outputs, scores and losses."""
        self.model.eval()
        for run, batch in self.evaluations().items():

            def measure_of_run(name: str, value: np.ndarray, run: str = run) -> None:
                """Measure a tensor under its name in the run, such as ``evaluation/logits``."""
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
        """Measure the scores of a batch as the run's evaluations compute them, if they omit outputs or padding.

        Args:
            batch: the evaluated batch by name.
            output: the model's output for the batch, with nothing omitted.
            measure: called with the name and value of each tensor.
        """

    def merge(self, measure: Measure) -> None:
        """Measure the weights that an adapted model saves, as ``merged:PARAMETER``."""

    def decode(self, measure: Measure) -> None:
        """Measure the scores of tokens that are decoded one by one, with the model's cache if it has one."""

    def _on_leave(self, measure: Measure | None) -> OnLeave:
        """Return a function that keeps the embedded input for its gradient, and measures each module's output.

        Args:
            measure: called with the name and value of each output; None to measure no outputs.
        """

        def on_leave(name: str, call_name: str, layer: nn.Layer, output: Any) -> None:
            """Keep the first embedded input, and measure the tensors of a module's output under their names."""
            if name == self.embedding_module and self.embedded_output is None and not output.stop_gradient:
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
        """Measure the gradients of the embedded input and of the parameters, as ``gradient:NAME``."""
        if self.embedded_output is not None and self.embedded_output.grad is not None:
            measure(f"gradient:{self.embedding_module}", self.embedded_output.grad.numpy())
        for name, value in self.parameter_gradients():
            measure(f"gradient:{name}", value)


def ignore(name: str, call_name: str, layer: nn.Layer, output: Any) -> None:
    """Do nothing with a module's output: an :data:`OnLeave` for a run whose outputs are not measured.

    Args:
        name: name of the module.
        call_name: name of the module's call.
        layer: the module.
        output: output of the module.
    """


@contextlib.contextmanager
def apply_signs(model: nn.Layer, draws: RecordedDraws) -> Iterator[None]:
    """Inside the ``with`` block R64 decides the sign of each ReLU input.

    Args:
        model: the model, whose ReLU layers are changed.
        draws: source of draws with R64's signs.
    """
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
    """Inside the ``with`` block, ``stack`` knows the running module, and functions are called around each module.

    Args:
        model: the model, or a part of it.
        stack: names draws and outputs after the module that is running.
        on_leave: function called after each module (:data:`OnLeave`).
        prefix: path of ``model`` in the whole model; empty if it is the whole model.
        on_enter: function called before each module with its first argument (:data:`OnEnter`); None for no function.
    """

    # Return a hook that runs before a module with these paths.
    def on_entering(names: Sequence[str]) -> Callable[[nn.Layer, tuple], tuple | None]:
        def hook(layer: nn.Layer, args: tuple) -> tuple | None:
            """Record the start of the module, and replace its first argument if ``on_enter`` returns a replacement."""
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
    """Return all paths of every layer within the model, the model itself first; a shared layer has several.

    Args:
        model: the model, or a part of it.
        prefix: path of ``model`` in the whole model; empty if it is the whole model.
    """
    paths: dict[nn.Layer, list[str]] = {}

    def visit(layer: nn.Layer, path: str) -> None:
        """Add the path of a layer and the paths of the layers within it."""
        paths.setdefault(layer, []).append(path)
        for name, child in layer.named_children():
            visit(child, ".".join(filter(None, [path, name])))

    visit(model, prefix)
    return paths


def values_of(tensor: paddle.Tensor) -> np.ndarray:
    """Return the values of a tensor, without a copy if it is in host memory.

    The largest tensors take 2.5 GB.
    """
    return np.from_dlpack(tensor.detach()) if is_on_cpu(tensor) else tensor.numpy()


def first_tensor(output: Any) -> paddle.Tensor | None:
    """Return the first tensor of a module's output, which represents it; None for an output without tensors.

    An output that is a tensor represents itself.
    """
    if isinstance(output, paddle.Tensor):
        return output
    return next((value for value in parts_of(output) if isinstance(value, paddle.Tensor)), None)
