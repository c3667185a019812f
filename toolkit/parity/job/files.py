"""The job folder through which the gate and its processes communicate: its files, their places and their hashes.

::

    job.json             what to run (:class:`.job.Job`)
    weights.safetensors  the float32 weights, under the reference's names
    batch.safetensors    one training batch
    batches.safetensors  one for each step of a pair's training
    labels.safetensors   of the examples of an update, with made-up tokens and masks
    buffers.safetensors  of a pair: initial random values of its constant buffers in each run
    reference/           written by the torch worker, read by the Paddle worker
        float64.safetensors   every compared tensor of R64, the truth
        draws-RUN.safetensors of the step, the updated model, and each evaluation: dropout masks, LSH rotations, bucket
                              choices, margins
        rates.json            of the dropout masks
        checkpoint.safetensors  the reference's weights from the checkpoint that the weights are of
        positions.safetensors if the job has fewer positions: rows that its evaluation reads of the checkpoint's table
        initial.safetensors   some values of each parameter of a few newly initialized models of the reference
        constants.safetensors tensors that the reference computes once and holds in addition to its parameters
        buffers.safetensors   of a pair: its buffers as computed in float64; buffers-float32.safetensors: in float32
        unread.safetensors    of a pair's R64, which elements of each output the loss does not depend on
        order.json            names of the tensors in the order of execution; when it is there, the port is compared
        result.json           measurements (:class:`.results.ReferenceResult`)
        float32.safetensors   only for ``parity bitwise``, instead of R64: every tensor of R32
        forced_input.safetensors  every operation of R64
        forced_input.json     the noise of each
        constants-measured.json for a pair's reference with rounded constants: by tensor, the port's error and bound
        fingerprints.json     of a pair's R64 (:class:`.results.Fingerprints`)
        remeasure.json        the noise of more runs, as many as ``remeasure-runs.json`` asks for
        tokens.json           only for ``parity texts``: the tokens of each text
        trajectory-DTYPE-RUN.safetensors, draws-step-N.safetensors, places.safetensors, trajectory.json
                              of a pair's training (:mod:`toolkit.parity.measure.trajectory`)
    candidate/                written by the comparator from the messages of the Paddle worker (:mod:`.handover`)
        result.json           :class:`.results.CandidateResult`
        forced_input.json     :class:`.results.ForcedInputResult`
        attribution.json      the errors in float32 with one kind of kernel the reference's at a time
        tokens.json           as the reference's
        trajectory-DTYPE.safetensors, trajectory.json

Nothing else passes between the processes, except for the messages of the Paddle worker, and the kernels that it
requests from another process for ``parity bitwise`` and the attribution (:mod:`.kernel_messages`). A file appears under
its name only when it is complete. A worker that fails leaves ``TASK.failed`` in its own folder.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import load_file, save_file

from toolkit.files import strict_json
from toolkit.files.digest import file_sha256 as file_sha256
from toolkit.machine.disk import explain_write_errors
from toolkit.parity.job.job import Job
from toolkit.parity.job.records import as_json, from_json, text_of

Record = TypeVar("Record")

#: Files of the reference, as above.
CHECKPOINT, POSITIONS = "checkpoint.safetensors", "positions.safetensors"
#: That of a pair: the weights that its ``build`` makes.
OWN_WEIGHTS = "weights.safetensors"

#: Initial values of the constant buffers of a pair.
INITIAL_BUFFERS = "buffers.safetensors"

#: For a pair's reference with rounded constants: by tensor, the port's error and its bound.
MEASURED_CONSTANTS = "constants-measured.json"
#: Of a pair's R64, the elements of outputs that the loss does not depend on.
UNREAD = "unread.safetensors"
#: For the operation trace: by name, where a packed output of R64 has padding.
PADDING = "padding.safetensors"
#: Of a pair's R64.
FINGERPRINTS = "fingerprints.json"

#: The task that runs a job; the others are follow-ups, each a module of that name on either side.
RESULT = "result"


def result_path(job: Path, side: str, task: str = RESULT) -> Path:
    """Return the file that a worker writes last."""
    return job / side / f"{task}.json"


def failure_path(job: Path, side: str, task: str = RESULT) -> Path:
    """Return the file with the reason of a failed worker."""
    return job / side / f"{task}.failed"


def remove_result(job: Path, side: str, task: str) -> None:
    """Remove a worker's result of a task, which is to run again."""
    result_path(job, side, task).unlink(missing_ok=True)


def remove_unfinished(job: Path, side: str) -> None:
    """Remove the files that a worker has not finished."""
    for partial in (job / side).glob("*.partial"):
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write text in UTF-8, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    with explain_write_errors(path):
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON or dataclasses as JSON, whole or not at all. For the toolkit's own processes: NaN stays NaN, and all
    is one line, which takes a fifth of the time."""
    write_text(path, text_of(content) + "\n")


def write_report(path: Path, content: Any) -> None:
    """Write JSON for any reader, as :func:`write_json` but with null for non-finite numbers."""
    write_text(path, strict_json.dumps(as_json(content), indent=1) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def read(path: Path, kind: type[Record]) -> Record:
    """Return a JSON file as a record. Raises ValueError if it is none (see :func:`.records.from_json`)."""
    return from_json(kind, read_json(path), path.name)


def read_job(folder: Path) -> Job:
    return read(folder / "job.json", Job)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors as safetensors, whole or not at all."""
    partial = path.with_name(path.name + ".partial")
    with explain_write_errors(partial, sum(np.asarray(value).nbytes for value in tensors.values())):
        save_file({name: np.asarray(value, order="C") for name, value in tensors.items()}, partial)
        os.replace(partial, path)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    return load_file(path)


def write_unread(place: Path, unread: Mapping[str, np.ndarray]) -> None:
    """Write which elements of a reference's outputs the loss does not depend on, in one bit for each element.

    Args:
        unread: boolean array for each output, in the output's shape. An output without such elements is left out.
    """
    write_tensors(place / UNREAD, {name: np.packbits(value) for name, value in unread.items() if value.any()})


def read_unread(place: Path, name: str, shape: Sequence[int]) -> np.ndarray:
    """Return which elements of an output the loss does not depend on, in the output's shape (:func:`write_unread`)."""
    packed_bits = read_tensors(place / UNREAD).get(name)
    if packed_bits is None:
        return np.zeros(shape, bool)
    return np.unpackbits(packed_bits, count=math.prod(shape)).astype(bool).reshape(shape)


def wait_for(path: Path, failure: Path, seconds: float = 3600.0) -> None:
    """Return once ``path`` exists. Raises RuntimeError if ``failure`` appeared instead, since the other worker has
    stopped, and TimeoutError if neither came."""
    end = time.monotonic() + seconds
    while not path.exists():
        if failure.exists():
            raise RuntimeError(f"the other worker failed: {failure.read_text(encoding='utf-8')}")
        if time.monotonic() > end:
            raise TimeoutError(f"the other worker has not written {path.name} within {seconds:.0f} s")
        time.sleep(0.02)


def wait_for_reference(job: Path, name: str, task: str = RESULT) -> None:
    """Return once the reference has left a file."""
    wait_for(job / "reference" / name, failure_path(job, "reference", task))
