"""Measurement of the reference: R64, the truth, and the noise of its other runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import Note, OwnLoss, ReferenceResult
from toolkit.parity.exchange.tensor_file import TensorFile, TensorWriter
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.measure.latest import LastMeasurement
from toolkit.parity.measure.naming import TensorName, is_gradient
from toolkit.parity.measure.sketch import COUNT, LARGE, Sketch
from toolkit.parity.reference import own_loss
from toolkit.parity.reference.noise import measure_noise, measure_own_backward, runs_of
from toolkit.parity.reference.own_weights import write_initial, write_loaded
from toolkit.parity.reference.step import Step, make_step
from toolkit.parity.reference.tokens import tokenize_texts


def run(job: Job, folder: Path) -> ReferenceResult:
    """Return the reference's measurements: R64's tensors with their noise, and the tokens of the job's texts.

    R64's tensors, draws and constants are written into the job folder.

    Args:
        job: job of a gate.
        folder: folder of the job.
    """
    result = family_part(job.model, "reference_stages").run(job, folder) if job.streamed else _run_whole(job, folder)
    result.tokens = tokenize_texts(job.tokenizer, job.model)
    return result


def _run_whole(job: Job, folder: Path) -> ReferenceResult:
    """Return the reference's measurements without tokens, with the whole model in memory (:func:`run`)."""
    step = make_step(job, folder)
    output_dir = folder / "reference"
    # Written first, since the port starts with the constants.
    files.write_tensors(output_dir / "constants.safetensors", step.constants())
    is_small = job.pair is not None and job.pair.small
    records: dict[str, TensorRecord] = {}
    plain_tensors: dict[str, np.ndarray] = {}  # loss and gradients, if possible of a run without hooks
    with TensorWriter(output_dir / "float64.safetensors") as writer:

        def write(name: str, value: np.ndarray) -> tuple[str, TensorStats]:
            """Write a tensor of R64 or its sketch, and return the tensor's name and statistics."""
            stored_value = Sketch.of(value) if is_small and is_sketched(name, value) else value
            writer.add(name, stored_value)
            return name, error_stats.describe(stored_value)

        write_once = LastMeasurement(write)

        def keep(name: str, value: np.ndarray) -> None:
            """Write a tensor of R64 unless it repeats the previous tensor, and record its statistics."""
            first, stats = write_once(name, value)
            if first != name:
                writer.repeat(name, first)
            records[name] = TensorRecord.of(stats)
            if job.brief and job.updates and is_gradient(name):
                plain_tensors[name] = value

        step.run("float64", keep)
        records = step.sort_records(records)
        leaks, num_saturated = step.leaks, step.saturated
        if step.unread is not None:
            files.write_unread(output_dir, step.unread)
        if not job.brief:
            step.run("float64", plain_tensors.__setitem__, has_hooks=False)
        step.evaluate(keep)
        step.train_on(keep, plain_tensors)
    truth = TensorFile(output_dir / "float64.safetensors")
    step.write_draws(output_dir)
    if job.pair is None:
        write_loaded(step, job, output_dir / files.CHECKPOINT)
        write_initial(step, job, output_dir / "initial.safetensors")
    files.write_json(output_dir / "order.json", list(records))  # the comparison of the port waits for this file
    measure_noise(step, truth, records, runs_of(job))
    return ReferenceResult(
        tensors=records,
        parameters={name: list(value.shape) for name, value in step.model.named_parameters()},
        buffers=[name for name, _ in step.model.named_buffers() if f"buffer:{name}" not in records],
        facts=step.facts(records),
        leaks=leaks,
        notes=[*step.notes, *([Note("sketched", {"least": LARGE, "sums": COUNT})] if is_small else [])],
        narrowings=step.narrowings,
        own_loss=_own_loss(job, folder, truth, step),
        saturated_rows=num_saturated,
        unhooked=[n for n, value in plain_tensors.items() if not np.array_equal(value, truth[n], equal_nan=True)],
        own_backward=measure_own_backward(step) if job.judge_reference_reversible else {},
        accept={} if job.pair is None else job.pair.accept,
    )


def is_sketched(name: str, value: np.ndarray) -> bool:
    """Return whether a small bundle stores only the sketch of a tensor, a few of its sums.

    The port needs whole buffers, so these are never sketched.

    Args:
        name: name of the tensor.
        value: values of the tensor.
    """
    return value.size >= LARGE and TensorName.parse(name).without_run.kind != "buffer"


def _own_loss(job: Job, folder: Path, truth: Mapping[str, np.ndarray], step: Step) -> OwnLoss | None:
    """Return the comparison of R64's loss with its definition; None for a pair, whose definition is unknown."""
    if job.pair is not None:
        return None
    batch = files.read_tensors(folder / "batch.safetensors")
    return own_loss.check_loss(truth, batch, job.head, step.model, job.class_weights, job.label_smoothing)
