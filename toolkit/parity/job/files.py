"""The job folder through which the gate and its two workers talk: what is written, where, and how it is hashed.

::

    job.json             what to run: model, head, configuration, dtypes, device, tokenizer
    weights.safetensors  the float32 weights, under the reference's names
    batch.safetensors    one training batch
    reference/           written by the torch worker, read by the Paddle worker
        float64.safetensors   every compared tensor of R64, the truth
        draws-N.safetensors   of training step N: dropout masks, LSH rotations, bucket choices, margins
        result.json           what was measured: a record per tensor, versions, time, memory
        float32.safetensors   for --ops alone, in place of R64: every tensor of R32
    candidate/
        result.json
        attribution.json      where float32 alone drifts: the errors with one kind of kernel the reference's at a time
    trace/               which operation is wrong by itself: see :mod:`.trace`
        truth.safetensors     the result of every operation of R64, and its gradient
        reference.json, candidate.json

Nothing else passes between the processes, but for the kernels that the Paddle worker asks of a third one for ``--ops``
and the attribution (:mod:`.kernels`). A file appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

#: Of what is written here. 2: the draws of several training steps, and what the optimizer makes of the parameters.
SCHEMA = 2


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON, whole or not at all."""
    write_text(path, json.dumps(content, indent=1, allow_nan=True) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors as safetensors, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    save_file({name: np.asarray(value, order="C") for name, value in tensors.items()}, partial)
    os.replace(partial, path)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    return load_file(path)


def wait_for(path: Path, failure: Path, seconds: float = 3600.0) -> None:
    """Return once ``path`` exists.

    Raises:
        RuntimeError: ``failure`` appeared in its place: the other worker has stopped.
        TimeoutError: neither came.
    """
    end = time.monotonic() + seconds
    while not path.exists():
        if failure.exists():
            raise RuntimeError(f"the other worker failed: {failure.read_text()}")
        if time.monotonic() > end:
            raise TimeoutError(f"{path} did not appear within {seconds:.0f} s")
        time.sleep(0.02)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
