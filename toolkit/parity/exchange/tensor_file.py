"""Tensors on disk, written and read one at a time.

The tensors of a long text do not fit into memory. The files are safetensors, readable by that library, which only
writes whole files. :mod:`models.files.tensor_file` creates their header; the reference's process imports no other
module of that package.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import shutil
import tempfile
from collections import ChainMap
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np

from models.files.tensor_file import TYPES, encode_header, header_entry
from toolkit.parity.measure.sketch import Sketch

#: NumPy's dtype of each dtype name in a safetensors file, such as ``F32``.
NUMPY_TYPES: dict[str, np.dtype] = {name: kind for kind, name in TYPES.items()}
#: Smallest number of bytes of a tensor that is memory-mapped instead of being read into memory.
MIN_MAPPED_BYTES = 2**20
#: Key of the file's metadata with the repeated tensors: JSON of the name of an equal tensor, by name.
REPEATS = "repeats"
#: Key of the file's metadata with the sketched tensors: JSON of the shape of the whole tensor, by name.
SKETCHES_KEY = "sketched"
#: Number of bytes reserved for a header, enough for about 8,000 tensors. With a longer header, the file is rewritten.
ROOM = 2**20


class TensorWriter:
    """A safetensors file being written. It appears under its name when the ``with`` block ends without an error.

    The header comes first in the file, but is known last. So space is reserved for it and filled with blanks.

    Args:
        path: file to write.
        room: number of bytes that are reserved for the header.
        replaced_file: unused file to overwrite if it exists; None for a new file. The memory for a new file can cost
            more than the write (0.4 GB/s instead of 9 on a virtual machine that returns free memory to its host).

    Attributes:
        header: entry of each tensor in the file's header, by name.

    Raises:
        ValueError: a tensor is added under a name that the file has already, or with a dtype that is not in
            :data:`TYPES`.
    """

    def __init__(self, path: Path, room: int = ROOM, replaced_file: Path | None = None) -> None:
        self.path = path
        self.header: dict[str, dict[str, Any]] = {}
        self._partial = path.with_name(path.name + ".partial")
        self._room = room
        self._over = replaced_file
        self._repeats: dict[str, str] = {}
        self._sketched: dict[str, list[int]] = {}
        self._names = ChainMap[str, Any](self.header, self._repeats)

    def __enter__(self) -> TensorWriter:
        mode = "w+b"
        if self._over is not None:
            with contextlib.suppress(FileNotFoundError):
                os.replace(self._over, self._partial)
                mode = "r+b"
        self._file = open(self._partial, mode)
        self._file.seek(8 + self._room)
        return self

    def add(self, name: str, value: np.ndarray | Sketch) -> None:
        """Append a tensor, or a tensor's sketch, under a new name."""
        if isinstance(value, Sketch):
            self._sketched[name] = list(value.shape)
            value = value.values
        value = np.asarray(value, order="C")
        self.header[name] = _make_entry(name, value, self._file.tell() - 8 - self._room, self._names)
        value.tofile(self._file)

    def repeat(self, name: str, first: str) -> None:
        """Record in the metadata that a tensor equals the tensor ``first``, without writing its values again.

        :class:`TensorFile` returns the values of ``first`` for both names.

        Args:
            name: new name of the repeated tensor.
            first: name of a tensor that was added.
        """
        _check_new(name, self._names)
        self._repeats[name] = first

    def begin(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        """Begin a tensor that is too large to be held as a whole. :meth:`extend` appends its values.

        Args:
            name: new name of the tensor.
            dtype: NumPy's name of its dtype.
            shape: shape of the whole tensor.
        """
        one = np.broadcast_to(np.zeros((), dtype), shape)  # takes no memory
        self.header[name] = _make_entry(name, one, self._file.tell() - 8 - self._room, self._names)

    def extend(self, values: np.ndarray) -> None:
        """Append the next values of the tensor of the last :meth:`begin`."""
        np.asarray(values, order="C").tofile(self._file)

    def __exit__(
        self, exception_type: type[BaseException] | None, exception: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._file:
            if exception_type is None:
                self._file.truncate()  # the overwritten file may have been longer
                self._write_header()
        if exception_type is None:
            os.replace(self._partial, self.path)
        else:
            self._partial.unlink()

    def _write_header(self) -> None:
        """Write the header into its reserved space, or rewrite the file if the header is longer than the space."""
        metadata_values = {REPEATS: self._repeats, SKETCHES_KEY: self._sketched}
        metadata = {key: json.dumps(one) for key, one in metadata_values.items() if one}
        entries = {**({"__metadata__": metadata} if metadata else {}), **self.header}
        header_bytes = encode_header(entries, self._room)
        if len(header_bytes) > 8 + self._room:  # rare: the whole file is written again
            self._file.seek(8 + self._room)
            moved_path = self.path.with_name(self.path.name + ".moved")
            with open(moved_path, "wb") as target:
                _write_file(target, entries, self._file)
            os.replace(moved_path, self._partial)
            return
        self._file.seek(0)
        self._file.write(header_bytes)


class _OnDisk(Mapping[str, np.ndarray]):
    """Tensors by name with only the header in memory.

    Attributes:
        header: entry of each tensor in the header: its dtype, shape and offsets of its values, by name.
    """

    header: dict[str, dict[str, Any]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.header)

    def __len__(self) -> int:
        return len(self.header)

    def __contains__(self, name: object) -> bool:
        return name in self.header


class SpilledTensors(_OnDisk):
    """A dictionary of tensors whose values are on disk, in an unnamed file until :meth:`write`.

    Raises:
        ValueError: a tensor is set under an existing name, with an unknown dtype, or after :meth:`write`.
    """

    def __init__(self) -> None:
        self.header = {}
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - in a worker, one of its job folder
        self._start = 0

    def __setitem__(self, name: str, value: np.ndarray) -> None:
        value = np.asarray(value, order="C")
        if self._start:
            raise ValueError(f"{name}: the file is written")
        self.header[name] = _make_entry(name, value, self._file.seek(0, os.SEEK_END), self.header)
        value.tofile(self._file)

    def __getitem__(self, name: str) -> np.ndarray:
        self._file.flush()
        return _read_tensor(self._file, self.header[name], self._start)

    def write(self, path: Path) -> None:
        """Write all tensors as a safetensors file. Values are read from this file afterwards.

        Args:
            path: file to write.
        """
        partial = path.with_name(path.name + ".partial")
        self._file.seek(0)
        with open(partial, "wb") as target:
            self._start = _write_file(target, self.header, self._file)
        os.replace(partial, path)
        self._file.close()
        self._file = open(path, "rb")  # noqa: SIM115 - as long as the tensors are asked for


class TensorFile(_OnDisk):
    """The tensors of a safetensors file, each read on access and not kept in memory.

    The file stays open, since a trial of all faults reads a hundred thousand tensors, and another reader may delete it.

    Args:
        path: file to read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[bytes] = open(path, "rb")  # noqa: SIM115 - as long as the tensors are asked for
        size = int.from_bytes(self._file.read(8), "little")
        self.header = json.loads(self._file.read(size))
        metadata = self.header.pop("__metadata__", None) or {}
        self._sketched: dict[str, list[int]] = json.loads(metadata.get(SKETCHES_KEY, "{}"))
        for name, first in json.loads(metadata.get(REPEATS, "{}")).items():
            if name in self.header or first not in self.header:
                raise ValueError(f"{path}: says that {name} is {first} once more, which cannot be")
            self.header[name] = self.header[first]
            if first in self._sketched:
                self._sketched[name] = self._sketched[first]
        self._start = 8 + size

    def __getitem__(self, name: str) -> Any:
        """Return a tensor's values, or its :class:`.sketch.Sketch` if the file has only a sketch."""
        value = _read_tensor(self._file, self.header[name], self._start)
        return Sketch(value, tuple(self._sketched[name])) if name in self._sketched else value

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor without reading it. A sketch has the shape of its whole tensor."""
        return tuple(self._sketched.get(name, self.header[name]["shape"]))

    def pieces(self, name: str, count: int) -> Iterator[np.ndarray]:
        """Yield the values of a tensor, flattened, in pieces that are read one after another.

        Args:
            name: name of the tensor.
            count: number of values of each piece; the last piece may be smaller.
        """
        kind, (begin, end) = NUMPY_TYPES[self.header[name]["dtype"]], self.header[name]["data_offsets"]
        with open(self.path, "rb") as file:
            file.seek(self._start + begin)
            for num_left in range((end - begin) // kind.itemsize, 0, -count):
                yield np.fromfile(file, kind, min(count, num_left))

    def rows(self, name: str, start: int, end: int) -> np.ndarray:
        """Return some rows of a tensor without reading the others.

        Args:
            name: name of the tensor.
            start: index of the first row.
            end: index after the last row; it may exceed the number of rows.
        """
        entry = self.header[name]
        height, *rest = entry["shape"]
        start, end = min(start, height), min(end, height)
        each = NUMPY_TYPES[entry["dtype"]].itemsize * math.prod(rest)
        offsets = [entry["data_offsets"][0] + row * each for row in (start, end)]
        return _read_tensor(self._file, {**entry, "shape": [end - start, *rest], "data_offsets": offsets}, self._start)


def are_one(tensors: Mapping[str, np.ndarray], first: str, second: str) -> bool:
    """Return whether a file records two tensors as the same values (:meth:`TensorWriter.repeat`).

    Args:
        tensors: a :class:`TensorFile`. Other mappings have no such record, and the result is False.
        first: name of a tensor.
        second: name of another tensor.
    """
    if not isinstance(tensors, TensorFile) or first not in tensors or second not in tensors:
        return False
    return tensors.header[first] is tensors.header[second]


def _make_entry(name: str, value: np.ndarray, start: int, existing_names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entry of a tensor in a file's header, after checking its name and dtype.

    Args:
        name: name of the tensor.
        value: array with the tensor's dtype and shape.
        start: offset of its values in the file's data, in bytes.
        existing_names: names that the file has already, as keys.
    """
    _check_new(name, existing_names)
    if value.dtype not in TYPES:
        raise ValueError(f"{name}: {value.dtype}; one of {', '.join(map(str, TYPES))} can be kept")
    return header_entry(value.dtype, value.shape, start)


def _check_new(name: str, existing_names: Mapping[str, Any]) -> None:
    """Check that a file has no tensor of this name yet. Raises ValueError if it has."""
    if name in existing_names:
        raise ValueError(f"two tensors have the name {name}: one would not be compared")


def _write_file(target_file: IO[bytes], entries: Mapping[str, Any], data: IO[bytes]) -> int:
    """Write a safetensors file, and return the offset of its data in bytes.

    Args:
        target_file: file to write.
        entries: entries of the header, by name.
        data: file with the data, from its current position on.
    """
    header_bytes = encode_header(entries)
    target_file.write(header_bytes)
    shutil.copyfileobj(data, target_file, 1 << 24)
    return len(header_bytes)


def _read_tensor(file: IO[bytes], entry: Mapping[str, Any], start: int) -> np.ndarray:
    """Return the values of a tensor in a file.

    A large tensor is mapped copy-on-write, since reading it into memory takes twice as long.

    Args:
        file: the open file.
        entry: entry of the tensor in the header.
        start: offset of the data in the file, in bytes.
    """
    kind, (begin, end) = NUMPY_TYPES[entry["dtype"]], entry["data_offsets"]
    place = start + begin
    if end - begin >= MIN_MAPPED_BYTES and not place % kind.itemsize:
        return np.memmap(file, kind, "c", place, tuple(entry["shape"])).view(np.ndarray)
    value = np.empty(entry["shape"], kind)
    file.seek(place)
    if value.size and file.readinto(value) != end - begin:  # type: ignore[attr-defined]  # a quarter of np.fromfile's time
        raise ValueError(f"{file.name}: ends within a tensor")
    return value
