"""Measurements of earlier gates, so that an unchanged gate is not measured again.

The key is a hash of everything that a measurement depends on: the source of the whole project, the configuration,
weights, batch, draws' seed, texts and tokenizer, dtypes, device, threads, flags and versions, and the interpreter of
the reference if it is not this interpreter. The workers' measurements are stored, and each gate judges them again. Only
measurements of passed gates are stored.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from toolkit.files import cache
from toolkit.files.digest import digest_array
from toolkit.machine import runtime
from toolkit.parity.exchange import files
from toolkit.parity.exchange.records import as_json, from_json
from toolkit.parity.inputs.synthetic import SyntheticWeights
from toolkit.parity.job.job import Job
from toolkit.parity.job.tokenizers import files_of
from toolkit.parity.processes import interpreter

Record = TypeVar("Record")

#: Root folder of the project.
ROOT = Path(__file__).resolve().parents[3]
#: Kind of these entries in the cache, and the names of their files.
KIND, MEASUREMENTS, CONSTANTS = "parity", "measured.json", "constants.safetensors"
#: Packages that the workers import. A list of single modules would soon be incomplete.
PACKAGES = ("models", "toolkit")


def key_of(folder: Path, reference_python: str | None = None) -> str:
    """Return the cache key of a job folder that :func:`.build.write_job` has filled, as hexadecimal digits.

    Args:
        folder: folder of the job.
        reference_python: interpreter of the reference; None for this interpreter.
    """
    contents = [files.file_sha256(folder / f"{name}.safetensors") for name in ("weights", "batch", "labels")]
    return _key(files.read_job(folder), contents, reference_python)


def key_of_request(
    job: Job, batch: Mapping[str, np.ndarray], weights: Mapping[str, np.ndarray], reference_python: str | None = None
) -> str:
    """Return the cache key of a job whose weights are not written yet, as hexadecimal digits.

    Synthetic weights are identified by their kind and seed, and other weights by their values.

    Args:
        job: content of the job.
        batch: batch of the step, by name.
        weights: weights of the model, by name.
        reference_python: interpreter of the reference; None for this interpreter.
    """
    if isinstance(weights, SyntheticWeights):
        tensors: list[tuple] = [("weights", weights.kind, weights.seed)]
    else:
        tensors = [(name, digest_array(weights[name])) for name in weights]
    tensors += [(name, digest_array(value)) for name, value in batch.items()]
    return _key(job, [json.dumps(tensors)], reference_python)


def _key(job: Job, contents: Sequence[str], reference_python: str | None) -> str:
    """Return the cache key of a job, a SHA-256 of everything that its measurement depends on.

    Args:
        job: content of the job.
        contents: hashes of the job's weights, batch and labels.
        reference_python: interpreter of the reference; None for this interpreter.
    """
    digest = hashlib.sha256()
    request = as_json(job)
    del request["reference_python"]  # added below, if it is another interpreter
    del request["origin"]  # the content of the files counts, not their names
    if job.checkpoint is not None:
        del request["checkpoint"]  # the folder may lie elsewhere each time
        for file in sorted(Path(job.checkpoint).glob("*.safetensors")):
            digest.update(files.file_sha256(file).encode())
    if job.tokenizer and job.tokenizer.path:  # a file or folder that lies elsewhere each time
        del request["tokenizer"]["path"]
        for file in files_of(job.tokenizer):
            digest.update(files.file_sha256(file).encode())
    environment = describe_environment({"reference": reference_python})
    environment["versions"] = runtime.installed_versions()
    digest.update(json.dumps([request, environment, *contents], sort_keys=True).encode())
    return digest.hexdigest()


def describe_environment(interpreters: Mapping[str, str | None]) -> dict[str, Any]:
    """Return the part of a cache key that does not depend on the job or the installed packages, as a JSON object.

    It has Paddle's flags, the source of the project, and the path and versions of each other interpreter. The path
    is included because a wrapper may run the same versions with something else changed.

    Args:
        interpreters: interpreter of each side; None for this interpreter.
    """
    other_interpreters = {
        side: [python, interpreter.versions_of(python, side)]
        for side, python in interpreters.items()
        if python is not None
    }
    return {"flags": runtime.paddle_environment(), "toolkit": source_of(ROOT), "interpreters": other_interpreters}


def source_of(root: Path) -> str:
    """Return the SHA-256 of the names and contents of all Python files of :data:`PACKAGES` below a folder.

    Args:
        root: root folder of the project.
    """
    digest = hashlib.sha256()
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        digest.update(f"{path.relative_to(root)}:{files.file_sha256(path)}\n".encode())
    return digest.hexdigest()


def load(key: str, kind: type[Record]) -> tuple[Record, dict[str, np.ndarray]] | None:
    """Return the measurements and constants that :func:`store` has stored under a key; None without an entry.

    Args:
        key: key of the gate.
        kind: type of the measurements.
    """
    try:
        if (entry := cache.find_entry(KIND, key)) is None:
            return None
        return from_json(kind, files.read_json(entry / MEASUREMENTS)), files.read_tensors(entry / CONSTANTS)
    except (OSError, ValueError):  # the entry was removed while it was read
        return None


def store(key: str, measurements: object, constants: Mapping[str, np.ndarray]) -> None:
    """Store the measurements and constants of a gate in the cache.

    Args:
        key: key of the gate.
        measurements: record of the measurements.
        constants: constants of the reference, by name.
    """

    def fill(folder: Path) -> None:
        """Write the entry's files into its new folder."""
        files.write_tensors(folder / CONSTANTS, constants)
        files.write_json(folder / MEASUREMENTS, measurements)

    cache.store_entry(KIND, key, fill)
