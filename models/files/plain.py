"""Read other people's files, with one-line errors that name the file.

A path to no regular file, or a file whose content is not what it should be, raises :class:`UnreadableFile`; a missing
or forbidden one raises ``OSError`` as everywhere.
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

from models.files.hub_errors import FETCH_AGAIN, cached_file, from_hub

#: Most bytes of a file that is read whole, such as a configuration or a tokenizer; the largest have a tenth of it.
MAX_TEXT_BYTES = 2**28
#: Start of the pointer that git leaves for a file not fetched from its Large File Storage.
LFS_POINTER = b"version https://git-lfs.github.com/spec/"


class UnreadableFile(ValueError):
    """A file that is not what it should be. The message names it and fits on a line; for a file from the hub it gives
    the repository and how to fetch it again."""

    def __init__(self, path: str | os.PathLike, problem: object, way_out: str = FETCH_AGAIN) -> None:
        """``way_out``: what to do about a file from the hub."""
        super().__init__(" ".join(f"{path} {problem}{from_hub(path, way_out)}".split()))


def plain_file(path: str | os.PathLike) -> Path:
    """Return the path if it is a regular file that is not empty: opening a pipe would wait for ever. Raises
    UnreadableFile for a folder, a pipe, a device, an empty file or a git-LFS pointer, and OSError if there is no such
    file, a loop of links, or no permission."""
    mode = os.stat(path).st_mode
    if stat.S_ISDIR(mode):
        raise UnreadableFile(path, "is a folder, not a file")
    if not stat.S_ISREG(mode):
        raise UnreadableFile(path, "is no plain file")
    with open(path, "rb") as file:
        begins = file.read(len(LFS_POINTER))
    if not begins:
        raise UnreadableFile(path, "is empty")
    if begins == LFS_POINTER:
        if cached_file(path):
            raise UnreadableFile(
                path,
                "is a pointer of git-LFS, not the file itself",
                "the repository holds no more: take another revision, or tell its owner",
            )
        raise UnreadableFile(path, "is a pointer of git-LFS, not the file itself; fetch it with: git lfs pull")
    return Path(path)


def read_bytes(path: str | os.PathLike) -> bytes:
    """Return the content of a file. Raises as :func:`plain_file`; also if it is larger than :data:`MAX_TEXT_BYTES`."""
    if (size := plain_file(path).stat().st_size) > MAX_TEXT_BYTES:
        raise UnreadableFile(path, f"has {size:,} bytes; {MAX_TEXT_BYTES:,} are the most")
    return Path(path).read_bytes()


def read_text(path: str | os.PathLike) -> str:
    """Return the text of a UTF-8 file, with its line ends as stored, without a byte order mark. Raises as
    :func:`read_bytes`; also if it is not UTF-8."""
    content = read_bytes(path)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UnreadableFile(path, f"is not UTF-8 text (byte {error.start})") from None


def read_object(path: str | os.PathLike) -> dict[str, Any]:
    """Read a file's JSON object. Raises as :func:`read_text`; also if it is no JSON object."""
    return parsed_object(read_text(path), path)


def parsed_object(text: str, path: str | os.PathLike) -> dict[str, Any]:
    """Parse the JSON object in a text read from `path`. Raises UnreadableFile if it is no JSON object, or has NaN or
    Infinity, which JSON lacks."""
    try:
        found = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise UnreadableFile(path, "is nested too deeply") from None
    except ValueError as error:
        raise UnreadableFile(path, f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnreadableFile(path, "is not a JSON object")
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


@contextlib.contextmanager
def open_tensors(path: str | os.PathLike) -> Iterator[Any]:
    """Open a safetensors file for the ``with`` block: ``keys()``, ``get_slice(name)``, ``get_tensor(name)`` (a NumPy
    array). Raises as :func:`plain_file`; also if it is not safetensors, or of a type NumPy lacks."""
    plain_file(path)
    try:
        with safe_open(path, framework="np") as tensors:
            yield tensors
    except OSError:
        raise
    except Exception as error:  # it passes on what Rust, NumPy or ml_dtypes raise
        raise UnreadableFile(path, f"cannot be read as safetensors: {error}") from None
