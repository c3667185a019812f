"""Read files of other people, with errors of one line that name the file.

A folder, pipe or device, or a file with unexpected content, raises :class:`UnreadableFileError`. A missing file, or one
without permission to read it, raises ``OSError`` as in Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors import safe_open

from models.files.hub_errors import FETCH_AGAIN, describe_hub_file, find_cached_file

#: Maximum bytes of a configuration or tokenizer file, ten times as many as the largest published file has.
MAX_TEXT_BYTES = 2**28
#: First bytes of the pointer that Git checks out instead of a file in its Large File Storage.
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class UnreadableFileError(ValueError):
    """A file does not have the expected content.

    Args:
        path: path of the file.
        problem: predicate of a sentence about the file, such as ``is empty``.
        hub_remedy: remedy for a file from the hub, which is appended together with the name of the repository.
    """

    def __init__(self, path: str | os.PathLike, problem: object, hub_remedy: str = FETCH_AGAIN) -> None:
        super().__init__(" ".join(f"{path} {problem}{describe_hub_file(path, hub_remedy)}".split()))


def plain_file(path: str | os.PathLike) -> Path:
    """Check that a path is a regular file with content, and return the path. To open a pipe could wait forever.

    Raises:
        UnreadableFileError: the path is a folder, a pipe, a device, an empty file or a Git LFS pointer.
        OSError: the file does not exist, its links form a loop, or it may not be read.
    """
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise UnreadableFileError(path, "is a folder, not a file")
    if not stat.S_ISREG(mode):
        raise UnreadableFileError(path, "is no plain file")
    with open(path, "rb") as file:
        first_bytes = file.read(len(LFS_POINTER))
    if not first_bytes:
        raise UnreadableFileError(path, "is empty")
    if first_bytes == LFS_POINTER:
        if find_cached_file(path):
            raise UnreadableFileError(
                path,
                "is a pointer of git-LFS, not the file itself",
                "the repository holds no more: take another revision, or tell its owner",
            )
        raise UnreadableFileError(path, "is a pointer of git-LFS, not the file itself; fetch it with: git lfs pull")
    return Path(path)


def read_bytes(path: str | os.PathLike) -> bytes:
    """Return the content of a file.

    Raises:
        UnreadableFileError: the file is larger than :data:`MAX_TEXT_BYTES`, or not a plain file (:func:`plain_file`).
        OSError: the file cannot be opened.
    """
    if (size := plain_file(path).stat().st_size) > MAX_TEXT_BYTES:
        raise UnreadableFileError(path, f"has {size:,} bytes; {MAX_TEXT_BYTES:,} are the most")
    return Path(path).read_bytes()


def read_text(path: str | os.PathLike) -> str:
    """Return the text of a UTF-8 file with unchanged line ends and without a byte order mark.

    Raises:
        UnreadableFileError: the file is not UTF-8, too large, or not a plain file (:func:`read_bytes`).
        OSError: the file cannot be opened.
    """
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFileError(path, f"is not UTF-8 text (byte {error.start})") from None


def read_object(path: str | os.PathLike) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        UnreadableFileError: the file has no JSON object, or is not a UTF-8 file (:func:`read_text`).
        OSError: the file cannot be opened.
    """
    return parse_object(read_text(path), path)


def parse_object(text: str, path: str | os.PathLike) -> dict[str, Any]:
    """Return the JSON object in a text.

    Args:
        text: content of a JSON file.
        path: path of the file, for the error.

    Raises:
        UnreadableFileError: the text is not a JSON object, or has NaN or Infinity, which are not valid JSON.
    """
    try:
        value = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise UnreadableFileError(path, "is nested too deeply") from None
    except ValueError as error:
        raise UnreadableFileError(path, f"is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UnreadableFileError(path, "is not a JSON object")
    return value


def _refuse_constant(name: str) -> None:
    """Raise ValueError for a constant that Python reads but JSON does not have: NaN, Infinity, -Infinity."""
    raise ValueError(f"{name} is no number")


@contextlib.contextmanager
def open_tensors(path: str | os.PathLike) -> Iterator[Any]:
    """Open a safetensors file for the ``with`` block.

    The block gets an object with ``keys()``, ``get_slice(name)``, and ``get_tensor(name)``, which returns NumPy arrays.

    Raises:
        UnreadableFileError: the file is not safetensors, has a dtype that NumPy lacks, or is not a plain file.
        OSError: the file cannot be opened.
    """
    plain_file(path)
    try:
        with safe_open(path, framework="np") as tensors:
            yield tensors
    except OSError:
        raise
    except Exception as error:  # the library also raises exceptions of Rust, NumPy and ml_dtypes
        raise UnreadableFileError(path, f"cannot be read as safetensors: {error}") from None
