"""From the name of a checkpoint to a folder on this disk, and the tensors in it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from models.files import UnreadableFile, open_tensors, read_object

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
        with open_tensors(file) as tensors:
            self.shape = tuple(tensors.get_slice(name).get_shape())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        with open_tensors(self.file) as tensors:
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
        UnreadableFile: one of them is damaged, or the index is.
    """
    for file, name in _names(folder):
        with open_tensors(file) as tensors:
            value = tensors.get_tensor(name)
        yield name, value


def _names(folder: Path) -> Iterator[tuple[Path, str]]:
    """File and name of every tensor of a checkpoint; raises as :func:`read_tensors`."""
    for file in tensor_files(folder):
        with open_tensors(file) as tensors:
            names = list(tensors.keys())
        yield from ((file, name) for name in names)


def tensor_files(folder: Path) -> list[Path]:
    """The files with a checkpoint's tensors: those that its index names, or the only one.

    Raises:
        FileNotFoundError: as :func:`read_tensors`.
        UnreadableFile: the index is none, or names a file elsewhere: what comes with a checkpoint is not to say which
            other files of this disk are read.
    """
    index = folder / "model.safetensors.index.json"
    if os.path.lexists(index):
        return _indexed(index, ".safetensors")
    if os.path.lexists(folder / "model.safetensors"):
        return [folder / "model.safetensors"]
    pickles = pickle_files(folder) or sorted(folder.glob("*.bin"))
    hint = "is a pickle, which can run code and is not opened here: save it with safetensors"
    raise FileNotFoundError(f"{folder}: no model.safetensors{f'; {pickles[0].name} {hint}' if pickles else ''}")


def pickle_files(folder: Path) -> list[Path]:
    """The pickles that hold a checkpoint's tensors, as torch writes them; none where there are safetensors.

    Raises:
        UnreadableFile: as :func:`tensor_files`.
    """
    if any(os.path.lexists(folder / f"model.safetensors{more}") for more in ("", ".index.json")):
        return []
    index = folder / "pytorch_model.bin.index.json"
    if os.path.lexists(index):
        return _indexed(index, ".bin")
    return [path for path in [folder / "pytorch_model.bin"] if os.path.lexists(path)]


def weight_files(folder: Path) -> list[Path]:
    """The files that hold a checkpoint's tensors: :func:`pickle_files`, or else :func:`tensor_files`, which raises."""
    return pickle_files(folder) or tensor_files(folder)


def _indexed(index: Path, suffix: str) -> list[Path]:
    """The files that an index names, all of them beside it."""
    named = read_object(index).get("weight_map")
    if not isinstance(named, dict) or not named:
        raise UnreadableFile(index, "has no weight_map of tensors and their files")
    for tensor, name in named.items():
        if not isinstance(name, str) or not name.endswith(suffix) or set(name) & set("/\\\0"):
            raise UnreadableFile(
                index, f"says that {tensor} is in {name!r}; it should be a {suffix} file of the same folder"
            )
    return [index.parent / name for name in sorted(set(named.values()))]
