"""A step of a pair's reference: any torch module, run by the gate like the references of this project's families."""

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

from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import ReferenceFacts
from toolkit.parity.exchange.tensor_file import TensorWriter
from toolkit.parity.families.pair.batches import write_batches
from toolkit.parity.job import outputs, user_code
from toolkit.parity.job.buffers import constant_of, hide_initial_infinities, may_be_drawn
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import (
    Description,
    DrawFacts,
    ModuleFacts,
    PairMap,
    ParameterFacts,
)
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

#: Role of a module's ``weight``, with the module classes that have this role.
ROLES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("linear", (nn.Linear, nn.Bilinear)),
    ("embedding", (nn.Embedding,)),
    ("norm", (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm, nn.RMSNorm)),
    ("conv", (nn.modules.conv._ConvNd,)),
)
#: Names of torch's norm functions whose counterparts in Paddle keep the epsilon in float32.
HELD_IN_FLOAT32 = ("layer_norm", "batch_norm", "instance_norm", "rms_norm")
#: Kinds of draws that return random numbers, not masks or indices.
NUMBERS = ("normal", "uniform")
#: Largest difference between a table in float64 and in float32, relative to the table's largest element.
SAME = 1e-4
#: Dtypes with fewer digits than float64.
NARROW = (torch.float32, torch.float16, torch.bfloat16)


class PairStep(Step):
    """A forward and a backward of a user's torch module, with recorded draws.

    Args:
        job: job of the pair.
        given: the reference's weights, batch and labels by name, as for :class:`.step.Step`.

    Attributes:
        source: loaded module of the user's file.
        map: correspondence of the two sides.
        epsilons: epsilon of each norm, by the path of its module.
        drops_gradients: whether each gradient is freed as soon as it is kept.
        buffers: values of the buffers before the step, by name.
    """

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
        """Replace the values that some buffers have before a run.

        Frozen parameters are part of the weights and not replaced.

        Args:
            buffers: new values by name.
        """
        self.buffers |= {name: torch.from_numpy(value) for name, value in buffers.items() if name in self.buffers}

    def build(self, job: Job) -> nn.Module:
        """Return the user's module, built in float64."""
        return self._model_in(torch.float64)

    def _model_in(self, dtype: torch.dtype) -> nn.Module:
        """Return the user's module as its file builds it in a dtype, with tables that are computed in this dtype.

        The module of each dtype is built once and kept, except if the model is large.
        """
        if dtype not in self._models:
            if self._job.brief:  # a large model is kept in one dtype at a time
                self._models.clear()
                self.model = nn.Module()
            self._models[dtype] = built(self.source, self._job, dtype)
            assert self._job.pair is not None
            self.epsilons = epsilons_of(self._models[dtype])
            if not self._job.pair.any_framework:
                round_momenta(self._models[dtype])
        return self._models[dtype]

    def compute(self, inputs: Mapping[str, torch.Tensor]) -> Any:
        """Return the output of the reference for a batch, with its loss unless only a forward is compared.

        If a file of the pair has its own ``loss`` function, the logits are None. If the reference is recorded for any
        framework, they are the logits of the only call of the model.
        """
        with user_code.running(self.source), collected_logits(self.model) as logits:
            output = computed(self.source, self.model, inputs, not self.forward_only)
        if not self._has_loss:
            return output
        assert self._job.pair is not None
        return replace(output, logits=logits[0] if self._job.pair.any_framework and len(logits) == 1 else None)

    def load(self, dtype: str, nudge: int = 0) -> None:
        """Load the weights and the initial buffers into the model of a dtype, and nudge the weights.

        Args:
            dtype: dtype of the run.
            nudge: 0 for unchanged weights. Any other number moves each weight by one unit in the last place, in
                directions that depend on the number.
        """
        self.dtype, held = dtype, STORAGE_DTYPES[dtype]
        self.model = self._model_in(held)
        of_complex = [one for one in self.model.named_buffers() if one[1].is_complex()]
        self.model.to(device=self.device, dtype=held)
        for name, buffer in of_complex:  # torch has kept only the real parts
            path, _, leaf = name.rpartition(".")
            setattr(self.model.get_submodule(path), leaf, buffer.to(self.device, held.to_complex()))
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(nudge_copy(self.weights[name], held, nudge))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(self.buffers[name].to(buffer))

    def run(self, dtype: str, keep: Keep, nudge: int = 0, plain: bool = True, has_hooks: bool = True) -> None:
        """Load the weights, run forward and backward, and keep the compared outputs, gradients and buffers.

        The buffers are kept as they are after the step.

        Args:
            dtype: dtype of the run.
            keep: function that receives the name and value of each tensor.
            nudge: 0 for unchanged weights. Any other number moves each weight by one unit in the last place, in
                directions that depend on the number.
            plain: unused, because a user's module has only one backward.
            has_hooks: whether outputs and buffers are kept, too. Otherwise only the loss and the gradients are kept.
        """
        with user_code.running(self.source, alone=False):  # the file may define a backward
            super().run(dtype, self._of_matched(keep), nudge, plain, has_hooks)
        compared = {match.reference for match in self.map.buffers} | set(self.map.reference_state)
        initial = {**self.buffers, **self.weights}
        for name, value in {**buffers_of(self.model), **frozen_parameters(self.model)}.items():
            if has_hooks and name in compared:
                keep(f"buffer:{name}", hide_initial_infinities(value, to_numpy(initial[name])))

    def sort_records(self, records: Mapping[str, TensorRecord]) -> dict[str, TensorRecord]:
        """Return the records of a run, with the gradients in the order of their modules' first calls.

        Args:
            records: statistics of R64's tensors, by name.
        """
        made = {f"gradient:{name}": number for number, (name, _) in enumerate(self.model.named_parameters())}
        names = [TensorName.parse(name) for name in records]
        # The loss and the model's own parameters belong to the module "".
        modules = dict.fromkeys(name.module for name in names if name.kind == "output")
        ran = {module: number for number, module in enumerate(modules)}

        def use(name: str) -> tuple[int, int]:
            """Return the position of a gradient: its module's first call, and then the order of the parameters."""
            return ran.get(TensorName.parse(name).module.rpartition(".")[0], -1), made.get(name, -1)

        gradients = iter(sorted((str(name) for name in names if name.kind == "gradient"), key=use))
        found = [next(gradients) if name.kind == "gradient" else str(name) for name in names]
        return {name: records[name] for name in found}

    def evaluate(self, keep: Keep, nudge: int = 0) -> None:
        """Run the model in evaluation mode, and keep the compared outputs and the loss.

        Nothing is run if the step itself is a forward in evaluation mode.

        Args:
            keep: function that receives the name and value of each tensor.
            nudge: number that selects the directions of the nudge of the weights; 0 for unchanged weights.
        """
        if not self.forward_only:  # otherwise the step is already a forward in evaluation mode
            super().evaluate(self._of_matched(keep), nudge)

    def evaluations(self) -> dict[str, dict[str, torch.Tensor]]:
        """Return the only evaluation of a pair, which uses the batch of the step."""
        return {WHOLE: self._inputs()}

    def is_scored(self, batch: Mapping[str, torch.Tensor]) -> bool:
        """Return True, because the evaluation of a pair always has a loss."""
        return True

    def train_on(self, keep: Keep, truth: Mapping[str, np.ndarray], has_float32_powers: bool = False) -> None:
        """Update the parameters with AdamW and gradients made from R64's, and keep them after each update.

        Unlike for a family, all parameters have weight decay, and no loss is computed after the updates.

        Args:
            keep: function that receives the name and value of each parameter, such as `updated:head.weight#2`.
            truth: R64's tensors by name, with the gradients.
            has_float32_powers: whether AdamW keeps the powers of its betas in float32, as Paddle does.
        """
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
        """Run the step with the tensors of mapped modules passing through ``points``, which record or replace them.

        Args:
            dtype: dtype of the run.
            points: points of the run.
            nudge: number that selects the directions of the nudge of the weights; 0 for unchanged weights.
        """
        points.only = self._is_matched
        super().trace(dtype, points, nudge)

    def _is_matched(self, name: str) -> bool:
        """Return whether the port has a tensor of this name, so that it can have a point of the trace."""
        parsed = TensorName.parse(name)
        if parsed.kind == "input" and parsed.module in self.map.axes:
            return False  # the order of the axes of an input is unknown
        return parsed.kind not in ("output", "input") or parsed.module in self.map.modules

    def facts(self, records: Mapping[str, TensorRecord]) -> ReferenceFacts:
        """Return the facts about R64 that the verdict needs, in addition to its tensors.

        Args:
            records: statistics of R64's tensors, by name.
        """
        return replace(
            super().facts(records),
            epsilons={n: e for n, e in self.epsilons.items() if n in self.map.modules},
            first_nan=self._first_nan() if any(record.rms is None for record in records.values()) else "",
            choice_moved=self._collect_changes(lambda draws: draws.choices_moved),
            read=self._read_outputs(),
            read_beside=sorted(self.read_beside),
        )

    def _read_outputs(self) -> dict[str, float]:
        """Return the share of rows that the loss depends on, by output (:attr:`.results.ReferenceFacts.read`).

        If the file has its own loss, the last output is omitted. No logits are compared then, so the effect of this
        output on the returned values is unknown.
        """
        assert self.unread is not None
        names = [name for name in self.unread if self.map.compares(name)]
        last = names[-1:] if self._has_loss else []
        return {
            name: float(1 - unread.all(-1).mean())
            for name, unread in self.unread.items()
            if unread.ndim and unread.size and name not in last
        }

    def _first_nan(self) -> str:
        """Return the first operation of R64 that returns NaN, with its source line; "" if there is none."""
        with NanWatch() as watch:
            self.run("float64", keep_nothing)
        return watch.first

    @contextlib.contextmanager
    def clean(self, recorder: Recorder, plain: bool) -> Iterator[None]:
        """Record or replay all draws and choices inside the ``with`` block, in the dtype of the last :meth:`load`.

        The epsilons of norms are rounded as Paddle's, unless the reference is recorded for any framework.

        Args:
            recorder: recorder of the run.
            plain: unused, because a user's module has only one backward.
        """
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
        """Return a version of ``keep`` that ignores the tensors without a counterpart in the port."""

        def keep_matched(name: str, value: np.ndarray) -> None:
            """Keep a tensor if the port has a counterpart."""
            if self.map.compares(name):
                keep(name, value)

        return keep_matched


def built(source: Any, job: Job, dtype: torch.dtype = torch.float32, seed: int | None = None) -> nn.Module:
    """Return the module that the ``build`` function of the reference's file creates, in a dtype.

    Modules of transformers use eager attention.

    Args:
        source: loaded module of the reference's file.
        job: job of the pair, with the configuration and the seed.
        dtype: default dtype of torch during the construction.
        seed: seed of torch's generators; by default the job's seed.

    Raises:
        UserCodeError: ``build`` raised an error, or did not return a new torch module; or the module has complex
            parameters or recurrent layers with dropout.
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
    """Return the buffers of a module that was built in float64, by name.

    A buffer that differs by more than rounding between float64 and float32 was drawn at random. Its float32 values are
    then returned instead.

    Args:
        double: module that was built in float64.
        theirs: buffers of the module that was built in float32, by name.
    """

    def chosen(exact: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
        """Return the float64 buffer ``exact``, or the float32 buffer ``drawn`` if it was drawn at random."""
        if not (exact.is_floating_point() or exact.is_complex()) or not exact.numel():
            return drawn
        drawn = drawn.to(exact)
        return exact if torch.allclose(exact, drawn, rtol=0, atol=SAME * float(drawn.abs().max())) else drawn

    return {name: chosen(value, theirs[name]).clone() for name, value in double.named_buffers()}


@contextlib.contextmanager
def computing_in(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype inside the ``with`` block.

    If it is float64, code that asks for fewer digits also gets float64 (:class:`KeepsDouble`).
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with KeepsDouble() if dtype == torch.float64 else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(before)


@contextlib.contextmanager
def eager_attention() -> Iterator[None]:
    """Let each configuration of transformers that is created inside the ``with`` block select eager attention."""
    original = PretrainedConfig.__init__

    def make(self: PretrainedConfig, *args: Any, **keys: Any) -> None:
        original(self, *args, **{"attn_implementation": "eager", **keys})

    undo = set_attribute(PretrainedConfig, "__init__", make)
    try:
        yield
    finally:
        undo()


def epsilons_of(model: nn.Module) -> dict[str, float]:
    """Return the epsilon of each norm of a model, by the path of its module."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, dict(ROLES)["norm"])}
    found = {name: getattr(module, "eps", None) for name, module in norms.items()}
    return {name: epsilon for name, epsilon in found.items() if isinstance(epsilon, float)}


@contextlib.contextmanager
def rounded_epsilons() -> Iterator[None]:
    """Round the epsilons of torch's norm functions to float32 inside the ``with`` block.

    Paddle's kernels keep their epsilons in float32 in every dtype, except for group norm. The float32 number nearest to
    1e-5 has a relative error of 2.5e-8. In float64, this changes an output by a relative 1e-13. Every port has this
    difference, and no author can fix it.
    """
    owner = nn.functional
    undo = [set_attribute(owner, name, _with_rounded_epsilon(getattr(owner, name))) for name in HELD_IN_FLOAT32]
    try:
        yield
    finally:
        for restore in undo:
            restore()


def _with_rounded_epsilon(norm_function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a norm function of torch with its ``eps`` argument rounded to float32."""
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
    """Round the momenta of a model's batch norms as Paddle's kernels do.

    Paddle's momentum is 1 minus torch's momentum, and its kernels keep it in float32.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module.momentum = 1 - float(np.float32(1 - module.momentum))


def computed(
    source: Any, model: nn.Module, inputs: Mapping[str, torch.Tensor], needs_loss: bool = True
) -> outputs.StepOutput:
    """Return the logits and the loss of a user's module for a batch (:func:`.outputs.compute_step`).

    Args:
        source: loaded module of the user's file.
        model: module of the user.
        inputs: tensors of the batch by name.
        needs_loss: whether a loss is required; False if only a forward is compared.
    """
    return outputs.compute_step(source, model, inputs, needs_loss, _is_tensor, nn.functional.cross_entropy)


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor."""
    return isinstance(value, torch.Tensor)


@contextlib.contextmanager
def collected_logits(model: nn.Module) -> Iterator[list[torch.Tensor | None]]:
    """Yield a list, and append the logits of every call of the model inside the ``with`` block.

    An entry is None if a call returns no logits. The list is needed because a file's own ``loss`` function returns only
    the loss.
    """
    logits: list[torch.Tensor | None] = []

    def collect(module: nn.Module, args: Any, output: Any) -> None:
        """Append the logits in the output of a call; None if there are none."""
        scores = outputs.loss_and_logits(output, _is_tensor)[1]
        logits.append(scores if scores is not None and scores.is_floating_point() else None)

    hook = model.register_forward_hook(collect)
    try:
        yield logits
    finally:
        hook.remove()


# -- description before the comparison -------------------------------------------------------------------------------
def run(job: Job, folder: Path) -> Description:
    """Build the user's module, run it once, and return the description of its parts.

    The job folder gets `reference/weights.safetensors` with the initial weights, and `buffers.safetensors` (built in
    float64) and `buffers-float32.safetensors` in the same folder.

    Args:
        job: job of the pair.
        folder: job folder. The batch is written there if the reference's file has the ``batch`` function.
    """
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
        """Run the model with a source of draws, and return its loss; None without a loss.

        Args:
            drawn: source of the draws.
            keep: function that receives the name and value of each output.
        """
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
    """Let ``squares`` examine the weights of each layer of the user's own class inside the ``with`` block.

    Args:
        model: reference.
        squares: collector of square weights whose columns are output channels.
    """

    def look(path: str, module: nn.Module, output: Any) -> None:
        """Examine the trained weights of a module after its call, given its path and output."""
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
    """Return the gradient of one element of an output for a weight; None without a dependence.

    Args:
        output: output of a module.
        place: index of the element in the flattened output.
        weight: weight of the module.
    """
    (gradient,) = torch.autograd.grad(output.flatten()[place], weight, retain_graph=True, allow_unused=True)
    return None if gradient is None else to_numpy(gradient)


def _role(module: nn.Module) -> str:
    """Return the role of a module's ``weight`` (:data:`ROLES`); `other` for any other module class."""
    return next((role for role, kinds in ROLES if isinstance(module, kinds)), "other")


def _note(modules: list[ModuleFacts], kinds: Mapping[str, str], name: str, value: np.ndarray) -> None:
    """Append the facts about a module to a list, given the name and value of its output.

    Later calls of the same module within its parent are ignored.

    Args:
        modules: facts about the modules so far.
        kinds: class name of each module, by its path.
        name: name of the output, such as `output:encoder`.
        value: the output.
    """
    parsed = TensorName.parse(name)
    if not parsed.call:
        modules.append(
            ModuleFacts(parsed.module, kinds[parsed.module], tuple(value.shape) if value.dtype.kind == "f" else None)
        )


def parameters_of(model: nn.Module, order: Mapping[str, int]) -> Iterator[ParameterFacts]:
    """Yield the facts about each parameter of a model. A tied parameter is included once, with its other names.

    Args:
        model: reference.
        order: position of each module's first call, by the module's path.
    """
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
    """Return the facts about a parameter or buffer.

    Args:
        modules: all modules of the model by path.
        order: position of each module's first call, by the module's path.
        name: dotted name of the tensor in the model.
        value: the tensor.
    """
    path, _, leaf = name.rpartition(".")
    module = modules[path]
    role = _role(module)
    transposed = type(module).__name__ == "Conv1D" and leaf == "weight"  # a class of transformers, from GPT-2's code
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
    """Source of draws with the same dropout masks as :class:`.recorder.Draws`, but with other random numbers.

    If the loss does not change, the numbers have no effect, for example those for a layer drop with rate 0.
    """

    def _generator(self, name: str) -> np.random.Generator:
        """Return the generator of a draw: the same as in the first run for masks, another for numbers."""
        return super()._generator(f"other:{name}" if name.startswith(NUMBERS) else name)


class _InOrder(Draws):
    """Source of draws that records the draws and discrete choices in order.

    Args:
        seed: seed of the draws.

    Attributes:
        made: facts about each draw and choice so far.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.made: list[DrawFacts] = []

    def mask(self, name: str, shape: tuple[int, ...], p: float) -> np.ndarray:
        """Record a dropout mask, and return it: 1 for kept and 0 for dropped elements, uint8.

        Args:
            name: name of the draw.
            shape: shape of the mask.
            p: rate of the dropout.
        """
        self.made.append(DrawFacts(name, list(shape), p))
        return super().mask(name, shape, p)

    def normal(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Record standard normal numbers of a shape by the name of the draw, and return them, float32."""
        self.made.append(DrawFacts(name, list(shape)))
        return super().normal(name, shape)

    def uniform(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Record uniform numbers in [0, 1) of a shape by the name of the draw, and return them, float32."""
        self.made.append(DrawFacts(name, list(shape)))
        return super().uniform(name, shape)

    def positive(self, draw_name: TensorName, x: torch.Tensor) -> torch.Tensor:
        """Record the signs under a ReLU, and return the mask of the positive inputs.

        Args:
            draw_name: name of the signs.
            x: input of the ReLU.
        """
        self.made.append(DrawFacts(str(draw_name), list(x.shape)))
        return super().positive(draw_name, x)

    def choose(
        self, draw_name: TensorName, scores: torch.Tensor, own: torch.Tensor, is_ordered: bool = True
    ) -> torch.Tensor:
        """Record a discrete choice, and return its indices along the last axis.

        Args:
            draw_name: name of the choice.
            scores: scores, with the choice along the last axis.
            own: indices that the module has chosen.
            is_ordered: unused.
        """
        self.made.append(DrawFacts(str(draw_name), list(own.shape)))
        return super().choose(draw_name, scores, own)

    def multinomial(self, name: str, p: torch.Tensor, count: int, replacement: bool) -> torch.Tensor:
        """Record a draw of indices from probabilities along the last axis, and return the indices.

        Args:
            name: name of the draw.
            p: probabilities, (..., number of classes).
            count: number of indices to draw.
            replacement: whether an index may be drawn several times.
        """
        self.made.append(DrawFacts(name, [*p.shape[:-1], count]))
        return super().multinomial(name, p, count, replacement)

    def note_other(self, name: str) -> None:
        """Record a discrete choice that the port cannot replay."""
        self.made.append(DrawFacts(name, []))


# -- functions that only users' modules call -------------------------------------------------------------------------
@contextlib.contextmanager
def changed_functions(recorder: Recorder) -> Iterator[None]:
    """Replace functional ReLU and attention of torch inside the ``with`` block.

    ReLU called as a function takes R64's signs, like the module. Attention is computed step by step, so that its
    dropout is one of the recorded draws.

    Args:
        recorder: recorder of the run.
    """

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
    """Return the attention of a query, as the documentation of ``scaled_dot_product_attention`` defines it.

    The shapes and arguments are the same as in torch: query (..., H, L, E), key (..., H, S, E), value (..., H, S, Ev).
    """
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
    """Replaces narrower dtypes by float64 in calls of torch functions inside the ``with`` block.

    Examples are ``x.to(torch.float32)``, ``positions.float()``, ``softmax(x, dtype=torch.float32)`` and
    ``torch.arange(n, dtype=torch.float32)``.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call a torch function with float64 instead of narrower dtypes."""
        kwargs = kwargs or {}
        if function in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            return args[0].double()
        if function is torch.Tensor.view:  # it reinterprets the bytes of a checkpoint's file and rounds nothing
            return function(*args, **kwargs)
        args = tuple(torch.float64 if one in NARROW else one for one in args) if _has_dtype(args) else args
        if kwargs.get("dtype") in NARROW:
            kwargs = {**kwargs, "dtype": torch.float64}
        return function(*args, **kwargs)


def _has_dtype(arguments: tuple) -> bool:
    """Return whether positional arguments include a dtype with fewer digits than float64."""
    return any(isinstance(one, torch.dtype) and one in NARROW for one in arguments)


#: Class of the step of a pair's reference.
STEP = PairStep
