"""Show the size of the cache, and clear it: only the toolkit's own entries, and none that a run is using.

The cache's folder may hold other things, as ``.cache`` of a home folder does. So a folder is an entry only if it
names the ``KIND/KEY`` where it lies. Everything else stays, and no symbolic link is followed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.files.cache import KEY, NAME, UNFINISHED, remove_unused
from toolkit.files.ownership import TEMPORARY
from toolkit.files.whole import MANIFEST
from toolkit.machine.disk import megabytes, size_of

if TYPE_CHECKING:
    from rich.console import Console

#: Folders of the cache, by kind of entry.
KINDS = ("parity", "rows", "tokenizers", "tokens", "weights")
#: Age in seconds at which an unfinished entry is removed; a younger one may still be written.
UNFINISHED_SECONDS = 3600.0
DAY = 86400.0


@dataclass(frozen=True)
class Entry:
    """Something of ours in the cache.

    Attributes:
        kind: of :data:`KINDS`.
        path: its folder.
        size: bytes of its files.
        used: when it was last read or written, in seconds since the epoch.
    """

    kind: str
    path: Path
    size: int
    used: float


@dataclass
class Cleared:
    """Result of a clearing.

    Attributes:
        removed: the entries that are gone.
        in_use: those that a process is using, which stay.
        failed: path -> why it could not be removed.
    """

    removed: list[Entry] = field(default_factory=list)
    in_use: list[Entry] = field(default_factory=list)
    failed: dict[Path, str] = field(default_factory=dict)


def entries(place: Path) -> list[Entry]:
    """Return the cache entries in a folder; none if there is no such folder."""
    return sorted(_entries(place), key=lambda entry: (entry.kind, entry.path.name))


def clear(place: Path, older_than: float | None = None) -> Cleared:
    """Remove the entries of the cache in a folder.

    Args:
        place: the cache's folder, which stays.
        older_than: remove only those not used for this many days.
    """
    done, now = Cleared(), time.time()
    for entry in entries(place):
        if older_than is not None and now - entry.used < older_than * DAY:
            continue
        try:
            (done.removed if remove_unused(entry.path) else done.in_use).append(entry)
        except OSError as error:
            done.failed[entry.path] = os.strerror(error.errno or 0)
    return done


def show(place: Path, console: Console) -> None:
    """Print a row for each kind of entry, and the command that clears them."""
    from rich.table import Table

    found = entries(place)
    console.print(f"{place}: {_count(found)}", highlight=False, soft_wrap=True)
    if not found:
        return
    table = Table("kind", "entries", "size", "last used")
    for kind in KINDS:
        if of_kind := [entry for entry in found if entry.kind == kind]:
            last = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(entry.used for entry in of_kind)))
            table.add_row(kind, str(len(of_kind)), megabytes(sum(entry.size for entry in of_kind)), last)
    console.print(table)
    console.print("toolkit cache clear [--older-than DAYS] removes them", highlight=False)


def report_cleared(done: Cleared, place: Path, console: Console) -> int:
    """Print what was freed and what was left; return the exit status, 1 if an entry could not be removed."""
    console.print(f"{place}: removed {_count(done.removed)}", highlight=False, soft_wrap=True)
    if done.in_use:
        console.print(f"a run is using {_count(done.in_use)}, which stay", highlight=False)
    for path, reason in done.failed.items():
        console.print(f"{path}: cannot be removed: {reason}", highlight=False, soft_wrap=True)
    return 1 if done.failed else 0


def _count(found: list[Entry]) -> str:
    size = megabytes(sum(entry.size for entry in found))
    return f"{len(found)} {'entry' if len(found) == 1 else 'entries'}, {size}"


def _entries(place: Path) -> Iterator[Entry]:
    for kind in KINDS:
        for path in _folders(place / kind):
            if path.name.startswith(TEMPORARY):
                if _is_left(path):
                    yield Entry(kind, path, size_of(path), path.stat().st_mtime)
            elif _is_ours(kind, path):
                yield Entry(kind, path, size_of(path), _last_use(path))


def _folders(parent: Path) -> list[Path]:
    """Return the folders in a folder; neither it nor they may be symbolic links."""
    try:
        if not stat.S_ISDIR(parent.lstat().st_mode):
            return []
        with os.scandir(parent) as found:
            return [Path(one.path) for one in found if one.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _is_ours(kind: str, folder: Path) -> bool:
    """Whether a folder is an entry, whole or damaged."""
    name = folder / NAME
    try:
        if stat.S_ISREG(name.lstat().st_mode) and name.read_bytes() == f"{kind}/{folder.name}\n".encode():
            return True
    except OSError:
        pass
    return KEY.fullmatch(folder.name) is not None and (folder / MANIFEST).is_file()


def _is_left(folder: Path) -> bool:
    """Whether a killed process left a folder of an entry: it is old, and empty or named by an entry's key."""
    try:
        old = time.time() - folder.stat().st_mtime > UNFINISHED_SECONDS
        return old and (UNFINISHED.fullmatch(folder.name) is not None or not any(folder.iterdir()))
    except OSError:
        return False


def _last_use(folder: Path) -> float:
    for path in (folder / NAME, folder):  # a damaged one may have no name
        try:
            return path.lstat().st_mtime
        except OSError:
            continue
    return 0.0
