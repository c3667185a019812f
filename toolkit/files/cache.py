"""The cache between runs: tokens, trained tokenizers, rows read from files, measurements of gates.

An entry is a folder, ``KIND/KEY`` in :func:`toolkit.machine.runtime.cache_folder`, with the SHA-256 of each of its
files. Each use verifies these, so that a disk error, or a file of another entry in its place, never becomes training
data: such an entry is reported in one line and made anew.

A process that is given an entry's folder (:func:`kept`) holds a shared lock on the entry until it ends, so that
:mod:`toolkit.commands.cache` leaves it alone.
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

from toolkit.files.ownership import TEMPORARY
from toolkit.files.whole import DamagedFolder, verify_folder, write_folder
from toolkit.machine.disk import WriteError
from toolkit.machine.runtime import cache_folder
from toolkit.machine.scratch import scratch_until_exit
from toolkit.terminal.failure import describe

#: Part of every key: raise it when what is stored changes.
CACHE_VERSION = 4

#: The file that names its entry: a whole folder may have been put in another's place.
NAME = "entry.txt"
#: Pattern of a key.
KEY = re.compile(r"[0-9a-f]{32}([0-9a-f]{32})?")
#: Folder name of an unfinished entry.
UNFINISHED = re.compile(rf"{re.escape(TEMPORARY)}(?P<key>{KEY.pattern})-\w+")
#: Attempts to make an entry that is cleared before it can be locked.
ATTEMPTS = 3
#: The open files whose locks this process holds, by entry.
_held: dict[Path, int] = {}


def kept(kind: str, key: str, fill: Callable[[Path], None]) -> Path:
    """Return the folder of an entry; make it if it is missing or damaged.

    Args:
        key: equal for equal content; a file name.
        fill: writes the entry's files into the folder it is given. Its exceptions propagate, except ``OSError``,
            which is taken to be about the cache: it must report trouble with other files as something else.
    """
    for _ in range(ATTEMPTS):
        folder = find(kind, key) or store(kind, key, fill)
        if _hold(folder):
            break  # else it was cleared in this very moment
    return folder


def find(kind: str, key: str) -> Path | None:
    """Return the folder of an intact entry; None if there is none. A damaged one is reported on standard error."""
    folder = cache_folder() / kind / key
    try:
        if not folder.is_symlink() and not folder.exists():
            return None
        verify_folder(folder)
        if (folder / NAME).read_text(encoding="utf-8") != f"{kind}/{key}\n":
            raise DamagedFolder(f"{folder}: holds another entry")
        _note_use(folder)
        return folder
    except (DamagedFolder, OSError, ValueError) as damage:
        print(f"note: the cache is damaged, and this part of it is rebuilt: {damage}", file=sys.stderr)
        _remove(folder)
        return None


def store(kind: str, key: str, fill: Callable[[Path], None]) -> Path:
    """Make an entry; see :func:`kept`. Without room in the cache it is made among the temporary files.

    Of processes that make the same entry at the same time, the first to end keeps its own, from which it may be reading
    already, and the others use that.
    """
    folder = cache_folder() / kind / key

    def fill_and_name(unfinished: Path) -> None:
        fill(unfinished)
        (unfinished / NAME).write_text(f"{kind}/{key}\n", encoding="utf-8")

    try:
        write_folder(folder, fill_and_name, replaces=False)
    except (OSError, WriteError) as problem:
        if (made := find(kind, key)) is not None:  # by another process, at the same time
            return made
        print(f"note: {folder} is not kept for later runs: {describe(problem)}", file=sys.stderr)
        folder = scratch_until_exit("toolkit-cache-")
        fill_and_name(folder)
    return folder


def _remove(folder: Path) -> None:
    """Remove an entry. What resists is moved aside; if that fails too, the next one is not kept, which is reported."""
    try:
        shutil.rmtree(folder) if folder.is_dir() and not folder.is_symlink() else folder.unlink()
    except OSError:
        with contextlib.suppress(OSError):
            os.replace(folder, tempfile.mkdtemp(prefix=f"{TEMPORARY}{folder.name}-", dir=folder.parent))


def remove_unused(folder: Path) -> bool:
    """Remove an entry; return False if a process uses it. A rename takes it away at once, even if deleting its files
    fails. Raises OSError if the system refuses it."""
    name = folder / NAME
    try:
        file = os.open(name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        _take_away(folder)  # damaged or unfinished: no process uses it
        return True
    try:
        if not lock(file, exclusive=True):
            return False
        if still_there(file, name):
            _take_away(folder)
        return True
    finally:
        os.close(file)


def _take_away(folder: Path) -> None:
    """Move an entry's folder aside, and delete it there."""
    unfinished = UNFINISHED.fullmatch(folder.name)
    key = unfinished["key"] if unfinished else folder.name
    aside = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY}{key}-", dir=folder.parent))
    try:
        os.rename(folder, aside)
    except OSError:
        aside.rmdir()
        raise
    shutil.rmtree(aside)


def _note_use(folder: Path) -> None:
    """Record the last use as the time of the naming file; the system's access time changes whenever anybody looks."""
    with contextlib.suppress(OSError):
        os.utime(folder / NAME)


def _hold(folder: Path) -> bool:
    """Lock an entry for this process's life or until it uses another cache, if the disk can; False if it is gone."""
    if folder.parents[1] != cache_folder():  # among the temporary files
        return True
    for held in [held for held in _held if held.parents[1] != folder.parents[1]]:
        os.close(_held.pop(held))
    try:
        file = os.open(folder / NAME, os.O_RDONLY)
    except OSError:
        return False
    if folder in _held:
        os.close(_held.pop(folder))  # of an entry that was in its place
    _held[folder] = file
    return lock(file, exclusive=False) and still_there(file, folder / NAME)


def lock(file: int, exclusive: bool) -> bool:
    """Lock an open file until it is closed, without waiting; return False if another process has it."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def still_there(file: int, path: Path) -> bool:
    """Whether an open file is the one that ``path`` names now."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except OSError:
        return False
