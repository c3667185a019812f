"""Write the files of a saved model or tokenizer into a folder of the caller."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.files.tensor_file import write_tensors


def write_file(folder: str | os.PathLike, name: str, content: str | bytes) -> None:
    """Write a file into an existing folder, and replace an earlier file with this name.

    Args:
        folder: existing folder.
        name: name of the file.
        content: text or bytes to write.
    """
    Path(folder, name).write_bytes(content if isinstance(content, bytes) else content.encode("utf-8"))


def write_json(folder: str | os.PathLike, name: str, content: Mapping[str, Any], *, sort_keys: bool = False) -> None:
    """Write a JSON file into an existing folder, and replace an earlier file with this name.

    Args:
        folder: existing folder.
        name: name of the file.
        content: keys and values to write.
        sort_keys: whether the keys are sorted.
    """
    write_file(folder, name, json.dumps(content, indent=2, sort_keys=sort_keys) + "\n")


def replace_tensors(path: Path, named_tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> None:
    """Write a safetensors file completely or not at all, and replace an earlier file with this name.

    Args:
        path: file to write.
        named_tensors: tensors by name.
        metadata: texts for the file's header, by key.
    """
    partial_path = path.with_name(f"{path.name}.partial")
    write_tensors(partial_path, named_tensors, metadata)
    os.replace(partial_path, path)
