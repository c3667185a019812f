"""Tensors on disk, written one after another and read one at a time: a run of a long text has more than fit memory.

The files are safetensors, which the library of that name reads too; it writes only what it has as a whole.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

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


class TensorWriter:
    """A safetensors file in the making; it appears under its name when the ``with`` block ends well.

    Raises:
        ValueError: a name that is there already, or a type that is not in :data:`TYPES`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: dict[str, dict[str, Any]] = {}
        self._data = path.with_name(path.name + ".data")

    def __enter__(self) -> TensorWriter:
        self._file = open(self._data, "wb")
        return self

    def add(self, name: str, value: np.ndarray) -> None:
        """Append a tensor."""
        if name in self.header:
            raise ValueError(f"two tensors have the name {name}: one would not be compared")
        value = np.asarray(value, order="C")
        start = self._file.tell()
        if value.dtype not in NAMES:
            raise ValueError(f"{name}: {value.dtype}; one of {', '.join(map(str, NAMES))} can be kept")
        value.tofile(self._file)
        offsets = [start, start + value.nbytes]
        self.header[name] = {"dtype": NAMES[value.dtype], "shape": list(value.shape), "data_offsets": offsets}

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        partial = self.path.with_name(self.path.name + ".partial")
        if kind is None:
            header = json.dumps(self.header).encode()
            header += b" " * (-len(header) % 8)
            with open(partial, "wb") as whole, open(self._data, "rb") as data:
                whole.write(len(header).to_bytes(8, "little") + header)
                shutil.copyfileobj(data, whole, 1 << 24)
            os.replace(partial, self.path)
        self._data.unlink()


class TensorFile(Mapping[str, np.ndarray]):
    """The tensors of a safetensors file, each read when it is asked for, and not kept."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with open(path, "rb") as file:
            size = int.from_bytes(file.read(8), "little")
            self.header = json.loads(file.read(size))
        self.header.pop("__metadata__", None)
        self._start = 8 + size

    def __iter__(self) -> Iterator[str]:
        return iter(self.header)

    def __len__(self) -> int:
        return len(self.header)

    def __contains__(self, name: object) -> bool:
        return name in self.header

    def __getitem__(self, name: str) -> np.ndarray:
        entry = self.header[name]
        kind, (begin, end) = TYPES[entry["dtype"]], entry["data_offsets"]
        flat = np.fromfile(self.path, kind, (end - begin) // kind.itemsize, offset=self._start + begin)
        return flat.reshape(entry["shape"])
