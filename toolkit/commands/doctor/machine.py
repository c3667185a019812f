"""Check free memory and disk, and what caches take of the disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolkit.commands.doctor.finding import Finding
from toolkit.machine.home import OWN

#: Bytes of free memory below which the two processes of a small model's gate may not fit.
LEAST_MEMORY = 2e9
#: Bytes of free disk below which a small run may not fit.
LEAST_DISK = 1e9


def check_memory() -> Iterator[Finding]:
    """Check the available and the total memory."""
    free, whole = available_memory()
    if free is None or whole is None:
        yield Finding("memory", "ok", "unknown; this system does not say")
        return
    what = f"{free / 1e9:,.1f} GB of {whole / 1e9:,.1f} GB are free"
    if free < LEAST_MEMORY:
        mend = "end other programs, or lower train.batch_size, parity.examples and parity.max_memory"
        yield Finding("memory", "warn", f"{what}; the gate runs two processes", mend)
    else:
        yield Finding("memory", "ok", what)


def available_memory() -> tuple[int | None, int | None]:
    """Return the bytes of free and of total memory, within a container's limit; None if unknown."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            lines = dict(line.split(":", 1) for line in file)
        free, whole = (int(lines[key].split()[0]) * 1024 for key in ("MemAvailable", "MemTotal"))
    except (OSError, ValueError, LookupError):
        return None, None
    try:  # a container's
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        return min(free, max(0, limit - used)), min(whole, limit)
    except (OSError, ValueError):  # there is none, or "max"
        return free, whole


def check_disk() -> Iterator[Finding]:
    """Check that the places a run writes to are writable and have room."""
    from toolkit.machine.runtime import CACHE_ROOM, cache_place

    places = {
        "run folders": (Path("runs"), "train.output_dir=FOLDER in another place", LEAST_DISK),
        "the cache": (cache_place(), "export TOOLKIT_CACHE=FOLDER in another place", CACHE_ROOM),
        "temporary files": (Path(tempfile.gettempdir()), "export TMPDIR=FOLDER in another place", LEAST_DISK),
    }
    for name, (place, elsewhere, needed) in places.items():
        yield _disk(name, place.absolute(), elsewhere, needed)


def _disk(name: str, place: Path, elsewhere: str, needed: float) -> Finding:
    from toolkit.machine.disk import check_writable, megabytes
    from toolkit.machine.runtime import CACHE_ROOM

    if refused := check_writable(place):
        return Finding("disk", "fault", f"{name}, {place}: {refused}", elsewhere)
    there = next(parent for parent in (place, *place.parents) if parent.exists())
    free = shutil.disk_usage(there).free
    what = f"{name}, {place}: {megabytes(free)} are free"
    if free < needed:
        return Finding("disk", "fault" if free < CACHE_ROOM else "warn", what, f"make room, or {elsewhere}")
    return Finding("disk", "ok", what)


def check_caches() -> Iterator[Finding]:
    """Report each cache's place and size: the toolkit's, and the hub's of models and data sets."""
    from toolkit.commands.cache import list_entries
    from toolkit.machine.disk import megabytes, size_of
    from toolkit.machine.runtime import cache_place

    if own := os.environ.get(OWN):
        what = f"your home, {own}, cannot be written; what libraries keep there is in {os.environ['HOME']}"
        yield Finding("caches", "warn", what, "export HOME=FOLDER in another place")
    found = list_entries(cache_place())
    size = megabytes(sum(entry.size for entry in found))
    clear = "toolkit cache clear" if found else ""
    yield Finding("caches", "ok", f"the toolkit's, {cache_place()}: {len(found)} entries, {size}", clear)
    home = Path(os.environ.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE") or home / "hub").expanduser()
    datasets = Path(os.environ.get("HF_DATASETS_CACHE") or home / "datasets").expanduser()
    for name, place, command in (("models", hub, "hf cache delete"), ("data sets", datasets, "")):
        if place.is_dir():
            yield Finding("caches", "ok", f"the hub's {name}, {place}: {megabytes(size_of(place))}", command)
