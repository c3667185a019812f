"""``python -m toolkit.parity.reference JOB...``: run the job in each folder (see :mod:`toolkit.parity.bundle`)."""

from __future__ import annotations

import importlib
import platform
import resource
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from toolkit.parity.job import files, worker
from toolkit.parity.job.tensor_file import TensorFile, TensorWriter
from toolkit.parity.measure import error_stats
from toolkit.parity.reference import own_loss
from toolkit.parity.reference.noise import measure_noise, own_backward_error, runs_of
from toolkit.parity.reference.step import Step
from toolkit.parity.reference.tokens import tokens


def main(folder: Path) -> None:
    """R64, its noise, and what the tokenizer makes of the job's texts."""
    started = time.monotonic()
    job = files.read_json(folder / "job.json")
    set_up(job)
    from toolkit.parity.reference import bitwise, streamed

    if job["ops"]:
        bitwise.run(make_step(job, folder), folder)
    result = {
        "schema": files.SCHEMA,
        **({} if job["ops"] else streamed.run(job, folder) if job["streamed"] else run_whole(job, folder)),
        "tokens": tokens(job["tokenizer"]) if job["tokenizer"] else None,
        "versions": versions(),
        "flags": flags(),
        "seconds": time.monotonic() - started,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    files.write_json(folder / "reference" / "result.json", result)


def run_whole(job: dict, folder: Path) -> dict[str, Any]:
    """R64 and its noise, with the whole model in memory."""
    step = make_step(job, folder)
    place = folder / "reference"
    path = place / "float64.safetensors"
    records: dict[str, dict] = {}
    unhooked: dict[str, np.ndarray] = {}
    with TensorWriter(path) as writer:

        def keep(name: str, value: np.ndarray) -> None:
            writer.add(name, value)
            records[name] = {**error_stats.describe(value), "noise": {}, "noise_max": {}}

        step.run("float64", keep)
        leaks, saturated = step.leaks, step.saturated
        step.run("float64", unhooked.__setitem__, watched=False)
        step.train_on(keep, unhooked)
    truth = TensorFile(path)
    step.write_draws(place)
    files.write_tensors(place / "constants.safetensors", step.constants())
    files.write_json(place / "order.json", list(records))  # the Paddle worker starts when this file is there
    changed = [name for name, value in unhooked.items() if not np.array_equal(value, truth[name], equal_nan=True)]
    measure_noise(step, truth, records, runs_of(job))
    return {
        "tensors": records,
        "parameters": {name: list(value.shape) for name, value in step.model.named_parameters()},
        "buffers": [name for name, _ in step.model.named_buffers()],
        "facts": {**step.facts(records), "relu_moved": step.draws[0].moved},
        "leaks": leaks,
        "notes": step.notes,
        "narrowings": step.narrowings,
        "own_loss": own_loss.check(truth, files.read_tensors(folder / "batch.safetensors"), job, step.model),
        "saturated_rows": saturated,
        "unhooked": changed,
        "own_backward": own_backward_error(step) if job["judge_reference_reversible"] else {},
    }


def set_up(job: dict) -> None:
    """Threads, TF32 off, deterministic kernels, no chatter."""
    torch.set_num_threads(job["threads"])
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    torch.use_deterministic_algorithms(True, warn_only=True)
    transformers.logging.set_verbosity_error()


def make_step(job: dict, folder: Path) -> Step:
    """The family's step on the job's weights and batch."""
    family = importlib.import_module(f"toolkit.parity.reference.{job['model']}")
    return family.STEP(
        job, files.read_tensors(folder / "weights.safetensors"), files.read_tensors(folder / "batch.safetensors")
    )


def versions() -> dict[str, str]:
    """Of everything that decides what the reference computes."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }


def flags() -> dict[str, Any]:
    """What :func:`set_up` has set, as torch reports it."""
    return {
        "cuda.matmul.allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "threads": torch.get_num_threads(),
    }


if __name__ == "__main__":
    worker.run("reference", main, sys.argv[1:])
