"""Runs of a user's port in JAX or ONNX Runtime on a recorded reference's weights and batch.

The port's process gets two separate folders, and not the bundle, which has the truth. It reads ``weights``, ``batch``
and ``draws`` (safetensors) and ``names.json``, the names of all tensors of the reference. It leaves
``DTYPE.safetensors`` with its results, and last ``versions.json`` with its framework's version; or ``failure.txt`` with
the reason in one line; or ``missing.txt`` if a package cannot be imported. Its current folder is empty, because the
user's current folder often has the bundle.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from toolkit.errors import Inconclusive, UserError
from toolkit.machine.scratch import child_process
from toolkit.parity.bundle.bundle import Recording
from toolkit.parity.exchange import files
from toolkit.parity.exchange.tensor_file import TensorFile
from toolkit.parity.job.pair import CHOICES, RANDOM, TIME_LIMIT
from toolkit.parity.measure.evaluation import TRAINING
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.processes import launch
from toolkit.parity.processes.interpreter import locate_interpreter

#: Name of the program that runs a port, and the packages that it needs, by the suffix of the port's file.
PROGRAMS = {".py": ("in_jax", ("jax", "safetensors")), ".onnx": ("in_onnx", ("onnxruntime", "safetensors"))}
#: Largest length of the end that is read of a text from a port's process.
MAX_CHARACTERS = 2000
#: Environment variables with the current and the previous folder of the user's shell.
SHELL_FOLDERS = ("PWD", "OLDPWD")


def run_port(
    port_path: Path,
    recording: Recording,
    folder: Path,
    dtypes: Sequence[str],
    python: str | None,
    time_limit: float | None,
) -> tuple[Path, dict[str, str]]:
    """Run a port in each dtype, and return the folder of its results and the version of its framework.

    :mod:`.output_errors` describes the folder. The version is by the framework's name.

    Args:
        port_path: file with a suffix of :data:`PROGRAMS`.
        recording: recorded reference.
        folder: empty folder, which only this port uses.
        dtypes: dtypes of the runs, one after another; an ONNX graph skips dtypes that it does not compute.
        python: interpreter with the port's framework; None for the running interpreter.
        time_limit: seconds for each run; None for the default.

    Raises:
        UserError: the port raised an error, left no result, or did not end in time.
        Inconclusive: the interpreter lacks the framework.
    """
    program, packages = PROGRAMS[port_path.suffix]
    interpreter = sys.executable if python is None else locate_interpreter(python, packages)
    inputs, outputs, current_folder = folder / "inputs", folder / "outputs", folder / "current"
    write_inputs(recording, inputs)
    outputs.mkdir()
    current_folder.mkdir()
    versions: dict[str, str] = {}
    for dtype in dtypes:
        log = folder / f"{dtype}.log"
        arguments = map(str, (inputs.absolute(), port_path.absolute(), outputs.absolute(), dtype))
        command = launch.module_command(interpreter, f"toolkit.parity.other_frameworks.{program}", *arguments)
        status = _run_program(command, port_path, log, current_folder, time_limit or TIME_LIMIT)
        if missing := _read_text_end(outputs / "missing.txt"):
            remedy = f"{interpreter} -m pip install {' '.join(packages)}, or name a Python that has it: --port-python"
            raise Inconclusive(f"{port_path}: {missing}; {remedy}")
        if failure := _read_text_end(outputs / "failure.txt"):
            raise UserError(f"{port_path}: {failure}")
        versions = _read_versions(outputs / "versions.json")
        if status or not versions:
            last_line = _read_text_end(log).strip().rpartition("\n")[2]
            reason = f"; it printed last: {last_line}" if last_line else ""
            raise UserError(f"{port_path}: has ended without a result in {dtype} (exit status {status}){reason}")
        (outputs / "versions.json").unlink()
    if not any((outputs / f"{dtype}.safetensors").exists() for dtype in dtypes):
        raise UserError(f"{port_path}: has computed no tensor in {' or '.join(dtypes)}")
    return outputs, versions


def write_inputs(recording: Recording, folder: Path) -> None:
    """Write the inputs of a port's process to a new folder. Draws that show R64's own values are left out.

    Args:
        recording: recorded reference.
        folder: folder to create.
    """
    folder.mkdir()
    for name in ("weights", "batch"):
        shutil.copyfile(recording.folder / f"{name}.safetensors", folder / f"{name}.safetensors")
    draws = TensorFile(recording.folder / "reference" / f"draws-{TRAINING}.safetensors")
    shared_draws = {
        name: draws[name] for name in draws if TensorName.parse(name).kind in (*RANDOM, *CHOICES, "buckets")
    }
    files.write_tensors(folder / "draws.safetensors", shared_draws)
    files.write_json(folder / "names.json", files.read_json(recording.folder / "reference" / "order.json"))


def _run_program(command: Sequence[str], port_path: Path, log: Path, current_folder: Path, time_limit: float) -> int:
    """Run a program, end every process that it started, and return its exit status.

    Args:
        command: the command with its arguments.
        port_path: file of the port, for the error message.
        log: new file for the program's output.
        current_folder: folder that becomes the program's current folder.
        time_limit: longest duration in seconds.

    Raises:
        UserError: the program takes longer than ``time_limit`` seconds.
    """
    environment = {name: value for name, value in launch.worker_environment().items() if name not in SHELL_FOLDERS}
    with (
        open(log, "x") as output,
        child_process(
            command,
            cwd=current_folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            return process.wait(time_limit)
        except subprocess.TimeoutExpired:
            raise UserError(
                f"{port_path}: has not ended after {time_limit:g} s; --time-limit SECONDS gives it more"
            ) from None


def _read_text_end(path: Path) -> str:
    """Return the end of a text file that a port's process left; empty if the file does not exist."""
    if not path.is_file():
        return ""
    with open(path, "rb") as file:
        file.seek(max(0, path.stat().st_size - MAX_CHARACTERS))
        return file.read().decode(errors="replace").strip()


def _read_versions(path: Path) -> dict[str, str]:
    """Return the versions by name that a port's process left; {} if the file does not exist or is invalid."""
    try:
        content = json.loads(_read_text_end(path))
    except (ValueError, RecursionError):
        return {}
    return {str(name): str(version) for name, version in content.items()} if isinstance(content, dict) else {}
