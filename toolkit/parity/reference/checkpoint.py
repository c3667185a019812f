"""What the reference's own ``from_pretrained`` reads from the checkpoint that a job's weights are of, and what of its
position table its evaluation takes for shorter texts."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch

from toolkit.parity.job import files
from toolkit.parity.job.files import POSITIONS
from toolkit.parity.job.job import Job
from toolkit.parity.reference.points import to_numpy
from toolkit.parity.reference.step import Step


def write_loaded(step: Step, job: Job, path: Path) -> None:
    """Write every parameter that the checkpoint has, in float32; safetensors alone are read, and from the folder alone.

    Parameters that the reference would make anew, such as those of another head, are left out.
    """
    if job.checkpoint is None:
        return
    model, found = step.heads[job.head].from_pretrained(  # type: ignore[attr-defined]
        job.checkpoint,
        config=step.configuration(job.checkpoint_config or job.config),
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
    )
    missing = set(found["missing_keys"])
    read = {name: value for name, value in model.float().named_parameters() if name not in missing}
    files.write_tensors(path, {name: to_numpy(value) for name, value in read.items()})
    if job.checkpoint_config is not None:
        files.write_tensors(path.with_name(POSITIONS), _positions(model.eval(), job.config["axial_pos_shape"]))


def _positions(model: torch.nn.Module, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Both factors of a Reformer's position table, as its evaluation reads them for texts of rows * columns tokens: the
    rows at every row's first token, the columns along the first row."""
    embeddings = model.reformer.embeddings.position_embeddings
    rows, columns = shape
    with torch.no_grad():
        table = embeddings(torch.arange(math.prod(shape))[None])[0].reshape(rows, columns, -1)
    width = embeddings.weights[0].shape[-1]
    name = "reformer.embeddings.position_embeddings.weights"
    return {f"{name}.0": to_numpy(table[:, :1, :width]), f"{name}.1": to_numpy(table[:1, :, width:])}
