"""A model larger than memory, compared stage by stage: its layers one after another forward, then in reverse backward.

Both workers go through the same stages side by side. A stage's weights are read when it starts, its results written
when it ends, and an interrupted run resumes after the last stage that ended. In the job folder::

    weights/STAGE.safetensors           float32, written by the gate as the stages come, read by both
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
from toolkit.parity.job import files
from toolkit.parity.job.tensor_file import TensorFile, TensorWriter

Record = TypeVar("Record")

EMBEDDING, HEAD, BACKWARD = "embedding", "head", "-backward"
#: Stages that the reference may be ahead of the port: a layer's float64 gradients are 220 MB.
AHEAD = 3
#: Header bytes of a stage's tensors.
HEADER = 2**14
#: Among the files of R64's tensors, one that the port is through with.
SPARE = "spare"


def layer(index: int) -> str:
    """Return the stage of a layer."""
    return f"layer-{index:03d}"


def layer_of(stage: str) -> int:
    """Return the layer of a stage, forward or backward."""
    return int(stage.removesuffix(BACKWARD).removeprefix("layer-"))


def plan(layers: int) -> list[str]:
    """Return all stages in order. ``head`` is the last norm, scores, loss, and their backward."""
    forward = [EMBEDDING, *(layer(index) for index in range(layers)), HEAD]
    return forward + [stage + BACKWARD for stage in reversed(forward[:-1])]


def weights_path(job: Path, stage: str) -> Path:
    """Return the file of the weights of a stage, forward or backward."""
    return job / "weights" / f"{stage.removesuffix(BACKWARD)}.safetensors"


def failed_weights(job: Path) -> Path:
    """Return the file with the reason why the gate could not write the weights."""
    return job / "weights" / "failed"


def read_weights(job: Path, stage: str) -> dict[str, np.ndarray]:
    """Wait for the weights of a stage, and return them."""
    return dict(open_weights(job, stage))


def open_weights(job: Path, stage: str) -> TensorFile:
    """Wait for the weights of a stage, and return a file that reads each on access, since the embedding has 1.3 GB."""
    path = weights_path(job, stage)
    files.wait_for(path, failed_weights(job))
    return TensorFile(path)


class Side:
    """The files of a worker, ``reference`` or ``candidate``."""

    def __init__(self, job: Path, name: str) -> None:
        self.job = job
        self.name = name
        other = {"reference": "candidate", "candidate": "reference"}[name]
        self.other, self.other_failed = job / other, files.failure_path(job, other)
        for folder in ("stages", "state", "truth", "draws"):
            (job / name / folder).mkdir(parents=True, exist_ok=True)

    def path(self, kind: str, stage: str) -> Path:
        """Return the file of this side's ``state``, ``truth`` or ``draws`` of a stage."""
        return self.job / self.name / kind / f"{stage}.safetensors"

    def is_done(self, stage: str) -> bool:
        return self._measurements_path(stage).exists()

    def leave(self, stage: str, state: Mapping[str, np.ndarray]) -> None:
        """Write the inputs of the next stage."""
        files.write_tensors(self.path("state", stage), state)

    def finish(self, stage: str, measurements: object) -> None:
        """Write the measurements of a stage, which marks it as done: after :meth:`leave`."""
        files.write_json(self._measurements_path(stage), measurements)

    def state(self, stage: str) -> dict[str, np.ndarray]:
        """Return the tensors that :meth:`leave` wrote."""
        return files.read_tensors(self.path("state", stage))

    def measurements(self, stage: str, kind: type[Record]) -> Record:
        """Return the measurements that :meth:`finish` wrote."""
        return files.read(self._measurements_path(stage), kind)

    def stages(self) -> list[str]:
        """Return all stages in order, once all are done."""
        return plan(len(list((self.job / self.name / "stages").glob("layer-*.json"))) // 2)

    def _measurements_path(self, stage: str) -> Path:
        return self.job / self.name / "stages" / f"{stage}.json"

    # -- truth: written by the reference, read by the port -----------------------------------------------------------

    def write_truth(self, stage: str, tensors: Mapping[str, np.ndarray]) -> None:
        """Write R64's tensors for the port, unless it is through with them; wait while it is too far behind."""
        if (self.other / "stages" / f"{stage}.json").exists():
            return
        with self.writing_truth(stage, sum(value.nbytes for value in tensors.values())) as writer:
            for name, value in tensors.items():
                writer.add(name, value)

    @contextlib.contextmanager
    def writing_truth(self, stage: str, size: int) -> Iterator[TensorWriter]:
        """Write ``size`` bytes of R64's tensors of a stage, once the port is not too far behind."""
        while len(list((self.job / self.name / "truth").glob("*.safetensors"))) >= AHEAD:
            if self.other_failed.exists():
                raise RuntimeError(f"the port's side failed: {self.other_failed.read_text(encoding='utf-8')}")
            time.sleep(0.02)
        path = self.path("truth", stage)
        with explain_write_errors(path, size), TensorWriter(path, HEADER, path.with_name(SPARE)) as writer:
            yield writer

    def wait_for_truth(self, stage: str) -> Path:
        """Wait for R64's tensors of a stage; return their file."""
        path = self.other / "truth" / f"{stage}.safetensors"
        files.wait_for(path, self.other_failed)
        return path

    def truth(self, stage: str) -> TensorFile:
        """R64's tensors of a stage, once they are there, each read on access."""
        return TensorFile(self.wait_for_truth(stage))

    def release_truth(self, stages: Sequence[str]) -> None:
        """Release tensors that the port is done with. One file is kept to be overwritten by the next stage."""
        for stage in stages:
            with contextlib.suppress(FileNotFoundError):
                truth_file = self.other / "truth" / f"{stage}.safetensors"
                truth_file.replace(truth_file.with_name(SPARE))
