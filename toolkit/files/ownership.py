"""Ownership of a folder, and removal of unfinished files that killed processes of the toolkit left in it.

A run writes :data:`LEDGER` into its folder before any other file. The ledger holds the prefix of the run's unfinished
files, with a random number for this folder. A file with this prefix in the folder, or in a folder inside it, belongs to
the run and may be removed. Any other file that looks unfinished may belong to the user, and stays.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from models import families
from toolkit.machine.disk import explain_write_errors

#: File that marks a run folder.
LEDGER = ".toolkit-run.json"
#: Prefix of unfinished files; in a run folder, a random number follows.
UNFINISHED_PREFIX = ".unfinished-"
#: Name of the folder in a run folder that holds the gate's report.
REPORT_FOLDER = "parity"
#: Names of the constants that the ports compute.
CONSTANT_NAMES = [name for family in families.FAMILIES for name in families.family(family).constants]
#: Name of a file that a gate writes (report, constants of the reference) -> pattern of its beginning.
GATE_FILE_PATTERNS = {
    "parity.json": rb'\{\s*"schema": \d',
    "bitwise.json": rb'\{\s*"schema": \d',
    "junit.xml": rb'(<\?xml[^>]*>\s*)?<testsuites name="parity"',
    "parity.html": rb"(?s).*<title>[^<]*, parity with the reference</title>",
    "constants.safetensors": rb'(?s).{8}\{"[\w.]*(%s)":' % "|".join(CONSTANT_NAMES).encode(),
}
#: Name of the folder of a stage-by-stage gate, and the files that mark it.
STREAMED_FOLDER, STREAMED_FILES = "streamed", ("key", "job.json")
#: Most bytes that are read of a ledger or a gate's file, because a device with its name would never end.
MAX_HEAD_BYTES = 4096


def is_run_folder(folder: Path) -> bool:
    """Return whether a folder has the ledger of a run."""
    return os.path.lexists(folder / LEDGER)


def is_run_report(folder: Path) -> bool:
    """Return whether a folder holds the gate's report of a run."""
    return folder.name == REPORT_FOLDER and is_run_folder(folder.parent)


def claim_folder(folder: Path) -> bool:
    """Write the ledger into a folder, which makes it a run folder; return False if it has a ledger already.

    Raises:
        WriteError: the system refused the write.
    """
    prefix = f"{UNFINISHED_PREFIX}{secrets.token_hex(8)}-"
    with explain_write_errors(folder / LEDGER):
        try:
            with open(folder / LEDGER, "x", encoding="utf-8") as file:
                file.write(json.dumps({"unfinished": prefix}) + "\n")
        except FileExistsError:
            return False
    return True


def release_claim(folder: Path) -> None:
    """Remove the ledger of a run that was not started, so that the folder is not a run folder any more."""
    (folder / LEDGER).unlink(missing_ok=True)


def find_unfinished_prefix(folder: Path) -> str:
    """Return the prefix of unfinished files in a folder: from its ledger, its parent's ledger, or the default."""
    return _read_ledger(folder) or _read_ledger(folder.parent) or UNFINISHED_PREFIX


def is_gate_file(path: Path) -> bool:
    """Return whether name and content show that a gate wrote this path; an empty file with such a name counts, too."""
    if path.name == STREAMED_FOLDER:
        return not path.is_symlink() and all((path / name).is_file() for name in STREAMED_FILES)
    if path.name not in GATE_FILE_PATTERNS:
        return False
    with contextlib.suppress(OSError), _open_regular_file(path) as descriptor:
        head = os.read(descriptor, MAX_HEAD_BYTES)
        return not head or re.match(GATE_FILE_PATTERNS[path.name], head) is not None
    return False


def remove_gate_file(path: Path) -> None:
    """Remove a file if its content or its run folder shows that a gate wrote it; leave any other file."""
    if is_run_report(path.parent) or is_gate_file(path):
        path.unlink(missing_ok=True)


def remove_from_run(run_folder: Path, path: Path) -> None:
    """Remove a file that a run has written into its folder.

    The file stays if ``run_folder`` has no ledger, if the path contains a link, or if the system refuses the removal.

    Args:
        run_folder: folder of a run.
        path: file in that folder or in a folder inside it.
    """
    path_and_parents = [path, *path.parents]
    if is_run_folder(run_folder) and not any(
        ancestor.is_symlink() for ancestor in path_and_parents[: path_and_parents.index(run_folder)]
    ):
        with contextlib.suppress(OSError):
            path.unlink()


def replace_in_run(run_folder: Path, source: Path, target_name: str) -> None:
    """Move a file into a run folder, where it replaces an earlier file; do nothing if the folder has no ledger.

    Args:
        run_folder: run folder.
        source: file to move.
        target_name: name of the file in the run folder.
    """
    if is_run_folder(run_folder):
        os.replace(source, run_folder / target_name)


def remove_leftovers(folder: Path, subfolder_names: tuple[str, ...]) -> None:
    """Remove the unfinished files that killed processes of a run have left in its folder.

    Links are not followed. A file that the system refuses to remove stays, because no other file refers to it.

    Args:
        folder: folder of the run.
        subfolder_names: folders inside it that are searched, too.
    """
    if (prefix := _read_ledger(folder)) is None:
        return
    for searched_folder in (folder, *(folder / name for name in subfolder_names)):
        for leftover in searched_folder.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if leftover.is_symlink():
                    continue
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _read_ledger(folder: Path) -> str | None:
    """Return the prefix of unfinished files from the ledger of a folder; None if the ledger cannot be read."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        with _open_regular_file(folder / LEDGER) as descriptor:
            prefix = json.loads(os.read(descriptor, MAX_HEAD_BYTES).decode())["unfinished"]
        if re.fullmatch(re.escape(UNFINISHED_PREFIX) + "[0-9a-f]{16}-", prefix):
            return prefix
    return None


@contextlib.contextmanager
def _open_regular_file(path: Path) -> Iterator[int]:
    """Open a regular file and yield its descriptor for reading, without following a link or waiting for a pipe.

    Raises:
        OSError: the path is not a regular file, or the system refuses to open it.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):  # a pipe without a writer reads as empty
            raise OSError(errno.EINVAL, "is no plain file", str(path))
        yield descriptor
    finally:
        os.close(descriptor)
