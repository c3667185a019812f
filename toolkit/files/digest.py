"""Digests of contents, which decide whether a cache entry, or a run that was begun, is still of this data."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np


def digest(*parts: str | int) -> str:
    """Return a digest of these parts: equal for equal parts, 32 hexadecimal characters."""
    sha256 = hashlib.sha256()
    for part in parts:
        written = str(part).encode("utf-8", "surrogatepass")
        sha256.update(f"{len(written)}/".encode() + written)
    return sha256.hexdigest()[:32]


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def digest_of_array(value: Any) -> str:
    """Return a SHA-256 of an array's numbers in C order; shape and dtype do not count."""
    return hashlib.sha256(np.ascontiguousarray(np.asarray(value)).data).hexdigest()


def digest_of_rows(rows: Any) -> str:
    """Return a SHA-256 of a `datasets.Dataset`: all values in order, its column names and its label names."""
    from datasets import ClassLabel

    kinds = {name: getattr(kind, "feature", kind) for name, kind in rows.features.items()}  # of lists, what they hold
    labels = {name: kind.names for name, kind in kinds.items() if isinstance(kind, ClassLabel)}
    sha256 = hashlib.sha256(json.dumps([rows.column_names, labels]).encode())
    for batch in rows.iter(1000):
        sha256.update(json.dumps(batch, sort_keys=True, default=str).encode())
    return sha256.hexdigest()
