"""Arrays that are computed on access, and safetensors files that are written from them one tensor at a time.

The safetensors library needs all tensors at once. If a model takes half of the memory, the copies that the library
writes do not fit into the rest. :mod:`toolkit.parity.exchange.tensor_file` also writes the gate's files with these
functions, in a process with torch and without Paddle. This module therefore imports nothing but NumPy.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

#: Name of each NumPy dtype in a safetensors file, in the library's order of writing, so that files equal the library's
#: byte for byte.
TYPES: dict[np.dtype, str] = {
    np.dtype("<u8"): "U64",
    np.dtype("<i8"): "I64",
    np.dtype("<f8"): "F64",
    np.dtype("<f4"): "F32",
    np.dtype("<u4"): "U32",
    np.dtype("<i4"): "I32",
    np.dtype("<f2"): "F16",
    np.dtype("<u2"): "U16",
    np.dtype("<i2"): "I16",
    np.dtype("i1"): "I8",
    np.dtype("u1"): "U8",
    np.dtype("?"): "BOOL",
}


def header_entry(array_dtype: np.dtype, shape: Sequence[int], start: int) -> dict[str, Any]:
    """Return the entry of a tensor in the header.

    Args:
        array_dtype: dtype of the tensor, one of :data:`TYPES`.
        shape: shape of the tensor.
        start: offset of the values from the end of the header, in bytes.
    """
    end = start + array_dtype.itemsize * math.prod(shape)
    return {"dtype": TYPES[array_dtype], "shape": list(shape), "data_offsets": [start, end]}


def encode_header(entries: Mapping[str, Any], min_bytes: int = 0) -> bytes:
    """Return the bytes of a file before its first tensor: the length of the header, and the header padded with spaces.

    Args:
        entries: :func:`header_entry` of each tensor by name, after the optional entry ``__metadata__``.
        min_bytes: minimum size of the header in bytes.
    """
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header = header.ljust(max(min_bytes, -(-len(header) // 8) * 8))
    return len(header).to_bytes(8, "little") + header


class LazyArrays(Mapping[str, np.ndarray]):
    """Arrays by name that are computed on every access and not stored.

    Args:
        functions: function that computes each array, by name.
    """

    def __init__(self, functions: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self._functions = dict(functions)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._functions[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def __contains__(self, name: object) -> bool:
        return name in self._functions


def write_tensors(
    path: str | os.PathLike, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file with the same bytes as the library, with one tensor at a time in memory.

    Args:
        path: path of the file.
        tensors: arrays by name. Each is accessed twice: for its shape and for its values.
        metadata: texts of the header by name, in this order; None for no metadata.

    Raises:
        OSError: the file cannot be written; a partial file may remain.
        ValueError: a dtype is not in :data:`TYPES`.
    """
    shapes = {}
    for name in tensors:
        value = np.asarray(tensors[name])
        if value.dtype not in TYPES:
            raise ValueError(f"{name}: {value.dtype} cannot be stored")
        shapes[name] = (value.dtype, value.shape, value.nbytes)
        del value  # free the array before the next array is computed
    ranks = list(TYPES)
    names = sorted(shapes, key=lambda name: (ranks.index(shapes[name][0]), name.encode()))
    entries: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        dtype, shape, size = shapes[name]
        entries[name] = header_entry(dtype, shape, end)
        end += size
    with open(path, "wb") as file:
        file.write(encode_header(entries))
        for name in names:
            file.write(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
