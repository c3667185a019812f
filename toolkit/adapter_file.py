"""The file in a run folder that holds what was trained in place of all weights (``train.lora``)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from models.weights import dump
from toolkit.checkpoint import umask
from toolkit.disk import writing

#: In the run folder: in ``model/`` are the weights that it has been added to.
ADAPTER = "adapter.safetensors"


def write_adapter(model: Any, path: Path) -> None:
    """Write the trained parameters of an adapted port in Hugging Face's names and layout, whole or not at all; beside
    them, as the file's metadata, the numbers that their update is scaled by.

    Raises:
        WriteFailed: the system refuses it.
    """
    from safetensors.numpy import save_file

    lora = model.adapter
    tensors = {name: value for name, value in dump(model) if lora.trains(name)}
    numbers = {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets}
    partial = path.with_name(f"{path.name}.partial")
    with writing(partial, sum(value.nbytes for value in tensors.values())):
        save_file(tensors, partial, metadata={"lora": json.dumps(numbers)})  # of several keys the order is not kept
        os.chmod(partial, 0o666 & ~umask())
        os.replace(partial, path)
