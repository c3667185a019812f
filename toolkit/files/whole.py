"""Files and folders that appear complete or not at all, however the process ends.

They are written under a temporary name in the same folder and then renamed. A folder has a manifest with the SHA-256 of
each of its files, and readers verify it.
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
from toolkit.files.digest import file_sha256
from toolkit.files.ownership import find_unfinished_prefix
from toolkit.machine.disk import DestinationOccupiedError, explain_write_errors

MANIFEST = "manifest.json"


class DamagedFolderError(ToolkitError):
    """The files of a folder differ from its manifest."""


def write_text(path: Path, text: str) -> None:
    """Write a text file so that a reader sees the old or the new text, never a part of it.

    Raises:
        WriteError: the system refused the write; the old text stays.
    """
    with open_replacement(path) as file:
        file.write(text)


@contextmanager
def open_replacement(path: Path, errors: str = "strict") -> Iterator[TextIO]:
    """Open a text file for writing that replaces ``path`` if the ``with`` block succeeds.

    Args:
        path: file to be replaced; it need not exist.
        errors: treatment of characters that UTF-8 cannot hold, as in :func:`open`.

    Raises:
        WriteError: the system refused the write; the old file stays.
    """
    with (
        replace_when_written(path) as temporary,
        open(temporary, "w", encoding="utf-8", errors=errors, newline="") as file,
    ):
        yield file


@contextmanager
def replace_when_written(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; its file replaces ``path`` if the ``with`` block succeeds.

    Raises:
        WriteError: the system refused the write; the old file stays.
    """
    with explain_write_errors(path):
        descriptor, temporary_name = tempfile.mkstemp(prefix=find_unfinished_prefix(path.parent), dir=path.parent)
        os.close(descriptor)
        temporary = Path(temporary_name)
        try:
            yield temporary
            os.chmod(temporary, 0o666 & ~read_umask())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def write_folder(
    target: Path, fill: Callable[[Path], None], *, writes_manifest: bool = True, replaces_existing: bool = True
) -> None:
    """Create a folder that appears complete or not at all.

    Args:
        target: folder to be created.
        fill: function that writes the files into a temporary folder.
        writes_manifest: whether to add a manifest with the SHA-256 of each file, for :func:`verify_folder`.
        replaces_existing: whether to replace an existing folder whose files were all written by this function.

    Raises:
        WriteError: the system refused the write; the old folder stays.
        DestinationOccupiedError: the target has files that this function did not write; they stay.
    """
    with explain_write_errors(target):
        _write_folder(target, fill, writes_manifest=writes_manifest, replaces_existing=replaces_existing)


def _write_folder(
    target: Path, fill: Callable[[Path], None], *, writes_manifest: bool, replaces_existing: bool
) -> None:
    """Write a folder under a temporary name, flush it to the disk, and rename it to its target.

    Args:
        target: path of the folder.
        fill: function that writes the files, given the temporary folder.
        writes_manifest: whether a list of the files' SHA-256 digests is added.
        replaces_existing: whether an existing folder is replaced.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(
        tempfile.mkdtemp(prefix=f"{find_unfinished_prefix(target.parent)}{target.name}-", dir=target.parent)
    )
    try:
        os.chmod(temporary, 0o777 & ~read_umask())
        fill(temporary)
        if writes_manifest:
            files = sorted(path for path in temporary.rglob("*") if path.is_file())
            digests = {path.relative_to(temporary).as_posix(): file_sha256(path) for path in files}
            write_text(temporary / MANIFEST, json.dumps({"sha256": digests}, indent=1) + "\n")
        for path in (*temporary.rglob("*"), temporary):
            if path.is_file():  # safetensors gives only the owner permission to read its files
                os.chmod(path, 0o666 & ~read_umask())
            _flush_to_disk(path)
        if replaces_existing and os.path.lexists(target):
            _replace_folder(temporary, target)
        else:
            os.replace(temporary, target)
        _flush_to_disk(target.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def verify_folder(folder: Path) -> None:
    """Compare the files of a folder with its manifest.

    Raises:
        DamagedFolderError: a file is missing, was changed or is not in the manifest.
    """
    expected_digests = _read_manifest(folder)
    actual_files = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()} - {MANIFEST}
    if actual_files != set(expected_digests):
        path = min(actual_files.symmetric_difference(expected_digests))
        problem = "not in the manifest" if path in actual_files else "missing"
        raise DamagedFolderError(f"{folder}: {path} is {problem}")
    for name, digest in expected_digests.items():
        if file_sha256(folder / name) != digest:
            raise DamagedFolderError(f"{folder}: {name} is not the file that was written (SHA-256 differs)")


def _replace_folder(temporary: Path, target: Path) -> None:
    """Replace the target folder by a temporary folder: rename the target, rename the temporary folder, then delete."""
    if (foreign_path := _find_foreign_file(target, temporary)) is not None:
        raise DestinationOccupiedError(
            f"{foreign_path}: is not of the toolkit's making; move it away, for {target} to be written"
        )
    previous_folder = Path(
        tempfile.mkdtemp(prefix=f"{find_unfinished_prefix(target.parent)}{target.name}-", dir=target.parent)
    )
    os.replace(target, previous_folder)
    os.replace(temporary, target)
    shutil.rmtree(previous_folder)


def _find_foreign_file(target: Path, temporary: Path) -> Path | None:
    """Return a file of the target that is neither in its manifest nor in its replacement; None if there is none."""
    if target.is_symlink() or not target.is_dir():
        return target
    known_files = {MANIFEST, *list_files(temporary)}
    with suppress(DamagedFolderError):
        known_files.update(_read_manifest(target))
    return next((target / name for name in sorted(list_files(target)) if name not in known_files), None)


def list_files(folder: Path) -> set[str]:
    """Return the relative paths of all files and links below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}


def _read_manifest(folder: Path) -> dict[str, str]:
    """Return the manifest of a folder: file -> SHA-256.

    Raises:
        DamagedFolderError: the manifest cannot be read.
    """
    try:
        return dict(json.loads(plain_file(folder / MANIFEST).read_text(encoding="utf-8"))["sha256"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        raise DamagedFolderError(f"{folder}: has no readable {MANIFEST}") from None


def _flush_to_disk(path: Path) -> None:
    """Flush a file, or the list of names in a folder, to disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_umask() -> int:
    """Return the umask of the process; files created by `tempfile` have fewer permissions than it allows."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
