"""Memory of a recipe's run, for training and the gate before it, as far as this machine knows its model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from models import families
from models.operations import kernels
from models.port.lora import maps, parameters
from toolkit.errors import ToolkitError
from toolkit.finetune.model_config import head_of, known_model, lora_of, port_settings
from toolkit.finetune.training_memory import TrainingMemory, amount, training_memory
from toolkit.machine import runtime
from toolkit.machine.memory import container_limit, physical_memory, swap_memory
from toolkit.recipe.recipe import Recipe

AUTO = "auto"
#: Share of memory that ``model.backward: auto`` fills: estimates err by up to a third, and a machine has other work.
FILLED = 0.5
#: Share of an estimate that training takes at the least.
LEAST = 0.75


def memory_of_recipe(recipe: Recipe) -> list[str]:
    """A line each on the memory of training and of the gate, without data; empty if the model is not here yet."""
    if (config_and_length := known_model(recipe)) is None:
        return []
    config, length = config_and_length
    backward, lines = None, []
    if recipe.model.backward == AUTO:
        backward, said = _auto(recipe, config, length)
        lines.append(said)
    training = training_of(recipe, config, length, backward=backward)
    where = " of the GPU's memory" if recipe.runtime.device == "gpu" else ""
    shared = ", shared by the processes" if recipe.train.sharding else ""
    lines.append(f"training takes {training.text}{where}{shared}; its examples are not counted")
    return lines if recipe.parity.device == "gpu" else [*lines, f"the gate takes {gate_of(recipe, config, length)}"]


def _auto(recipe: Recipe, config: Mapping[str, Any], length: int) -> tuple[str, str]:
    """Return the choice of ``model.backward: auto`` on this machine, and a sentence on it. Only Paddle knows a GPU's
    memory, so for a GPU it says how much autograd needs."""
    if recipe.runtime.device != "gpu":
        choice = choose_backward(recipe, config, length)
        return choice.backward, str(choice)
    needed = training_of(recipe, config, length, backward="autograd").total / FILLED
    return "reversible", f"model.backward auto: autograd on a GPU with {amount(needed)}, reversible on a smaller one"


@dataclass(frozen=True)
class Choice:
    """The choice of ``model.backward: auto``.

    Attributes:
        backward: ``autograd``, or ``reversible`` where that would not fit.
        taken: bytes that autograd takes.
        there: bytes of device memory for each process; None if unknown.
        where: the device, in words.
    """

    backward: str
    taken: float
    there: float | None
    where: str

    def __str__(self) -> str:
        of = f"{amount(self.there)} of {self.where}" if self.there is not None else f"memory of {self.where}, unknown,"
        fits = "fits into" if self.backward == "autograd" else "does not fit into"
        return f"model.backward auto: {self.backward}, since autograd's {amount(self.taken)} {fits} half of the {of}"


def choose_backward(
    recipe: Recipe, config: Mapping[str, Any], length: int, device: str | None = None, processes: int = 1
) -> Choice:
    """Choose autograd, which is faster, where half of the memory holds it; else, or if it is unknown, reversible.

    Args:
        config, length, device: as of :func:`training_of`.
        processes: of this run on this machine; those on a CPU share its memory.
    """
    device = device or recipe.runtime.device
    taken = training_of(recipe, config, length, device, backward="autograd").total
    there = memory_there(device)
    if there is not None and device != "gpu":
        there /= processes
    fits = there is not None and taken <= FILLED * there
    where = "the GPU" if device == "gpu" else "this machine" if processes == 1 else "each process"
    return Choice("autograd" if fits else "reversible", taken, there, where)


def training_of(
    recipe: Recipe, config: Mapping[str, Any], length: int, device: str | None = None, backward: str | None = None
) -> TrainingMemory:
    """Memory of a process of a recipe's training.

    Args:
        config: resolved, of the model that trains.
        length: tokens that texts are padded to.
        device: of the run; that of the recipe if absent.
        backward: in the place of the recipe's.
    """
    train = recipe.train
    return training_memory(
        recipe.model.name,
        config,
        head_of(recipe),
        length,
        train.batch_size,
        backward or recipe.model.backward or ("recompute" if train.recompute else "autograd"),
        **_adapted(recipe, config),
        clipped=train.max_grad_norm is not None,
        bfloat16=train.precision == "bfloat16",
        on_gpu=(device or recipe.runtime.device) == "gpu",
        compiled=runtime.chosen_kernels() == kernels.COMPILED,
        processes=runtime.processes(),
        sharding=train.sharding,
        optimizer=train.optimizer,
    )


def _adapted(recipe: Recipe, config: Mapping[str, Any]) -> dict[str, int]:
    """For an adapted model, its number of trained parameters (the adapter's and a new head's), and the size of the
    largest matrix that the adapter is added to; empty for others."""
    table = families.part(recipe.model.name, "weights").parameters(config, head_of(recipe))
    lora = lora_of(recipe, config, () if recipe.model.weights else list(table))
    if lora is None:
        return {}
    trained = [*parameters(table, lora).values(), *(table[name] for name in lora.whole)]
    changed = [one for name, one in maps(table).items() if lora.adapts(name)]
    return {
        "trained": sum(math.prod(one.shape) for one in trained),
        "merged": max(math.prod(one.shape) for one in changed),
    }


def gate_of(recipe: Recipe, config: Mapping[str, Any], length: int) -> str:
    """Memory of both of the gate's workers, in words; also how much of the texts fits, if not all."""
    from toolkit.parity import GateRequest, gate_memory

    head = head_of(recipe)
    shapes = families.part(recipe.model.name, "weights").parameters(config, head)
    ids = np.broadcast_to(np.int8(1), (recipe.parity.examples, length))  # only shapes count: nothing is made of them
    request = GateRequest(
        model=recipe.model.name,
        head=head,
        config=dict(config),
        weights={name: np.broadcast_to(np.int8(0), shape) for name, (shape, _) in shapes.items()},
        batch={"input_ids": ids, "attention_mask": ids},
        port=port_settings(recipe),
        length=recipe.parity.length,
        max_memory=recipe.parity.max_memory,
        widened=True,
    )
    try:
        return gate_memory(request)
    except ToolkitError as problem:
        return f"more than there is: {problem}"


def unfit_here(recipe: Recipe) -> list[str]:
    """Say why a recipe would not train on this machine, a line each, as far as that shows without Paddle and data."""
    device, obstacle = recipe.runtime.device, runtime.gpu_obstacle()
    if device == "gpu" and obstacle is not None:
        return [f"runtime.device is gpu, and {obstacle}"]
    if (device != "cpu" and obstacle is None) or (config_and_length := known_model(recipe)) is None:
        return []
    config, length = config_and_length
    backward = choose_backward(recipe, config, length).backward if recipe.model.backward == AUTO else None
    total, there = training_of(recipe, config, length, backward=backward).total, memory_there("cpu")
    if there is not None and total > there:
        return [f"training takes about {amount(total)}, and it has {amount(there)}{_swap()}"]
    return []


def _swap() -> str:
    return f" and {amount(swap)} of swap" if (swap := swap_memory()) else " and no swap"


def missing_memory(recipe: Recipe, config: Any, length: int, device: str, examples: int) -> str | None:
    """Say why training may not fit, and what would take less; None if it fits or the memory is unknown.

    Args:
        config: of the port that trains.
        length: tokens that texts are padded to.
        examples: number of training examples; a batch has no more.

    Raises:
        UserError: it needs more than memory and swap have together, even if the estimate is too large.
    """
    resolved = families.part(recipe.model.name, "schema").resolve(config.to_hf())
    batch_size = min(recipe.train.batch_size, examples)
    small = recipe.with_values({"train.batch_size": batch_size})
    training, there = training_of(small, resolved, length, device), memory_there(device)
    if there is None or training.total <= there:
        return None
    ways = []
    if recipe.train.batch_size > 1:
        ways.append("a smaller train.batch_size with more train.gradient_accumulation_steps")
    if recipe.model.backward == "autograd":
        ways.append("model.backward: reversible")
    if recipe.train.recompute is False:
        ways.append("train.recompute: true")
    if recipe.train.lora is None and recipe.model.weights is not None:
        ways.append("train.lora")
    if recipe.train.sharding is None and runtime.processes() > 1:
        ways.append("train.sharding: stage2")
    less = f"; less: {', '.join(ways)}" if ways else ""
    what = "the GPU" if device == "gpu" else "this machine"
    if device != "gpu" and LEAST * training.total > there + swap_memory():
        key = "train.batch_size" if batch_size > 1 else "data.max_length"
        has = f"this machine has {amount(there)}{_swap()}"
        batch_description = f"{batch_size:,} texts of {length:,} tokens at once"
        raise recipe.error(key, f"{batch_description} take {training.text}; {has}{less or '; set a smaller'}")
    return f"training takes {training.text}; {what} has {amount(there)}, and may kill the run without a message{less}"


def memory_there(device: str) -> float | None:
    """Bytes of memory of a run's device, within its container's limit; None if unknown."""
    if device != "gpu":
        return min((size for size in (physical_memory(), container_limit()) if size is not None), default=None)
    import paddle

    total = getattr(paddle.device.cuda.get_device_properties(), "total_memory", None)
    return None if total is None or not math.isfinite(total) else float(total)
