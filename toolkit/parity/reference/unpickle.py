"""``python -m toolkit.parity.reference.unpickle TARGET FILE...``: convert pickled weights to safetensors.

A pickle is a program. torch's ``weights_only`` unpickler runs only functions that create tensors, and stops at the
first other name. Only this process opens such a file, and it ends with the conversion. Both formats of torch are read:
zip, which is mapped into memory, and the format before 2020, which is not.
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

#: Largest number of bytes of a shard, unless a single tensor is larger. A shard is in memory twice while it is written.
SHARD_BYTES = 10**9

#: First version of torch, (major, minor), whose ``weights_only`` unpickler is safe (CVE-2025-32434).
OLDEST = (2, 6)

#: Matches the name of the function that the unpickler has refused to run.
REFUSED_NAME = re.compile(r"GLOBAL ([\w.]*[A-Za-z]\w*)")


class LoadError(ValueError):
    """Error of a file with other content than tensors by name; its message names the content."""


def main(target: Path, files: Sequence[Path]) -> None:
    """Write the tensors of all files into the folder ``target``, in shards with an index, as transformers does.

    Args:
        target: existing folder of the converted checkpoint.
        files: pickled files of torch, each with tensors by name.

    Raises:
        LoadError: a file cannot be converted, two files hold the same name, or torch is too old.
    """
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST:
        raise LoadError(f"torch {torch.__version__} does not unpickle safely; {OLDEST[0]}.{OLDEST[1]} or newer does")
    weight_map: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(split_shards(files), 1):
        name = f"model-{number:05d}.safetensors"
        if duplicate := next((tensor for tensor in shard if tensor in weight_map), None):
            raise LoadError(f"two of the files hold {duplicate}")
        save_file(shard, target / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(shard, name)
        total += sum(value.nbytes for value in shard.values())
    if not weight_map:
        raise LoadError("there are no tensors in it")
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_new_file(target / "model.safetensors.index.json", json.dumps(index, indent=1) + "\n")


def split_shards(files: Sequence[Path]) -> Iterator[dict[str, torch.Tensor]]:
    """Yield the tensors of the files in order, as shards of at most :data:`SHARD_BYTES`, each a dictionary by name.

    Each tensor gets its own memory, because safetensors stores two names of a tensor as two tensors.
    """
    shard: dict[str, torch.Tensor] = {}
    for file in files:
        tensors = load_pickle(file)
        for name in list(tensors):
            value = tensors.pop(name)
            if shard and sum(tensor.nbytes for tensor in shard.values()) + value.nbytes > SHARD_BYTES:
                yield shard
                shard = {}
            shard[name] = value.detach().clone(memory_format=torch.contiguous_format)
    if shard:
        yield shard


def load_pickle(file: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of a pickled file, by name.

    Raises:
        LoadError: the file is damaged or has other content than tensors by name.
    """
    is_zip = file.open("rb").read(4) == b"PK\x03\x04"
    try:
        state_dict = torch.load(file, map_location="cpu", weights_only=True, mmap=is_zip or None)
    except Exception as error:  # RuntimeError, UnpicklingError, EOFError and others, depending on the damage
        refusal = REFUSED_NAME.search(str(error))
        if refusal:
            raise LoadError(f"{file.name} asks for {refusal[1]}, which is code; nothing of it was run") from None
        if "Weights only load failed" in str(error):
            raise LoadError(f"{file.name} is no file of tensors; nothing of it was run") from None
        reason = " ".join(str(error).split()).partition(". ")[0][:200]
        raise LoadError(f"{file.name} cannot be read as a file of torch, it may be cut short: {reason}") from None
    if not isinstance(state_dict, dict) or not all(isinstance(name, str) for name in state_dict):
        raise LoadError(f"{file.name} holds {type(state_dict).__name__}, not tensors by name (a state_dict)")
    for name, value in state_dict.items():
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_quantized:
            raise LoadError(f"{file.name} holds {name}, which is no plain tensor; save the model's state_dict() alone")
    return dict(state_dict)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), [Path(name) for name in sys.argv[2:]])
    except LoadError as error:
        print(error)
        sys.exit(1)
