"""Tensors on disk, written one after another and read one at a time: a run of a long text has more than fit memory.

The files are safetensors, which the library of that name reads too; it writes only what it has as a whole.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

#: NumPy's types by their name in the format.
TYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U8": np.dtype("u1"),
}
NAMES = {kind: name for name, kind in TYPES.items()}
#: Bytes from which on a tensor is not read into memory, but is what the system holds of the file.
MAPPED = 2**20
#: Bytes that a header may take without all that follows it being written again: about 8,000 tensors'.
ROOM = 2**20


class TensorWriter:
    """A safetensors file in the making; it appears under its name when the ``with`` block ends well. Its header comes
    first, and is known last: room is left for it, which blanks fill.

    Raises:
        ValueError: a name that is there already, or a type that is not in :data:`TYPES`.
    """

    def __init__(self, path: Path, room: int = ROOM) -> None:
        self.path = path
        self.header: dict[str, dict[str, Any]] = {}
        self._partial = path.with_name(path.name + ".partial")
        self._room = room

    def __enter__(self) -> TensorWriter:
        self._file = open(self._partial, "w+b")
        self._file.seek(8 + self._room)
        return self

    def add(self, name: str, value: np.ndarray) -> None:
        """Append a tensor."""
        value = np.asarray(value, order="C")
        self.header[name] = _entry(name, value, self._file.tell() - 8 - self._room, self.header)
        value.tofile(self._file)

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if kind is None:
                self._write_header()
        if kind is None:
            os.replace(self._partial, self.path)
        else:
            self._partial.unlink()

    def _write_header(self) -> None:
        written = json.dumps(self.header).encode()
        if len(written) > self._room:  # rare: all is written once more
            self._file.seek(8 + self._room)
            moved = self.path.with_name(self.path.name + ".moved")
            with open(moved, "wb") as whole:
                _write(whole, self.header, self._file)
            os.replace(moved, self._partial)
            return
        self._file.seek(0)
        self._file.write(self._room.to_bytes(8, "little") + written.ljust(self._room))


class _OnDisk(Mapping[str, np.ndarray]):
    """Tensors by name, of which the header alone is in memory."""

    header: dict[str, dict[str, Any]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.header)

    def __len__(self) -> int:
        return len(self.header)

    def __contains__(self, name: object) -> bool:
        return name in self.header


class SpilledTensors(_OnDisk):
    """As a dictionary of tensors, whose values are on disk, in a file without a name, until :meth:`write` gives it one.

    Raises:
        ValueError: as :class:`TensorWriter`; also for a tensor that comes after :meth:`write`.
    """

    def __init__(self) -> None:
        self.header = {}
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - in a worker, one of its job folder
        self._start = 0

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        value = np.asarray(value, order="C")
        if self._start:
            raise ValueError(f"{name}: the file is written")
        self.header[name] = _entry(name, value, self._file.seek(0, os.SEEK_END), self.header)
        value.tofile(self._file)

    def __getitem__(self, name: str) -> np.ndarray:
        self._file.flush()
        return _read(self._file, self.header[name], self._start)

    def write(self, path: Path) -> None:
        """Make it a safetensors file of that name, from which the values are read from then on."""
        partial = path.with_name(path.name + ".partial")
        self._file.seek(0)
        with open(partial, "wb") as whole:
            self._start = _write(whole, self.header, self._file)
        os.replace(partial, path)
        self._file.close()
        self._file = open(path, "rb")  # noqa: SIM115 - as long as the tensors are asked for


class TensorFile(_OnDisk):
    """The tensors of a safetensors file, each read when it is asked for, and not kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            self.header = json.loads(file.read(size))
        self.header.pop("__metadata__", None)
        self._start = 8 + size

    def __getitem__(self, name: str) -> np.ndarray:
        with open(self.path, "rb") as file:
            return _read(file, self.header[name], self._start)


def _entry(name: str, value: np.ndarray, start: int, header: Mapping[str, Any]) -> dict[str, Any]:
    """What the header says of a tensor whose values begin at ``start``."""
    if name in header:
        raise ValueError(f"two tensors have the name {name}: one would not be compared")
    if value.dtype not in NAMES:
        raise ValueError(f"{name}: {value.dtype}; one of {', '.join(map(str, NAMES))} can be kept")
    return {
        "dtype": NAMES[value.dtype],
        "shape": list(value.shape),
        "data_offsets": [start, start + value.nbytes],
    }


def _write(whole: IO[bytes], header: Mapping[str, Any], data: IO[bytes]) -> int:
    """Write header and data; returns where the data begin."""
    written = json.dumps(header).encode()
    written += b" " * (-len(written) % 8)
    whole.write(len(written).to_bytes(8, "little") + written)
    shutil.copyfileobj(data, whole, 1 << 24)
    return 8 + len(written)


def _read(file: IO[bytes], entry: Mapping[str, Any], start: int) -> np.ndarray:
    """The tensor of a header's entry, in a file whose data begin at ``start``. A large one is the file's own pages,
    copied only where they are written to: read into memory of its own it takes twice as long."""
    kind, (begin, end) = TYPES[entry["dtype"]], entry["data_offsets"]
    place, count = start + begin, (end - begin) // kind.itemsize
    if end - begin >= MAPPED and not place % kind.itemsize:
        return np.memmap(file, kind, "c", place, tuple(entry["shape"])).view(np.ndarray)
    file.seek(place)
    return np.fromfile(file, kind, count).reshape(entry["shape"])
