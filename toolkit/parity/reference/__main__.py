"""``python -m toolkit.parity.reference JOB``: run the job in a folder (see :mod:`toolkit.parity.bundle`)."""

from __future__ import annotations

import importlib
import platform
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from toolkit.parity import bundle, spread, worker
from toolkit.parity.reference.noise import measure_noise, own_backward_error, unhooked_differences
from toolkit.parity.reference.step import Step
from toolkit.parity.reference.tokens import tokens


def main(folder: Path) -> None:
    """R64, its noise, and what the tokenizer makes of the job's texts."""
    started = time.monotonic()
    job = bundle.read_json(folder / "job.json")
    set_up(job)
    from toolkit.parity.reference import exact, streamed

    if job["ops"]:
        exact.run(make_step(job, folder), folder)
    result = {
        "schema": bundle.SCHEMA,
        **({} if job["ops"] else streamed.run(job, folder) if job["streamed"] else run_whole(job, folder)),
        "tokens": tokens(job["tokenizer"]) if job["tokenizer"] else None,
        "versions": versions(),
        "seconds": time.monotonic() - started,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }
    bundle.write_json(folder / "reference" / "result.json", result)


def run_whole(job: dict, folder: Path) -> dict[str, Any]:
    """R64 and its noise, with the whole model in memory."""
    step = make_step(job, folder)
    truth: dict[str, np.ndarray] = {}

    def keep(name: str, value: np.ndarray) -> None:
        if name in truth:
            raise RuntimeError(f"two tensors of the reference have the name {name}: one would not be compared")
        truth[name] = value

    step.run("float64", keep)
    place = folder / "reference"
    bundle.write_tensors(place / "draws.safetensors", step.draws.tensors)
    bundle.write_tensors(place / "constants.safetensors", step.constants())
    bundle.write_tensors(place / "float64.safetensors", truth)
    bundle.write_json(place / "rates.json", step.draws.rates)
    bundle.write_json(place / "order.json", list(truth))  # the Paddle worker starts when this file is there
    records = {name: {**spread.describe(value), "noise": {}, "noise_max": {}} for name, value in truth.items()}
    measure_noise(step, truth, records, job["noise_runs"])
    return {
        "tensors": records,
        "parameters": {name: list(value.shape) for name, value in step.model.named_parameters()},
        "buffers": [name for name, _ in step.model.named_buffers()],
        "facts": {**step.facts(records), "relu_moved": step.draws.moved},
        "leaks": step.leaks,
        "saturated_rows": step.saturated,
        "unhooked": unhooked_differences(step, truth),
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
        job, bundle.read_tensors(folder / "weights.safetensors"), bundle.read_tensors(folder / "batch.safetensors")
    )


def versions() -> dict[str, str]:
    """Of everything that decides what the reference computes."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }


if __name__ == "__main__":
    worker.run("reference", main)
