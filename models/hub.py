"""From the name of a checkpoint to a folder on this disk, and the tensors in it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

#: The files of a checkpoint that are read. Pickles and code are neither downloaded nor opened.
PATTERNS = ("*.json", "*.safetensors", "*.model", "merges.txt")


def resolve_folder(folder_or_id: str | os.PathLike) -> Path:
    """The folder itself, or that of a hub repository's snapshot, downloaded when it is not in the local cache.

    Raises:
        FileNotFoundError: neither a folder nor an available repository; the reason in one line.
    """
    folder = Path(folder_or_id)
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(folder_or_id), allow_patterns=list(PATTERNS)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"{folder_or_id} is neither a folder nor an available hub repository: {reason}"
        ) from None


class StoredTensor:
    """A tensor in a file: its shape at once, its values each time ``np.asarray`` asks for them."""

    def __init__(self, file: Path, name: str) -> None:
        self.file = file
        self.name = name
        with safe_open(file, framework="np") as tensors:
            self.shape = tuple(tensors.get_slice(name).get_shape())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with safe_open(self.file, framework="np") as tensors:
            value = tensors.get_tensor(self.name)
        return value if dtype is None else value.astype(dtype)


def stored_tensors(folder: Path) -> Iterator[tuple[str, StoredTensor]]:
    """As :func:`read_tensors`, with the values left on disk: for checkpoints larger than memory."""
    for file, name in _names(folder):
        yield name, StoredTensor(file, name)


def read_tensors(folder: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of every tensor of the checkpoint in ``folder``, one at a time, single file or shards.

    Raises:
        FileNotFoundError: no safetensors file. A pickle beside it is named, and left unopened: unpickling runs code.
    """
    for file, name in _names(folder):
        with safe_open(file, framework="np") as tensors:
            yield name, tensors.get_tensor(name)


def _names(folder: Path) -> Iterator[tuple[Path, str]]:
    """File and name of every tensor of a checkpoint.

    Raises:
        FileNotFoundError: no safetensors file. A pickle beside it is named, and left unopened: unpickling runs code.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    elif (folder / "model.safetensors").is_file():
        files = ["model.safetensors"]
    else:
        pickles = sorted(path.name for path in folder.glob("*.bin"))
        raise FileNotFoundError(
            f"{folder}: no model.safetensors"
            + (
                f"; {pickles[0]} is a pickle, which can run code and is not opened: save it with safetensors"
                if pickles
                else ""
            )
        )
    for name in files:
        with safe_open(folder / name, framework="np") as tensors:
            yield from ((folder / name, key) for key in tensors.keys())  # noqa: SIM118 - safe_open is no mapping
