"""New weights as training makes them, beside those that the reference makes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from models import lora
from models.families import part
from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.job.results import NewWeights
from toolkit.parity.measure.initial_values import TIMES, Samples, counted, sampled


def new_weights(job: Job, folder: Path) -> NewWeights:
    """What is counted of both sides' new parameters."""
    config = part(job.model, "schema").resolve(job.config)
    ours = sampled(_new_model(job, config, job.seed + number) for number in range(TIMES))
    theirs = Samples.of_tensors(files.read_tensors(folder / "reference" / "initial.safetensors"))
    return NewWeights(f"models/{job.model}/weights.py", counted(ours, theirs))


def _new_model(job: Job, config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """The parameters of a new model, and of an adapter for it."""
    weights = part(job.model, "weights")
    new = weights.initial_weights(config, job.head, seed)
    if job.lora is None:
        return new
    return {**new, **dict(lora.new_values(weights.parameters(config, job.head), lora.LoRA.of_json(job.lora), seed))}
