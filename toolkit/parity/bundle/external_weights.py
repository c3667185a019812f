"""The weights of a small bundle (``toolkit parity record --small``), in a file next to it or in a checkpoint.

The bundle's manifest has the SHA-256 of each parameter's float32 values, in C order and little-endian.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from models.files.hub import read_file_tensors, read_tensors
from models.files.plain import UnreadableFileError
from toolkit.errors import UserError
from toolkit.parity.exchange.tensor_file import TensorWriter


def weights_path_of(bundle: Path) -> Path:
    """Return the path of the weights file next to a small bundle."""
    return Path(f"{bundle}.weights.safetensors")


def hash_tensors(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each tensor of a safetensors file, by name.

    Raises:
        OSError: the file cannot be opened.
        UnreadableFileError: the file is damaged.
    """
    return {name: _hash_values(value) for name, value in _read_tensors(path)}


def _hash_values(value: np.ndarray) -> str:
    """Return the SHA-256 of an array's float32 values in C order, little-endian, as hexadecimal digits."""
    return hashlib.sha256(np.ascontiguousarray(value, "<f4").data).hexdigest()


def write_weights(
    path: Path, source: Path, recorded_digests: Mapping[str, str], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Write the parameters that a reference was recorded with to a file, after checking each of them.

    Args:
        path: file to write.
        source: safetensors file, or folder of a checkpoint, with these parameters. It may have others, too.
        recorded_digests: SHA-256 of each recorded parameter, by name.
        shapes: shape of each recorded parameter, by name.

    Raises:
        UserError: a parameter is missing or differs from the recording.
    """
    missing = dict.fromkeys(recorded_digests)
    try:
        with TensorWriter(path) as writer:
            for name, value in _read_tensors(source):
                if name not in recorded_digests:
                    continue
                value = value.astype(np.float32, copy=False)
                if list(value.shape) != list(shapes[name]) or _hash_values(value) != recorded_digests[name]:
                    raise UserError(f"{source}: {name} is not what the reference was recorded with")
                writer.add(name, value)
                del missing[name]
    except (OSError, UnreadableFileError) as error:
        raise UserError(str(error)) from None
    if missing:
        raise UserError(f"{source}: has no {next(iter(missing))}, with which the reference was recorded")


def _read_tensors(source: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and values of each tensor in a safetensors file or in a checkpoint's folder."""
    return read_tensors(source) if source.is_dir() else read_file_tensors(source)
