"""Stages of a model larger than memory: its layers one after another, forward and then backward in reverse order.

Both workers go through the same stages at the same time. A worker reads a stage's weights when the stage starts, and
writes its results when the stage ends. An interrupted run resumes after the last stage that ended. The files in the job
folder are::

    weights/STAGE.safetensors           float32 weights, which the gate writes ahead of the workers
    reference/truth/STAGE.safetensors   R64's tensors, until the port has been compared with them
    reference/draws/STAGE.safetensors   dropout masks
    SIDE/state/STAGE.safetensors        inputs of the next stage: activations, then their gradients
    SIDE/stages/STAGE.json              measurements; the stage is done when this file exists
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from toolkit.machine.disk import explain_write_errors
from toolkit.parity.exchange import files
from toolkit.parity.exchange.tensor_file import TensorFile, TensorWriter

Record = TypeVar("Record")

#: Name of the first stage; name of the last forward stage; ending of the name of each backward stage.
EMBEDDING, HEAD, BACKWARD = "embedding", "head", "-backward"
#: Number of stages that the reference may be ahead of the port. A layer's float64 gradients take 220 MB on disk.
AHEAD = 3
#: Number of bytes reserved for the header of a stage's file of tensors.
HEADER = 2**14
#: Name of the file of R64's tensors that the port no longer needs, and that the next stage overwrites. A virtual
#: machine gets the memory of deleted files back only slowly.
SPARE = "spare"


def layer(index: int) -> str:
    """Return the name of a layer's forward stage: 3 -> `layer-003`."""
    return f"layer-{index:03d}"


def layer_of(stage: str) -> int:
    """Return the index of a stage's layer: `layer-003` or `layer-003-backward` -> 3."""
    return int(stage.removesuffix(BACKWARD).removeprefix("layer-"))


def plan(layers: int) -> list[str]:
    """Return the names of all stages in the order of their execution, forward and then backward.

    The stage ``head`` has the last norm, the scores, the loss, and their backward.

    Args:
        layers: number of layers of the model.
    """
    forward = [EMBEDDING, *(layer(index) for index in range(layers)), HEAD]
    return forward + [stage + BACKWARD for stage in reversed(forward[:-1])]


def weights_path(job: Path, stage: str) -> Path:
    """Return the file with the weights of a stage; a backward stage has the file of its forward stage."""
    return job / "weights" / f"{stage.removesuffix(BACKWARD)}.safetensors"


def failed_weights(job: Path) -> Path:
    """Return the file with the reason why the gate could not write a job's weights."""
    return job / "weights" / "failed"


def read_weights(job: Path, stage: str) -> dict[str, np.ndarray]:
    """Wait until the gate has written the weights of a stage, and return them by name.

    Args:
        job: folder of the job.
        stage: name of the stage, forward or backward.
    """
    return dict(open_weights(job, stage))


def open_weights(job: Path, stage: str) -> TensorFile:
    """Wait until the gate has written a stage's weights, and return a file that reads each on access.

    The weights of the embedding take 1.3 GB.

    Args:
        job: folder of the job.
        stage: name of the stage, forward or backward.
    """
    path = weights_path(job, stage)
    files.wait_for(path, failed_weights(job))
    return TensorFile(path)


class Side:
    """The files of one worker in the folder of a job that is compared stage by stage.

    Args:
        job: folder of the job.
        name: the worker, ``reference`` or ``candidate``.
    """

    def __init__(self, job: Path, name: str) -> None:
        self.job = job
        self.name = name
        other = {"reference": "candidate", "candidate": "reference"}[name]
        self.other, self.other_failed = job / other, files.failure_path(job, other)
        for folder in ("stages", "state", "truth", "draws"):
            (job / name / folder).mkdir(parents=True, exist_ok=True)

    def path(self, kind: str, stage: str) -> Path:
        """Return the file of this worker's tensors of a stage.

        Args:
            kind: ``state``, ``truth`` or ``draws``.
            stage: name of the stage.
        """
        return self.job / self.name / kind / f"{stage}.safetensors"

    def is_done(self, stage: str) -> bool:
        """Return whether this worker has finished a stage."""
        return self._measurements_path(stage).exists()

    def leave(self, stage: str, stage_inputs: Mapping[str, np.ndarray]) -> None:
        """Write the inputs that the next stage reads.

        Args:
            stage: name of the stage that ends.
            stage_inputs: activations, or their gradients in the backward, by name.
        """
        files.write_tensors(self.path("state", stage), stage_inputs)

    def finish(self, stage: str, measurements: object) -> None:
        """Write the measurements of a stage, which marks the stage as done. Call :meth:`leave` before.

        Args:
            stage: name of the stage that ends.
            measurements: record of the stage, which is written as JSON.
        """
        files.write_json(self._measurements_path(stage), measurements)

    def state(self, stage: str) -> dict[str, np.ndarray]:
        """Return the tensors that :meth:`leave` wrote at the end of a stage, by name."""
        return files.read_tensors(self.path("state", stage))

    def measurements(self, stage: str, kind: type[Record]) -> Record:
        """Return the measurements that :meth:`finish` wrote at the end of a stage.

        Args:
            stage: name of the stage.
            kind: class of the record.
        """
        return files.read(self._measurements_path(stage), kind)

    def stages(self) -> list[str]:
        """Return the names of all stages in order. All stages must be done, since their files are counted."""
        return plan(len(list((self.job / self.name / "stages").glob("layer-*.json"))) // 2)

    def _measurements_path(self, stage: str) -> Path:
        """Return the file with the measurements of a stage."""
        return self.job / self.name / "stages" / f"{stage}.json"

    # -- truth: written by the reference, read by the port -----------------------------------------------------------

    def write_truth(self, stage: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Write R64's tensors of a stage for the port, unless the port has already compared the stage.

        Wait while the port is more than :data:`AHEAD` stages behind.

        Args:
            stage: name of the stage.
            tensors: R64's tensors, by name.
        """
        if (self.other / "stages" / f"{stage}.json").exists():
            return
        with self.writing_truth(stage, sum(value.nbytes for value in tensors.values())) as writer:
            for name, value in tensors.items():
                writer.add(name, value)

    @contextlib.contextmanager
    def writing_truth(self, stage: str, size: int) -> Iterator[TensorWriter]:
        """Wait until the port is not too far behind, and yield a writer for R64's tensors of a stage.

        Args:
            stage: name of the stage.
            size: number of bytes that will be written.

        Raises:
            RuntimeError: the port's worker has failed.
        """
        while len(list((self.job / self.name / "truth").glob("*.safetensors"))) >= AHEAD:
            if self.other_failed.exists():
                raise RuntimeError(f"the port's side failed: {self.other_failed.read_text(encoding='utf-8')}")
            time.sleep(0.02)
        path = self.path("truth", stage)
        with explain_write_errors(path, size), TensorWriter(path, HEADER, path.with_name(SPARE)) as writer:
            yield writer

    def wait_for_truth(self, stage: str) -> Path:
        """Wait until the reference has written R64's tensors of a stage, and return their file."""
        path = self.other / "truth" / f"{stage}.safetensors"
        files.wait_for(path, self.other_failed)
        return path

    def truth(self, stage: str) -> TensorFile:
        """Wait for R64's tensors of a stage, and return a file that reads each tensor on access."""
        return TensorFile(self.wait_for_truth(stage))

    def release_truth(self, stages: Sequence[str]) -> None:
        """Release R64's tensors of stages that the port has compared.

        One file is kept, which the next stage overwrites.

        Args:
            stages: names of the compared stages.
        """
        for stage in stages:
            with contextlib.suppress(FileNotFoundError):
                truth_file = self.other / "truth" / f"{stage}.safetensors"
                truth_file.replace(truth_file.with_name(SPARE))
