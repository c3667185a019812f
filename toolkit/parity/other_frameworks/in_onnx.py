"""Runs an ONNX graph by ONNX Runtime: python in_onnx.py BUNDLE MODEL.onnx FOLDER DTYPE

The graph's inputs are the batch's, or weights of the reference by their names. Weights that it holds itself must be
those that the reference was recorded with. Its outputs have the reference's names, or `outputs` in an `export.json`
beside it says which these are, as `toolkit export` writes it. A graph computes as in evaluation:
if the bundle has ``evaluation/logits``, the graph's ``logits`` are compared with these.

A program of its own, as `in_jax.py`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

#: Exit status where a package is missing.
LACKS = 3
#: ONNX Runtime's names of floats.
FLOATS = {"tensor(float)": "float32", "tensor(double)": "float64"}
#: Of integers.
WHOLE = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(bool)": "bool"}

try:
    import numpy as np
    import onnxruntime
    from safetensors.numpy import load_file, save_file
except ImportError as problem:
    print(problem, file=sys.stderr)
    sys.exit(LACKS)


def run(bundle: Path, model: Path, folder: Path, dtype: str) -> None:
    """Save the graph's outputs of that dtype as ``DTYPE.safetensors``, if it has any."""
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    wanted = [str(output.name) for output in session.get_outputs() if FLOATS.get(output.type) == dtype]
    about = model.parent / "export.json"
    names = json.loads(about.read_text(encoding="utf-8"))["outputs"] if about.is_file() else {}
    (folder / "versions.json").write_text(json.dumps({"onnxruntime": onnxruntime.__version__}))
    if not wanted:
        return
    known = json.loads((bundle / "reference" / "result.json").read_text())["tensors"]
    held = {**load_file(bundle / "weights.safetensors"), **load_file(bundle / "batch.safetensors")}
    given = {}
    for needed in session.get_inputs():
        if needed.name not in held:
            sys.exit(
                f"its input {needed.name} is neither in the batch nor a weight; rename it to one of {sorted(held)}"
            )
        given[needed.name] = held[needed.name].astype({**FLOATS, **WHOLE}[needed.type])
    found = zip(wanted, session.run(wanted, given), strict=True)
    outputs = {names.get(name, name): value for name, value in found}
    in_evaluation = {name: f"evaluation/{name}" for name in outputs if f"evaluation/{name}" in known}
    named = {in_evaluation.get(name, name): np.asarray(value, order="C") for name, value in outputs.items()}
    save_file(named, folder / f"{dtype}.safetensors")


def main(bundle: str, model: str, folder: str, dtype: str) -> None:
    """Run it; an error is one line."""
    try:
        run(Path(bundle), Path(model), Path(folder), dtype)
    except Exception as problem:
        sys.exit(f"{type(problem).__name__}: {' '.join(str(problem).split())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
