"""New weights from the reference's own classes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from toolkit.parity.job import files
from toolkit.parity.job.job import Job
from toolkit.parity.measure.initial_values import TIMES, sampled
from toolkit.parity.reference.lora import adapt, initialise
from toolkit.parity.reference.points import to_numpy
from toolkit.parity.reference.step import Step


def write_initial(step: Step, job: Job, path: Path) -> None:
    """Write samples of the parameters of a few new models (:class:`.initial_values.Samples`)."""
    files.write_tensors(path, sampled(_new_models(step, job)).tensors())


def _new_models(step: Step, job: Job) -> Iterator[dict[str, np.ndarray]]:
    for number in range(TIMES):
        torch.manual_seed(job.seed + number)
        model = step.heads[job.head](step.configuration(job.config))
        adapt(model, job.lora)
        initialise(model)
        yield {name: to_numpy(value) for name, value in model.named_parameters()}
