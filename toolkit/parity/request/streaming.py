"""The gate's side of a comparison stage by stage, for a model larger than memory.

The job folder is kept until the verdict, so the comparison can be interrupted. :mod:`.stages` describes the workers'
side. This side writes each stage's weights when they are needed, and shows the progress of both workers.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from toolkit.errors import UserError
from toolkit.files.lossless import move_to_free_name
from toolkit.files.ownership import STREAMED_FOLDER, is_gate_file
from toolkit.machine import disk
from toolkit.machine.scratch import scratch_folder
from toolkit.parity.exchange import files, stages
from toolkit.parity.exchange.tensor_file import TensorWriter
from toolkit.parity.inputs.synthetic import randomize_constants
from toolkit.parity.job.family import PortedFamily, ported_family
from toolkit.parity.job.job import Job

SIDES = ("reference", "candidate")


def open_job(folder: Path, job: Job, key: str, batch: Mapping[str, np.ndarray], console: Console) -> Path:
    """Return the job folder: an interrupted folder with the same key to resume, or a new folder.

    Args:
        folder: folder that contains the job folder.
        job: content of the job.
        key: hash of everything that the measurement depends on.
        batch: batch of the step, by name.
        console: console for progress.

    Raises:
        UserError: the job folder's place is occupied, or the disk has too little space.
    """
    path = folder / STREAMED_FOLDER
    if (path / "key").exists() and (path / "key").read_text() == key:
        num_stages = {side: len(list((path / side / "stages").glob("*.json"))) for side in SIDES}
        text = ", ".join(f"{side} after {count} stages" for side, count in num_stages.items())
        console.print(f"parity gate: going on where it was interrupted ({text})", highlight=False, soft_wrap=True)
        for side in SIDES:
            files.failure_path(path, side).unlink(missing_ok=True)
        stages.failed_weights(path).unlink(missing_ok=True)
        return path
    if os.path.lexists(path):
        if not is_gate_file(path):
            raise UserError(f"{path}: exists and is not a folder of a gate; move it, or choose another folder")
        remove_job(path)
    check_space(folder, job)
    with scratch_folder(f".{STREAMED_FOLDER}-", parent_folder=folder) as scratch:
        for name in (*SIDES, "weights"):
            (scratch / name).mkdir()
        files.write_json(scratch / "job.json", job)
        files.write_tensors(scratch / "batch.safetensors", batch)
        files.write_text(scratch / "key", key)
        move_to_free_name(scratch, path)  # with its key, which identifies it
    return path


def remove_job(path: Path) -> None:
    """Remove a job folder of :func:`open_job`; leave any other folder unchanged.

    Args:
        path: path of the job folder.
    """
    if is_gate_file(path):
        shutil.rmtree(path, ignore_errors=True)


def check_space(folder: Path, job: Job) -> None:
    """Check that the disk has space for a comparison stage by stage.

    Needed are the float32 weights, and the float64 gradients of the embedding and some layers.

    Args:
        folder: folder that contains the job folder.
        job: content of the job.

    Raises:
        UserError: the disk has too little space.
    """
    model_family = ported_family(job.model)
    table, layer = model_family.stage_elements(job.config)
    required_bytes = 4 * (table + model_family.depth(job.config) * layer) + 8 * (table + (stages.AHEAD + 1) * layer)
    if (free := shutil.disk_usage(folder).free) < required_bytes:
        raise UserError(
            f"{folder}: the gate stage by stage needs about {required_bytes / 1e9:.0f} GB there while it runs, "
            f"{free / 1e9:.0f} GB are free; choose another place, or fewer --layers"
        )


class WeightsWriter(threading.Thread):
    """A thread that writes the weights, one file for each stage, ahead of the workers.

    Args:
        job: folder of the job.
        model_family: family of the model.
        weights: float32 weights by name, each read once.
        depth: number of layers.
        seed: seed of :func:`.synthetic.randomize_constants`.

    Attributes:
        stopped: whether the thread is to stop before the next stage.
    """

    def __init__(
        self, job: Path, model_family: PortedFamily, weights: Mapping[str, np.ndarray], depth: int, seed: int
    ) -> None:
        super().__init__(daemon=True)
        self.job, self.model_family, self.weights, self.depth, self.seed = job, model_family, weights, depth, seed
        self.stopped = False
        self._failing = threading.Lock()

    def run(self) -> None:
        """Write the weights of all forward stages, the embedding in a second thread."""
        embedding, *others = stages.plan(self.depth)[: self.depth + 2]
        # Both workers wait for the embedding, a third of all weights, so the layers are written at the same time.
        first = threading.Thread(target=self._write, args=[[embedding]], daemon=True)
        first.start()
        self._write(others)
        first.join()

    def _write(self, forward: Sequence[str]) -> None:
        """Write the weights of some stages in order, and skip stages whose file exists.

        If this fails, the reason is written to :func:`.stages.failed_weights`.

        Args:
            forward: names of forward stages.
        """
        try:
            for stage in forward:
                path = stages.weights_path(self.job, stage)
                if path.exists():
                    continue
                if self.stopped or stages.failed_weights(self.job).exists():
                    return
                names = self.model_family.weights_of(stage, self.weights)
                values, num_randomized = randomize_constants({name: self.weights[name] for name in names}, self.seed)
                files.write_json(path.with_suffix(".json"), num_randomized)
                size = sum(value.nbytes for value in values.values())
                with (
                    disk.explain_write_errors(path, size),
                    TensorWriter(path, stages.HEADER) as writer,
                ):  # copies nothing
                    for name, value in values.items():
                        writer.add(name, value)
        except BaseException as error:
            with self._failing:  # both threads may fail at once
                if not (failure_path := stages.failed_weights(self.job)).exists():
                    files.write_text(failure_path, f"{type(error).__name__}: {error}")

    def num_randomized(self) -> int:
        """Return the number of written parameters whose equal values were randomized."""
        return sum(files.read_json(path) for path in (self.job / "weights").glob("*.json"))


@contextlib.contextmanager
def run_writer(writer: WeightsWriter) -> Iterator[None]:
    """Run a writer of weights inside the ``with`` block, and stop it at the end."""
    writer.start()
    try:
        yield
    finally:
        writer.stopped = True
        writer.join()


class Bars:
    """Progress bars with the number of finished stages of each worker.

    Args:
        job: folder of the job.
        depth: number of layers of the model.
        console: console for the bars.
    """

    def __init__(self, job: Path, depth: int, console: Console) -> None:
        self.job = job
        self.progress = Progress(
            TextColumn("parity gate: {task.description:9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("stages"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=console,
        )
        total = len(stages.plan(depth))
        self.tasks = {side: self.progress.add_task(side, total=total) for side in SIDES}

    def update(self) -> None:
        """Update the bars from the files of finished stages, and wait 0.2 seconds."""
        for side, task in self.tasks.items():
            self.progress.update(task, completed=len(list((self.job / side / "stages").glob("*.json"))))
        time.sleep(0.2)
