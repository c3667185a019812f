"""New weights as training makes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.families import part
from models.port import lora
from toolkit.parity.job.job import Job
from toolkit.parity.measure.initial_values import TIMES, sampled


def new_values(job: Job) -> dict[str, np.ndarray]:
    """Some values of each parameter of a few new models (:meth:`.Samples.tensors`)."""
    config = part(job.model, "schema").resolve(job.config)
    return sampled(_new_model(job, config, job.seed + number) for number in range(TIMES)).tensors()


def place_of_new_values(job: Job) -> str:
    """The file that makes them."""
    return f"models/{job.model}/weights.py"


def _new_model(job: Job, config: dict[str, Any], seed: int) -> dict[str, np.ndarray]:
    """The parameters of a new model, and of an adapter for it."""
    weights = part(job.model, "weights")
    new = weights.initial_weights(config, job.head, seed)
    if job.lora is None:
        return new
    return {**new, **dict(lora.new_values(weights.parameters(config, job.head), lora.LoRA.of_json(job.lora), seed))}
