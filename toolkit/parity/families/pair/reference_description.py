"""Describes the parts of a pair's reference before the comparison: parameters, modules, draws, buffers and masks."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from toolkit.parity.exchange import files
from toolkit.parity.exchange.tensor_file import TensorWriter
from toolkit.parity.families.pair.batches import write_batches
from toolkit.parity.families.pair.reference_module import NORMS, build_model, compute_output, exact_buffers_of
from toolkit.parity.families.pair.reference_patches import replace_functions
from toolkit.parity.job import user_code
from toolkit.parity.job.buffers import constant_of, may_be_drawn
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import Description, DrawFacts, ModuleFacts, ParameterFacts
from toolkit.parity.measure.mask_comparisons import MaskFacts, UnreachedFacts
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.measure.square_weights import SquareWeights
from toolkit.parity.reference.buffers import buffers_of, describe_buffers, frozen_parameters
from toolkit.parity.reference.choices import Choices
from toolkit.parity.reference.masks import MaskWatch
from toolkit.parity.reference.points import Keep, keep_nothing, to_numpy
from toolkit.parity.reference.random_functions import recorded_random_functions
from toolkit.parity.reference.recorder import Draws, Recorder, first_tensor, record_lengths

#: Role of a module's ``weight``, with the module classes that have this role.
ROLES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("linear", (nn.Linear, nn.Bilinear)),
    ("embedding", (nn.Embedding,)),
    ("norm", NORMS),
    ("conv", (nn.modules.conv._ConvNd,)),
)
#: Kinds of draws that return random numbers, not masks or indices.
NUMBER_KINDS = ("normal", "uniform")
#: Kinds of tensors that :class:`.recorder.Draws` stores in addition to a discrete choice.
CHOICE_DETAILS = ("input", "scores", "unordered")


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
    model = build_model(source, job)
    with TensorWriter(folder / "reference" / "weights.safetensors") as weights:
        for name, value in model.named_parameters():
            weights.add(name, value.numpy(force=True).astype(np.float32, copy=False))
    buffers = buffers_of(model)
    exact = exact_buffers_of(build_model(source, job, torch.float64), dict(model.named_buffers())) if buffers else {}
    frozen_values = frozen_parameters(model)
    exact_values = {**frozen_values, **{name: to_numpy(exact[name]) for name in buffers}}
    files.write_tensors(folder / "reference" / "buffers.safetensors", exact_values)
    buffers |= frozen_values
    files.write_tensors(folder / "reference" / "buffers-float32.safetensors", buffers)
    other_buffers = buffers
    if may_be_drawn(buffers):
        model_of_other_seed = build_model(source, job, seed=job.seed + 1)
        other_buffers = {**buffers_of(model_of_other_seed), **frozen_parameters(model_of_other_seed)}
    files.wait_for(folder / "batch.safetensors", files.failure_path(folder, "candidate", "describe"))
    batch = {name: torch.from_numpy(value) for name, value in files.read_tensors(folder / "batch.safetensors").items()}
    modules: list[ModuleFacts] = []
    kinds = {name: type(module).__name__ for name, module in model.named_modules(remove_duplicate=False)}
    draws = Draws(job.seed)
    squares = SquareWeights(_gradient_of)
    needs_loss = not job.pair.forward_only
    model.train(needs_loss)
    masks: list[MaskFacts] = []
    unreached_facts: list[UnreachedFacts] = []

    def record_unreplayable_choice(name: str) -> None:
        """Record a discrete choice that the port cannot replay. It has no tensor."""
        draws.tensors[name] = np.empty(())

    def compute_loss(source_of_draws: Draws, keep: Keep) -> float | None:
        """Run the model with a source of draws, and return its loss; None without a loss.

        Args:
            source_of_draws: source of the draws.
            keep: function that receives the name and value of each output.
        """
        recorder = Recorder(model, source_of_draws, keep)
        mask_watch = MaskWatch(lambda: recorder.stack.module)
        with (
            recorder.watch(),
            replace_functions(recorder),
            recorded_random_functions(recorder),
            record_lengths(),
            Choices(recorder, record_unreplayable_choice if source_of_draws is draws else None),
            mask_watch,
            _watch_own_layers(model, squares),
            user_code.running(source),
        ):
            loss = compute_output(source, model, batch, needs_loss).loss
        masks[:], unreached_facts[:] = mask_watch.comparisons.facts(), mask_watch.comparisons.unreached_facts()
        return None if loss is None else float(loss.detach())

    loss = compute_loss(draws, lambda name, value: _append_module_facts(modules, kinds, name, value))
    order = {module.name: number for number, module in reversed(list(enumerate(modules)))}
    layers = dict(model.named_modules())
    buffer_facts = describe_buffers(
        model, buffers, other_buffers, lambda name, value: _describe_tensor(layers, order, name, value)
    )
    draw_facts = describe_draws(draws)
    if draw_facts and loss == compute_loss(OtherNumberDraws(job.seed), keep_nothing):
        draw_facts = [draw for draw in draw_facts if draw.kind not in NUMBER_KINDS]
    transposed_names = squares.with_output_columns
    parameters = [
        replace(facts, transposed=facts.transposed or facts.name in transposed_names)
        for facts in describe_parameters(model, order)
    ]
    return Description(parameters, modules, draw_facts, buffer_facts, masks, unreached_facts)


def describe_draws(draws: Draws) -> list[DrawFacts]:
    """Return the facts about the random draws and discrete choices of a run, in the order of execution."""
    return [
        DrawFacts(name, list(value.shape), draws.rates.get(name))
        for name, value in draws.tensors.items()
        if TensorName.parse(name).kind not in CHOICE_DETAILS
    ]


class OtherNumberDraws(Draws):
    """Source of draws with the same dropout masks as :class:`.recorder.Draws`, but with other random numbers.

    If the loss does not change, the numbers have no effect, for example those for a layer drop with rate 0.
    """

    def _generator(self, name: str) -> np.random.Generator:
        """Return the generator of a draw: the same as in the first run for masks, another for numbers."""
        return super()._generator(f"other:{name}" if name.startswith(NUMBER_KINDS) else name)


@contextlib.contextmanager
def _watch_own_layers(model: nn.Module, squares: SquareWeights) -> Iterator[None]:
    """Let ``squares`` examine the weights of each layer of the user's own class inside the ``with`` block.

    Args:
        model: reference.
        squares: collector of square weights whose columns are output channels.
    """

    def examine_output(path: str, module: nn.Module, output: Any) -> None:
        """Examine the trained weights of a module after its call, given its path and output."""
        tensor = first_tensor(output)
        if tensor is not None and tensor.requires_grad and tensor.is_floating_point():
            weights = {name: value for name, value in module.named_parameters(recurse=False) if value.requires_grad}
            squares.examine_layer(path, weights, tensor)

    handles = [
        module.register_forward_hook(lambda module, _, output, path=path: examine_output(path, module, output))
        for path, module in model.named_modules()
        if _role(module) == "other" and type(module).__name__ != "Conv1D"
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _gradient_of(output: torch.Tensor, index: int, weight: torch.Tensor) -> np.ndarray | None:
    """Return the gradient of one element of an output for a weight; None without a dependence.

    Args:
        output: output of a module.
        index: index of the element in the flattened output.
        weight: weight of the module.
    """
    (gradient,) = torch.autograd.grad(output.flatten()[index], weight, retain_graph=True, allow_unused=True)
    return None if gradient is None else to_numpy(gradient)


def _role(module: nn.Module) -> str:
    """Return the role of a module's ``weight`` (:data:`ROLES`); `other` for any other module class."""
    return next((role for role, kinds in ROLES if isinstance(module, kinds)), "other")


def _append_module_facts(modules: list[ModuleFacts], kinds: Mapping[str, str], name: str, value: np.ndarray) -> None:
    """Append the facts about a module to a list, given the name and value of its output.

    Later calls of the same module within its parent are ignored.

    Args:
        modules: facts about the modules so far.
        kinds: class name of each module, by its path.
        name: name of the output, such as `output:encoder`.
        value: the output.
    """
    output_name = TensorName.parse(name)
    if not output_name.call:
        modules.append(
            ModuleFacts(
                output_name.module, kinds[output_name.module], tuple(value.shape) if value.dtype.kind == "f" else None
            )
        )


def describe_parameters(model: nn.Module, order: Mapping[str, int]) -> Iterator[ParameterFacts]:
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
        yield replace(_describe_tensor(modules, order, name, parameter), tied=others, constant=constant)


def _describe_tensor(
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
    is_transposed = type(module).__name__ == "Conv1D" and leaf == "weight"  # a class of transformers, from GPT-2's code
    shape = list(value.shape)
    return ParameterFacts(
        name=name,
        shape=shape[::-1] if is_transposed else shape,
        role="linear" if is_transposed else role,
        transposed=is_transposed,
        module=path,
        kind=type(module).__name__,
        order=order.get(path),
    )
