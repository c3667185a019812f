"""PaddleNLP's checkpoints, converted once to Hugging Face's format, which all other code reads.

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
from models.files.plain import UnreadableFileError, plain_file, read_object
from models.port.paddlenlp_layout import convert_config, convert_tensors
from toolkit.files.cache import get_or_create_entry
from toolkit.files.digest import digest_parts, file_sha256
from toolkit.machine.disk import describe_missing_space
from toolkit.machine.runtime import cache_folder
from toolkit.machine.sizes import format_bytes

#: Part of the cache key; raise it when the conversion changes.
CONVERSION_VERSION = 1

#: Ending of Paddle's files, and PaddleNLP's file names for weights and for the configuration (new and old).
PADDLE_ENDING = ".pdparams"
PADDLE_WEIGHTS_FILE = "model_state.pdparams"
CONFIG_FILES = ("config.json", "model_config.json")

#: Files of a tokenizer, which have the same names in both formats.
TOKENIZER_FILES = ("vocab.json", "merges.txt", "spiece.model")

#: Least bytes of tensors in each file of the cache, except the last.
MIN_SHARD_BYTES = 2**31


def get_hf_folder(checkpoint: Path) -> Path:
    """Return the folder of a checkpoint in Hugging Face's format; a PaddleNLP checkpoint is converted in the cache.

    Args:
        checkpoint: ``.pdparams`` file next to its configuration, or folder of a checkpoint in either format.

    Raises:
        UnreadableFileError, WeightsError, ConfigError: the files are not a PaddleNLP checkpoint of a known family.
        OSError: a file is missing or may not be read.
    """
    weights = find_paddle_weights(checkpoint)
    if weights is None:
        return checkpoint
    plain_file(weights)
    config = next((weights.parent / name for name in CONFIG_FILES if os.path.lexists(weights.parent / name)), None)
    if config is None:
        raise UnreadableFileError(weights, f"has no {' or '.join(CONFIG_FILES)} beside it, which says what model it is")
    files = [weights, config, *(path for name in TOKENIZER_FILES if (path := weights.parent / name).is_file())]
    key = digest_parts(CONVERSION_VERSION, *(part for path in files for part in (path.name, _hash_file(path))))

    def write_converted(unfinished_folder: Path) -> None:
        size = weights.stat().st_size
        if missing_space := describe_missing_space(cache_folder(), size):
            raise UnreadableFileError(weights, f"is to be kept as safetensors in the cache: {missing_space}")
        print(
            f"note: reading {weights.name} ({format_bytes(size)}) once; kept as safetensors in the cache",
            file=sys.stderr,
        )
        _convert_checkpoint(weights, config, unfinished_folder)
        for path in files[2:]:
            shutil.copyfile(path, unfinished_folder / path.name)

    return get_or_create_entry("weights", key, write_converted)


def find_paddle_weights(checkpoint: Path) -> Path | None:
    """Return the ``.pdparams`` file of a checkpoint; None if it has none, or has weights in another format, too.

    Raises:
        UnreadableFileError: the weights are divided into several files.
    """
    if not checkpoint.is_dir():
        return checkpoint if checkpoint.suffix == PADDLE_ENDING else None
    if os.path.lexists(checkpoint / f"{PADDLE_WEIGHTS_FILE}.index.json"):
        raise UnreadableFileError(
            checkpoint / f"{PADDLE_WEIGHTS_FILE}.index.json",
            f"is of weights in several files; they are read from one {PADDLE_WEIGHTS_FILE}",
        )
    other_weights = (checkpoint / "model.safetensors", checkpoint / "model.safetensors.index.json")
    if any(os.path.lexists(path) for path in other_weights) or pickle_files(checkpoint):
        return None
    weights = checkpoint / PADDLE_WEIGHTS_FILE
    return weights if os.path.lexists(weights) else None


def _hash_file(path: Path) -> str:
    """Return a digest of a file, which is cached as long as its size and time stay the same."""
    file_stat = plain_file(path).stat()
    return _hash_file_state(path.absolute(), file_stat.st_size, file_stat.st_mtime_ns)


@functools.lru_cache(maxsize=64)
def _hash_file_state(path: Path, _size: int, _time: int) -> str:
    """Return the SHA-256 of a file in a given state.

    It is cached, because a run needs it several times, and a CTRL checkpoint has six gigabytes.
    """
    return file_sha256(path)


def _convert_checkpoint(weights_path: Path, config_path: Path, target: Path) -> None:
    """Convert a PaddleNLP checkpoint to the layout of Hugging Face in the folder ``target``.

    Args:
        weights_path: the ``.pdparams`` file.
        config_path: the configuration file of PaddleNLP.
        target: an existing folder, which gets safetensors and ``config.json``.

    Raises:
        UnreadableFileError: one of the files cannot be read or is not of a family of this project.
    """
    arrays = read_pdparams(weights_path)
    try:
        hf_keys = convert_config(read_object(config_path), arrays)
    except UnreadableFileError:
        raise
    except ValueError as error:
        raise UnreadableFileError(config_path, f"is not of a model that can be used: {error}") from None
    try:
        _write_safetensors(convert_tensors(arrays, hf_keys), target)
    except ValueError as error:
        raise UnreadableFileError(weights_path, f"holds weights that cannot be used: {error}") from None
    (target / "config.json").write_text(json.dumps(hf_keys, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _write_safetensors(tensors: Iterable[tuple[str, np.ndarray]], target: Path) -> None:
    """Write tensors to one safetensors file, or several and an index, with one file's tensors in memory at a time."""
    file_by_tensor: dict[str, str] = {}
    for number, shard in enumerate(_split_into_shards(tensors), start=1):
        name = f"model-{number:05}.safetensors"
        save_file(shard, target / name, metadata={"format": "pt"})
        file_by_tensor.update(dict.fromkeys(shard, name))
    if len(set(file_by_tensor.values())) == 1:
        (target / "model-00001.safetensors").rename(target / "model.safetensors")
        return
    index = json.dumps({"metadata": {}, "weight_map": file_by_tensor}, indent=2)
    (target / "model.safetensors.index.json").write_text(index + "\n", encoding="utf-8")


def _split_into_shards(tensors: Iterable[tuple[str, np.ndarray]]) -> Iterator[dict[str, np.ndarray]]:
    """Yield the tensors in groups of at least :data:`MIN_SHARD_BYTES` bytes, the last group excepted."""
    shard: dict[str, np.ndarray] = {}
    shard_bytes = 0
    for name, array in tensors:
        shard[name] = array
        shard_bytes += array.nbytes
        if shard_bytes >= MIN_SHARD_BYTES:
            yield shard
            shard, shard_bytes = {}, 0
    if shard:
        yield shard
