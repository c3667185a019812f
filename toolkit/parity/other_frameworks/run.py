"""Run a user's port in JAX or ONNX Runtime on a recorded reference's weights and batch."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import Inconclusive, UserError
from toolkit.parity.job import launch
from toolkit.parity.job.bundle import Recording
from toolkit.parity.job.interpreter import locate
from toolkit.parity.job.pair import TIME_LIMIT

#: How the file of a port ends -> the program that runs it, and the packages that it needs.
PROGRAMS = {".py": ("in_jax", ("jax", "safetensors")), ".onnx": ("in_onnx", ("onnxruntime", "safetensors"))}
#: Exit status of a program of which a package is missing.
LACKS = 3


def run_port(
    port: Path, recording: Recording, folder: Path, dtypes: Sequence[str], python: str | None, limit: float | None
) -> dict[str, str]:
    """Leave what a port computes in ``folder``, as :mod:`.given` reads it; returns the versions of its framework.

    Args:
        port: a file of :data:`PROGRAMS`.
        dtypes: in which it is run, one after another; an ONNX graph leaves those that are not its own.
        python: the Python that has its framework; None for this one.
        limit: seconds for each run.

    Raises:
        UserError: the port raised something, or did not end in time.
        Inconclusive: the Python lacks the framework.
    """
    program, needed = PROGRAMS[port.suffix]
    interpreter = sys.executable if python is None else locate(python, needed)
    for dtype in dtypes:
        arguments = map(str, (recording.folder, port, folder, dtype))
        try:
            done = subprocess.run(
                launch.module_command(interpreter, f"toolkit.parity.other_frameworks.{program}", *arguments),
                env=launch.worker_environment(),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit or TIME_LIMIT,
            )
        except subprocess.TimeoutExpired as late:
            raise UserError(
                f"{port}: has not ended after {late.timeout:.0f} s; --time-limit SECONDS gives it more"
            ) from None
        if done.returncode:
            words = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
            if done.returncode == LACKS:
                remedy = f"{interpreter} -m pip install {' '.join(needed)}, or name a Python that has it: --port-python"
                raise Inconclusive(f"{port}: {words}; {remedy}")
            raise UserError(f"{port}: {words}")
    return json.loads((folder / "versions.json").read_text(encoding="utf-8"))
