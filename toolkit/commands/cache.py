"""Show the size of the cache, and clear it: only the toolkit's own entries, and none that a run is using.

The cache folder may hold files of other programs, as ``~/.cache`` does. Therefore a folder counts as an entry only if a
file in it names its path, ``KIND/KEY``. Everything else stays, and no symbolic link is followed.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from toolkit.files.cache import KEY_PATTERN, NAME_FILE, UNFINISHED_NAME, remove_unused
from toolkit.files.ownership import UNFINISHED_PREFIX
from toolkit.files.whole import MANIFEST
from toolkit.machine.disk import measure_folder_bytes
from toolkit.machine.sizes import format_bytes

if TYPE_CHECKING:
    from rich.console import Console

#: Kinds of entries; each kind has a folder in the cache.
KINDS = ("parity", "rows", "tokenizers", "tokens", "weights")
#: Least age in seconds of an unfinished entry that is removed. A process may still be writing a younger entry.
UNFINISHED_SECONDS = 3600.0
DAY_SECONDS = 86400.0


@dataclass(frozen=True)
class Entry:
    """An entry of the cache that the toolkit wrote.

    Attributes:
        kind: kind of the entry, one of :data:`KINDS`.
        path: folder of the entry.
        size: total size of the files, in bytes.
        last_used: time of the last read or write, in seconds since the epoch.
    """

    kind: str
    path: Path
    size: int
    last_used: float


@dataclass
class ClearResult:
    """The result of clearing the cache.

    Attributes:
        removed_entries: entries that were removed.
        entries_in_use: entries that stay because a process is using them.
        failures: path of an entry -> the reason why it could not be removed.
    """

    removed_entries: list[Entry] = field(default_factory=list)
    entries_in_use: list[Entry] = field(default_factory=list)
    failures: dict[Path, str] = field(default_factory=dict)


def list_entries(cache_dir: Path) -> list[Entry]:
    """Return the entries of a cache folder, sorted by kind and name; an empty list if the folder does not exist.

    Args:
        cache_dir: folder of the cache.
    """
    return sorted(_iter_entries(cache_dir), key=lambda entry: (entry.kind, entry.path.name))


def clear_cache(cache_dir: Path, older_than: float | None = None) -> ClearResult:
    """Remove the entries of a cache folder, except the entries that a process is using.

    Args:
        cache_dir: folder of the cache, which stays.
        older_than: least number of days since the last use of an entry to remove; None removes all entries.
    """
    result, now = ClearResult(), time.time()
    for entry in list_entries(cache_dir):
        if older_than is not None and now - entry.last_used < older_than * DAY_SECONDS:
            continue
        try:
            (result.removed_entries if remove_unused(entry.path) else result.entries_in_use).append(entry)
        except OSError as error:
            result.failures[entry.path] = os.strerror(error.errno or 0)
    return result


def show_cache(cache_dir: Path, console: Console) -> None:
    """Print the number and size of the entries of each kind, and the command that clears them.

    Args:
        cache_dir: folder of the cache.
        console: console to print on.
    """
    from rich.table import Table

    cache_entries = list_entries(cache_dir)
    console.print(f"{cache_dir}: {_count(cache_entries)}", highlight=False, soft_wrap=True)
    if not cache_entries:
        return
    table = Table("kind", "entries", "size", "last used")
    for kind in KINDS:
        if kind_entries := [entry for entry in cache_entries if entry.kind == kind]:
            last_used = time.strftime("%Y-%m-%d %H:%M", time.localtime(max(entry.last_used for entry in kind_entries)))
            table.add_row(
                kind, str(len(kind_entries)), format_bytes(sum(entry.size for entry in kind_entries)), last_used
            )
    console.print(table)
    console.print("toolkit cache clear [--older-than DAYS] removes them", highlight=False)


def report_clear_result(result: ClearResult, cache_dir: Path, console: Console) -> int:
    """Print which entries were removed and which stay; return the exit status, 1 if an entry could not be removed.

    Args:
        result: removed and remaining entries.
        cache_dir: folder of the cache.
        console: console to print on.
    """
    console.print(f"{cache_dir}: removed {_count(result.removed_entries)}", highlight=False, soft_wrap=True)
    if result.entries_in_use:
        console.print(f"a run is using {_count(result.entries_in_use)}, which stay", highlight=False)
    for path, reason in result.failures.items():
        console.print(f"{path}: cannot be removed: {reason}", highlight=False, soft_wrap=True)
    return 1 if result.failures else 0


def _count(cache_entries: list[Entry]) -> str:
    """Return the number and the total size of the entries as text, such as ``2 entries, 1.3 GB``."""
    size = format_bytes(sum(entry.size for entry in cache_entries))
    return f"{len(cache_entries)} {'entry' if len(cache_entries) == 1 else 'entries'}, {size}"


def _iter_entries(cache_dir: Path) -> Iterator[Entry]:
    """Yield the entries of the cache, including folders that a killed process left unfinished.

    Args:
        cache_dir: folder of the cache.
    """
    for kind in KINDS:
        for path in _folders(cache_dir / kind):
            if path.name.startswith(UNFINISHED_PREFIX):
                if _is_unfinished(path):
                    yield Entry(kind, path, measure_folder_bytes(path), path.stat().st_mtime)
            elif _is_ours(kind, path):
                yield Entry(kind, path, measure_folder_bytes(path), _last_use(path))


def _folders(parent: Path) -> list[Path]:
    """Return the folders in ``parent``, without symbolic links; an empty list if ``parent`` is a symbolic link."""
    try:
        if not stat.S_ISDIR(parent.lstat().st_mode):
            return []
        with os.scandir(parent) as children:
            return [Path(child.path) for child in children if child.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _is_ours(kind: str, folder: Path) -> bool:
    """Return whether a folder is an entry of the toolkit, complete or damaged."""
    name = folder / NAME_FILE
    try:
        if stat.S_ISREG(name.lstat().st_mode) and name.read_bytes() == f"{kind}/{folder.name}\n".encode():
            return True
    except OSError:
        pass
    return KEY_PATTERN.fullmatch(folder.name) is not None and (folder / MANIFEST).is_file()


def _is_unfinished(folder: Path) -> bool:
    """Return whether a killed process left this folder of an unfinished entry.

    Such a folder is older than :data:`UNFINISHED_SECONDS`, and it is empty or its name contains the key of an entry.
    """
    try:
        is_old = time.time() - folder.stat().st_mtime > UNFINISHED_SECONDS
        return is_old and (UNFINISHED_NAME.fullmatch(folder.name) is not None or not any(folder.iterdir()))
    except OSError:
        return False


def _last_use(folder: Path) -> float:
    """Return the time of the last use of an entry's folder, in seconds since 1970; 0 if the folder is gone."""
    for path in (folder / NAME_FILE, folder):  # a damaged entry may lack the file that names it
        try:
            return path.lstat().st_mtime
        except OSError:
            continue
    return 0.0
