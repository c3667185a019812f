"""Runs an ONNX graph by ONNX Runtime: python in_onnx.py INPUTS MODEL.onnx FOLDER DTYPE

The graph's inputs are tensors of the batch, or weights of the reference by their names. Weights inside the graph must
be the weights that the reference was recorded with. Its outputs have the reference's names, or `outputs` in an
`export.json` next to it maps them to these names, as `toolkit export` writes it. If such a graph divides logits by a
temperature, they are multiplied by it again. A graph computes as in evaluation: if the reference has
``evaluation/logits``, the graph's ``logits`` are compared with these. `run.py` creates INPUTS and FOLDER and describes
their files.

This program is separate, like `in_jax.py`: it does not import the toolkit.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NoReturn

#: NumPy's name of each floating-point dtype, by ONNX Runtime's name of the type.
FLOATS = {"tensor(float)": "float32", "tensor(double)": "float64"}
#: NumPy's name of each integer or boolean dtype, by ONNX Runtime's name of the type.
INTEGERS = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(bool)": "bool"}

try:
    import numpy as np
    import onnxruntime
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    Path(sys.argv[3], "missing.txt").write_text(str(error), encoding="utf-8")
    sys.exit(1)


def run_graph(inputs: Path, model_path: Path, folder: Path, dtype: str) -> None:
    """Run a graph, and save its outputs of a dtype as ``DTYPE.safetensors``, if there are any.

    At the end, ``versions.json`` is written.

    Args:
        inputs: folder with the weights, the batch and the names of the reference's tensors.
        model_path: file of the graph.
        folder: folder for the results.
        dtype: dtype of the outputs to save, ``float64`` or ``float32``.
    """
    session = onnxruntime.InferenceSession(str(model_path), providers=["CPUExecutionProvider"])
    output_names = [str(output.name) for output in session.get_outputs() if FLOATS.get(output.type) == dtype]
    export_path = model_path.parent / "export.json"
    export_info = json.loads(export_path.read_text(encoding="utf-8")) if export_path.is_file() else {}
    names = export_info.get("outputs", {})
    # The graph of a calibrated classifier divides its logits by the fitted temperature; the reference knows of none.
    temperature = export_info.get("calibration", {}).get("divided_by", 1.0)
    if output_names:
        compared_names = set(json.loads((inputs / "names.json").read_text(encoding="utf-8")))
        tensors = {**load_file(inputs / "weights.safetensors"), **load_file(inputs / "batch.safetensors")}
        feeds = {}
        for graph_input in session.get_inputs():
            if graph_input.name not in tensors:
                known_names = sorted(tensors)
                problem = f"its input {graph_input.name} is neither in the batch nor a weight"
                end_with_failure(folder, f"{problem}; rename it to one of {known_names}")
            feeds[graph_input.name] = tensors[graph_input.name].astype({**FLOATS, **INTEGERS}[graph_input.type])
        outputs = {
            names.get(name, name): value * value.dtype.type(temperature)
            for name, value in zip(output_names, session.run(output_names, feeds), strict=True)
        }
        evaluation_names = {name: f"evaluation/{name}" for name in outputs if f"evaluation/{name}" in compared_names}
        named_outputs = {
            evaluation_names.get(name, name): np.asarray(value, order="C") for name, value in outputs.items()
        }
        save_file(named_outputs, folder / f"{dtype}.safetensors")
    versions = {"onnxruntime": onnxruntime.__version__}
    (folder / "versions.json").write_text(json.dumps(versions), encoding="utf-8")


def end_with_failure(folder: Path, reason: str) -> NoReturn:
    """Write the reason of a failure to ``failure.txt`` in a folder, and end the process."""
    (folder / "failure.txt").write_text(reason, encoding="utf-8", errors="backslashreplace")
    sys.exit(1)


def main(inputs: str, model: str, folder: str, dtype: str) -> None:
    """Run a graph with the arguments of the command line. If it cannot be run, write the reason to ``failure.txt``.

    Args:
        inputs: folder with the weights, the batch and the names of the reference's tensors.
        model: file of the graph.
        folder: folder for the results.
        dtype: dtype of the outputs to save.
    """
    try:
        run_graph(Path(inputs), Path(model), Path(folder), dtype)
    except Exception as error:
        end_with_failure(Path(folder), f"{type(error).__name__}: {' '.join(str(error).split())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
