"""``python -m toolkit.parity.reference.unpickle TARGET FILE...``: pickled weights as safetensors.

A pickle is a program. torch's ``weights_only`` unpickler runs only what makes tensors, and stops at the first other
name; this process, which ends with the conversion, is the only one that opens such a file. Both of torch's formats are
read: zip, which is mapped into memory, and the one before 2020, which is not.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from toolkit.files.lossless import write_new_file

#: A shard of this many bytes, or of one tensor that is larger, is in memory twice while it is written.
SHARD_BYTES = 10**9

#: The first version whose unpickler keeps what it promises (CVE-2025-32434).
OLDEST = (2, 6)

#: Matches the name that the unpickler has refused to a pickle.
REFUSED = re.compile(r"GLOBAL ([\w.]*[A-Za-z]\w*)")


class NotWeights(ValueError):
    """A file that holds something else than tensors by name; the message says what."""


def main(target: Path, files: Sequence[Path]) -> None:
    """Write the tensors of all files into ``target``, as transformers shards them, with an index."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        raise NotWeights(f"torch {torch.__version__} does not unpickle safely; {OLDEST[0]}.{OLDEST[1]} or newer does")
    placed: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(shards(files), 1):
        name = f"model-{number:05d}.safetensors"
        if again := next((tensor for tensor in shard if tensor in placed), None):
            raise NotWeights(f"two of the files hold {again}")
        save_file(shard, target / name, metadata={"format": "pt"})
        placed |= dict.fromkeys(shard, name)
        total += sum(value.nbytes for value in shard.values())
    if not placed:
        raise NotWeights("there are no tensors in it")
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    write_new_file(target / "model.safetensors.index.json", json.dumps(index, indent=1) + "\n")


def shards(files: Sequence[Path]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors of the files in order, as many at a time as fit :data:`SHARD_BYTES`, each with its own memory:
    in safetensors two names of one tensor are two tensors."""
    shard: dict[str, torch.Tensor] = {}
    for file in files:
        tensors = unpickle(file)
        for name in list(tensors):
            value = tensors.pop(name)
            if shard and sum(held.nbytes for held in shard.values()) + value.nbytes > SHARD_BYTES:
                yield shard
                shard = {}
            shard[name] = value.detach().clone(memory_format=torch.contiguous_format)
    if shard:
        yield shard


def unpickle(file: Path) -> dict[str, torch.Tensor]:
    """The tensors of a file, by name. Raises NotWeights if it asks for or holds anything but tensors, or is damaged."""
    is_zip = file.open("rb").read(4) == b"PK\x03\x04"
    try:
        found = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip or None)
    except Exception as problem:  # RuntimeError, UnpicklingError, EOFError, ... by the place of the damage
        asked = REFUSED.search(str(problem))
        if asked:
            raise NotWeights(f"{file.name} asks for {asked[1]}, which is code; nothing of it was run") from None
        if "Weights only load failed" in str(problem):
            raise NotWeights(f"{file.name} is no file of tensors; nothing of it was run") from None
        reason = " ".join(str(problem).split()).partition(". ")[0][:200]
        raise NotWeights(f"{file.name} cannot be read as a file of torch, it may be cut short: {reason}") from None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise NotWeights(f"{file.name} holds {type(found).__name__}, not tensors by name (a state_dict)")
    for name, value in found.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            raise NotWeights(f"{file.name} holds {name}, which is no plain tensor; save the model's state_dict() alone")
    return dict(found)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    except NotWeights as problem:
        print(problem)
        sys.exit(1)
