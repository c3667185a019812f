"""Checkpoints that are pickles, which a process of the reference reads once and converts to safetensors.

The three released checkpoints of Reformer and CTRL are pickles of 2020. Unpickling a file runs its author's code, so
neither this process nor the port's ever does it (:mod:`toolkit.parity.reference.unpickle`). The result is cached under
the SHA-256 of the pickle, and both sides of the gate read it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from models.files.hub import pickle_files
from models.files.plain import UnreadableFileError, plain_file
from toolkit.files.cache import get_or_create_entry
from toolkit.files.digest import digest_parts
from toolkit.machine.disk import describe_missing_space
from toolkit.machine.runtime import cache_folder
from toolkit.machine.scratch import child_process
from toolkit.machine.sizes import format_bytes
from toolkit.parity.exchange import files
from toolkit.parity.processes import launch

#: Version of the conversion, part of the cache key, which is increased when the conversion changes.
VERSION = 1

#: Error message for a pickle in an environment without torch.
WITHOUT_TORCH = (
    "is a pickle, which only torch reads safely, and this Python has none: name one that has it (--reference-python "
    "PATH; of a recipe, parity.reference_python=PATH), or a revision that holds safetensors"
)


def safetensors_folder(checkpoint: Path, python: str | None = None) -> Path:
    """Return the folder with a checkpoint's safetensors: the checkpoint itself, or a cached conversion of its pickles.

    Args:
        checkpoint: folder of the checkpoint.
        python: interpreter that has torch; None for this interpreter.

    Raises:
        UnreadableFileError: a pickle is invalid, contains code, or cannot be converted.
        OSError: a file cannot be read or written.
    """
    pickles = pickle_files(checkpoint)
    if not pickles:
        return checkpoint
    names = ", ".join(path.name for path in pickles)
    key = digest_parts(*(files.file_sha256(plain_file(path)) for path in pickles), VERSION)

    def fill(target: Path) -> None:
        """Convert the pickles into the new folder of the cache entry."""
        size = sum(path.stat().st_size for path in pickles)
        if lacking := describe_missing_space(cache_folder(), size):
            raise UnreadableFileError(
                checkpoint / pickles[0].name, f"is to be kept as safetensors in the cache: {lacking}"
            )
        print(f"note: reading {names} ({format_bytes(size)}) once; kept as safetensors in the cache", file=sys.stderr)
        _convert_pickles(python or sys.executable, target, pickles)

    return get_or_create_entry("weights", key, fill)


def _convert_pickles(python: str, target: Path, pickles: Sequence[Path]) -> None:
    """Convert pickles to safetensors in a process of the interpreter ``python``.

    Args:
        python: interpreter that has torch.
        target: folder of the safetensors.
        pickles: files to convert.

    Raises:
        UnreadableFileError: a pickle cannot be converted.
    """
    module = "toolkit.parity.reference.unpickle"
    command = launch.module_command(python, module, str(target), *map(str, pickles))
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    environment = launch.worker_environment()
    environment.pop("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", None)  # makes old versions run any code of a pickle
    with child_process(command, env=environment, text=True, **pipes) as process:
        output, log = process.communicate()
    if process.returncode == 0:
        return
    if "No module named 'torch'" in log:
        raise UnreadableFileError(pickles[0], WITHOUT_TORCH)
    if process.returncode < 0:
        raise UnreadableFileError(
            pickles[0], "could not be read: the process was killed, as a system without memory does"
        )
    words = output.strip().splitlines() or log.strip().splitlines() or [f"exit status {process.returncode}"]
    raise UnreadableFileError(pickles[0].parent, f"holds weights that cannot be used: {words[-1]}")
