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
#: Bytes of each weight in main memory while a GPU holds the trained weights.
READ_BYTES = 4
#: Bytes of each parameter while the gate compares a whole model in each of two processes.
COMPARED_BYTES = 60


def physical_memory() -> int | None:
    """Return the bytes of this machine's memory; None if the system does not report it."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def container_limit() -> int | None:
    """Return the bytes of memory that the container of this process may use; None without a container or a limit."""
    for limit_file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return int(Path(limit_file).read_text())
        except (OSError, ValueError):  # not there, or "max"
            continue
    return None


def swap_memory() -> int:
    """Return the bytes of this machine's swap that this process may use; 0 if the system does not report it."""
    try:
        memory_lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        swap_bytes = int(memory_lines["SwapTotal"].split()[0]) * 1024
    except (OSError, ValueError, KeyError):
        return 0
    try:
        return min(swap_bytes, int(Path("/sys/fs/cgroup/memory.swap.max").read_text()))
    except (OSError, ValueError):  # not there, or "max"
        return swap_bytes


def count_parameters(model: str, config: Mapping[str, Any], head: str) -> int:
    """Count the parameters of a model that is described by a resolved configuration."""
    return sum(math.prod(shape) for shape, _ in families.part(model, "weights").parameters(config, head).values())


def explain_too_large(
    model: str,
    config: Mapping[str, Any],
    head: str,
    length: int,
    num_texts: int = 1,
    bytes_per_parameter: int = TRAINED_BYTES,
) -> str | None:
    """Return in a sentence why this machine's memory cannot hold a model; None if it may fit.

    The estimate is a lower bound that finds typing errors such as an additional zero; a model may still not fit.

    Args:
        model: name of the model family.
        config: resolved configuration with Hugging Face's keys.
        head: name of the model's head.
        length: number of tokens of each text.
        num_texts: number of texts in a batch; 0 if a GPU computes them.
        bytes_per_parameter: bytes of memory for each parameter.
    """
    memory_bytes = physical_memory()
    if memory_bytes is None:
        return None
    num_parameters = count_parameters(model, config, head)
    activation_bytes = num_texts * families.part(model, "schema").activation_bytes(config, length, head == "causal_lm")
    if num_parameters * bytes_per_parameter + activation_bytes <= memory_bytes:
        return None
    return (
        f"{num_parameters:,} parameters take {format_gigabytes(num_parameters * bytes_per_parameter)}, and what is "
        f"computed of {num_texts} texts of {length} tokens {format_gigabytes(activation_bytes)} at the least; this "
        f"machine has {format_gigabytes(memory_bytes)}"
    )


def format_gigabytes(num_bytes: float) -> str:
    """Format a number of bytes in GB, with one decimal."""
    return f"{num_bytes / 1e9:,.1f} GB"
