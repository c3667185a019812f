"""What the port's process hands over to the comparator: messages in a pipe, each a line of JSON and maybe an array.

The port's process runs user code and Paddle, which may have changed whatever measures there. So it measures nothing: it
hands over what it computed, and :mod:`toolkit.parity.comparator`, which runs neither, compares that with the reference.
An array is read block by block, so a gradient of gigabytes takes the room of one block.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import numpy as np

from toolkit.parity.job.records import text_of
from toolkit.parity.measure.error_stats import PIECE
from toolkit.parity.measure.real_numbers import as_real

#: Variable with the number of the pipe's end that the port's process writes to.
PIPE = "TOOLKIT_PARITY_PIPE"
#: Capacity asked of a pipe in bytes: the most that Linux gives without a privilege.
ROOM = 2**20
#: The message after the last.
END = "end"
#: Most bytes in one block of an array.
BLOCK = 8 * PIECE


class Sender:
    """The end of the port's process, over a pipe's file descriptor; None discards what is handed over."""

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe

    def begin(self, *part: str) -> None:
        """Begin this part of the result."""
        self._write("begin", "", list(part))

    def say(self, kind: str, content: Any, name: str = "") -> None:
        """Hand over dataclasses or JSON, no array."""
        self._write(kind, name, content)

    def hand(self, kind: str, name: str, value: np.ndarray, content: Any = None) -> None:
        """Hand over an array, as it is now; of complex numbers, both parts."""
        if self._pipe is None:
            return
        value = np.asarray(as_real(value), order="C")
        self._write(kind, name, content, value.dtype.str, list(value.shape))
        if value.size:
            self._put(value.reshape(-1).view(np.uint8).data)

    def hand_all(self, kind: str, values: Iterable[tuple[str, np.ndarray]]) -> None:
        """Hand over arrays by name."""
        for name, value in values:
            self.hand(kind, name, value)

    def end(self) -> None:
        """Say that this job is done."""
        self._write(END, "", None)

    def _write(self, kind: str, name: str, content: Any, dtype: str | None = None, shape: Sequence[int] = ()) -> None:
        if self._pipe is not None:
            self._put(memoryview(text_of([kind, name, content, dtype, shape]).encode() + b"\n"))

    def _put(self, data: memoryview) -> None:
        assert self._pipe is not None
        while data:
            data = data[os.write(self._pipe, data) :]


def sender() -> Sender:
    """That of this process: to the pipe that it was started with, of which no child of its own is told."""
    number = os.environ.pop(PIPE, None)
    if number is None:
        return Sender(None)
    os.set_inheritable(int(number), False)
    return Sender(int(number))


@contextlib.contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    """The ends for reading and for writing of a new pipe, closed in this process after the ``with`` block."""
    ends = os.pipe()
    with contextlib.suppress(ImportError, AttributeError, OSError):  # a smaller one does, more slowly
        import fcntl

        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, ROOM)  # of Linux alone
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@dataclass
class Handed:
    """A message.

    Attributes:
        kind: what it is, such as ``tensor`` or ``held``; ``begin`` and :data:`END` are of this module.
        name: of the tensor, draw or parameter; empty where the kind says all.
        content: JSON content.
        dtype, shape: of the array; no dtype without one.
    """

    kind: str
    name: str
    content: Any
    dtype: np.dtype | None
    shape: tuple[int, ...]
    _source: BinaryIO
    _room: bytearray = field(repr=False)
    _left: int = 0

    def blocks(self) -> Iterator[np.ndarray]:
        """The array's elements in a row, :data:`PIECE` at a time. Each block is overwritten by the next."""
        while self._left:
            count = min(PIECE, self._left)
            yield np.frombuffer(self._read(count), self.dtype, count)

    def value(self) -> np.ndarray:
        """The array as a whole."""
        value = np.empty(self.shape, self.dtype)
        flat, start = value.reshape(-1), 0
        for block in self.blocks():
            flat[start : start + len(block)] = block
            start += len(block)
        return value

    def _read(self, count: int) -> memoryview:
        assert self.dtype is not None
        view = memoryview(self._room)[: count * self.dtype.itemsize]
        if self._source.readinto(view) != len(view):  # type: ignore[attr-defined]  # buffered, it reads all of it
            raise EOFError(f"{self.kind} {self.name}: ends within its array")
        self._left -= count
        return view


def received(source: BinaryIO) -> Iterator[Handed]:
    """The messages of one job, until its :data:`END`. What is left unread of an array is skipped. Raises EOFError if
    the pipe was closed before, and ValueError for something that is no message."""
    room = bytearray(BLOCK)
    while line := source.readline():
        handed = _message(line, source, room)
        if handed.kind == END:
            return
        yield handed
        for _ in handed.blocks():
            pass
    raise EOFError("the port's process ended before it had handed over everything")


def _message(line: bytes, source: BinaryIO, room: bytearray) -> Handed:
    kind, name, content, dtype, shape = json.loads(line)
    held = None if dtype is None else np.dtype(dtype)
    if held is not None and held.kind not in "fiub":
        raise ValueError(f"{kind} {name}: an array of {dtype}")
    size = math.prod(shape) if held is not None else 0
    return Handed(kind, name, content, held, tuple(shape), source, room, size)
