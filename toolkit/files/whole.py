"""Files and folders that appear whole or not at all, whatever ends the process: written beside their place, renamed
into it.

A folder has a manifest with the SHA-256 of each of its files, by which it is verified when it is read.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from models.files.plain import plain_file
from toolkit.errors import ToolkitError
from toolkit.files.digest import sha256 as sha256
from toolkit.files.ownership import prefix_in
from toolkit.machine.disk import DestinationOccupiedError, explain_write_errors

MANIFEST = "manifest.json"


class DamagedFolder(ToolkitError):
    """A folder whose files are not the ones that were written."""


def write_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new, never a part. Raises WriteError if the system
    refuses it; the old text stays."""
    with replacing(path) as file:
        file.write(text)


@contextmanager
def replacing(path: Path, errors: str = "strict") -> Iterator[TextIO]:
    """Open a text file to write, which replaces ``path`` if the ``with`` block succeeds. ``errors`` says how to treat
    characters that UTF-8 cannot hold, as in :func:`open`. Raises WriteError if the system refuses it; the old file
    stays."""
    with appearing(path) as temporary, open(temporary, "w", encoding="utf-8", errors=errors, newline="") as file:
        yield file


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """Return a name beside ``path`` for a file to write, which replaces ``path`` if the ``with`` block succeeds. Raises
    WriteError if the system refuses it; the old file stays."""
    with explain_write_errors(path):
        handle, name = tempfile.mkstemp(prefix=prefix_in(path.parent), dir=path.parent)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            os.chmod(temporary, 0o666 & ~umask())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_folder(target: Path, fill: Callable[[Path], None], manifest: bool = True, replaces: bool = True) -> None:
    """Make a folder that appears whole or not at all.

    Args:
        manifest: add the SHA-256 of each file, which :func:`verify_folder` reads.
        replaces: replace an existing folder, if all that is in it was written by this; else it is refused.

    Raises:
        WriteError: the system refuses it; the old folder stays.
        DestinationOccupiedError: something else is there, and stays.
    """
    with explain_write_errors(target):
        _write_folder(target, fill, manifest, replaces)


def _write_folder(target: Path, fill: Callable[[Path], None], manifest: bool, replaces: bool) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f"{prefix_in(target.parent)}{target.name}-", dir=target.parent))
    try:
        os.chmod(temporary, 0o777 & ~umask())
        fill(temporary)
        if manifest:
            files = sorted(path for path in temporary.rglob("*") if path.is_file())
            digests = {path.relative_to(temporary).as_posix(): sha256(path) for path in files}
            write_text(temporary / MANIFEST, json.dumps({"sha256": digests}, indent=1) + "\n")
        for path in (*temporary.rglob("*"), temporary):
            if path.is_file():  # safetensors lets nobody but the owner read what it writes
                os.chmod(path, 0o666 & ~umask())
            _flush(path)
        if replaces and os.path.lexists(target):
            _replace_folder(temporary, target)
        else:
            os.replace(temporary, target)
        _flush(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def verify_folder(folder: Path) -> None:
    """Compare a folder with its manifest. Raises DamagedFolder if a file is missing, changed or was never listed."""
    expected = _listed(folder)
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    if found != set(expected):
        odd = sorted(found.symmetric_difference(expected))
        raise DamagedFolder(f"{folder}: {odd[0]} is {'not in the manifest' if odd[0] in found else 'missing'}")
    for name, digest in expected.items():
        if sha256(folder / name) != digest:
            raise DamagedFolder(f"{folder}: {name} is not the file that was written (SHA-256 differs)")


def _replace_folder(temporary: Path, target: Path) -> None:
    """Rename a folder into another's place; the other, which holds files, is moved aside first."""
    if (foreign := _foreign(target, temporary)) is not None:
        raise DestinationOccupiedError(
            f"{foreign}: is not of the toolkit's making; move it away, for {target} to be written"
        )
    aside = Path(tempfile.mkdtemp(prefix=f"{prefix_in(target.parent)}{target.name}-", dir=target.parent))
    os.replace(target, aside)
    os.replace(temporary, target)
    shutil.rmtree(aside)


def _foreign(target: Path, temporary: Path) -> Path | None:
    """Return what is in a folder's place and neither in its replacement nor in its own manifest."""
    if target.is_symlink() or not target.is_dir():
        return target
    known = {MANIFEST, *files_in(temporary)}
    with suppress(DamagedFolder):
        known.update(_listed(target))
    return next((target / name for name in sorted(files_in(target)) if name not in known), None)


def files_in(folder: Path) -> set[str]:
    """Return the paths of all but folders below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def _listed(folder: Path) -> dict[str, str]:
    """Read a folder's manifest: file -> SHA-256. Raises DamagedFolder if it cannot be read."""
    try:
        return dict(json.loads(plain_file(folder / MANIFEST).read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DamagedFolder(f"{folder}: has no readable {MANIFEST}") from None


def _flush(path: Path) -> None:
    """Flush a file, or a folder's list of names, to disk before something relies on it."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def umask() -> int:
    """Return the process's umask; files made by `tempfile` have fewer permissions than it leaves."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
