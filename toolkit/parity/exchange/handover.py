"""Messages that the port's process sends to the comparator through a pipe.

Each message is a line of JSON and an optional array. The port's process runs user code and Paddle, which could change
any code that measures in that process. So it measures nothing and sends its results. :mod:`toolkit.parity.comparator`,
which runs neither, compares them with the reference. An array is read block by block, so that a gradient of several
gigabytes needs the memory of one block.
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

from toolkit.parity.exchange.messages import BEGIN, CONTENT, END
from toolkit.parity.exchange.records import text_of
from toolkit.parity.measure.error_stats import PIECE
from toolkit.parity.measure.real_numbers import as_real

#: Environment variable with the file descriptor of the pipe that the port's process writes to.
PIPE_VARIABLE = "TOOLKIT_PARITY_PIPE"
#: Requested capacity of a pipe in bytes: the maximum that Linux grants an unprivileged process.
PIPE_BYTES = 2**20
#: Maximum number of bytes in one block of an array.
BLOCK_BYTES = 8 * PIECE


class Sender:
    """The sending end of the pipe, in the port's process.

    Args:
        pipe: file descriptor of the pipe; None to discard all messages.
    """

    def __init__(self, pipe: int | None) -> None:
        self._pipe = pipe

    def begin(self, *part: str) -> None:
        """Announce the part of the result that the next messages belong to.

        Args:
            part: names of the part, such as a mutant's name and a dtype.
        """
        self._write(BEGIN, "", list(part))

    def send_json(self, kind: str, content: Any, name: str = "") -> None:
        """Send a message without an array.

        Args:
            kind: kind of the message, of :data:`.messages.CONTENT`.
            content: JSON or dataclasses, which are converted to JSON.
            name: name of the tensor, draw or parameter; empty if the kind needs no name.
        """
        self._write(kind, name, content)

    def send_array(self, kind: str, name: str, value: np.ndarray, content: Any = None) -> None:
        """Send a message with the current values of an array.

        Args:
            kind: kind of the message, of :data:`.messages.CONTENT`.
            name: name of the tensor, draw or parameter.
            value: the array; complex numbers are sent as real and imaginary parts.
            content: JSON in addition to the array; None for no content.
        """
        if self._pipe is None:
            return
        value = np.asarray(as_real(value), order="C")
        self._write(kind, name, content, value.dtype.str, list(value.shape))
        if value.size:
            self._write_bytes(value.reshape(-1).view(np.uint8).data)

    def send_arrays(self, kind: str, values: Iterable[tuple[str, np.ndarray]]) -> None:
        """Send a separate message of the same kind for each pair of a name and an array."""
        for name, value in values:
            self.send_array(kind, name, value)

    def end(self) -> None:
        """Send the message that ends a job."""
        self._write(END, "", None)

    def _write(self, kind: str, name: str, content: Any, dtype: str | None = None, shape: Sequence[int] = ()) -> None:
        """Write the line of JSON that begins a message, with the dtype and shape of its array.

        Args:
            kind: kind of the message, which selects the method that handles it.
            name: name of the message, such as a tensor's name.
            content: further content, which JSON can store.
            dtype: dtype of the array that follows; None without an array.
            shape: shape of the array that follows.
        """
        assert kind in CONTENT, kind
        if self._pipe is not None:
            self._write_bytes(memoryview(text_of([kind, name, content, dtype, shape]).encode() + b"\n"))

    def _write_bytes(self, data: memoryview) -> None:
        """Write all bytes to the pipe, and wait for the comparator if the pipe is full."""
        assert self._pipe is not None
        while data:
            data = data[os.write(self._pipe, data) :]


def open_sender() -> Sender:
    """Return a sender for the pipe that this process was started with; child processes do not inherit the pipe."""
    number = os.environ.pop(PIPE_VARIABLE, None)
    if number is None:
        return Sender(None)
    os.set_inheritable(int(number), False)
    return Sender(int(number))


@contextlib.contextmanager
def open_pipe() -> Iterator[tuple[int, int]]:
    """Yield the file descriptors for reading and writing of a new pipe; this process closes them after the block."""
    ends = os.pipe()
    with contextlib.suppress(ImportError, AttributeError, OSError):  # a smaller pipe works, but more slowly
        import fcntl

        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # only Linux has it
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@dataclass
class Message:
    """A message of the port's process.

    Attributes:
        kind: kind of the message, of :data:`.messages.CONTENT`.
        name: name of the tensor, draw or parameter; empty if the kind needs no name.
        content: JSON of the content; :class:`toolkit.parity.comparator.handler.MessageHandler` decodes it.
        dtype: dtype of the array; None for a message without an array.
        shape: shape of the array; empty for a message without an array.
    """

    kind: str
    name: str
    content: Any
    dtype: np.dtype | None
    shape: tuple[int, ...]
    _source: BinaryIO
    _buffer: bytearray = field(repr=False)
    _num_unread: int = 0

    def blocks(self) -> Iterator[np.ndarray]:
        """Yield the flattened array in blocks of :data:`PIECE` elements; each block overwrites the previous block."""
        while self._num_unread:
            count = min(PIECE, self._num_unread)
            yield np.frombuffer(self._read(count), self.dtype, count)

    def value(self) -> np.ndarray:
        """Return the whole array of the message, after reading it from the pipe."""
        value = np.empty(self.shape, self.dtype)
        flat, start = value.reshape(-1), 0
        for block in self.blocks():
            flat[start : start + len(block)] = block
            start += len(block)
        return value

    def _read(self, count: int) -> memoryview:
        """Return the next ``count`` elements of the array as bytes, read from the pipe."""
        assert self.dtype is not None
        view = memoryview(self._buffer)[: count * self.dtype.itemsize]
        if self._source.readinto(view) != len(view):  # type: ignore[attr-defined]  # a buffered reader fills the view
            raise EOFError(f"{self.kind} {self.name}: ends within its array")
        self._num_unread -= count
        return view


def read_messages(pipe: BinaryIO) -> Iterator[Message]:
    """Yield the messages of one job, until its :data:`END`; unread parts of an array are skipped.

    Args:
        pipe: reading end of the pipe, as a buffered file.

    Raises:
        EOFError: the pipe was closed before the end of the job.
        ValueError: the input is not a valid message.
    """
    buffer = bytearray(BLOCK_BYTES)
    while line := pipe.readline():
        message = _parse_message(line, pipe, buffer)
        if message.kind == END:
            return
        yield message
        for _ in message.blocks():
            pass
    raise EOFError("the port's process ended before it had handed over everything")


def _parse_message(line: bytes, pipe: BinaryIO, buffer: bytearray) -> Message:
    """Return the message that begins with a line of JSON.

    Args:
        line: the line.
        pipe: reading end of the pipe, which has the array after the line.
        buffer: memory for one block of an array, which all messages share.
    """
    kind, name, content, dtype_name, shape = json.loads(line)
    dtype = None if dtype_name is None else np.dtype(dtype_name)
    if dtype is not None and dtype.kind not in "fiub":
        raise ValueError(f"{kind} {name}: an array of {dtype_name}")
    size = math.prod(shape) if dtype is not None else 0
    return Message(kind, name, content, dtype, tuple(shape), pipe, buffer, size)
