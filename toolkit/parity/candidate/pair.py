"""The port of a user's pair: any Paddle layer, as the gate runs the ports of its own families.

What the gate changes in Paddle is in force from before the user's file is imported, so that a function which is bound
to another name there is changed, too; outside a run it is Paddle's own.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import numpy as np
import paddle
from paddle import nn

from toolkit.parity.candidate.places import line_of
from toolkit.parity.candidate.recorded_draws import RecordedDraws
from toolkit.parity.candidate.step import PLAIN, Entered, Left, Measure, Step, first_tensor, watch
from toolkit.parity.job import files, user_code
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import Description, DrawFacts, ModuleFacts, PairMap, ParameterFacts, batch_of
from toolkit.parity.job.results import CandidateFacts, Place
from toolkit.parity.job.tensor_file import TensorFile
from toolkit.parity.measure.evaluation import RUNS, TRAINING, WHOLE
from toolkit.parity.measure.naming import ModuleStack, TensorName, numbered
from toolkit.parity.measure.updates import given_gradient
from toolkit.parity.mutants.generic import ACTIVATIONS, EPSILONS

#: By layer: what its ``weight`` is.
ROLES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("linear", (nn.Linear, nn.Bilinear)),
    ("embedding", (nn.Embedding,)),
    ("norm", (nn.LayerNorm, nn.GroupNorm, nn.layer.norm._BatchNormBase)),
    ("conv", (nn.layer.conv._ConvNd,)),
)
#: Of the code that is nobody's port.
LIBRARIES = tuple(str(Path(file).parent) for file in (paddle.__file__, Path(__file__).parents[1]))


class PairStep(Step):
    """A step of a user's layer.

    Names are the reference's wherever there is one: of parameters, of modules and their outputs, and of draws.
    """

    def __init__(self, job: Job, folder: Path, dtype: str, backward: str | None = None) -> None:
        assert job.pair is not None
        self.backwards = (PLAIN, PLAIN)  # it has one
        self.port = job.port
        self.lowered = ()
        self.brief = job.brief
        self.config = job.config
        self.dtype = dtype
        self.settings = job.training
        self.map = job.pair.map or PairMap()
        self.module_of = {port: reference for reference, port in self.map.modules.items()}
        self.recorded = {run: TensorFile(folder / "reference" / f"draws-{run}.safetensors") for run in RUNS}
        self.rates = files.read_json(folder / "reference" / "rates.json")
        self.given_weights = TensorFile(folder / "weights.safetensors")
        with default_dtype(dtype):
            self.source = user_code.load(job.pair.port)
            self.model = built(self.source, job)
            if dtype == "float64":
                self.model.to(dtype="float64")
        self.batch = as_tensors(files.read_tensors(folder / "batch.safetensors"), dtype)
        self.constant_errors: dict[str, float] = {}
        self._load()
        self.model.train()

    def _load(self) -> None:
        ours = dict(self.model.named_parameters())
        for match in self.map.parameters:
            value = self.given_weights[match.reference]
            value = value.T if match.transpose else value
            ours[match.port].set_value(np.ascontiguousarray(value).astype(self.dtype))

    def parameters(self) -> Iterator[tuple[str, paddle.Tensor, bool]]:
        """The reference's name of every parameter, it, and whether it is the transpose of the reference's; one without
        a counterpart has its own name."""
        matches = {match.port: match for match in self.map.parameters}
        for name, parameter in self.model.named_parameters():
            match = matches.get(name)
            yield (name, parameter, False) if match is None else (match.reference, parameter, match.transpose)

    def parameter_errors(self) -> dict[str, float]:
        errors = {}
        for name, parameter, transposed in self.parameters():
            if name in self.given_weights:
                value = parameter.numpy().T if transposed else parameter.numpy()
                errors[name] = float(np.abs(value.astype("float64") - self.given_weights[name]).max(initial=0.0))
        return errors

    def compute(self, inputs: Mapping[str, paddle.Tensor]) -> Any:
        with default_dtype(self.dtype), keeps_double() if self.dtype == "float64" else contextlib.nullcontext():
            return computed(self.source, self.model, inputs)

    def evaluations(self) -> dict[str, dict[str, paddle.Tensor]]:
        return {WHOLE: dict(self.batch)}

    def is_scored(self, batch: Mapping[str, paddle.Tensor]) -> bool:
        return True

    @contextlib.contextmanager
    def given(self, left: Left, run: str = TRAINING, entered: Entered | None = None) -> Iterator[RecordedDraws]:
        draws = _PairDraws(self.recorded[run], self.rates, self.map.draws, self.map.drawn)
        with use(draws), watch(self.model, draws.stack, left, entered=entered):
            yield draws

    def _left(self, measure: Measure | None) -> Left:
        def left(name: str, called: str, layer: nn.Layer, output: Any) -> None:
            if measure is None or not self.recording or TensorName.parse(called).module not in self.module_of:
                return
            tensor = first_tensor(output)
            if tensor is not None:
                called = self.name_of(called)
                measure(called, self._laid_out(called, tensor.numpy()))

        return left

    def _laid_out(self, name: str, value: np.ndarray) -> np.ndarray:
        """An output in the reference's shape, where it has as many elements: B x T x D may be B*T x D there."""
        shape = self.map.shapes.get(TensorName.parse(name).module, value.shape)
        return value.reshape(shape) if math.prod(shape) == value.size else value

    def name_of(self, called: str) -> str:
        """The reference's name of what is named after a module of the port."""
        parsed = TensorName.parse(called)
        return str(parsed._replace(module=self.module_of.get(parsed.module, f"port {parsed.module}")))

    def parameter_names(self) -> list[str]:
        return [name for name, _, _ in self.parameters()]

    def parameter_gradients(self) -> Iterator[tuple[str, np.ndarray]]:
        for name, parameter, transposed in self.parameters():
            if parameter.grad is not None:
                value = parameter.grad.numpy()
                yield name, value.T if transposed else value

    def train_on(self, job: Job, folder: Path, measure: Measure, truth: Mapping[str, np.ndarray]) -> None:
        """AdamW of Paddle with the reference's gradients, as many updates as the job says."""
        settings = self.settings
        schedule = [_rate(settings, update) for update in range(1, job.updates + 1)]
        adamw = paddle.optimizer.AdamW(
            learning_rate=settings.learning_rate,
            beta1=settings.adam_beta1,
            beta2=settings.adam_beta2,
            epsilon=settings.adam_epsilon,
            weight_decay=settings.weight_decay,
            parameters=[parameter for parameter in self.model.parameters() if not parameter.stop_gradient],
        )
        for update, rate in enumerate(schedule, 1):
            adamw.set_lr(rate)
            with scaled_gradients(self, truth, update, settings.max_grad_norm):
                adamw.step()
            for name, parameter, transposed in self.parameters():
                if name in self.given_weights and not parameter.stop_gradient:
                    value = parameter.numpy()
                    measure(numbered(f"updated:{name}", update), value.T if transposed else value)

    def facts(self) -> CandidateFacts:
        layers = dict(self.model.named_sublayers())
        found = {name: layers[port] for name, port in self.map.modules.items() if port in layers}
        norms = {name: layer for name, layer in found.items() if isinstance(layer, nn.LayerNorm)}
        return CandidateFacts(epsilons={name: norm._epsilon for name, norm in norms.items()})

    def places(self) -> dict[str, Place]:
        layers = dict(self.model.named_sublayers(include_self=True))
        held = {match.reference: match.port.rpartition(".")[0] for match in self.map.parameters}
        modules = {**self.map.modules, **{name.rpartition(".")[0]: path for name, path in held.items()}}
        found = {name: place_of(layers, path) for name, path in modules.items() if path in layers}
        loss = getattr(self.source, "loss", type(self.model).forward)
        where = line_of(loss, "") or ""
        for name in ("loss", "logits"):
            found[name] = Place(getattr(loss, "__qualname__", "loss"), where)
        return found

    def _merge(self, measure: Measure) -> None:
        """It has no adapter."""

    def own_gradients(self) -> dict[str, np.ndarray]:
        raise NotImplementedError("a pair has one backward")

    def trains_by_autograd(self, settings: Mapping[str, Any]) -> bool:
        return True


def _rate(settings: Any, update: int) -> float:
    """The learning rate of an update, from 1 on: a linear warm-up, then as the schedule says."""
    warm = math.ceil(settings.max_steps * settings.warmup_ratio)
    if update - 1 < warm:
        return settings.learning_rate * (update - 1) / max(1, warm)
    return settings.learning_rate * max(0.0, (settings.max_steps - update + 1) / max(1, settings.max_steps - warm))


@contextlib.contextmanager
def scaled_gradients(
    step: PairStep, truth: Mapping[str, np.ndarray], update: int, max_norm: float | None
) -> Iterator[None]:
    """Every parameter has the reference's gradient of an update inside the block, all scaled down to ``max_norm``."""
    given = {
        name: given_gradient(truth[f"gradient:{name}"], update, [1.0])
        for name, _, _ in step.parameters()
        if f"gradient:{name}" in truth
    }
    norm = float(np.sqrt(sum(float((value.astype("float64") ** 2).sum()) for value in given.values())))
    scale = min(1.0, max_norm / (norm + 1e-6)) if max_norm else 1.0
    for name, parameter, transposed in step.parameters():
        if name in given and not parameter.stop_gradient:
            value = given[name].astype("float64") * scale
            value = np.ascontiguousarray(value.T if transposed else value)
            parameter.clear_gradient(False)
            parameter.grad = paddle.to_tensor(value.astype(step.dtype))
    try:
        yield
    finally:
        step.model.clear_gradients()


# -- the user's file ------------------------------------------------------------------------------------------------


def built(source: Any, job: Job) -> nn.Layer:
    """What a side's ``build`` gives.

    Raises:
        UserCodeError: it is no Paddle layer.
    """
    paddle.seed(job.seed)
    model = source.build(dict(job.config))
    if not isinstance(model, nn.Layer):
        given = type(model).__name__
        raise user_code.UserCodeError(f"{source.__file__}: build() gave {given}; it is to give a paddle.nn.Layer")
    return model


def computed(source: Any, model: nn.Layer, inputs: Mapping[str, paddle.Tensor]) -> Any:
    """The output of a model with its ``loss``: by the file's own function; else the model's, which PaddleNLP's give
    first; else cross entropy of what it gives first against ``labels``."""
    if hasattr(source, "loss"):
        return SimpleNamespace(loss=source.loss(model, inputs))
    output = model(**inputs)
    if isinstance(loss := getattr(output, "loss", None), paddle.Tensor):
        return SimpleNamespace(loss=loss, logits=getattr(output, "logits", None))
    tensors = [one for one in output if isinstance(one, paddle.Tensor)] if isinstance(output, (tuple, list)) else []
    first = output if isinstance(output, paddle.Tensor) else tensors[0] if tensors else None
    if first is not None and first.ndim == 0:
        return SimpleNamespace(loss=first, logits=tensors[1] if len(tensors) > 1 else None)
    logits = getattr(output, "logits", first)
    if logits is None or "labels" not in inputs:
        raise user_code.UserCodeError(
            f"{source.__file__}: the model gives no loss, and there are no logits and labels to make one of; define "
            "loss(model, batch)"
        )
    scores = logits.reshape([-1, logits.shape[-1]])
    return SimpleNamespace(loss=nn.functional.cross_entropy(scores, inputs["labels"].flatten()), logits=logits)


def as_tensors(batch: Mapping[str, np.ndarray], dtype: str) -> dict[str, paddle.Tensor]:
    """The batch; numbers with a fraction in the model's dtype."""
    return {
        name: paddle.to_tensor(value.astype(dtype) if value.dtype.kind == "f" else value)
        for name, value in batch.items()
    }


def run(job: Job, folder: Path, kernels: object = None) -> Description:
    """Build the layer and run it once, watched."""
    assert job.pair is not None
    source = user_code.load(job.pair.port)
    if job.pair.batch_from == "port":
        files.write_tensors(folder / "batch.safetensors", batch_of(source, dict(job.config), job.seed))
    model = built(source, job)
    files.wait_for(folder / "batch.safetensors", files.failure_path(folder, "reference", "describe"))
    batch = as_tensors(files.read_tensors(folder / "batch.safetensors"), "float32")
    modules: list[ModuleFacts] = []

    def left(name: str, called: str, layer: nn.Layer, output: Any) -> None:
        parsed = TensorName.parse(called)
        tensor = first_tensor(output) if name and not parsed.call else None
        if tensor is not None:
            shape = tuple(tensor.shape) if tensor.is_floating_point() else None
            modules.append(ModuleFacts(parsed.module, type(layer).__name__, shape, tuple(_has(layer))))

    draws = _InOrder()
    model.train()
    with use(draws), watch(model, draws.stack, left):
        computed(source, model, batch)
    order = {module.name: number for number, module in reversed(list(enumerate(modules)))}
    return Description([*parameters_of(model, order)], modules, draws.made)


def _has(layer: nn.Layer) -> Iterator[str]:
    """What of :attr:`.pair.ModuleFacts.has` a layer has."""
    if any(isinstance(getattr(layer, name, None), float) for name in EPSILONS):
        yield "epsilon"
    applied = any(callable(getattr(layer, name, None)) for name in ACTIVATIONS)
    if applied or type(layer).__module__ == nn.GELU.__module__:
        yield "activation"
    if isinstance(layer, nn.Dropout):
        yield "dropout"


def parameters_of(model: nn.Layer, order: Mapping[str, int]) -> Iterator[ParameterFacts]:
    """What is known of every parameter."""
    layers = dict(model.named_sublayers(include_self=True))
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        layer = layers[path]
        role = next((role for role, kinds in ROLES if isinstance(layer, kinds)), "other")
        transposed = role == "linear" and leaf == "weight" and parameter.ndim == 2
        shape = list(parameter.shape)
        yield ParameterFacts(
            name=name,
            shape=shape[::-1] if transposed else shape,
            role=role,
            transposed=transposed,
            module=path,
            kind=type(layer).__name__,
            order=order.get(path),
            trained=not parameter.stop_gradient,
        )


def place_of(layers: Mapping[str, nn.Layer], path: str) -> Place:
    """A layer's class, the line of the layer around it that makes it, and that of its class where that is a port's."""
    layer = layers[path]
    around, _, attribute = path.rpartition(".")
    while attribute.isdigit() and around:  # of a list's, where the list is made
        around, _, attribute = around.rpartition(".")
    made = line_of(type(layers[around]), rf"self\.{attribute}\b.*=") if around in layers else None
    file = inspect.getsourcefile(type(layer)) or ""
    defined = None if file.startswith(LIBRARIES) else line_of(type(layer), r"class ")
    where = ", ".join(filter(None, [made, defined and f"class at {defined}"]))
    return Place(type(layer).__name__, _from_here(where))


def _from_here(where: str) -> str:
    """Lines of the user's files, from the current folder on."""
    return where.replace(f"{os.getcwd()}{os.sep}", "")


# -- draws, signs and dtypes ------------------------------------------------------------------------------------------


class _PairDraws(RecordedDraws):
    """The reference's draws by the port's names of them."""

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        rates: Mapping[str, float],
        names: Mapping[str, str],
        expected: Collection[str] = (),
    ) -> None:
        super().__init__(tensors, rates, ModuleStack())
        self.names = names
        self.expected = expected

    def kept(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        own = self.stack.draw("dropout")
        name = self.names.get(own, own)
        mask = self._take(name, shape, f"dropout of {p}")
        if mask is None:
            return paddle.ones(shape, "bool")
        if p != self.rates[name]:
            self.problems[name] = f"dropout of {p}, the reference has {self.rates[name]}"
        return paddle.to_tensor(mask).astype("bool")

    def drawn(self, kind: str, shape: Sequence[int], what: str) -> np.ndarray | None:
        """Numbers that the reference drew."""
        own = self.stack.draw(kind)
        return self._take(self.names.get(own, own), shape, what)

    def _take(self, name: str, shape: Sequence[int], what: str) -> np.ndarray | None:
        value = super()._take(name, self._shape_of(name, shape), what)
        return None if value is None else value.reshape(shape)

    def _shape_of(self, name: str, shape: Sequence[int]) -> Sequence[int]:
        """The reference's shape of a draw of as many numbers, else the given one."""
        theirs = self.tensors.get(name)
        return list(theirs.shape) if theirs is not None and theirs.size == math.prod(shape) else shape

    def relu(self, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        drawn = self.stack.draw("relu")
        return self.signs(TensorName.parse(self.names.get(drawn, drawn)), x, own)

    def unused(self) -> list[str]:
        """Draws of the reference that matter to it, and that the port never asked for."""
        return sorted(name for name in self.expected if name in self.tensors and name not in self.used)


class _InOrder(_PairDraws):
    """Draws of Paddle's own generator, and in which order they were made."""

    def __init__(self) -> None:
        super().__init__({}, {}, {})
        self.made: list[DrawFacts] = []

    def kept(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        self.made.append(DrawFacts(self.stack.draw("dropout"), list(shape), float(p)))
        return paddle.rand(shape) >= p

    def drawn(self, kind: str, shape: Sequence[int], what: str) -> np.ndarray | None:
        self.made.append(DrawFacts(self.stack.draw(kind), list(shape)))
        return None

    def relu(self, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        self.made.append(DrawFacts(self.stack.draw("relu"), list(own.shape)))
        return own


_draws: _PairDraws | None = None


@contextlib.contextmanager
def use(draws: _PairDraws) -> Iterator[None]:
    """Inside the block a layer's dropout, random numbers and signs under ReLU come from ``draws``."""
    global _draws
    before, _draws = _draws, draws
    try:
        yield
    finally:
        _draws = before


def _changed(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Put in place of a function of Paddle's one that asks :data:`_draws` while there are any."""
    original = getattr(owner, name)
    if not hasattr(original, "of_paddle"):
        changed = make(original)
        changed.of_paddle = original  # type: ignore[attr-defined]
        setattr(owner, name, changed)


def _dropout(original: Callable) -> Callable:
    signature = inspect.signature(original)

    def dropout(*args: Any, **options: Any) -> paddle.Tensor:
        if "input" in options:
            options["x"] = options.pop("input")
        given = signature.bind(*args, **options)
        given.apply_defaults()
        x, p, axis, training, mode = (given.arguments[name] for name in ("x", "p", "axis", "training", "mode"))
        if _draws is None or not training or not isinstance(p, (int, float)) or p == 0:
            return original(*args, **options)
        axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
        shape = [size if place in axes else 1 for place, size in enumerate(x.shape)]
        kept = _draws.kept(float(p), shape).astype(x.dtype)
        return x * kept if mode == "downscale_in_infer" else x * (kept / (1.0 - p))

    return dropout


def _relu(original: Callable) -> Callable:
    def relu(x: paddle.Tensor, *args: Any, **options: Any) -> paddle.Tensor:
        own = original(x, *args, **options)
        return own if _draws is None else _draws.relu(x, own)

    return relu


def _of_shape(kind: str, what: str) -> Callable[[Callable], Callable]:
    def make(original: Callable) -> Callable:
        def draw(shape: Any, dtype: Any = None, *args: Any, **options: Any) -> paddle.Tensor:
            given = None if _draws is None else _draws.drawn(kind, list(shape), what)
            if given is None:
                return original(shape, dtype, *args, **options)
            return paddle.to_tensor(given).astype(dtype or paddle.get_default_dtype())

        return draw

    return make


def install() -> None:
    """Change Paddle once, before a user's file is imported."""
    _changed(nn.functional, "dropout", _dropout)
    _changed(nn.functional.common, "dropout", _dropout)
    _changed(nn.functional, "relu", _relu)
    _changed(nn.functional.activation, "relu", _relu)
    _changed(paddle, "randn", _of_shape("normal", "normal numbers"))
    _changed(paddle, "rand", _of_shape("uniform", "numbers between 0 and 1"))


@contextlib.contextmanager
def default_dtype(dtype: str) -> Iterator[None]:
    """What a layer makes without a dtype has the model's, inside the block: masks, position tables."""
    before = paddle.get_default_dtype()
    paddle.set_default_dtype(dtype)
    try:
        yield
    finally:
        paddle.set_default_dtype(before)


#: Where a port would have left float64.
leaks: list[str] = []


@contextlib.contextmanager
def keeps_double() -> Iterator[None]:
    """Float64 stays float64 inside the block where a port's code casts it to float32, as the reference's does: what is
    judged in float64 is the function. Where that was is written down in :data:`leaks`."""
    original = paddle.Tensor.astype

    def astype(self: paddle.Tensor, dtype: Any) -> paddle.Tensor:
        narrow = str(dtype).rpartition(".")[2] in ("float32", "float16", "bfloat16")
        if self.dtype == paddle.float64 and narrow:
            place = _calling_line()
            if place and place not in leaks:
                leaks.append(place)
            return self
        return original(self, dtype)

    cast, function = paddle.Tensor.cast, paddle.cast
    paddle.Tensor.astype = paddle.Tensor.cast = astype
    paddle.cast = lambda x, dtype: astype(x, dtype)
    try:
        yield
    finally:
        paddle.Tensor.astype, paddle.Tensor.cast, paddle.cast = original, cast, function


def _calling_line() -> str:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        frame = frame.f_back
    return "" if frame is None else f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


install()
STEP = PairStep
