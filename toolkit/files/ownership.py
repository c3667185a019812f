"""Ownership of a folder, and what a killed process of the toolkit left unfinished in it.

A run writes :data:`LEDGER` into its folder before anything else. It holds the prefix of everything that the run has
not finished, with a number drawn for this folder alone. Whatever has this prefix there, or in a folder inside it, is
the run's and may be removed; whatever else looks unfinished is somebody's, and stays.
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

#: The file by which a run folder is known.
LEDGER = ".toolkit-run.json"
#: Prefix of unfinished files, everywhere; in a run folder a number follows.
TEMPORARY = ".unfinished-"
#: The folder of the gate's report in a run folder.
REPORT = "parity"
#: Names of constants that a port computes.
CONSTANTS = [name for family in families.FAMILIES for name in families.family(family).constants]
#: File that a gate leaves -> how it begins: its report, the reference's constants.
OF_A_GATE = {
    "parity.json": rb'\{\s*"schema": \d',
    "bitwise.json": rb'\{\s*"schema": \d',
    "junit.xml": rb'(<\?xml[^>]*>\s*)?<testsuites name="parity"',
    "parity.html": rb"(?s).*<title>[^<]*, parity with the reference</title>",
    "constants.safetensors": rb'(?s).{8}\{"[\w.]*(%s)":' % "|".join(CONSTANTS).encode(),
}
#: Folder of a stage-by-stage gate, and the files by which it is known.
STREAMED, IN_STREAMED = "streamed", ("key", "job.json")
#: Most bytes read of a ledger or a gate's file: a device that is linked in its place has no end.
LONGEST = 4096


def is_run_folder(folder: Path) -> bool:
    """Whether a run of the toolkit has begun in a folder."""
    return os.path.lexists(folder / LEDGER)


def is_report_of_a_run(folder: Path) -> bool:
    """Whether a folder is that of a run's gate."""
    return folder.name == REPORT and is_run_folder(folder.parent)


def claim(folder: Path) -> bool:
    """Write the ledger into a folder that is to be a run's; return False if it is there already. Raises WriteError if
    the system refuses it."""
    prefix = f"{TEMPORARY}{secrets.token_hex(8)}-"
    with explain_write_errors(folder / LEDGER):
        try:
            with open(folder / LEDGER, "x", encoding="utf-8") as file:
                file.write(json.dumps({"unfinished": prefix}) + "\n")
        except FileExistsError:
            return False
    return True


def give_up_claim(folder: Path) -> None:
    """Remove the ledger of a run that came to nothing; the folder belongs to no run then."""
    (folder / LEDGER).unlink(missing_ok=True)


def prefix_in(folder: Path) -> str:
    """Return the prefix of unfinished files in a folder, from the ledger there or in its parent, if any."""
    return _listed(folder) or _listed(folder.parent) or TEMPORARY


def is_of_a_gate(path: Path) -> bool:
    """Whether a gate left a path beside its report, by name and content. An empty file counts: it is nobody's loss."""
    if path.name == STREAMED:
        return not path.is_symlink() and all((path / name).is_file() for name in IN_STREAMED)
    if path.name not in OF_A_GATE:
        return False
    with contextlib.suppress(OSError), _plain(path) as file:
        begun = os.read(file, LONGEST)
        return not begun or re.match(OF_A_GATE[path.name], begun) is not None
    return False


def remove_gate_file(path: Path) -> None:
    """Remove a file of a gate's report, if its content or a run's folder shows that; leave any other file."""
    if is_report_of_a_run(path.parent) or is_of_a_gate(path):
        path.unlink(missing_ok=True)


def remove_from_run(run_folder: Path, path: Path) -> None:
    """Remove a file that a run has written below its folder.

    The file stays if no run has begun in ``run_folder``, if it or a folder on the way to it is a link, or if the system
    refuses to remove it.

    Args:
        run_folder: folder of a run.
        path: file below that folder.
    """
    places = [path, *path.parents]
    if is_run_folder(run_folder) and not any(place.is_symlink() for place in places[: places.index(run_folder)]):
        with contextlib.suppress(OSError):
            path.unlink()


def replace_in_run(run_folder: Path, source: Path, name: str) -> None:
    """Move a file into a run's folder, where it replaces an earlier file of that name; do nothing elsewhere."""
    if is_run_folder(run_folder):
        os.replace(source, run_folder / name)


def remove_leftovers(folder: Path, inside: tuple[str, ...]) -> None:
    """Remove what killed processes of a run have left unfinished in its folder and folders inside it. No link is
    followed. What the system refuses to remove stays: nothing refers to it."""
    if (prefix := _listed(folder)) is None:
        return
    for place in (folder, *(folder / name for name in inside)):
        for leftover in place.glob(f"{prefix}*"):
            with contextlib.suppress(OSError):
                if leftover.is_symlink():
                    continue
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _listed(folder: Path) -> str | None:
    """Return the prefix that a folder's ledger holds; None if there is no readable ledger."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        with _plain(folder / LEDGER) as file:
            prefix = json.loads(os.read(file, LONGEST).decode())["unfinished"]
        if re.fullmatch(re.escape(TEMPORARY) + "[0-9a-f]{16}-", prefix):
            return prefix
    return None


@contextlib.contextmanager
def _plain(path: Path) -> Iterator[int]:
    """Open a file to read it; do not follow a link or wait for a pipe. Raises OSError if it is no plain file, or the
    system refuses."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):  # a pipe that nobody writes to reads as empty
            raise OSError(errno.EINVAL, "is no plain file", str(path))
        yield file
    finally:
        os.close(file)
