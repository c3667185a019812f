"""Read files of a run folder, and report damage in one line with the file and a remedy."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from models.files.plain import MAX_TEXT_BYTES
from toolkit.errors import ToolkitError, UserError
from toolkit.terminal.failure import describe, is_out_of_memory


@contextlib.contextmanager
def reading(path: str | Path, remedy: str) -> Iterator[None]:
    """Turn any exception in the ``with`` block, which reads a file of a run, into an error about this file.

    Args:
        path: file, folder with several files, or description of several files.
        remedy: advice for the user, such as "train again".

    Raises:
        UserError: the file is missing or damaged.
    """
    if isinstance(path, Path) and path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: is damaged (it is no plain file); {remedy}")  # opening a pipe would block forever
    try:
        yield
    except Exception as error:
        if is_out_of_memory(error) or isinstance(error, ToolkitError):
            raise
        if isinstance(error, FileNotFoundError):
            raise UserError(f"{path}: is missing; {remedy}") from error
        raise UserError(f"{path}: is damaged ({describe(error)}); {remedy}") from error


def read_json(path: Path, remedy: str) -> dict[str, Any]:
    """Read a JSON object from a file of a run.

    Raises:
        UserError: the file is missing, or does not contain a JSON object.
    """
    with reading(path, remedy):
        if (size := path.stat().st_size) > MAX_TEXT_BYTES:
            raise ValueError(f"it has {size:,} bytes; {MAX_TEXT_BYTES:,} are the most")
        content = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError(f"it should hold a JSON object, not {json.dumps(content)[:40]}")
    return content


def read_calibration(folder: Path, remedy: str) -> dict[str, Any]:
    """Return the ``calibration`` of a run's ``metrics.json``, empty if it has none. Raises UserError if it is wrong."""
    path = folder / "metrics.json"
    calibration = read_json(path, remedy).get("calibration", {})
    with reading(path, remedy):
        if not isinstance(calibration, dict):
            raise ValueError(f"calibration should be a JSON object, not {json.dumps(calibration)[:40]}")
        for name in calibration.keys() & {"temperature", "threshold"}:
            value = calibration[name]
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not math.isfinite(value) or value < 0 or (value == 0 and name == "temperature"):
                raise ValueError(f"calibration.{name} should be a positive number, not {json.dumps(value)[:40]}")
    return calibration
