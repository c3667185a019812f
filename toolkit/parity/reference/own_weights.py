"""Weights that the reference's own classes load or initialize.

They are the weights that ``from_pretrained`` reads from the checkpoint of a job, the part of its position table that
evaluation uses for shorter texts, and newly initialized weights.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from toolkit.parity.exchange import files
from toolkit.parity.exchange.files import POSITIONS
from toolkit.parity.job.job import Job
from toolkit.parity.measure.initial_values import NUM_MODELS, sample_values
from toolkit.parity.reference.lora import adapt_model, initialize_adapters
from toolkit.parity.reference.points import to_numpy
from toolkit.parity.reference.step import Step


def write_loaded(step: Step, job: Job, path: Path) -> None:
    """Write the parameters that the reference's ``from_pretrained`` loads from the job's checkpoint, in float32.

    Only safetensors of the checkpoint's folder itself are read. Parameters that the reference would initialize, such as
    the weights of a new head, are not written. If the job has fewer positions than the checkpoint, the position table
    that evaluation uses is written as ``positions.safetensors`` next to ``path``. Without a checkpoint, nothing is
    written.

    Args:
        step: step of the job, whose classes load the checkpoint.
        job: job with the checkpoint.
        path: file to write.
    """
    if job.checkpoint is None:
        return
    model, loading_info = step.heads[job.head].from_pretrained(  # type: ignore[attr-defined]
        job.checkpoint,
        config=step.configuration(job.checkpoint_config or job.config),
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
    )
    missing = set(loading_info["missing_keys"])
    parameters = {name: value for name, value in model.float().named_parameters() if name not in missing}
    files.write_tensors(path, {name: to_numpy(value) for name, value in parameters.items()})
    if job.checkpoint_config is not None:
        files.write_tensors(path.with_name(POSITIONS), step.positions_of(model.eval()))


def write_initial(step: Step, job: Job, path: Path) -> None:
    """Write samples of the parameters of several newly initialized models (:class:`.initial_values.Samples`).

    Args:
        step: step of the job, whose classes initialize the models.
        job: job with the head, the configuration, the adapter and the first seed.
        path: file to write.
    """
    files.write_tensors(path, sample_values(_new_models(step, job)).tensors())


def _new_models(step: Step, job: Job) -> Iterator[dict[str, np.ndarray]]:
    """Yield the parameters of ``NUM_MODELS`` newly initialized models, each by name, from consecutive seeds."""
    for number in range(NUM_MODELS):
        torch.manual_seed(job.seed + number)
        model = step.heads[job.head](step.configuration(job.config))
        adapt_model(model, job.lora)
        initialize_adapters(model)
        yield {name: to_numpy(value) for name, value in model.named_parameters()}
