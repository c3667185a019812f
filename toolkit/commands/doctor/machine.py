"""Check free memory and free disk space, and report the size of the caches."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolkit.commands.doctor.finding import Finding
from toolkit.machine.home import OWN_HOME

#: Free memory in bytes that the two processes of a small model's gate may need.
MIN_MEMORY_BYTES = 2e9
#: Free disk space in bytes that a small run may need.
MIN_DISK_BYTES = 1e9


def check_memory() -> Iterator[Finding]:
    """Check that there is enough available memory for a gate."""
    free, total = available_memory()
    if free is None or total is None:
        yield Finding("memory", "ok", "unknown; this system does not say")
        return
    description = f"{free / 1e9:,.1f} GB of {total / 1e9:,.1f} GB are free"
    if free < MIN_MEMORY_BYTES:
        remedy = "end other programs, or lower train.batch_size, parity.examples and parity.max_memory"
        yield Finding("memory", "warn", f"{description}; the gate runs two processes", remedy)
    else:
        yield Finding("memory", "ok", description)


def available_memory() -> tuple[int | None, int | None]:
    """Return the free and the total memory in bytes, within the limit of a container; None if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        free, total = (int(lines[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    except (OSError, ValueError, LookupError):
        return None, None
    try:  # the limit of a container
        cgroup_dir = Path("/sys/fs/cgroup")
        limit = int((cgroup_dir / "memory.max").read_text())
        used = int((cgroup_dir / "memory.current").read_text())
        return min(free, max(0, limit - used)), min(total, limit)
    except (OSError, ValueError):  # no container, or no limit ("max")
        return free, total


def check_disk() -> Iterator[Finding]:
    """Check that the folders which a run writes to are writable and have enough free space."""
    from toolkit.machine.runtime import MIN_CACHE_BYTES, configured_cache_folder

    folders = {
        "run folders": (Path("runs"), "train.output_dir=FOLDER in another place", MIN_DISK_BYTES),
        "the cache": (configured_cache_folder(), "export TOOLKIT_CACHE=FOLDER in another place", MIN_CACHE_BYTES),
        "temporary files": (Path(tempfile.gettempdir()), "export TMPDIR=FOLDER in another place", MIN_DISK_BYTES),
    }
    for name, (path, remedy, needed_bytes) in folders.items():
        yield _check_folder(name, path.absolute(), remedy, needed_bytes)


def _check_folder(name: str, path: Path, remedy: str, needed_bytes: float) -> Finding:
    """Check that a folder can be written, and that its disk has enough free space.

    Args:
        name: purpose of the folder, for the message.
        path: path of the folder, which need not exist.
        remedy: advice if the check fails.
        needed_bytes: free space that is enough, in bytes; less is a warning, and very little is a fault.
    """
    from toolkit.machine.disk import find_write_obstacle
    from toolkit.machine.runtime import MIN_CACHE_BYTES
    from toolkit.machine.sizes import format_bytes

    if obstacle := find_write_obstacle(path):
        return Finding("disk", "fault", f"{name}, {path}: {obstacle}", remedy)
    existing_parent = next(parent for parent in (path, *path.parents) if parent.exists())
    free = shutil.disk_usage(existing_parent).free
    description = f"{name}, {path}: {format_bytes(free)} are free"
    if free < needed_bytes:
        return Finding("disk", "fault" if free < MIN_CACHE_BYTES else "warn", description, f"make room, or {remedy}")
    return Finding("disk", "ok", description)


def check_caches() -> Iterator[Finding]:
    """Report the path and size of each cache: the toolkit's, and the hub's caches of models and data sets."""
    from toolkit.commands.cache import list_entries
    from toolkit.machine.disk import measure_folder_bytes
    from toolkit.machine.runtime import configured_cache_folder
    from toolkit.machine.sizes import format_bytes

    if home_dir := os.environ.get(OWN_HOME):
        description = f"your home, {home_dir}, cannot be written; what libraries keep there is in {os.environ['HOME']}"
        yield Finding("caches", "warn", description, "export HOME=FOLDER in another place")
    cache_entries = list_entries(configured_cache_folder())
    size = format_bytes(sum(entry.size for entry in cache_entries))
    clear_command = "toolkit cache clear" if cache_entries else ""
    yield Finding(
        "caches",
        "ok",
        f"the toolkit's, {configured_cache_folder()}: {len(cache_entries)} entries, {size}",
        clear_command,
    )
    hub_home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    models_dir = Path(
        os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or hub_home / "hub"
    ).expanduser()
    datasets_dir = Path(os.environ.get("HF_DATASETS_CACHE") or hub_home / "datasets").expanduser()
    for name, path, command in (("models", models_dir, "hf cache delete"), ("data sets", datasets_dir, "")):
        if path.is_dir():
            yield Finding(
                "caches", "ok", f"the hub's {name}, {path}: {format_bytes(measure_folder_bytes(path))}", command
            )
