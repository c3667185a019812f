"""Arrays that are made on demand, and safetensors files that are written from them one tensor at a time.

The safetensors library needs all tensors at once: for a model of half the memory, the copies that it writes do not fit
beside the model. :mod:`toolkit.parity.job.tensor_file` writes the gate's files with these functions too, in a process
with torch and without Paddle: so this module imports nothing but NumPy.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

#: Each NumPy dtype's name in the format, in the order of a file. It is the library's order, so that files are the same
#: to the byte.
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


def entry(dtype: np.dtype, shape: Sequence[int], start: int) -> dict[str, Any]:
    """Return a tensor's header entry.

    Args:
        dtype: one of :data:`TYPES`.
        start: offset of its values from the end of the header.
    """
    end = start + dtype.itemsize * math.prod(shape)
    return {"dtype": TYPES[dtype], "shape": list(shape), "data_offsets": [start, end]}


def header(entries: Mapping[str, Any], room: int = 0) -> bytes:
    """Return the bytes of a file before its first tensor: the header's length and the header, padded with blanks.

    Args:
        entries: :func:`entry` by name; first the library's own ``__metadata__``, if there is any.
        room: least size of the header in bytes.
    """
    written = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    written = written.ljust(max(room, -(-len(written) // 8) * 8))
    return len(written).to_bytes(8, "little") + written


class OnDemand(Mapping[str, np.ndarray]):
    """Arrays by name, each made anew by its maker on every access, and not kept."""

    def __init__(self, makers: Mapping[str, Callable[[], np.ndarray]]) -> None:
        self._makers = dict(makers)

    def __getitem__(self, name: str) -> np.ndarray:
        return self._makers[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._makers)

    def __len__(self) -> int:
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        return name in self._makers


def write_tensors(
    path: str | os.PathLike, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None
) -> None:
    """Write a safetensors file as the library does, byte for byte, holding one tensor at a time.

    Args:
        tensors: each is read twice: for its shape and for its values.
        metadata: texts of the header, in this order.

    Raises:
        OSError: writing failed; a partial file may be left.
        ValueError: a type that is not in :data:`TYPES`.
    """
    shapes = {}
    for name in tensors:
        value = np.asarray(tensors[name])
        if value.dtype not in TYPES:
            raise ValueError(f"{name}: {value.dtype} cannot be stored")
        shapes[name] = (value.dtype, value.shape, value.nbytes)
        del value  # before the next one is made
    ranks = list(TYPES)
    names = sorted(shapes, key=lambda name: (ranks.index(shapes[name][0]), name.encode()))
    entries: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        dtype, shape, size = shapes[name]
        entries[name] = entry(dtype, shape, end)
        end += size
    with open(path, "wb") as file:
        file.write(header(entries))
        for name in names:
            file.write(np.ascontiguousarray(tensors[name]).reshape(-1).view(np.uint8).data)
