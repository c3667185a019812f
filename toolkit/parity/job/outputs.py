"""What a model or a module of the user's returns: a tensor, a tuple, a mapping, a dataclass, a library's own output."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def parts_of(output: Any) -> Iterable[Any]:
    """Return the parts of an output in their order; nothing of what has none."""
    if isinstance(output, Mapping):
        return list(output.values())
    if dataclasses.is_dataclass(output) and not isinstance(output, type):
        return [getattr(output, field.name) for field in dataclasses.fields(output)]
    if hasattr(output, "to_tuple"):
        return output.to_tuple()
    return output if isinstance(output, (tuple, list)) else ()


def part(output: Any, name: str) -> Any:
    """Return the part of an output by its name; None if it has none."""
    return output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)


def loss_and_logits(output: Any, is_tensor: Callable[[Any], bool]) -> tuple[Any, Any]:
    """Return the loss and the logits of an output, each None if it has none: those called so; else a scalar that comes
    first, and the tensor after it; else the first tensor, which are logits."""
    if is_tensor(output):
        return (output, None) if output.ndim == 0 else (None, output)
    loss, logits = (one if is_tensor(one) else None for one in (part(output, "loss"), part(output, "logits")))
    if loss is not None or logits is not None:
        return loss, logits
    first, second, *_ = [*(one for one in parts_of(output) if is_tensor(one)), None, None]
    return (first, second) if first is not None and first.ndim == 0 else (None, first)
