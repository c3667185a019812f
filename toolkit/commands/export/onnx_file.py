"""Convert the static graph to an ONNX file by Paddle2ONNX, and run that in ONNX Runtime."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.files import another_python
from toolkit.commands.export.graph import INPUTS, STEM
from toolkit.errors import ToolkitError, UserError
from toolkit.machine.scratch import child

#: ONNX opset: the newest in which Paddle2ONNX 2.0 writes every operator of the ports.
OPSET = 17
FILE = f"{STEM}.onnx"
NEEDED = {"paddle2onnx": "which converts the model", "onnxruntime": "by which the converted model is checked"}


class NotConverted(ToolkitError):
    """Paddle2ONNX cannot write this model."""


def check_installed() -> None:
    """Raise UserError, naming what to install, if one of the two programs is missing."""
    for name, purpose in NEEDED.items():
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--format onnx: needs {name}, {purpose}: pip install {name}")


def convert(graph: Path, target: Path) -> None:
    """Write the ONNX file of the static graph in the folder ``graph`` into the folder ``target``. Raises NotConverted
    if Paddle2ONNX lacks an operator, which is named, or fails otherwise."""
    # A child process: its faults end the process, and it prints what it does from C++.
    options = ["--model_dir", str(graph), "--model_filename", f"{STEM}.json", "--params_filename", f"{STEM}.pdiparams"]
    options += ["--save_file", str(target / FILE), "--opset_version", str(OPSET), "--optimize_tool", "None"]
    command = another_python.module_command(sys.executable, "paddle2onnx.command", *options)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    with child(command, env=another_python.environment(), text=True, errors="replace", **pipes) as process:
        said, _ = process.communicate()
    if process.returncode or not (target / FILE).is_file():
        raise NotConverted(f"--format onnx: Paddle2ONNX cannot convert this model: {reason(said)}")


def reason(said: str) -> str:
    """Return Paddle2ONNX's complaint, in a line."""
    operators = re.findall(r"(?:operator|op)s?[^\n]*?\b((?:pd_op|custom_op|cf)\.\w+)", said)
    if operators:
        return f"it has no operator for {', '.join(dict.fromkeys(operators))}"
    lines = [" ".join(line.split()) for line in said.splitlines() if line.strip()]
    told = [line for line in lines if re.search(r"error|not support|fail", line, re.IGNORECASE)]
    return (told or lines or ["it says nothing"])[-1][:300]


def run_onnx(folder: Path, batches: Sequence[dict[str, np.ndarray]]) -> list[tuple[np.ndarray, ...]]:
    """Return ONNX Runtime's outputs on the CPU for each batch."""
    session = _session(folder)
    return [tuple(session.run(None, {name: batch[name] for name in INPUTS})) for batch in batches]


def output_names(folder: Path) -> list[str]:
    """Return the names of the file's outputs, which Paddle2ONNX chooses."""
    return [output.name for output in _session(folder).get_outputs()]


def _session(folder: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors only: it would warn of each unused initializer
    return onnxruntime.InferenceSession(str(folder / FILE), options, providers=["CPUExecutionProvider"])
