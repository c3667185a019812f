"""New weights as training makes them, beside those that the reference makes."""

from __future__ import annotations

from pathlib import Path

from models.families import part
from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import NewWeights
from toolkit.parity.measure.initial_values import TIMES, Samples, counted, sampled


def new_weights(job: Job, folder: Path) -> NewWeights:
    """What is counted of both sides' new parameters."""
    config = part(job.model, "schema").resolve(job.config)
    weights = part(job.model, "weights")
    ours = sampled(weights.initial_weights(config, job.head, job.seed + number) for number in range(TIMES))
    theirs = Samples.of_tensors(files.read_tensors(folder / "reference" / "initial.safetensors"))
    return NewWeights(f"models/{job.model}/weights.py", counted(ours, theirs))
