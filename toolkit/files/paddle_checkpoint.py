"""PaddleNLP's checkpoints, converted once into Hugging Face's form, which everything else reads.

The resulting cache folder is named by the SHA-256 of the inputs. No code in a ``.pdparams`` runs
(:mod:`models.files.pdparams`).
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from models.files.hub import pickle_files
from models.files.pdparams import read_pdparams
from models.files.plain import UnreadableFile, plain_file, read_object
from models.port.paddlenlp_layout import hf_config, hf_tensors
from toolkit.files.cache import kept
from toolkit.files.digest import digest
from toolkit.files.whole import sha256
from toolkit.machine.disk import describe_missing_space, format_bytes
from toolkit.machine.runtime import cache_folder

#: Part of the key: raised when the conversion changes.
VERSION = 1

#: Paddle's file ending, and PaddleNLP's names for the weights and the configuration, new and old.
ENDING = ".pdparams"
WEIGHTS = "model_state.pdparams"
CONFIGS = ("config.json", "model_config.json")

#: A tokenizer's files, which have the same names on either side.
TOKENIZER = ("vocab.json", "merges.txt", "spiece.model")

#: Least bytes of tensors in a file of the cache; the last has what is left.
SHARD_BYTES = 2**31


def hf_folder(checkpoint: Path) -> Path:
    """Return a checkpoint's folder in Hugging Face's form: for PaddleNLP's, one of the cache; any other as it is.

    Args:
        checkpoint: a ``.pdparams`` file beside its configuration, or a folder.

    Raises:
        UnreadableFile, WeightsError, ConfigError: ValueErrors: it is not what PaddleNLP writes of a family here.
        OSError: a file that is missing or may not be read.
    """
    weights = paddle_weights(checkpoint)
    if weights is None:
        return checkpoint
    plain_file(weights)
    config = next((weights.parent / name for name in CONFIGS if os.path.lexists(weights.parent / name)), None)
    if config is None:
        raise UnreadableFile(weights, f"has no {' or '.join(CONFIGS)} beside it, which says what model it is")
    files = [weights, config, *(path for name in TOKENIZER if (path := weights.parent / name).is_file())]
    key = digest(VERSION, *(part for path in files for part in (path.name, _sha256(path))))

    def fill(unfinished: Path) -> None:
        size = weights.stat().st_size
        if lacking := describe_missing_space(cache_folder(), size):
            raise UnreadableFile(weights, f"is to be kept as safetensors in the cache: {lacking}")
        print(
            f"note: reading {weights.name} ({format_bytes(size)}) once; kept as safetensors in the cache",
            file=sys.stderr,
        )
        _convert(weights, config, unfinished)
        for path in files[2:]:
            shutil.copyfile(path, unfinished / path.name)

    return kept("weights", key, fill)


def paddle_weights(checkpoint: Path) -> Path | None:
    """Return the ``.pdparams`` of a path; None if it has none, or safetensors or torch's pickles beside it. Raises
    UnreadableFile if it is in several files."""
    if not checkpoint.is_dir():
        return checkpoint if checkpoint.suffix == ENDING else None
    if os.path.lexists(checkpoint / f"{WEIGHTS}.index.json"):
        raise UnreadableFile(
            checkpoint / f"{WEIGHTS}.index.json", f"is of weights in several files; they are read from one {WEIGHTS}"
        )
    others = (checkpoint / "model.safetensors", checkpoint / "model.safetensors.index.json")
    if any(os.path.lexists(path) for path in others) or pickle_files(checkpoint):
        return None
    weights = checkpoint / WEIGHTS
    return weights if os.path.lexists(weights) else None


def _sha256(path: Path) -> str:
    state = plain_file(path).stat()
    return _sha256_of(path.absolute(), state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _sha256_of(path: Path, _size: int, _time: int) -> str:
    """Cached: a run asks for it several times, and a CTRL checkpoint has six gigabytes."""
    return sha256(path)


def _convert(weights: Path, config: Path, target: Path) -> None:
    arrays = read_pdparams(weights)
    try:
        keys = hf_config(read_object(config), arrays)
    except UnreadableFile:
        raise
    except ValueError as problem:
        raise UnreadableFile(config, f"is not of a model that can be used: {problem}") from None
    try:
        _write(hf_tensors(arrays, keys), target)
    except ValueError as problem:
        raise UnreadableFile(weights, f"holds weights that cannot be used: {problem}") from None
    (target / "config.json").write_text(json.dumps(keys, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write(tensors: Iterable[tuple[str, np.ndarray]], target: Path) -> None:
    """Write safetensors, one file or several with an index; hold only one file's tensors at once."""
    places: dict[str, str] = {}
    for number, shard in enumerate(_shards(tensors), start=1):
        name = f"model-{number:05}.safetensors"
        save_file(shard, target / name, metadata={"format": "pt"})
        places.update(dict.fromkeys(shard, name))
    if len(set(places.values())) == 1:
        (target / "model-00001.safetensors").rename(target / "model.safetensors")
        return
    index = json.dumps({"metadata": {}, "weight_map": places}, indent=2)
    (target / "model.safetensors.index.json").write_text(index + "\n", encoding="utf-8")


def _shards(tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    shard: dict[str, np.ndarray] = {}
    size = 0
    for name, value in tensors:
        shard[name] = value
        size += value.nbytes
        if size >= SHARD_BYTES:
            yield shard
            shard, size = {}, 0
    if shard:
        yield shard
