"""The reference's part in ``--ops``: R64, for its draws and discrete choices, then R32, whose every bit counts."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from toolkit.parity.job import files
from toolkit.parity.reference.step import Step


def run(step: Step, folder: Path) -> None:
    """Write draws, constants and R32 (every output, stream, score and gradient, and the loss) into the job folder."""
    step.run("float64", lambda name, value: None)
    own: dict[str, np.ndarray] = {}
    step.run("float32", own.__setitem__)
    place = folder / "reference"
    step.write_draws(place)
    files.write_tensors(place / "constants.safetensors", step.constants())
    files.write_tensors(place / "float32.safetensors", own)
    files.write_json(place / "order.json", list(own))  # the Paddle worker starts when this file is there
