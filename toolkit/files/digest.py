"""Names for contents: what decides whether something that was kept, or a run that was begun, is still of this data."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest(*parts: str | int) -> str:
    """A name for what these parts decide: equal for equal parts, 32 hexadecimal characters."""
    sha256 = hashlib.sha256()
    for part in parts:
        written = str(part).encode("utf-8", "surrogatepass")
        sha256.update(f"{len(written)}/".encode() + written)
    return sha256.hexdigest()[:32]


def digest_of_rows(rows: Any) -> str:
    """A SHA-256 of all values of a `datasets.Dataset`, in their order, its columns' names and its labels' names."""
    from datasets import ClassLabel

    kinds = {name: getattr(kind, "feature", kind) for name, kind in rows.features.items()}  # of lists, what they hold
    labels = {name: kind.names for name, kind in kinds.items() if isinstance(kind, ClassLabel)}
    sha256 = hashlib.sha256(json.dumps([rows.column_names, labels]).encode())
    for batch in rows.iter(1000):
        sha256.update(json.dumps(batch, sort_keys=True, default=str).encode())
    return sha256.hexdigest()
