"""The file in a run folder that holds what was trained in place of all weights (``train.lora``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from models.files.tensor_file import write_tensors
from models.port.weights import values_of
from toolkit.files.whole import appearing
from toolkit.machine.disk import writing

#: In the run folder; ``model/`` has the weights with it added.
ADAPTER = "adapter.safetensors"


def write_adapter(model: Any, path: Path) -> None:
    """Write the trained parameters of an adapted port in Hugging Face's names and layout, whole or not at all. The
    file's metadata holds the numbers that scale their update. Raises WriteFailed if the system refuses it."""
    lora = model.adapter
    weights = values_of(model)
    tensors = {name: weights[name] for name in weights if lora.trains(name)}
    numbers = {"rank": lora.rank, "alpha": lora.alpha, "targets": lora.targets}
    with appearing(path) as partial, writing(partial, sum(value.nbytes for value in tensors.values())):
        write_tensors(partial, tensors, {"lora": json.dumps(numbers)})
