"""The disk of a run: whether it is writable, whether there is room, and the message when a write fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import ToolkitError, UserError
from toolkit.terminal.failure import system_error

FULL = (errno.ENOSPC, errno.EDQUOT)


class WriteFailed(ToolkitError):
    """The system refused to write a file."""


class InTheWay(WriteFailed):
    """Foreign content is where a folder is to be written."""

    exit_status = UserError.exit_status


@contextlib.contextmanager
def writing(path: Path, size: int | None = None, resumes: bool = True) -> Iterator[None]:
    """Explain failed writes in the ``with`` block.

    Args:
        size: bytes of a new file, which is removed if there is no room for it.
        resumes: whether the same command goes on from what it wrote before.

    Raises:
        WriteFailed: the system refused it.
        UserError: a folder is in its place.
    """
    try:
        yield
    except Exception as problem:
        number = system_error(problem)
        if number is None or isinstance(problem, ToolkitError):
            raise
        if number == errno.EISDIR:
            raise UserError(f"{path}: is a folder, where a file is to be written; remove it") from problem
        if number not in FULL:
            raise WriteFailed(f"cannot write {path}: {os.strerror(number)}") from problem
        if size is not None:
            path.unlink(missing_ok=True)
        again = "; after you make room, the same command resumes" if resumes else ""
        raise WriteFailed(f"cannot write {path}: {os.strerror(number)}: {_room(path.parent, size)}{again}") from problem


def check_writable(folder: Path) -> str | None:
    """Make a folder and a file in it, and remove what was made; return why that cannot be done, None if it can."""
    made, place = [], folder.absolute()
    while not os.path.lexists(place):
        made.append(place)
        place = place.parent
    try:
        os.fsencode(folder).decode("utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"room")
    except UnicodeDecodeError:
        return "its name is not UTF-8"
    except FileExistsError:
        return "is there and is no folder"
    except OSError as problem:
        return f"cannot be written: {os.strerror(problem.errno or 0)}"
    except ValueError as problem:
        return f"is no name of a folder: {problem}"
    finally:
        for place in made:
            with contextlib.suppress(OSError, ValueError):
                place.rmdir()
    return None


def missing_room(folder: Path, needed: int) -> str | None:
    """Return in words what room a folder's disk lacks; None if it has enough.

    Args:
        folder: need not exist yet.
        needed: bytes, beyond what it holds already.
    """
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    return None if free >= needed else f"needs about {megabytes(needed)} there, {megabytes(free)} are free"


def size_of(folder: Path) -> int:
    """Return the bytes of all files below a folder; a link counts its own size, what is unreadable 0."""
    total, left = 0, [folder]
    while left:
        try:
            with os.scandir(left.pop()) as found:
                for one in found:
                    if one.is_dir(follow_symlinks=False):
                        left.append(Path(one.path))
                    else:
                        total += one.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total


def megabytes(size: int) -> str:
    """Format a number of bytes."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.1f} MB"


def _room(folder: Path, size: int | None) -> str:
    free = f"{megabytes(shutil.disk_usage(folder).free)} are free" if folder.is_dir() else "nothing is known to be free"
    return free if size is None else f"it takes {megabytes(size)}, {free}"
