"""The reference of a user's pair: any torch module, as the gate runs those of its own families."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig

from toolkit.parity.families.pair.batches import write_batches
from toolkit.parity.job import files, outputs, user_code
from toolkit.parity.job.buffers import constant_of, hide_initial_infinities, may_be_drawn
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import (
    Description,
    DrawFacts,
    ModuleFacts,
    PairMap,
    ParameterFacts,
)
from toolkit.parity.job.results import ReferenceFacts
from toolkit.parity.job.tensor_file import TensorWriter
from toolkit.parity.measure.error_stats import TensorRecord
from toolkit.parity.measure.evaluation import WHOLE
from toolkit.parity.measure.mask_comparisons import MaskFacts
from toolkit.parity.measure.naming import TensorName, append_number
from toolkit.parity.measure.square_weights import SquareWeights
from toolkit.parity.measure.updates import scale_gradient
from toolkit.parity.reference.buffers import buffers_of, describe_buffers, frozen_parameters
from toolkit.parity.reference.choices import Choices
from toolkit.parity.reference.clean import NanWatch
from toolkit.parity.reference.masks import MaskWatch
from toolkit.parity.reference.optimizer import Optimizer
from toolkit.parity.reference.points import Keep, Points, keep_nothing, to_numpy
from toolkit.parity.reference.random_functions import recorded_random_functions
from toolkit.parity.reference.recorder import Draws, Recorder, first_tensor, record_lengths, set_attribute
from toolkit.parity.reference.rounded import EXACT_EPSILONS
from toolkit.parity.reference.step import STORAGE_DTYPES, Step, nudge_copy

#: Role of the ``weight`` of each layer class.
ROLES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("linear", (nn.Linear, nn.Bilinear)),
    ("embedding", (nn.Embedding,)),
    ("norm", (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm, nn.RMSNorm)),
    ("conv", (nn.modules.conv._ConvNd,)),
)
#: Functions of norms whose epsilon Paddle's kernels keep in float32.
HELD_IN_FLOAT32 = ("layer_norm", "batch_norm", "instance_norm", "rms_norm")
#: Kinds of draws that are numbers, not masks.
NUMBERS = ("normal", "uniform")
#: Relative distance of a table in float64 from the same in float32, at most.
SAME = 1e-4
#: Types in which float64 loses digits.
NARROW = (torch.float32, torch.float16, torch.bfloat16)


class PairStep(Step):
    """A step of a user's module."""

    def __init__(self, job: Job, *given: Mapping[str, np.ndarray]) -> None:
        assert job.pair is not None
        self.source = user_code.load(job.pair.reference)
        self.map = job.pair.map or PairMap()
        self._job, self._has_loss, self.forward_only = job, job.pair.has_loss, job.pair.forward_only
        self._models: dict[torch.dtype, nn.Module] = {}
        self.epsilons: dict[str, float] = {}
        self.drops_gradients = job.brief
        held = {name: value.clone() for name, value in self._model_in(torch.float32).named_buffers()}
        super().__init__(job, *given)
        self.buffers = exact_buffers(self.model, held)
        self.unread = {}

    def set_initial_buffers(self, buffers: Mapping[str, np.ndarray]) -> None:
        """Replace the values that some buffers have when a run begins. Frozen parameters are among the weights."""
        self.buffers |= {name: torch.from_numpy(value) for name, value in buffers.items() if name in self.buffers}

    def build(self, job: Job) -> nn.Module:
        return self._model_in(torch.float64)

    def _model_in(self, dtype: torch.dtype) -> nn.Module:
        """The model as it is built in a dtype, with the tables that it computes then."""
        if dtype not in self._models:
            if self._job.brief:  # one at a time
                self._models.clear()
                self.model = nn.Module()
            self._models[dtype] = built(self.source, self._job, dtype)
            assert self._job.pair is not None
            self.epsilons = epsilons_of(self._models[dtype])
            if not self._job.pair.any_framework:
                round_momenta(self._models[dtype])
        return self._models[dtype]

    def compute(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        with user_code.running(self.source), collected_logits(self.model) as logits:
            output = computed(self.source, self.model, inputs, not self.forward_only)
        if not self._has_loss:
            return output
        assert self._job.pair is not None
        return replace(output, logits=logits[0] if self._job.pair.any_framework and len(logits) == 1 else None)

    def load(self, dtype: str, nudge: int = 0) -> None:
        """As :meth:`.step.Step.load`; buffers are reset to their values when the model was made."""
        self.dtype, held = dtype, STORAGE_DTYPES[dtype]
        self.model = self._model_in(held)
        of_complex = [one for one in self.model.named_buffers() if one[1].is_complex()]
        self.model.to(device=self.device, dtype=held)
        for name, buffer in of_complex:  # of which torch has kept the real parts alone
            path, _, leaf = name.rpartition(".")
            setattr(self.model.get_submodule(path), leaf, buffer.to(self.device, held.to_complex()))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(nudge_copy(self.weights[name], held, nudge))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self.buffers[name].to(buffer))

    def run(self, dtype: str, keep: Keep, nudge: int = 0, plain: bool = True, has_hooks: bool = True) -> None:
        """As :meth:`.step.Step.run`. Also keep what the step leaves in the buffers that the port must have."""
        with user_code.running(self.source, alone=False):  # a backward of its own
            super().run(dtype, self._of_matched(keep), nudge, plain, has_hooks)
        compared = {match.reference for match in self.map.buffers} | set(self.map.reference_state)
        initial = {**self.buffers, **self.weights}
        for name, value in {**buffers_of(self.model), **frozen_parameters(self.model)}.items():
            if has_hooks and name in compared:
                keep(f"buffer:{name}", hide_initial_infinities(value, to_numpy(initial[name])))

    def sort_records(self, records: Mapping[str, TensorRecord]) -> dict[str, TensorRecord]:
        """Return the records with gradients in the order in which modules ran (see :meth:`.step.Step.sort_records`)."""
        made = {f"gradient:{name}": number for number, (name, _) in enumerate(self.model.named_parameters())}
        names = [TensorName.parse(name) for name in records]
        # The loss is of no module, as the model's own parameters are.
        modules = dict.fromkeys(name.module for name in names if name.kind == "output")
        ran = {module: number for number, module in enumerate(modules)}

        def use(name: str) -> tuple[int, int]:
            return ran.get(TensorName.parse(name).module.rpartition(".")[0], -1), made.get(name, -1)

        gradients = iter(sorted((str(name) for name in names if name.kind == "gradient"), key=use))
        found = [next(gradients) if name.kind == "gradient" else str(name) for name in names]
        return {name: records[name] for name in found}

    def evaluate(self, keep: Keep, nudge: int = 0) -> None:
        if not self.forward_only:  # else the step is that
            super().evaluate(self._of_matched(keep), nudge)

    def evaluations(self) -> dict[str, dict[str, torch.Tensor]]:
        return {WHOLE: self._inputs()}

    def is_scored(self, batch: Mapping[str, torch.Tensor]) -> bool:
        return True

    def train_on(self, keep: Keep, truth: Mapping[str, np.ndarray], has_float32_powers: bool = False) -> None:
        """As :meth:`.step.Step.train_on`, but AdamW decays all parameters, and no loss is computed after it."""
        if self.forward_only or not self.updates:
            return
        optimizer = Optimizer(self.model, self.settings, decayed_names=dict(self.model.named_parameters()))
        self.model.zero_grad()
        for number in range(1, self.updates + 1):
            for name, parameter in self.model.named_parameters():
                if (gradient := truth.get(f"gradient:{name}")) is not None:
                    parameter.grad = torch.from_numpy(scale_gradient(gradient, number, [1.0])).to(parameter)
            optimizer.update(number, has_float32_powers)
            for name, parameter in self.model.named_parameters():
                if parameter.requires_grad:
                    keep(append_number(f"updated:{name}", number), to_numpy(parameter))

    def trace(self, dtype: str, points: Points, nudge: int = 0) -> None:
        """As :meth:`.step.Step.trace`, through the points that the port has, too."""
        points.only = self._is_matched
        super().trace(dtype, points, nudge)

    def _is_matched(self, name: str) -> bool:
        parsed = TensorName.parse(name)
        if parsed.kind == "input" and parsed.module in self.map.axes:
            return False  # which order the axes of an input have, nobody says
        return parsed.kind not in ("output", "input") or parsed.module in self.map.modules

    def facts(self, records: Mapping[str, TensorRecord]) -> ReferenceFacts:
        return replace(
            super().facts(records),
            epsilons={n: e for n, e in self.epsilons.items() if n in self.map.modules},
            first_nan=self._first_nan() if any(record.rms is None for record in records.values()) else "",
            choice_moved=self._collect_changes(lambda draws: draws.choices_moved),
            read=self._read_outputs(),
            read_beside=sorted(self.read_beside),
        )

    def _read_outputs(self) -> dict[str, float]:
        """Return :attr:`.results.ReferenceFacts.read`. If the file has its own loss, no scores are compared. Then the
        effect of the last output on the returned values is unknown."""
        assert self.unread is not None
        names = [name for name in self.unread if self.map.compares(name)]
        last = names[-1:] if self._has_loss else []
        return {
            name: float(1 - unread.all(-1).mean())
            for name, unread in self.unread.items()
            if unread.ndim and unread.size and name not in last
        }

    def _first_nan(self) -> str:
        """Return the operation that is the first to give NaN in R64, with its line."""
        with NanWatch() as watch:
            self.run("float64", keep_nothing)
        return watch.first

    @contextlib.contextmanager
    def clean(self, recorder: Recorder, plain: bool) -> Iterator[None]:
        assert self._job.pair is not None
        with (
            changed_functions(recorder),
            recorded_random_functions(recorder),
            Choices(recorder),
            record_lengths(),
            computing_in(STORAGE_DTYPES[self.dtype]),
            contextlib.nullcontext() if self._job.pair.any_framework else rounded_epsilons(),
        ):
            yield

    def _of_matched(self, keep: Keep) -> Keep:
        """Return a ``keep`` that only takes what the port has a counterpart of."""

        def keep_matched(name: str, value: np.ndarray) -> None:
            if self.map.compares(name):
                keep(name, value)

        return keep_matched


def built(source: Any, job: Job, dtype: torch.dtype = torch.float32, seed: int | None = None) -> nn.Module:
    """Return what a side's ``build`` gives in a dtype, with eager attention where the module accepts that setting.

    Args:
        seed: by default the job's.

    Raises:
        UserCodeError: it raises, or gives no torch module, or one that it has given before.
    """
    torch.manual_seed(job.seed if seed is None else seed)
    with eager_attention(), computing_in(dtype), user_code.running(source):
        model = source.build(dict(job.config))
    user_code.check_built(source, model, nn.Module, "torch.nn.Module")
    user_code.check_real(source, model.named_parameters())
    recurrent = (one for one in model.named_modules() if isinstance(one[1], nn.RNNBase))
    user_code.check_recurrent(source, recurrent)
    return model


def exact_buffers(double: nn.Module, theirs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the buffers of a module that was built in float64. One that is more than rounding away from its
    counterpart in float32, in ``theirs``, was drawn at random, and differently; the counterpart then takes its place.
    """

    def chosen(exact: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        if not (exact.is_floating_point() or exact.is_complex()) or not exact.numel():
            return drawn
        drawn = drawn.to(exact)
        return exact if torch.allclose(exact, drawn, rtol=0, atol=SAME * float(drawn.abs().max())) else drawn

    return {name: chosen(value, theirs[name]).clone() for name, value in double.named_buffers()}


@contextlib.contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Inside the ``with`` block, new tensors have a dtype; if that is float64, so has what code asks for in less."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with KeepsDouble() if dtype == torch.float64 else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def eager_attention() -> Iterator[None]:
    """Let each configuration of transformers that is made inside the block ask for eager attention."""
    original = PretrainedConfig.__init__

    def make(self: PretrainedConfig, *args: Any, **keys: Any) -> None:
        original(self, *args, **{"attn_implementation": "eager", **keys})

    undo = set_attribute(PretrainedConfig, "__init__", make)
    try:
        yield
    finally:
        undo()


def epsilons_of(model: nn.Module) -> dict[str, float]:
    """The epsilons of norms by module."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, dict(ROLES)["norm"])}
    found = {name: getattr(module, "eps", None) for name, module in norms.items()}
    return {name: epsilon for name, epsilon in found.items() if isinstance(epsilon, float)}


@contextlib.contextmanager
def rounded_epsilons() -> Iterator[None]:
    """Inside the ``with`` block, torch's norms round their epsilons to float32, whatever module calls them.

    Paddle's kernels keep theirs in float32 whatever the dtype, except for a group norm's. There 1e-5 has a relative
    error of 2.5e-8, which shows in float64 as 1e-13 of an output. Every port has that, and none can fix it.
    """
    owner = nn.functional
    undo = [set_attribute(owner, name, _with_rounded_epsilon(getattr(owner, name))) for name in HELD_IN_FLOAT32]
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _with_rounded_epsilon(norm_function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    signature = inspect.signature(norm_function)

    @functools.wraps(norm_function)
    def call(*args: Any, **options: Any) -> torch.Tensor:
        call_arguments = signature.bind(*args, **options)
        call_arguments.apply_defaults()
        epsilon = call_arguments.arguments["eps"]
        if epsilon is not None:
            rounded_epsilon = float(np.float32(epsilon))
            if epsilon != rounded_epsilon:  # a norm that calls another norm passes on the rounded number
                EXACT_EPSILONS[rounded_epsilon] = epsilon
            call_arguments.arguments["eps"] = rounded_epsilon
        return norm_function(*call_arguments.args, **call_arguments.kwargs)

    return call


def round_momenta(model: nn.Module) -> None:
    """Round 1 minus the momentum of a batch norm to float32. That is Paddle's momentum, as its kernels keep it."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module.momentum = 1 - float(np.float32(1 - module.momentum))


def computed(
    source: Any, model: nn.Module, inputs: Mapping[str, torch.Tensor], needs_loss: bool = True
) -> outputs.StepOutput:
    """As :func:`.outputs.compute_step`."""
    return outputs.compute_step(source, model, inputs, needs_loss, _is_tensor, nn.functional.cross_entropy)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


@contextlib.contextmanager
def collected_logits(model: nn.Module) -> Iterator[list[torch.Tensor | None]]:
    """Inside the ``with`` block, collect the logits of every call of the model; None if a call returns no logits.

    A file's own ``loss`` does not return them.
    """
    logits: list[torch.Tensor | None] = []

    def collect(module: nn.Module, args: Any, output: Any) -> None:
        scores = outputs.loss_and_logits(output, _is_tensor)[1]
        logits.append(scores if scores is not None and scores.is_floating_point() else None)

    hook = model.register_forward_hook(collect)
    try:
        yield logits
    finally:
        hook.remove()


# -- before the two are compared ------------------------------------------------------------------------------------


def run(job: Job, folder: Path) -> Description:
    """Build the model, leave its new values as ``reference/weights.safetensors``, and run it once."""
    assert job.pair is not None
    source = user_code.load(job.pair.reference)
    if job.pair.batch_from == "reference":
        write_batches(source, job, folder)
    model = built(source, job)
    with TensorWriter(folder / "reference" / "weights.safetensors") as weights:
        for name, value in model.named_parameters():
            weights.add(name, value.numpy(force=True).astype(np.float32, copy=False))
    buffers = buffers_of(model)
    exact = exact_buffers(built(source, job, torch.float64), dict(model.named_buffers())) if buffers else {}
    frozen_values = frozen_parameters(model)
    exact_values = {**frozen_values, **{name: to_numpy(exact[name]) for name in buffers}}
    files.write_tensors(folder / "reference" / "buffers.safetensors", exact_values)
    buffers |= frozen_values
    files.write_tensors(folder / "reference" / "buffers-float32.safetensors", buffers)
    other = buffers
    if may_be_drawn(buffers):
        model_of_other_seed = built(source, job, seed=job.seed + 1)
        other = {**buffers_of(model_of_other_seed), **frozen_parameters(model_of_other_seed)}
    files.wait_for(folder / "batch.safetensors", files.failure_path(folder, "candidate", "describe"))
    batch = {name: torch.from_numpy(value) for name, value in files.read_tensors(folder / "batch.safetensors").items()}
    modules: list[ModuleFacts] = []
    kinds = {name: type(module).__name__ for name, module in model.named_modules(remove_duplicate=False)}
    draws = _InOrder(job.seed)
    squares = SquareWeights(_gradient_of)
    needs_loss = not job.pair.forward_only
    model.train(needs_loss)

    masks: list[MaskFacts] = []

    def loss_with(drawn: Draws, keep: Keep) -> float | None:
        recorder = Recorder(model, drawn, keep)
        note = getattr(drawn, "note_other", None)
        watching = MaskWatch(lambda: recorder.stack.module)
        with (
            recorder.watch(),
            changed_functions(recorder),
            recorded_random_functions(recorder),
            record_lengths(),
            Choices(recorder, note),
            watching,
            _watch_own_layers(model, squares),
            user_code.running(source),
        ):
            loss = computed(source, model, batch, needs_loss).loss
        masks[:] = watching.comparisons.facts()
        return None if loss is None else float(loss.detach())

    loss = loss_with(draws, lambda name, value: _note(modules, kinds, name, value))
    order = {module.name: number for number, module in reversed(list(enumerate(modules)))}
    named = dict(model.named_modules())
    described = describe_buffers(model, buffers, other, lambda name, value: _described(named, order, name, value))
    if draws.made and loss == loss_with(_OtherNumbers(job.seed), keep_nothing):
        draws.made = [draw for draw in draws.made if draw.kind not in NUMBERS]
    transposed_names = squares.with_output_columns
    parameters = [
        replace(one, transposed=one.transposed or one.name in transposed_names) for one in parameters_of(model, order)
    ]
    return Description(parameters, modules, draws.made, described, masks)


@contextlib.contextmanager
def _watch_own_layers(model: nn.Module, squares: SquareWeights) -> Iterator[None]:
    """Let `squares` look at every layer that is none of the framework's, as it runs inside the block."""

    def look(path: str, module: nn.Module, output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None and tensor.requires_grad and tensor.is_floating_point():
            weights = {name: one for name, one in module.named_parameters(recurse=False) if one.requires_grad}
            squares.examine_layer(path, weights, tensor)

    handles = [
        module.register_forward_hook(lambda module, _, output, path=path: look(path, module, output))
        for path, module in model.named_modules()
        if _role(module) == "other" and type(module).__name__ != "Conv1D"
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gradient_of(output: torch.Tensor, place: int, weight: torch.Tensor) -> np.ndarray | None:
    (gradient,) = torch.autograd.grad(output.flatten()[place], weight, retain_graph=True, allow_unused=True)
    return None if gradient is None else to_numpy(gradient)


def _role(module: nn.Module) -> str:
    """Return the role of a module's parameters, by the type of the module."""
    return next((role for role, kinds in ROLES if isinstance(module, kinds)), "other")


def _note(modules: list[ModuleFacts], kinds: Mapping[str, str], name: str, value: np.ndarray) -> None:
    parsed = TensorName.parse(name)
    if not parsed.call:
        modules.append(
            ModuleFacts(parsed.module, kinds[parsed.module], tuple(value.shape) if value.dtype.kind == "f" else None)
        )


def parameters_of(model: nn.Module, order: Mapping[str, int]) -> Iterator[ParameterFacts]:
    """Describe every parameter."""
    modules = dict(model.named_modules())
    names: dict[torch.Tensor, list[str]] = defaultdict(list)
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names[parameter].append(name)
    for parameter, (name, *others) in names.items():
        constant = constant_of(parameter.numpy(force=True))
        yield replace(_described(modules, order, name, parameter), tied=others, constant=constant)


def _described(
    modules: Mapping[str, nn.Module], order: Mapping[str, int], name: str, value: torch.Tensor
) -> ParameterFacts:
    path, _, leaf = name.rpartition(".")
    module = modules[path]
    role = _role(module)
    transposed = type(module).__name__ == "Conv1D" and leaf == "weight"  # transformers' own, after GPT-2's code
    shape = list(value.shape)
    return ParameterFacts(
        name=name,
        shape=shape[::-1] if transposed else shape,
        role="linear" if transposed else role,
        transposed=transposed,
        module=path,
        kind=type(module).__name__,
        order=order.get(path),
    )


class _OtherNumbers(Draws):
    """Same masks, different numbers. If the loss does not change, the numbers have no effect (layer drop at rate 0)."""

    def _generator(self, name: str) -> np.random.Generator:
        return super()._generator(f"other:{name}" if name.startswith(NUMBERS) else name)


class _InOrder(Draws):
    """Draws that record the order in which they are made."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.made: list[DrawFacts] = []

    def mask(self, name: str, shape: tuple[int, ...], p: float) -> np.ndarray:
        self.made.append(DrawFacts(name, list(shape), p))
        return super().mask(name, shape, p)

    def normal(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        self.made.append(DrawFacts(name, list(shape)))
        return super().normal(name, shape)

    def uniform(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        self.made.append(DrawFacts(name, list(shape)))
        return super().uniform(name, shape)

    def positive(self, draw_name: TensorName, x: torch.Tensor) -> torch.Tensor:
        self.made.append(DrawFacts(str(draw_name), list(x.shape)))
        return super().positive(draw_name, x)

    def choose(
        self, draw_name: TensorName, scores: torch.Tensor, own: torch.Tensor, is_ordered: bool = True
    ) -> torch.Tensor:
        self.made.append(DrawFacts(str(draw_name), list(own.shape)))
        return super().choose(draw_name, scores, own)

    def multinomial(self, name: str, p: torch.Tensor, count: int, replacement: bool) -> torch.Tensor:
        self.made.append(DrawFacts(name, [*p.shape[:-1], count]))
        return super().multinomial(name, p, count, replacement)

    def note_other(self, name: str) -> None:
        """Record a choice that cannot be given to the port."""
        self.made.append(DrawFacts(name, []))


# -- what a module may do that the families here do not ---------------------------------------------------------------


@contextlib.contextmanager
def changed_functions(recorder: Recorder) -> Iterator[None]:
    """Inside the ``with`` block, ReLU called as a function also takes R64's signs. Attention called as a function is
    written out, so that its dropout is one of the recorded draws."""

    def relu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return recorder._relu(x)

    undo = [
        set_attribute(nn.functional, "relu", relu),
        set_attribute(torch, "relu", relu),
        set_attribute(torch.Tensor, "relu", relu),
        set_attribute(nn.functional, "scaled_dot_product_attention", attention),
    ]
    try:
        yield
    finally:
        for restore in undo:
            restore()


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """``scaled_dot_product_attention`` as torch's documentation defines it."""
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
    return nn.functional.dropout(scores.softmax(-1), dropout_p, dropout_p > 0) @ value


class KeepsDouble(TorchFunctionMode):
    """Makes float64 of what a module's code asks for in less: ``x.to(torch.float32)``, ``positions.float()``,
    ``softmax(x, dtype=torch.float32)``, ``torch.arange(n, dtype=torch.float32)`` and their like."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            return args[0].double()
        if function is torch.Tensor.view:  # it reads bytes as numbers, of a checkpoint's file, and rounds nothing
            return function(*args, **kwargs)
        args = tuple(torch.float64 if one in NARROW else one for one in args) if _has_dtype(args) else args
        if kwargs.get("dtype") in NARROW:
            kwargs = {**kwargs, "dtype": torch.float64}
        return function(*args, **kwargs)


def _has_dtype(arguments: tuple) -> bool:
    return any(isinstance(one, torch.dtype) and one in NARROW for one in arguments)


STEP = PairStep
