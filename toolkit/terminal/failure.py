"""Unexpected failures in one line: what happened, in words, and where the traceback was written."""

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
from toolkit.terminal.escape import one_line

#: Exit status after an unexpected failure (EX_SOFTWARE).
UNFORESEEN = 70
#: Messages of libraries that report a lack of memory without MemoryError.
NO_MEMORY = re.compile(
    r"out of memory|can't allocate memory|cannot allocate memory|bad_alloc|fail to alloc"
    r"|\bMemoryError: "  # from inside a backward, in Paddle's words
    r"|failed to map segment from shared object(?!: Operation not permitted)",  # a library that is loaded late
    re.I,
)
#: The size asked for: "Unable to allocate 1.2 GiB", "you tried to allocate 64 bytes", "alloc memory of 64 size".
WANTED = re.compile(r"(?:allocate|alloc memory of)\s+([\d.]+)\s*([KMGTPE]?i?B|bytes|size)?", re.I)
#: How to need less.
LESS_MEMORY = "lower train.batch_size, train.eval_batch_size, data.max_length or the model's size"
#: The system's error number as Rust libraries, such as safetensors, write it.
SYSTEM_ERROR = re.compile(r"\(os error (\d+)\)")
#: NumPy's message for a full disk.
CUT_SHORT = re.compile(r"\d+ requested and \d+ written")
#: Start of Paddle's message about an exception of Python code in a backward, and a line that quotes a call there.
EXTERNAL, QUOTED = "(External)", re.compile(r"\s+(.+)\((\d+)\): \S.*")
#: Folders of library code.
LIBRARIES = (sysconfig.get_path("stdlib"), "site-packages", "dist-packages")
#: Most characters of a message shown.
LONGEST = 400


def describe(problem: BaseException, less_memory: str = LESS_MEMORY) -> str:
    """One line: the toolkit's own words, the system's words with the file, or type and message; advice
    (``less_memory``) if memory ran out."""
    if isinstance(problem, ToolkitError):
        return one_line(str(problem))
    if is_out_of_memory(problem):
        return f"out of memory{_wanted(problem)}; {less_memory}"
    number = system_error(problem)
    if number is not None:
        place = getattr(problem, "filename2", None) or getattr(problem, "filename", None)
        named = f"{os.fsdecode(place)}: " if isinstance(place, (str, bytes, os.PathLike)) else ""
        return one_line(f"{named}{os.strerror(number)}")
    if inside := raised_in_backward(problem):
        return f"{inside.said}, in the backward at {inside.place}"
    message = _message(str(problem))
    return f"{type(problem).__name__}: {message}" if message else type(problem).__name__


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether an allocation failed: Python's, NumPy's, Paddle's or torch's."""
    return isinstance(problem, MemoryError) or (
        isinstance(problem, (RuntimeError, OSError, SystemError)) and bool(NO_MEMORY.search(str(problem)))
    )


def system_error(problem: BaseException) -> int | None:
    """Return the system's error number (``errno``), also if a library only quotes it; None for other failures."""
    if isinstance(problem, OSError) and problem.errno is not None:
        return problem.errno if problem.errno > 0 else None
    if isinstance(problem, OSError) and CUT_SHORT.search(str(problem)):
        return errno.ENOSPC
    told = SYSTEM_ERROR.search(str(problem))
    return int(told[1]) if told else None


class InBackward(NamedTuple):
    """Exception of Python code that a backward calls.

    Attributes:
        said: its type and the first line of its message.
        calls: file and line of each call, the innermost first.
    """

    said: str
    calls: list[tuple[str, int]]

    @property
    def place(self) -> str:
        """File and line of the innermost call that is no library's, else of the innermost."""
        own = [call for call in self.calls if not any(folder in call[0] for folder in LIBRARIES)]
        file, line = (own or self.calls)[0]
        return f"{file}:{line}"


def raised_in_backward(problem: BaseException) -> InBackward | None:
    """Return what a layer's own backward, or a gradient hook, raised; None for any other failure. Paddle raises an
    OSError in its place, whose text quotes it, once more for each enclosing backward."""
    lines = str(problem).splitlines()
    if not isinstance(problem, OSError) or not lines or not lines[0].startswith(EXTERNAL):
        return None
    quoted = [QUOTED.fullmatch(line) for line in lines]
    first = next((n for n, line in enumerate(lines) if line.strip() == "At:" and any(quoted[n + 1 : n + 2])), None)
    if first is None:
        return None
    calls = [(found[1], int(found[2])) for found in itertools.takewhile(bool, quoted[first + 1 :]) if found]
    begun = max((n + 1 for n, line in enumerate(lines[:first]) if "= Error message in backward of " in line), default=0)
    return InBackward(one_line(lines[begun].removeprefix(EXTERNAL).strip())[:LONGEST], calls)


def keep_traceback(problem: BaseException) -> str:
    """Write the traceback to a temporary file; return where, or why it could not be written."""
    try:
        handle, path = tempfile.mkstemp(prefix="toolkit-traceback-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("".join(traceback.format_exception(problem)))
    except OSError as error:
        return f"the traceback could not be written ({os.strerror(error.errno or 0)}), --debug shows it"
    return f"the traceback is in {path}"


def _wanted(problem: BaseException) -> str:
    """Return the memory asked for, in MB or GB; empty if the message does not tell."""
    found = WANTED.search(str(problem))
    if not found:
        return ""
    unit = (found[2] or "bytes").lower()
    size = float(found[1].rstrip(".")) * (1 if unit in ("bytes", "size", "b") else 1024 ** " kmgtpe".index(unit[0]))
    return f" when {size / 1e9:.1f} GB were asked for" if size >= 1e9 else f" when {size / 1e6:.1f} MB were asked for"


def _message(text: str) -> str:
    """Return the first line with content; Paddle puts a traceback of its own in front."""
    said = text.partition("Error Message Summary:")[2] or text
    lines = [one_line(line) for line in said.splitlines() if line.strip("- \t")]
    return lines[0][:LONGEST] if lines else ""
