"""Cached measurements of a user's pair, for tests that run again and again.

The imports of a pair's files are known only after they have run. So the key of an entry is computed from the two files,
the map, the configuration and all versions. The entry also holds the SHA-256 of each other file of the user's code that
was imported, and it is used only while these files are unchanged. Data files that the code reads are not checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from toolkit.parity.bundle import cache
from toolkit.parity.exchange import files
from toolkit.parity.exchange.records import as_json
from toolkit.parity.job import user_code
from toolkit.parity.request.build import job_of
from toolkit.parity.request.request import GateRequest


def key_of(request: GateRequest) -> str:
    """Return the key of a pair's gate.

    Raises:
        UserError: a file does not exist.
    """
    assert request.pair is not None
    sides = {side: user_code.locate_source(getattr(request.pair, side)) for side in ("port", "reference")}
    job_content = as_json(job_of(replace(request, pair=replace(request.pair, map=None))))
    content = {
        "job": {name: value for name, value in job_content.items() if name != "reference_python"},
        "map": [request.pair_names, request.pair_layouts],
        "files": {side: [str(path), files.file_sha256(path)] for side, path in sides.items()},
        "packages": sorted(f"{one.metadata['Name']} {one.version}" for one in metadata.distributions()),
        "trace": request.trace,
        **cache.describe_environment({"reference": request.reference_python, "port": request.port_python}),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=as_json).encode()).hexdigest()


def hashes_of(imported_files: list[str]) -> dict[str, str]:
    """Return the SHA-256 of each file that a pair's files have imported."""
    return {name: files.file_sha256(Path(name)) for name in sorted(set(imported_files))}


def is_unchanged(sha256_of_file: Mapping[str, str]) -> bool:
    """Return whether all files that a cached measurement imported are unchanged."""
    return all(
        Path(name).is_file() and files.file_sha256(Path(name)) == sha256 for name, sha256 in sha256_of_file.items()
    )
