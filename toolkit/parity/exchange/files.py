"""The job folder through which the gate and its processes communicate: its files, their places and their hashes.

::

    job.json             what to run (:class:`~toolkit.parity.job.job.Job`)
    weights.safetensors  the float32 weights, under the reference's names
    batch.safetensors    the training batch of the step
    batches.safetensors  the batch of each step of a pair's training
    labels.safetensors   labels of the examples of an update, with synthetic tokens and masks
    buffers.safetensors  of a pair: initial random values of its constant buffers in each run
    reference/           written by the torch worker, read by the Paddle worker
        float64.safetensors   every compared tensor of R64, the truth
        draws-RUN.safetensors dropout masks, LSH rotations, bucket choices and margins of a run: of the step, of the
                              updated model, or of an evaluation
        rates.json            rate of each dropout mask
        checkpoint.safetensors  the weights that the reference itself loads from the job's checkpoint
        positions.safetensors if the job has fewer positions: rows of the checkpoint's table that its evaluation reads
        initial.safetensors   some values of each parameter of a few newly initialized models of the reference
        constants.safetensors tensors that the reference computes once and holds in addition to its parameters
        buffers.safetensors   of a pair: its buffers as computed in float64; buffers-float32.safetensors: in float32
        unread.safetensors    of a pair's R64: the elements of each output that the loss does not depend on
        order.json            names of the tensors in the order of execution; when it is there, the port is compared
        result.json           measurements (:class:`.results.ReferenceResult`)
        float32.safetensors   only for ``parity bitwise``, instead of R64: every tensor of R32
        forced_input.safetensors  the result of every operation of R64
        forced_input.json     the noise of each operation
        constants-measured.json for a pair's reference with rounded constants: by tensor, the port's error and bound
        fingerprints.json     fingerprints of the results in a pair's R64 (:class:`.results.Fingerprints`)
        remeasure.json        the noise of more runs, as many as ``remeasure-runs.json`` asks for
        tokens.json           only for ``parity texts``: the tokens of each text
        trajectory-DTYPE-RUN.safetensors, draws-step-N.safetensors, places.safetensors, trajectory.json
                              of a pair's training (:mod:`toolkit.parity.measure.trajectory`)
    candidate/                written by the comparator from the messages of the Paddle worker (:mod:`.handover`)
        result.json           :class:`.results.CandidateResult`
        forced_input.json     :class:`.results.ForcedInputResult`
        attribution.json      the float32 errors with one kind of kernels at a time taken from the reference
        tokens.json           only for ``parity texts``: the tokens of each text
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
from toolkit.parity.exchange.records import as_json, from_json, text_of
from toolkit.parity.job.job import Job

Record = TypeVar("Record")

#: Names of the reference's files with the weights and positions of a checkpoint.
CHECKPOINT, POSITIONS = "checkpoint.safetensors", "positions.safetensors"
#: Name of the file with the weights that the ``build`` of a pair's reference returns.
OWN_WEIGHTS = "weights.safetensors"

#: Name of the file with the initial values of a pair's constant buffers.
INITIAL_BUFFERS = "buffers.safetensors"

#: Name of the file with the port's error and bound of each tensor, for a pair's reference with rounded constants.
MEASURED_CONSTANTS = "constants-measured.json"
#: Name of the file with the elements of R64's outputs that the loss does not depend on, of a pair.
UNREAD = "unread.safetensors"
#: Name of the file with the mask of the padding in each packed output of R64, for the operation trace.
PADDING = "padding.safetensors"
#: Name of the file with the fingerprints of the results in a pair's R64.
FINGERPRINTS = "fingerprints.json"

#: Name of the task that measures a gate. All other tasks are follow-ups, which a worker runs after it.
RESULT = "result"


def result_path(job: Path, side: str, task: str = RESULT) -> Path:
    """Return the file that a worker writes last in a task.

    Args:
        job: folder of the job.
        side: ``reference`` or ``candidate``.
        task: name of the task.
    """
    return job / side / f"{task}.json"


def failure_path(job: Path, side: str, task: str = RESULT) -> Path:
    """Return the file with the reason why a worker has failed in a task.

    Args:
        job: folder of the job.
        side: ``reference``, ``candidate`` or ``comparator``.
        task: name of the task.
    """
    return job / side / f"{task}.failed"


def remove_result(job: Path, side: str, task: str) -> None:
    """Remove a worker's result of a task, so that the task can run again.

    Args:
        job: folder of the job.
        side: name of the worker: ``reference`` or ``candidate``.
        task: name of the task.
    """
    result_path(job, side, task).unlink(missing_ok=True)


def remove_unfinished(job: Path, side: str) -> None:
    """Remove the temporary files of a worker that has stopped while it wrote them.

    Args:
        job: folder of the job.
        side: name of the worker: ``reference`` or ``candidate``.
    """
    for partial in (job / side).glob("*.partial"):
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, which appears under its name only when it is complete."""
    partial = path.with_name(path.name + ".partial")
    with explain_write_errors(path):
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)


def write_json(path: Path, content: Any) -> None:
    """Write JSON or dataclasses as a JSON file, which appears under its name only when it is complete.

    The file is for the toolkit's own processes: NaN remains NaN, and all is in one line, which takes a fifth of the
    time.

    Args:
        path: file to write.
        content: the content, with dataclasses at any depth.
    """
    write_text(path, text_of(content) + "\n")


def write_report(path: Path, content: Any) -> None:
    """Write JSON or dataclasses as a JSON file for any reader, with indentation.

    Numbers that are not finite become null.

    Args:
        path: file to write.
        content: the content, with dataclasses at any depth.
    """
    write_text(path, strict_json.dumps(as_json(content), indent=1) + "\n")


def read_json(path: Path) -> Any:
    """Return the content of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def read(path: Path, kind: type[Record]) -> Record:
    """Return the content of a JSON file as a record of a type.

    Args:
        path: file to read.
        kind: type of the record (:func:`.records.from_json`).

    Raises:
        ValueError: the content does not have this type.
    """
    return from_json(kind, read_json(path), path.name)


def read_job(folder: Path) -> Job:
    """Return the job of a job folder, from its ``job.json``."""
    return read(folder / "job.json", Job)


def write_tensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Write tensors as a safetensors file, which appears under its name only when it is complete."""
    partial = path.with_name(path.name + ".partial")
    with explain_write_errors(partial, sum(np.asarray(value).nbytes for value in tensors.values())):
        save_file({name: np.asarray(value, order="C") for name, value in tensors.items()}, partial)
        os.replace(partial, path)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Return all tensors of a safetensors file, by name."""
    return load_file(path)


def write_unread(place: Path, unread: Mapping[str, np.ndarray]) -> None:
    """Write the elements of the reference's outputs that the loss does not depend on, one bit for each element.

    Args:
        place: the reference's folder in the job folder.
        unread: boolean array for each output, in the output's shape. An output without such elements is left out.
    """
    write_tensors(place / UNREAD, {name: np.packbits(value) for name, value in unread.items() if value.any()})


def read_unread(place: Path, name: str, shape: Sequence[int]) -> np.ndarray:
    """Return a mask of the elements of an output that the loss does not depend on (:func:`write_unread`).

    Args:
        place: the reference's folder in the job folder.
        name: name of the output.
        shape: shape of the output and of the mask.
    """
    packed_bits = read_tensors(place / UNREAD).get(name)
    if packed_bits is None:
        return np.zeros(shape, bool)
    return np.unpackbits(packed_bits, count=math.prod(shape)).astype(bool).reshape(shape)


def wait_for(path: Path, failure: Path, seconds: float = 3600.0) -> None:
    """Wait until a file of the other worker exists.

    Args:
        path: the file.
        failure: file that the other worker writes if it fails.
        seconds: longest time to wait.

    Raises:
        RuntimeError: the other worker has failed.
        TimeoutError: neither file has appeared in time.
    """
    end = time.monotonic() + seconds
    while not path.exists():
        if failure.exists():
            raise RuntimeError(f"the other worker failed: {failure.read_text(encoding='utf-8')}")
        if time.monotonic() > end:
            raise TimeoutError(f"the other worker has not written {path.name} within {seconds:.0f} s")
        time.sleep(0.02)


def wait_for_reference(job: Path, name: str, task: str = RESULT) -> None:
    """Wait until the reference's worker has written a file.

    Args:
        job: folder of the job.
        name: name of the file in the reference's folder.
        task: task of the reference that writes the file.

    Raises:
        RuntimeError: the reference's worker has failed.
    """
    wait_for(job / "reference" / name, failure_path(job, "reference", task))
