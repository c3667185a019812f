"""One train-mode step of the port, in a dtype, with the reference's draws."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from models.families import part
from models.operations import precision, randomness
from models.operations.ops import is_on_cpu
from models.port import weights
from models.port.adapter import adapt
from models.port.lora import LoRA
from toolkit.parity.candidate import scored_again
from toolkit.parity.candidate.places import head_places, places
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.scores import scores_of
from toolkit.parity.job import files
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.handover import Sender
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import CandidateFacts, Place
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.evaluation import (
    READ_IN_PART,
    READ_WITHOUT_PADDING,
    RUNS,
    TRAINING,
    UNPADDED,
    WHOLE,
    batches,
    is_scored,
    named,
)
from toolkit.parity.measure.naming import ModuleStack

#: Called with the name and value of everything that is computed: it is handed over, and measured elsewhere.
Measure = Callable[[str, np.ndarray], None]
#: Called after a module with its path, the name of its output, itself and the output. What it gives, if anything, goes
#: on in place of the output.
Left = Callable[[str, str, nn.Layer, Any], Any]
#: Called before a module with its first argument; gives what goes in in its place.
Entered = Callable[[Any], Any]
#: Of :attr:`Step.backwards`, the one that computes nothing again.
PLAIN = "autograd"


def make_step(job: Job, folder: Path, dtype: str, backward: str | None = None) -> Step:
    """The step of the job's family."""
    return step_class(job.model)(job, folder, dtype, backward)


def step_class(model: str) -> type[Step]:
    """The steps of a family."""
    return family_part(model, "candidate").STEP


class Step:
    """A port with the job's weights and batch. Subclasses say what a family needs beside what every model does.

    Args:
        folder: of the job, with what the reference wrote.
        dtype: ``float64``, ``float32``, or ``bfloat16``: float32 but for the products that the job lowers.
        backward: one of :attr:`backwards`; by default the first.

    Attributes:
        backwards: the ways in which the port can make its gradients: that of training first, :data:`PLAIN` among them.
        over: is told what draws a run asks for and what it chooses.
        constants: by name, what the port computes once, before the reference's take its place.
    """

    #: Besides :data:`PLAIN`, the way in which the port can make its gradients by computing layers again.
    again = ""
    #: The module whose output is the embedded input.
    embedded = ""
    #: As of the reference's step: whether it is of a family that is ported in this project. Its generators, its reading
    #: of checkpoints and its new weights are then compared, too.
    is_ported = True
    #: Whether the run evaluates texts without the padding that changes nothing.
    reads_without_padding = False
    #: Whether the model, in evaluation, leaves out in its last layer what its head does not read.
    is_narrowed = False
    over = Sender(None)
    _order: Mapping[str, Sequence[str]] | None = None

    def __init__(self, job: Job, folder: Path, dtype: str, backward: str | None = None) -> None:
        classes = part(job.model, "modeling").CLASSES
        self.backwards = (PLAIN, self.again) if self.trains_by_autograd(job.port) else (self.again, PLAIN)
        self.reads_without_padding = job.head in READ_WITHOUT_PADDING
        self.is_narrowed = (job.model, job.head) in READ_IN_PART
        self.port = job.port
        self.dtype = dtype
        self.lowered = job.lowered if dtype == "bfloat16" else ()
        self.brief = job.brief
        self.config = job.config
        self.folder = folder
        given = files.read_tensors(folder / "batch.safetensors")
        # Labels that are numbers are cast up exactly, as the weights are.
        held = "float64" if dtype == "float64" else "float32"
        given = {name: value.astype(held) if value.dtype == np.float32 else value for name, value in given.items()}
        self.batch = {name: paddle.to_tensor(value) for name, value in given.items()}
        self.given_weights = TensorFile(folder / "weights.safetensors")
        self.model = self.build(classes[job.head], job.config, backward or self.backwards[0])
        self.model.class_weights = as_weights(job.class_weights)
        if self.is_narrowed:  # all that a layer computes is compared
            self.model.leaves_out_unread = False
        if job.lora is not None:
            adapt(self.model, LoRA.of_json(job.lora))
        if dtype == "float64":
            self.model.to(dtype="float64")
        part(job.model, "weights").load(self.model, self.given_weights)
        self.constants = self.take_constants(files.read_tensors(folder / "reference" / "constants.safetensors"))
        self.model.train()

    @functools.cached_property
    def recorded(self) -> Mapping[str, Mapping[str, np.ndarray]]:
        """R64's draws in each run, read when the first of them is asked for: with its own the port can do without."""
        return {run: TensorFile(self.folder / "reference" / f"draws-{run}.safetensors") for run in RUNS}

    @functools.cached_property
    def rates(self) -> Mapping[str, float]:
        """The rates of R64's dropout masks; read as :attr:`recorded`."""
        return files.read_json(self.folder / "reference" / "rates.json")

    @staticmethod
    def leaks() -> list[str]:
        """Where steps in float64 would have computed in less."""
        return []

    def trains_by_autograd(self, settings: Mapping[str, Any]) -> bool:
        """Whether a run with these settings of the port keeps all activations."""
        raise NotImplementedError

    def build(self, kind: type, keys: Mapping[str, Any], backward: str) -> nn.Layer:
        """The port of class ``kind``, with its gradients made as ``backward`` says."""
        raise NotImplementedError

    def take_constants(self, constants: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Use the reference's constants in place of the port's own, which are returned by name."""
        return {}

    @contextlib.contextmanager
    def given(
        self,
        left: Left,
        run: str = TRAINING,
        entered: Entered | None = None,
        **options: Any,
    ) -> Iterator[RecordedDraws]:
        """Inside the ``with`` block the model draws and chooses as R64 did in that run, and is watched
        (:func:`watch`); or, with an ``order`` of draws, no layer has a hook.

        Args:
            options: of :meth:`draws_of`.
        """
        draws = self.draws_of(run, **options)
        hooked = options.get("order") is None
        with (
            self.given_draws(draws),
            watch(self.model, draws.stack, left, entered=entered) if hooked else contextlib.nullcontext(),
        ):
            yield draws

    def draws_of(
        self,
        run: str,
        recorded: Mapping[str, np.ndarray] | None = None,
        over: Sender | None = None,
        order: Mapping[str, Sequence[str]] | None = None,
    ) -> RecordedDraws:
        """R64's of a run, or those that are ``recorded``; ``over`` and ``order`` as of :class:`.RecordedDraws`."""
        return self.named_draws(self.recorded[run] if recorded is None else recorded, over, run, order)

    def named_draws(self, recorded: Mapping[str, np.ndarray], *arguments: Any) -> RecordedDraws:
        """Draws by the port's names of them; the arguments are the last of :class:`.RecordedDraws`."""
        return RecordedDraws(recorded, self.rates, ModuleStack(), *arguments)

    @contextlib.contextmanager
    def given_draws(self, draws: RecordedDraws) -> Iterator[None]:
        """Inside the ``with`` block the model draws and chooses so."""
        with (
            precision.lowered(self.lowered),
            randomness.use(draws),
            given_signs(self.model, draws),
            self.given_choices(draws),
        ):
            yield

    @contextlib.contextmanager
    def given_choices(self, draws: RecordedDraws) -> Iterator[None]:
        """The port's discrete choices are handed over, and R64's are used, inside the ``with`` block."""
        yield

    def recorded_of(self, run: str, rows: Sequence[int], length: int) -> Mapping[str, np.ndarray]:
        """What R64 drew and chose in a run, of the first ``length`` tokens of some rows of the batch."""
        return self.recorded[run]

    def outputs_of(self, name: str, layer: nn.Layer, output: Any) -> dict[str, paddle.Tensor] | None:
        """What to compare of a module whose output is no tensor or tuple of tensors; None for any other."""
        return None

    def places(self) -> dict[str, Place]:
        """Where the port's modules are, and by the name or kind of its tensors, or by the verdict, what is in none."""
        from toolkit.parity.candidate import training  # it imports this module

        return {
            **places(self.model),
            **head_places(type(self.model)),
            **({UNPADDED: scored_again.place_of_padding(self.model.config)} if self.reads_without_padding else {}),
            **training.training_places(),
        }

    def facts(self) -> CandidateFacts:
        """What else of the port the verdict needs to know."""
        norms = {name: layer for name, layer in self.model.named_sublayers() if isinstance(layer, nn.LayerNorm)}
        return CandidateFacts(epsilons={name: norm._epsilon for name, norm in norms.items()})

    def compute(self, inputs: Mapping[str, paddle.Tensor]) -> Any:
        """The model's output, with its ``loss`` where there are labels."""
        return self.model(**inputs)

    def evaluations(self) -> dict[str, dict[str, paddle.Tensor]]:
        """The batch of each evaluation, by its name."""
        return batches(self.batch, self.config, self.reads_without_padding)

    def is_scored(self, batch: Mapping[str, paddle.Tensor]) -> bool:
        """Whether an evaluation has a loss."""
        return is_scored(batch)

    def parameter_names(self) -> list[str]:
        """The reference's names of all parameters."""
        return [name for name, _ in self.model.named_parameters()]

    def parameter_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """Name and gradient of every parameter that has one, in the reference's layout."""
        table = self.model.table
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                role = table[name].role if name in table else "unknown"
                yield name, weights.to_paddle(parameter.grad.numpy(), role)

    def train_on(self, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
        """Go on from :meth:`run` with R64's gradients, as many updates as the job says, by what trains."""
        from toolkit.parity.candidate import training  # it imports this module

        training.train_on(self, job, folder, measure, truth)

    def name_of(self, called: str) -> str:
        """The reference's name of what is named after a module of the port: the ports here have the same."""
        return called

    def run(self, measure: Measure, watched: bool = True) -> None:
        """Forward and backward. Without ``watched`` only the loss and the gradients are handed on; on a step that has
        been watched before, there is no hook on any layer then, as in training."""
        self.embedded_output = None
        self.model.clear_gradients()
        order, over = (None, self.over) if watched else (self._order, None)
        with self.given(self._left(measure if watched else None), over=over, order=order) as draws:
            self.recording = watched
            output = self.compute(self.batch)
            self.recording = False
            for name, value in scores_of(output).items() if watched else ():
                measure(name, value)
            measure("loss", output.loss.numpy())
            output.loss.backward()
        self._order = draws.order if watched else self._order
        self._measure_gradients(measure)

    def evaluate(self, measure: Measure) -> None:
        """The model in evaluation mode (:mod:`toolkit.parity.measure.evaluation`)."""
        self.model.eval()
        for run, batch in self.evaluations().items():

            def measure_of_run(name: str, value: np.ndarray, run: str = run) -> None:
                measure(named(run, name), value)

            self.recording = True
            with paddle.no_grad(), self.given(self._left(measure_of_run), run, over=self.over):
                output = self.compute(batch)
            self.recording = False
            for name, value in scores_of(output).items():
                measure_of_run(name, value)
            if self.is_scored(batch):
                measure_of_run("loss", output.loss.numpy())
            if run == WHOLE:
                scored_again.evaluate(self, batch, output, measure)
        with paddle.no_grad(), precision.lowered(self.lowered):
            self.decode(measure)
        self._merge(measure)
        self.model.train()

    def _merge(self, measure: Measure) -> None:
        """Hand on the weights of an adapted model as they are saved: those that the adapter changes, and what a plain
        model would not have."""
        if self.model.adapter is None:
            return
        plain = part(self.model.config.model_type, "weights").parameters(self.config, self.model.head)
        for name, value in self.model.stored()[1].items():
            if name not in plain or self.model.adapter.adapts(name.removesuffix(".weight")):
                measure(f"merged:{name}", value)

    def decode(self, measure: Measure) -> None:
        """Hand on the scores of tokens one after another, each with the keys and values of those before it, if the
        model keeps them."""

    def own_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        """The parameters' gradients of one step with the port's own draws and choices, nothing watched."""
        with precision.lowered(self.lowered):
            self.model(**self.batch).loss.backward()
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None:
                yield f"gradient:{name}", parameter.grad.numpy()

    def _left(self, measure: Measure | None) -> Left:
        def left(name: str, called: str, layer: nn.Layer, output: Any) -> None:
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
                measure(called, values_of(tensor))

        return left

    def _measure_gradients(self, measure: Measure) -> None:
        if self.embedded_output is not None and self.embedded_output.grad is not None:
            measure(f"gradient:{self.embedded}", self.embedded_output.grad.numpy())
        for name, value in self.parameter_gradients():
            measure(f"gradient:{name}", value)

    def held_parameters(self) -> Iterator[tuple[str, np.ndarray]]:
        """What the port holds of each parameter that it was given, in the reference's layout."""
        return (pair for pair in weights.dump(self.model) if pair[0] in self.given_weights)


def as_weights(class_weights: Sequence[float] | None) -> np.ndarray | None:
    """Class weights as a port holds them."""
    return None if class_weights is None else np.array(class_weights, np.float32)


def ignore(name: str, called: str, layer: nn.Layer, output: Any) -> None:
    """Nothing is to be measured of a module's output."""


@contextlib.contextmanager
def given_signs(model: nn.Layer, draws: RecordedDraws) -> Iterator[None]:
    """Which inputs of a ReLU are positive is decided by R64, inside the ``with`` block."""
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
    model: nn.Layer, stack: ModuleStack, left: Left, prefix: str = "", entered: Entered | None = None
) -> Iterator[None]:
    """Inside the ``with`` block ``stack`` knows which module is running.

    Args:
        model: a port, or a part of it.
        left: called after each module.
        prefix: the path of ``model`` in the whole model; "" for the whole.
        entered: called before each module, and asked what goes in.
    """

    def on_entering(names: Sequence[str]) -> Callable[[nn.Layer, tuple], tuple | None]:
        def hook(layer: nn.Layer, args: tuple) -> tuple | None:
            stack.enter(stack.called_as(names))
            if entered is None or not args:
                return None
            changed = entered(args[0])  # an attention may be given its input as query, key and value
            return tuple(changed if one is args[0] else one for one in args)

        return hook

    hooks = []
    for layer, names in paths_of(model, prefix).items():
        hooks.append(layer.register_forward_pre_hook(on_entering(names)))
        hooks.append(
            layer.register_forward_post_hook(
                lambda layer, args, output, name=names[0]: left(name, stack.leave(), layer, output)
            )
        )
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def paths_of(model: nn.Layer, prefix: str = "") -> dict[nn.Layer, list[str]]:
    """Every layer, the model's own first, and all the paths by which it is part of the model."""
    found: dict[nn.Layer, list[str]] = {}

    def visit(layer: nn.Layer, path: str) -> None:
        found.setdefault(layer, []).append(path)
        for name, child in layer.named_children():
            visit(child, ".".join(filter(None, [path, name])))

    visit(model, prefix)
    return found


def values_of(tensor: paddle.Tensor) -> np.ndarray:
    """The values of a tensor as they are now, without a copy where they are in the host's memory: the largest take 2.5
    GB."""
    return np.from_dlpack(tensor.detach()) if is_on_cpu(tensor) else tensor.numpy()


def first_tensor(output: Any) -> paddle.Tensor | None:
    """The tensor that a module's output is compared by: itself, or the first of a tuple or model output."""
    if isinstance(output, paddle.Tensor):
        return output
    values = output.to_tuple() if hasattr(output, "to_tuple") else output
    return next((value for value in values if isinstance(value, paddle.Tensor)), None)
