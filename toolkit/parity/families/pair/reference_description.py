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
from toolkit.parity.families.pair.reference_draws import NUMBERS, InOrder, OtherNumbers
from toolkit.parity.families.pair.reference_module import NORMS, built, computed, exact_buffers
from toolkit.parity.families.pair.reference_patches import changed_functions
from toolkit.parity.job import user_code
from toolkit.parity.job.buffers import constant_of, may_be_drawn
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import Description, ModuleFacts, ParameterFacts
from toolkit.parity.measure.mask_comparisons import MaskFacts
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
    draws = InOrder(job.seed)
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
    if draws.made and loss == loss_with(OtherNumbers(job.seed), keep_nothing):
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
