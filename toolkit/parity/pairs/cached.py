"""Measurements of a user's pair that are kept, for tests which run again and again.

What a pair's files import is known only once they have run. So an entry is found by the two files, the map, the
configuration and all versions, and holds what else of the user's code was imported, by its SHA-256: it counts only
while all of that is unchanged. Data that the code reads is not seen.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from toolkit.machine import runtime
from toolkit.parity.job import cache, files, interpreter, user_code
from toolkit.parity.job.build import job_of
from toolkit.parity.job.records import as_json
from toolkit.parity.job.request import GateRequest


def key_of(request: GateRequest) -> str:
    """Return the key of a pair's gate.

    Raises:
        UserError: a file is not there.
    """
    assert request.pair is not None
    sides = {side: user_code.located(getattr(request.pair, side)) for side in ("port", "reference")}
    asked = as_json(job_of(replace(request, pair=replace(request.pair, map=None))))
    content = {
        "job": {name: value for name, value in asked.items() if name != "reference_python"},
        "map": [request.pair_names, request.pair_layouts],
        "files": {side: [str(path), files.sha256(path)] for side, path in sides.items()},
        "packages": sorted(f"{one.metadata['Name']} {one.version}" for one in metadata.distributions()),
        "flags": runtime.environment(),
        "trace": request.trace,
        "toolkit": cache.source_of(cache.ROOT),
    }
    for side, python in (("reference", request.reference_python), ("port", request.port_python)):
        if python is not None:
            content[side] = [python, interpreter.versions_of(python, side)]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=as_json).encode()).hexdigest()


def hashes_of(imported: list[str]) -> dict[str, str]:
    """Return the SHA-256 of each file that a pair's files have imported."""
    return {name: files.sha256(Path(name)) for name in sorted(set(imported))}


def is_unchanged(imported: Mapping[str, str]) -> bool:
    """Whether all that a kept measurement imported is still the same."""
    return all(Path(name).is_file() and files.sha256(Path(name)) == sha256 for name, sha256 in imported.items())
