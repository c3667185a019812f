"""Checks whether a machine can hold a model to be trained, before anything is allocated."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models import families

#: Bytes of each parameter while it is trained: the weight, its gradient, AdamW's two moments, in float32.
TRAINED_BYTES = 16
#: Bytes of each weight as read, if a GPU holds these.
READ_BYTES = 4
#: The same while the gate compares a whole model, in each of two processes.
COMPARED_BYTES = 60


def physical_memory() -> int | None:
    """Return the bytes of this machine's memory; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def container_limit() -> int | None:
    """Bytes of memory that the container of this process may use; None where there is none, or no limit."""
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(file).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return None


def swap_memory() -> int:
    """Return the bytes of this machine's swap that this process may use; 0 if the system does not report it."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        swap = int(lines["SwapTotal"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return 0
    try:
        return min(swap, int(Path("/sys/fs/cgroup/memory.swap.max").read_text()))
    except (OSError, ValueError):  # not there, or "max"
        return swap


def parameters_of(model: str, config: Mapping[str, Any], head: str) -> int:
    """Count the parameters of a resolved configuration's model."""
    return sum(math.prod(shape) for shape, _ in families.part(model, "weights").parameters(config, head).values())


def too_large(
    model: str, config: Mapping[str, Any], head: str, length: int, texts: int = 1, bytes_each: int = TRAINED_BYTES
) -> str | None:
    """Explain in a sentence why this machine's memory cannot hold a model; None if nothing rules it out.

    A lower bound, which finds slips such as a zero too many; what it lets through may still not fit.

    Args:
        config: Hugging Face's keys, resolved.
        texts: number computed at once; 0 if a GPU computes them.
    """
    memory = physical_memory()
    if memory is None:
        return None
    parameters = parameters_of(model, config, head)
    activations = texts * families.part(model, "schema").activation_bytes(config, length, head == "causal_lm")
    if parameters * bytes_each + activations <= memory:
        return None
    return (
        f"{parameters:,} parameters take {gigabytes(parameters * bytes_each)}, and what is computed of {texts} "
        f"texts of {length} tokens {gigabytes(activations)} at the least; this machine has {gigabytes(memory)}"
    )


def gigabytes(count: float) -> str:
    """Format a number of bytes."""
    return f"{count / 1e9:,.1f} GB"
