"""Convert the static graph to an ONNX file with Paddle2ONNX, and run the file in ONNX Runtime."""

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
from toolkit.commands.export.graph import FILE_STEM, INPUTS
from toolkit.errors import ToolkitError, UserError
from toolkit.machine.scratch import child_process

#: ONNX opset, the newest that Paddle2ONNX 2.0 supports for every operator of the ports.
OPSET = 17
ONNX_FILE = f"{FILE_STEM}.onnx"
REQUIRED_PACKAGES = {
    "paddle2onnx": "which converts the model",
    "onnxruntime": "by which the converted model is checked",
}


class ConversionError(ToolkitError):
    """Paddle2ONNX cannot convert a model."""


def check_installed() -> None:
    """Check that both packages for ONNX are installed.

    Raises:
        UserError: a package is missing; the message names the command to install it.
    """
    for name, purpose in REQUIRED_PACKAGES.items():
        if importlib.util.find_spec(name) is None:
            raise UserError(f"--format onnx: needs {name}, {purpose}: pip install {name}")


def convert_to_onnx(graph: Path, target: Path) -> None:
    """Convert a static graph to an ONNX file.

    Args:
        graph: folder of the static graph.
        target: folder for the ONNX file.

    Raises:
        NotConverted: Paddle2ONNX fails; the message names operators that it lacks.
    """
    # Paddle2ONNX runs in a child process: it may end its process, and its C++ code prints to the terminal.
    options = [
        "--model_dir",
        str(graph),
        "--model_filename",
        f"{FILE_STEM}.json",
        "--params_filename",
        f"{FILE_STEM}.pdiparams",
    ]
    options += ["--save_file", str(target / ONNX_FILE), "--opset_version", str(OPSET), "--optimize_tool", "None"]
    command = another_python.module_command(sys.executable, "paddle2onnx.command", *options)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    with child_process(
        command, env=another_python.clean_environment(), text=True, errors="replace", **pipes
    ) as process:
        output, _ = process.communicate()
    if process.returncode or not (target / ONNX_FILE).is_file():
        raise ConversionError(f"--format onnx: Paddle2ONNX cannot convert this model: {failure_reason(output)}")


def failure_reason(converter_output: str) -> str:
    """Return the reason of a failure from the output of Paddle2ONNX, in one line."""
    operators = re.findall(r"(?:operator|op)s?[^\n]*?\b((?:pd_op|custom_op|cf)\.\w+)", converter_output)
    if operators:
        return f"it has no operator for {', '.join(dict.fromkeys(operators))}"
    lines = [" ".join(line.split()) for line in converter_output.splitlines() if line.strip()]
    error_lines = [line for line in lines if re.search(r"error|not support|fail", line, re.IGNORECASE)]
    return (error_lines or lines or ["it says nothing"])[-1][:300]


def run_onnx(folder: Path, batches: Sequence[dict[str, np.ndarray]]) -> list[tuple[np.ndarray, ...]]:
    """Return the outputs of ONNX Runtime on the CPU, for each batch."""
    session = _session(folder)
    return [tuple(session.run(None, {name: batch[name] for name in INPUTS})) for batch in batches]


def output_names(folder: Path) -> list[str]:
    """Return the names of the ONNX file's outputs, which Paddle2ONNX chooses."""
    return [output.name for output in _session(folder).get_outputs()]


def _session(folder: Path) -> Any:
    """Return an ONNX Runtime session on the CPU for the model in a folder."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # only errors, since there is a warning for each unused initializer
    return onnxruntime.InferenceSession(str(folder / ONNX_FILE), options, providers=["CPUExecutionProvider"])
