"""The memory of this machine."""

from __future__ import annotations

import os
from pathlib import Path


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
