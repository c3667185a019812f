"""The cache between runs: tokens, trained tokenizers, rows read from files, measurements of gates.

An entry is a folder, ``KIND/KEY`` in :func:`toolkit.machine.runtime.cache_folder`, with the SHA-256 of each of its
files. Each use verifies these digests, so that a disk error or a file of another entry never becomes training data: a
damaged entry is reported in one line and created again.

A process that uses an entry (:func:`get_or_create_entry`) holds a shared lock on it until the process ends, so that
:mod:`toolkit.commands.cache` does not remove it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from toolkit.files.ownership import UNFINISHED_PREFIX
from toolkit.files.whole import DamagedFolderError, verify_folder, write_folder
from toolkit.machine.disk import WriteError
from toolkit.machine.runtime import cache_folder
from toolkit.machine.scratch import scratch_until_exit
from toolkit.terminal.failure import describe

#: Part of every key; raise it when the stored content changes.
CACHE_VERSION = 4

#: File that names its entry, so that a folder copied to another entry's name is detected.
NAME_FILE = "entry.txt"
#: Pattern of a key.
KEY_PATTERN = re.compile(r"[0-9a-f]{32}([0-9a-f]{32})?")
#: Folder name of an unfinished entry.
UNFINISHED_NAME = re.compile(rf"{re.escape(UNFINISHED_PREFIX)}(?P<key>{KEY_PATTERN.pattern})-\w+")
#: Attempts to create an entry that another process removes before it can be locked.
MAX_ATTEMPTS = 3
#: Folder of an entry -> descriptor of the open file whose lock this process holds.
_held_locks: dict[Path, int] = {}


def get_or_create_entry(kind: str, key: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder of an entry; create the entry if it is missing or damaged.

    Args:
        kind: name of the folder that contains all entries of this kind.
        key: digest of the entry's inputs, used as its folder name.
        fill: function that writes the entry's files into a folder. Its exceptions propagate, except ``OSError``, which
            is treated as an error of the cache; so it must raise another type for errors of other files.
    """
    for _ in range(MAX_ATTEMPTS):
        folder = find_entry(kind, key) or store_entry(kind, key, fill)
        if _hold_lock(folder):
            break  # otherwise another process has just removed it
    return folder


def find_entry(kind: str, key: str) -> Path | None:
    """Return the folder of an intact entry; None if it is missing or damaged.

    A damaged entry is reported on standard error and removed.

    Args:
        kind: kind of the entry, the name of a folder in the cache.
        key: key of the entry.
    """
    folder = cache_folder() / kind / key
    try:
        if not folder.is_symlink() and not folder.exists():
            return None
        verify_folder(folder)
        if (folder / NAME_FILE).read_text(encoding="utf-8") != f"{kind}/{key}\n":
            raise DamagedFolderError(f"{folder}: holds another entry")
        _record_use(folder)
        return folder
    except (DamagedFolderError, OSError, ValueError) as error:
        print(f"note: the cache is damaged, and this part of it is rebuilt: {error}", file=sys.stderr)
        _remove_entry(folder)
        return None


def store_entry(kind: str, key: str, fill: Callable[[Path], None]) -> Path:
    """Create an entry and return its folder; if the cache cannot hold it, the folder is a temporary one.

    If several processes create the same entry at the same time, all use the entry of the first that finishes.
    :func:`get_or_create_entry` describes the arguments.

    Args:
        kind: kind of the entry, the name of a folder in the cache.
        key: key of the entry.
        fill: function that writes the entry's files, given its folder.
    """
    folder = cache_folder() / kind / key

    def fill_and_name(unfinished_folder: Path) -> None:
        fill(unfinished_folder)
        (unfinished_folder / NAME_FILE).write_text(f"{kind}/{key}\n", encoding="utf-8")

    try:
        write_folder(folder, fill_and_name, replaces_existing=False)
    except (OSError, WriteError) as error:
        if (concurrent_folder := find_entry(kind, key)) is not None:  # by another process, at the same time
            return concurrent_folder
        print(f"note: {folder} is not kept for later runs: {describe(error)}", file=sys.stderr)
        folder = scratch_until_exit("toolkit-cache-")
        fill_and_name(folder)
    return folder


def _remove_entry(folder: Path) -> None:
    """Remove a damaged entry, or rename it if its files cannot be deleted; do nothing if that fails, too."""
    try:
        shutil.rmtree(folder) if folder.is_dir() and not folder.is_symlink() else folder.unlink()
    except OSError:
        with contextlib.suppress(OSError):
            os.replace(folder, tempfile.mkdtemp(prefix=f"{UNFINISHED_PREFIX}{folder.name}-", dir=folder.parent))


def remove_unused(folder: Path) -> bool:
    """Remove an entry and return True; return False if a process uses it.

    The entry is renamed first, so that it is gone at once even if deleting its files fails.

    Raises:
        OSError: the system refuses the removal.
    """
    name_file = folder / NAME_FILE
    try:
        descriptor = os.open(name_file, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        _move_and_delete(folder)  # damaged or unfinished: no process uses it
        return True
    try:
        if not lock_file(descriptor, is_exclusive=True):
            return False
        if is_same_file(descriptor, name_file):
            _move_and_delete(folder)
        return True
    finally:
        os.close(descriptor)


def _move_and_delete(folder: Path) -> None:
    """Rename the folder of an entry to a temporary name, then delete it."""
    unfinished_match = UNFINISHED_NAME.fullmatch(folder.name)
    key = unfinished_match["key"] if unfinished_match else folder.name
    temporary_folder = Path(tempfile.mkdtemp(prefix=f"{UNFINISHED_PREFIX}{key}-", dir=folder.parent))
    try:
        os.rename(folder, temporary_folder)
    except OSError:
        temporary_folder.rmdir()
        raise
    shutil.rmtree(temporary_folder)


def _record_use(folder: Path) -> None:
    """Set the time of the naming file to now, as the last use; access times change at every look into the folder."""
    with contextlib.suppress(OSError):
        os.utime(folder / NAME_FILE)


def _hold_lock(folder: Path) -> bool:
    """Lock an entry until this process ends or uses another cache; return False if the entry is gone."""
    if folder.parents[1] != cache_folder():  # among the temporary files
        return True
    for other_entry in [other_entry for other_entry in _held_locks if other_entry.parents[1] != folder.parents[1]]:
        os.close(_held_locks.pop(other_entry))
    try:
        descriptor = os.open(folder / NAME_FILE, os.O_RDONLY)
    except OSError:
        return False
    if folder in _held_locks:
        os.close(_held_locks.pop(folder))  # the lock of an earlier entry with this name
    _held_locks[folder] = descriptor
    return lock_file(descriptor, is_exclusive=False) and is_same_file(descriptor, folder / NAME_FILE)


def lock_file(descriptor: int, *, is_exclusive: bool) -> bool:
    """Lock an open file without waiting; return False if another process holds a lock that excludes this one."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if is_exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def is_same_file(descriptor: int, path: Path) -> bool:
    """Return whether ``path`` still names the open file of a descriptor."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except OSError:
        return False
