"""The disk of a run: check that it is writable and has space, and explain a write that fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from toolkit.errors import ToolkitError, UserError
from toolkit.machine.sizes import format_bytes
from toolkit.terminal.failure import system_error

DISK_FULL_ERRORS = (errno.ENOSPC, errno.EDQUOT)


class WriteError(ToolkitError):
    """The system refused to write a file."""


class DestinationOccupiedError(WriteError):
    """The destination of a folder holds files that the toolkit did not write."""

    exit_status = UserError.exit_status


@contextlib.contextmanager
def explain_write_errors(path: Path, file_bytes: int | None = None, *, resumes: bool = True) -> Iterator[None]:
    """Explain failed writes in the ``with`` block.

    Args:
        path: file or folder that the block writes.
        file_bytes: size of a new file, which is removed if the disk is full; None if the size is unknown.
        resumes: whether the same command, run again, continues from the files that it wrote before.

    Raises:
        WriteError: the system refused the write.
        UserError: `path` is a folder.
    """
    try:
        yield
    except Exception as error:
        error_number = system_error(error)
        if error_number is None or isinstance(error, ToolkitError):
            raise
        if error_number == errno.EISDIR:
            raise UserError(f"{path}: is a folder, where a file is to be written; remove it") from error
        if error_number not in DISK_FULL_ERRORS:
            raise WriteError(f"cannot write {path}: {os.strerror(error_number)}") from error
        if file_bytes is not None:
            path.unlink(missing_ok=True)
        resume_hint = "; after you make room, the same command resumes" if resumes else ""
        raise WriteError(
            f"cannot write {path}: {os.strerror(error_number)}: {_describe_space(path.parent, file_bytes)}{resume_hint}"
        ) from error


def find_write_obstacle(folder: Path) -> str | None:
    """Return why a folder cannot be written, as the end of a sentence; None if it can.

    Creates the folder and a temporary file in it, then removes everything that it created.
    """
    created_folders, ancestor = [], folder.absolute()
    while not os.path.lexists(ancestor):
        created_folders.append(ancestor)
        ancestor = ancestor.parent
    try:
        os.fsencode(folder).decode("utf-8")
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b"room")
    except UnicodeDecodeError:
        return "its name is not UTF-8"
    except FileExistsError:
        return "is there and is no folder"
    except RecursionError:
        return "is nested in too many folders"
    except OSError as error:
        return f"cannot be written: {os.strerror(error.errno or 0)}"
    except ValueError as error:
        return f"is no name of a folder: {error}"
    finally:
        for ancestor in created_folders:
            with contextlib.suppress(OSError, ValueError):
                ancestor.rmdir()
    return None


def describe_missing_space(folder: Path, num_bytes: int) -> str | None:
    """Return in words how much space the disk of a folder lacks; None if it has enough.

    Args:
        folder: folder to be written; it need not exist yet.
        num_bytes: bytes to be written, in addition to the present content of the disk.
    """
    ancestor = folder.absolute()
    while not ancestor.exists():
        ancestor = ancestor.parent
    free = shutil.disk_usage(ancestor).free
    return None if free >= num_bytes else f"needs about {format_bytes(num_bytes)} there, {format_bytes(free)} are free"


def measure_folder_bytes(folder: Path) -> int:
    """Return the total bytes of all files below a folder; links count with their own size, unreadable files with 0."""
    total_bytes, pending_folders = 0, [folder]
    while pending_folders:
        try:
            with os.scandir(pending_folders.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        pending_folders.append(Path(entry.path))
                    else:
                        total_bytes += entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
    return total_bytes


def _describe_space(folder: Path, file_bytes: int | None) -> str:
    """Return the free space of a folder's disk in words, and the size of the file if it is known."""
    free_space = (
        f"{format_bytes(shutil.disk_usage(folder).free)} are free" if folder.is_dir() else "nothing is known to be free"
    )
    return free_space if file_bytes is None else f"it takes {format_bytes(file_bytes)}, {free_space}"
