"""Digests of contents, which decide whether a cache entry or an unfinished run belongs to the same data."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np


def digest_parts(*parts: str | int) -> str:
    """Return a digest of a sequence of parts: 32 hexadecimal characters, equal for equal parts."""
    sha256 = hashlib.sha256()
    for part in parts:
        part_bytes = str(part).encode("utf-8", "surrogatepass")
        sha256.update(f"{len(part_bytes)}/".encode() + part_bytes)
    return sha256.hexdigest()[:32]


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    file_hash = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            file_hash.update(block)
    return file_hash.hexdigest()


def digest_array(array: Any) -> str:
    """Return the SHA-256 of an array's elements in C order; shape and dtype do not affect it."""
    return hashlib.sha256(np.ascontiguousarray(np.asarray(array)).data).hexdigest()


def digest_rows(rows: Any) -> str:
    """Return the SHA-256 of a `datasets.Dataset`: all values in order, the column names and the label names."""
    from datasets import ClassLabel

    feature_by_name = {
        name: getattr(kind, "feature", kind) for name, kind in rows.features.items()
    }  # the element type of a list
    label_names = {name: kind.names for name, kind in feature_by_name.items() if isinstance(kind, ClassLabel)}
    sha256 = hashlib.sha256(json.dumps([rows.column_names, label_names]).encode())
    for batch in rows.iter(1000):
        sha256.update(json.dumps(batch, sort_keys=True, default=str).encode())
    return sha256.hexdigest()
