"""Unexpected failures in one line: a description, and the file with the traceback."""

from __future__ import annotations

import errno
import itertools
import os
import re
import sysconfig
import tempfile
import traceback
from typing import NamedTuple

from toolkit.errors import ToolkitError
from toolkit.terminal.escape import escape_line, one_line

#: Exit status after an unexpected failure (EX_SOFTWARE).
UNFORESEEN = 70
#: Pattern of messages of libraries that report a lack of memory without MemoryError.
NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|bad_alloc|fail to alloc"
    r"|\bMemoryError: "  # from inside a backward, in Paddle's words
    r"|failed to map segment from shared object(?!: Operation not permitted)",  # a library that is loaded late
    re.I,
)
#: Pattern of a requested size, as in "Unable to allocate 1.2 GiB", "you tried to allocate 64 bytes" or "alloc memory of
#: 64 size".
REQUESTED_SIZE = re.compile(r"(?:allocate|alloc memory of)\s+([\d.]+)\s*([KMGTPE]?i?B|bytes|size)?", re.I)
#: Advice that lowers the memory of a run.
LESS_MEMORY = "lower train.batch_size, train.eval_batch_size, data.max_length or the model's size"
#: Pattern of the system's error number in messages of Rust libraries, such as safetensors.
SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
#: Pattern of NumPy's message for a full disk.
CUT_SHORT = re.compile(r"\d+ requested and \d+ written")
#: Prefix of Paddle's message about an exception in the Python code of a backward; pattern of a line that quotes a call.
EXTERNAL, QUOTED_CALL = "(External)", re.compile(r"\s+(.+)\((\d+)\): \S.*")
#: Parts of paths of library code.
LIBRARIES = (sysconfig.get_path("stdlib"), "site-packages", "dist-packages")
#: Maximum number of characters of a message.
MAX_MESSAGE_LENGTH = 400


def describe(error: BaseException, less_memory: str = LESS_MEMORY) -> str:
    """Return a description of an exception in one line.

    It is the message of an error of the toolkit, the file and the message of a system error, or the type and message of
    other exceptions. If memory ran out, the advice ``less_memory`` is added.
    """
    if isinstance(error, ToolkitError):
        return "; ".join(escape_line(str(line)) for line in error.args)
    if is_out_of_memory(error):
        return f"out of memory{_describe_requested_size(error)}; {less_memory}"
    number = system_error(error)
    if number is not None:
        path = getattr(error, "filename2", None) or getattr(error, "filename", None)
        prefix = f"{os.fsdecode(path)}: " if isinstance(path, (str, bytes, os.PathLike)) else ""
        return escape_line(f"{prefix}{os.strerror(number)}")
    if inside := raised_in_backward(error):
        return f"{inside.message}, in the backward at {inside.place}"
    message = _first_line(str(error))
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an allocation of Python, NumPy, Paddle or torch failed."""
    return isinstance(error, MemoryError) or (
        isinstance(error, (RuntimeError, OSError, SystemError)) and bool(NO_MEMORY.search(str(error)))
    )


def system_error(error: BaseException) -> int | None:
    """Return the system's error number (``errno``), also if a library only quotes it; None for other failures."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno if error.errno > 0 else None
    if isinstance(error, OSError) and CUT_SHORT.search(str(error)):
        return errno.ENOSPC
    match = SYSTEM_ERROR.search(str(error))
    return int(match[1]) if match else None


class InBackward(NamedTuple):
    """An exception in the Python code of a backward.

    Attributes:
        message: type of the exception and the first line of its message.
        calls: file and line of each call, the innermost first.
    """

    message: str
    calls: list[tuple[str, int]]

    @property
    def place(self) -> str:
        """File and line of the innermost call outside libraries; if all calls are in libraries, of the innermost."""
        own = [call for call in self.calls if not any(folder in call[0] for folder in LIBRARIES)]
        file, line = (own or self.calls)[0]
        return f"{file}:{line}"


def raised_in_backward(error: BaseException) -> InBackward | None:
    """Return the exception of a layer's Python backward or of a gradient hook; None for any other failure.

    Paddle replaces the exception with an OSError, whose text quotes the exception for each enclosing backward.
    """
    lines = str(error).splitlines()
    if not isinstance(error, OSError) or not lines or not lines[0].startswith(EXTERNAL):
        return None
    quotes = [QUOTED_CALL.fullmatch(line) for line in lines]
    first = next((n for n, line in enumerate(lines) if line.strip() == "At:" and any(quotes[n + 1 : n + 2])), None)
    if first is None:
        return None
    calls = [(quote[1], int(quote[2])) for quote in itertools.takewhile(bool, quotes[first + 1 :]) if quote]
    start = max((n + 1 for n, line in enumerate(lines[:first]) if "= Error message in backward of " in line), default=0)
    return InBackward(one_line(lines[start].removeprefix(EXTERNAL).strip())[:MAX_MESSAGE_LENGTH], calls)


def keep_traceback(problem: BaseException) -> str:
    """Write the traceback to a temporary file, and return a text with its path or with the reason of a failure."""
    try:
        handle, path = tempfile.mkstemp(prefix="toolkit-traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(problem)))
    except OSError as error:
        return f"the traceback could not be written ({os.strerror(error.errno or 0)}), --debug shows it"
    return f"the traceback is in {path}"


def _describe_requested_size(error: BaseException) -> str:
    """Return a text with the requested memory in MB or GB; empty if the message does not contain it."""
    match = REQUESTED_SIZE.search(str(error))
    if not match:
        return ""
    unit = (match[2] or "bytes").lower()
    size = float(match[1].rstrip(".")) * (1 if unit in ("bytes", "size", "b") else 1024 ** " kmgtpe".index(unit[0]))
    return f" when {size / 1e9:.1f} GB were asked for" if size >= 1e9 else f" when {size / 1e6:.1f} MB were asked for"


def _first_line(text: str) -> str:
    """Return the first line with content, after the traceback that Paddle puts in front."""
    summary = text.partition("Error Message Summary:")[2] or text
    lines = [one_line(line) for line in summary.splitlines() if line.strip("- \t")]
    return lines[0][:MAX_MESSAGE_LENGTH] if lines else ""
