"""Readers of files of tensors from an unknown source, which read one tensor at a time.

A reader can return the header of a tensor before its values. It never allocates more memory than the size of the file,
or of a tensor that the caller requests by name. It does not execute code from a file: no pickle is opened.
"""

from __future__ import annotations

import contextlib
import math
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple, Protocol

import numpy as np
from safetensors import safe_open

from toolkit.parity.exchange.tensor_file import NUMPY_TYPES

#: NumPy's name of a dtype by its name in a safetensors file, such as ``F64``.
DTYPES = {name: str(dtype) for name, dtype in NUMPY_TYPES.items()}
#: Bit in the flags of a zip archive's member that marks the member as encrypted.
ENCRYPTION_FLAG = 0x1


class TensorReader(Protocol):
    """Interface of an open file of tensors."""

    def __iter__(self) -> Iterator[str]:
        """Yield the names of the tensors."""

    def header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return a tensor's dtype, such as ``float64``, and its shape, without its values."""

    def read(self, name: str) -> np.ndarray:
        """Return a tensor's values."""


class _Member(NamedTuple):
    """An array in an archive of ``numpy.savez``.

    Attributes:
        member: entry of the zip archive.
        dtype: dtype of the array.
        shape: shape of the array.
        fortran_order: whether the values are stored in Fortran's order.
        start: offset of the values from the beginning of the member, in bytes.
    """

    member: zipfile.ZipInfo
    dtype: np.dtype
    shape: tuple[int, ...]
    fortran_order: bool
    start: int


class _NpzReader:
    """Reader of an archive of ``numpy.savez``.

    Raises:
        ValueError: the archive has other members than arrays, or a name twice.
    """

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members: dict[str, zipfile.ZipInfo] = {}
        for member in archive.infolist():
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                raise ValueError(f"it holds {name}, which is no array of numpy.savez")
            if name in self._members:
                raise ValueError(f"it holds {name} twice")
            self._members[name] = member

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return a tensor's dtype and shape. Raises ValueError if the archive cannot hold such a tensor."""
        member = self._describe_member(name)
        return str(member.dtype), member.shape

    def read(self, name: str) -> np.ndarray:
        """Return a tensor's values. Raises ValueError if they are incomplete, or not as they were written."""
        member = self._describe_member(name)
        count = math.prod(member.shape)
        with self._archive.open(member.member, mode="r") as file:
            file.read(member.start)
            content = file.read(count * member.dtype.itemsize)
            if len(content) != count * member.dtype.itemsize or file.read(1):  # at the end, the checksum is compared
                raise ValueError(f"{name} ends within its values, or after them")
        values = np.frombuffer(content, member.dtype)
        return values.reshape(member.shape[::-1]).T if member.fortran_order else values.reshape(member.shape)

    def _describe_member(self, name: str) -> _Member:
        """Return the description of an array. Raises ValueError if the archive cannot hold such an array."""
        member = self._members[name]
        if member.flag_bits & ENCRYPTION_FLAG or member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{name} is encrypted, or compressed as numpy.savez compresses nothing")
        with self._archive.open(member, mode="r") as file:
            shape, fortran_order, dtype = _read_header(file)
            start = file.tell()
        if dtype.hasobject:
            raise ValueError(f"{name} holds Python objects, which are not opened")
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"{name} has the shape {shape}")
        if start + math.prod(shape) * dtype.itemsize != member.file_size:
            raise ValueError(f"{name} has {member.file_size} bytes, and its shape {shape} needs others")
        return _Member(member, dtype, shape, fortran_order, start)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Return the shape of an array in NumPy's file format, whether it is in Fortran's order, and its dtype."""
    version = np.lib.format.read_magic(file)
    if version != (1, 0):  # of the others, a header may have gigabytes
        raise ValueError(f"an array is of version {version} of NumPy's format; numpy.savez writes (1, 0)")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy advises to save a header of Python 2 again
        return np.lib.format.read_array_header_1_0(file)


class _SafetensorsReader:
    """Reader of a safetensors file.

    The safetensors library checks that no tensor lies outside the file or overlaps another tensor.
    """

    def __init__(self, tensor_file: safe_open) -> None:
        self._file = tensor_file

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.keys())

    def header(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return a tensor's dtype and shape."""
        tensor_slice = self._file.get_slice(name)
        dtype = str(tensor_slice.get_dtype())
        return DTYPES.get(dtype, dtype), tuple(tensor_slice.get_shape())

    def read(self, name: str) -> np.ndarray:
        """Return a tensor's values."""
        return self._file.get_tensor(name)


@contextlib.contextmanager
def open_npz(path: Path) -> Iterator[TensorReader]:
    """Inside the ``with`` block, open an archive of ``numpy.savez``; the block gets its reader."""
    with open(path, "rb") as file:
        if file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX:
            raise ValueError("it is one array of numpy.save; save name -> array with numpy.savez")
        with zipfile.ZipFile(file) as archive:
            yield _NpzReader(archive)


@contextlib.contextmanager
def open_safetensors(path: Path) -> Iterator[TensorReader]:
    """Inside the ``with`` block, open a safetensors file; the block gets its reader."""
    with safe_open(path, framework="np") as file:
        yield _SafetensorsReader(file)
