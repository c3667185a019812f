"""Whether a machine can hold a model that is to be trained: found out before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from models import families
from toolkit.recipe import Recipe

#: Bytes of each parameter while it is trained: the weight, its gradient, AdamW's two moments, in float32.
TRAINED_BYTES = 16
#: Where a GPU holds these, of each weight as it is read.
READ_BYTES = 4


def physical_memory() -> int | None:
    """Bytes of this machine's memory; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def too_large(recipe: Recipe, config: Mapping[str, Any], head: str, on_gpu: bool = False) -> str | None:
    """Why a model cannot be trained in this machine's memory, in a sentence; None where nothing speaks against it.

    A lower bound, which finds slips such as a zero too many; what it lets through may still not fit.

    Args:
        config: Hugging Face's keys, resolved.
        head: of the model.
        on_gpu: it is trained there, and this machine only reads it.
    """
    memory = physical_memory()
    if memory is None:
        return None
    table = families.part(recipe.model.name, "weights").parameters(config, head)
    parameters = sum(math.prod(shape) for shape, _ in table.values())
    schema = families.part(recipe.model.name, "schema")
    weights = parameters * (READ_BYTES if on_gpu else TRAINED_BYTES)
    text = 0 if on_gpu else schema.activation_bytes(config, recipe.data.max_length, head == "causal_lm")
    if weights + text <= memory:
        return None
    return (
        f"{parameters:,} parameters take {_gigabytes(weights)} while they are trained, and one text of "
        f"{recipe.data.max_length} tokens {_gigabytes(text)} at the least; this machine has {_gigabytes(memory)}"
    )


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:,.1f} GB"
