"""Memory of a recipe's run, for training and the gate before it, as far as this machine knows its model."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from models import families
from models.operations import kernels
from models.port.lora import adapter_parameters, linear_layers
from toolkit.errors import ToolkitError
from toolkit.finetune.model_config import head_of, known_model, lora_of, port_settings
from toolkit.machine import runtime
from toolkit.machine.memory import container_limit, physical_memory, swap_memory
from toolkit.machine.model_memory import TrainingMemory, training_memory
from toolkit.machine.sizes import format_bytes
from toolkit.recipe.recipe import Recipe

AUTO = "auto"
#: Maximum share of memory for autograd with ``model.backward: auto``: estimates err by up to a third, and other
#: programs need memory too.
MAX_FILLED_SHARE = 0.5
#: Minimum share of an estimate that training really takes.
MIN_ESTIMATE_SHARE = 0.75


def memory_of_recipe(recipe: Recipe) -> list[str]:
    """Return a line each on the memory of training and of the gate, or nothing if the model is not available."""
    if (config_and_length := known_model(recipe)) is None:
        return []
    config, length = config_and_length
    backward, lines = None, []
    if recipe.model.backward == AUTO:
        backward, choice_text = _choose_for_recipe(recipe, config, length)
        lines.append(choice_text)
    training = training_of(recipe, config, length, backward=backward)
    device_note = " of the GPU's memory" if recipe.runtime.device == "gpu" else ""
    sharding_note = ", shared by the processes" if recipe.train.sharding else ""
    lines.append(f"training takes {training.text}{device_note}{sharding_note}; its examples are not counted")
    if recipe.parity.device != "gpu":
        lines.append(f"the gate takes {describe_gate_memory(recipe, config, length)}")
    return lines


def _choose_for_recipe(recipe: Recipe, config: Mapping[str, Any], length: int) -> tuple[str, str]:
    """Return the choice of ``model.backward: auto`` on this machine, and a sentence on it.

    Only Paddle knows a GPU's memory, so for a GPU the sentence contains the memory that autograd needs.
    """
    if recipe.runtime.device != "gpu":
        choice = choose_backward(recipe, config, length)
        return choice.backward, str(choice)
    required_bytes = training_of(recipe, config, length, backward="autograd").total / MAX_FILLED_SHARE
    return (
        "reversible",
        f"model.backward auto: autograd on a GPU with {format_bytes(required_bytes)}, reversible on a smaller one",
    )


@dataclass(frozen=True)
class Choice:
    """The choice of ``model.backward: auto``.

    Attributes:
        backward: ``autograd``, or ``reversible`` if autograd does not fit.
        required_bytes: memory that autograd needs, in bytes.
        available_bytes: device memory for each process, in bytes; None if unknown.
        device_name: name of the device in messages.
    """

    backward: str
    required_bytes: float
    available_bytes: float | None
    device_name: str

    def __str__(self) -> str:
        of = (
            f"{format_bytes(self.available_bytes)} of {self.device_name}"
            if self.available_bytes is not None
            else f"memory of {self.device_name}, unknown,"
        )
        fits = "fits into" if self.backward == "autograd" else "does not fit into"
        return (
            f"model.backward auto: {self.backward}, "
            f"since autograd's {format_bytes(self.required_bytes)} {fits} half of the {of}"
        )


def choose_backward(
    recipe: Recipe, config: Mapping[str, Any], length: int, device: str | None = None, processes: int = 1
) -> Choice:
    """Choose autograd, which is faster, if it fits into half of the memory, and reversible otherwise.

    Args:
        recipe: recipe of the run.
        config: configuration of the model.
        length: number of tokens of each text.
        device: ``cpu`` or ``gpu``; None for the recipe's device.
        processes: number of processes on this machine; on a CPU they share its memory.
    """
    device = device or recipe.runtime.device
    required_bytes = training_of(recipe, config, length, device, backward="autograd").total
    available_bytes = memory_there(device)
    if available_bytes is not None and device != "gpu":
        available_bytes /= processes
    fits = available_bytes is not None and required_bytes <= MAX_FILLED_SHARE * available_bytes
    device_name = "the GPU" if device == "gpu" else "this machine" if processes == 1 else "each process"
    return Choice("autograd" if fits else "reversible", required_bytes, available_bytes, device_name)


def training_of(
    recipe: Recipe, config: Mapping[str, Any], length: int, device: str | None = None, backward: str | None = None
) -> TrainingMemory:
    """Estimate the memory of a process of a recipe's training.

    Args:
        recipe: recipe of the run.
        config: resolved configuration of the model that trains.
        length: number of tokens that texts are padded to.
        device: device of the run; None for the recipe's.
        backward: backward of the run; None for the recipe's.
    """
    train = recipe.train
    return training_memory(
        recipe.model.name,
        config,
        head_of(recipe),
        length,
        train.batch_size,
        backward or recipe.model.backward or ("recompute" if train.recompute else "autograd"),
        **_adapter_sizes(recipe, config),
        clips_gradients=train.max_grad_norm is not None,
        bfloat16=train.precision == "bfloat16",
        on_gpu=(device or recipe.runtime.device) == "gpu",
        uses_compiled_loops=runtime.choose_kernels() == kernels.COMPILED,
        processes=runtime.num_processes(),
        sharding=train.sharding,
        optimizer=train.optimizer,
    )


def _adapter_sizes(recipe: Recipe, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the number of trained parameters of an adapted model, and the size of its largest adapted matrix.

    They are ``num_trained`` and ``num_merged``. The trained parameters are the adapter and a new head. The result is
    empty for a model without an adapter.

    Args:
        recipe: recipe of the run.
        config: resolved configuration.
    """
    parameter_table = families.part(recipe.model.name, "weights").parameters(config, head_of(recipe))
    lora = lora_of(recipe, config, () if recipe.model.weights else list(parameter_table))
    if lora is None:
        return {}
    trained_parameters = [
        *adapter_parameters(parameter_table, lora).values(),
        *(parameter_table[name] for name in lora.whole),
    ]
    adapted_parameters = [
        parameter for name, parameter in linear_layers(parameter_table).items() if lora.is_target(name)
    ]
    return {
        "num_trained": sum(math.prod(parameter.shape) for parameter in trained_parameters),
        "num_merged": max(math.prod(parameter.shape) for parameter in adapted_parameters),
    }


def describe_gate_memory(recipe: Recipe, config: Mapping[str, Any], length: int) -> str:
    """Return a text for `recipe check`: the memory of the gate's two processes for this recipe.

    If the gate would need more memory than allowed for whole texts, the text names the length that it compares.

    Args:
        recipe: recipe of the run.
        config: resolved configuration of the model.
        length: number of tokens of each example.
    """
    from toolkit.parity import GateRequest, gate_memory

    head = head_of(recipe)
    shapes = families.part(recipe.model.name, "weights").parameters(config, head)
    ids = np.broadcast_to(np.int8(1), (recipe.parity.examples, length))  # only the shape is used
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
    device, obstacle = recipe.runtime.device, runtime.find_gpu_obstacle()
    if device == "gpu" and obstacle is not None:
        return [f"runtime.device is gpu, and {obstacle}"]
    if (device != "cpu" and obstacle is None) or (config_and_length := known_model(recipe)) is None:
        return []
    config, length = config_and_length
    backward = choose_backward(recipe, config, length).backward if recipe.model.backward == AUTO else None
    total, there = training_of(recipe, config, length, backward=backward).total, memory_there("cpu")
    if there is not None and total > there:
        return [f"training takes about {format_bytes(total)}, and it has {format_bytes(there)}{_swap()}"]
    return []


def _swap() -> str:
    """Return the amount of swap memory as words that follow the amount of memory."""
    return f" and {format_bytes(swap)} of swap" if (swap := swap_memory()) else " and no swap"


def missing_memory(recipe: Recipe, config: Any, length: int, device: str, examples: int) -> str | None:
    """Return why training may not fit, and a remedy; None if it fits or the memory is unknown.

    Args:
        recipe: recipe of the run.
        config: configuration of the port that trains.
        length: number of tokens that texts are padded to.
        device: device of the run.
        examples: number of training examples; a batch has no more.

    Raises:
        UserError: training needs more than memory and swap together, even if the estimate is too large.
    """
    config_values = families.part(recipe.model.name, "schema").resolve(config.to_hf())
    batch_size = min(recipe.train.batch_size, examples)
    limited_recipe = recipe.with_values({"train.batch_size": batch_size})
    training, available_bytes = training_of(limited_recipe, config_values, length, device), memory_there(device)
    if available_bytes is None or training.total <= available_bytes:
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
    if recipe.train.sharding is None and runtime.num_processes() > 1:
        ways.append("train.sharding: stage2")
    less = f"; less: {', '.join(ways)}" if ways else ""
    what = "the GPU" if device == "gpu" else "this machine"
    if device != "gpu" and MIN_ESTIMATE_SHARE * training.total > available_bytes + swap_memory():
        key = "train.batch_size" if batch_size > 1 else "data.max_length"
        has = f"this machine has {format_bytes(available_bytes)}{_swap()}"
        batch_description = f"{batch_size:,} texts of {length:,} tokens at once"
        raise recipe.error(key, f"{batch_description} take {training.text}; {has}{less or '; set a smaller'}")
    return (
        f"training takes {training.text}; {what} has {format_bytes(available_bytes)}, "
        f"and may kill the run without a message{less}"
    )


def memory_there(device: str) -> float | None:
    """Bytes of memory of a run's device, within its container's limit; None if unknown."""
    if device != "gpu":
        return min((size for size in (physical_memory(), container_limit()) if size is not None), default=None)
    import paddle

    total = getattr(paddle.device.cuda.get_device_properties(), "total_memory", None)
    return None if total is None or not math.isfinite(total) else float(total)
