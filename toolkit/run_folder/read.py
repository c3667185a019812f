"""Reading of a run folder. Damage is reported in a line: the file, and what to do about it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.files.plain import MAX_TEXT_BYTES
from toolkit.errors import ToolkitError, UserError
from toolkit.terminal.failure import describe, is_out_of_memory


@contextlib.contextmanager
def reading(path: Path | str, remedy: str) -> Iterator[None]:
    """Report whatever is wrong with a run's file, read in the ``with`` block, as damage.

    Args:
        path: the file, the folder whose files belong together, or several in words.
        remedy: what to do, for example "train again".

    Raises:
        UserError: it is missing or damaged.
    """
    if isinstance(path, Path) and path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: is damaged (it is no plain file); {remedy}")  # to open a pipe would wait for ever
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, ToolkitError):
            raise
        if isinstance(error, FileNotFoundError):
            raise UserError(f"{path}: is missing; {remedy}") from error
        raise UserError(f"{path}: is damaged ({describe(error)}); {remedy}") from error


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object of a run's file. Raises UserError if it is missing, or holds none."""
    with reading(path, remedy):
        if (size := path.stat().st_size) > MAX_TEXT_BYTES:
            raise ValueError(f"it has {size:,} bytes; {MAX_TEXT_BYTES:,} are the most")
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it should hold a JSON object, not {json.dumps(content)[:40]}")
    return content
