"""Runs a port in JAX: python in_jax.py INPUTS PORT.py FOLDER DTYPE

PORT.py has ``forward(weights, batch, draws)``, which returns arrays by the reference's names: ``logits``, ``loss``,
``output:MODULE``. If there is a ``loss``, its gradients by the weights that the reference trains are computed and
saved, too. The weights have the reference's names and shapes. ``draws`` holds the random numbers of the reference's
step, such as dropout masks. `run.py` creates INPUTS and FOLDER and describes their files.

This program is separate: it does not import the toolkit, since the Python that has JAX need not have it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError as error:
    Path(sys.argv[3], "missing.txt").write_text(str(error), encoding="utf-8")
    sys.exit(1)


def run_forward(inputs: Path, port_module: ModuleType, folder: Path, dtype: str) -> None:
    """Run the port, and save its outputs and gradients as ``DTYPE.safetensors``, then ``versions.json``.

    Args:
        inputs: folder with the weights, the batch, the draws and the names of the reference's tensors.
        port_module: module of the port, with ``forward(weights, batch, draws)``.
        folder: folder for the results.
        dtype: dtype of the run, ``float64`` or ``float32``.
    """
    jax.config.update("jax_enable_x64", dtype == "float64")
    jax.config.update("jax_default_matmul_precision", "highest")  # no TF32, no bfloat16
    weights, batch, draws = (
        {
            name: jnp.asarray(_convert_floats(value, dtype))
            for name, value in load_file(inputs / f"{name}.safetensors").items()
        }
        for name in ("weights", "batch", "draws")
    )
    compared_names = set(json.loads((inputs / "names.json").read_text(encoding="utf-8")))
    trained_weights = {name: value for name, value in weights.items() if f"gradient:{name}" in compared_names}

    def loss_of(trained_weights: dict) -> tuple:
        """Return the port's loss, or 0 without a loss, and all its outputs, given the trained weights."""
        outputs = check_outputs(port_module.forward({**weights, **trained_weights}, batch, draws))
        return outputs.get("loss", jnp.zeros(())), outputs

    (_, outputs), gradients = jax.value_and_grad(loss_of, has_aux=True)(trained_weights)
    if "loss" in outputs:
        outputs = {**outputs, **{f"gradient:{name}": value for name, value in gradients.items()}}
    save_file({name: np.asarray(value, order="C") for name, value in outputs.items()}, folder / f"{dtype}.safetensors")
    (folder / "versions.json").write_text(json.dumps({"jax": jax.__version__}), encoding="utf-8")


def check_outputs(outputs: Any) -> Mapping[str, Any]:
    """Return the outputs of the port's ``forward`` after checking their type.

    Raises:
        TypeError: they are not a dict of at least one named array.
    """
    if not isinstance(outputs, Mapping) or not outputs or not all(isinstance(name, str) for name in outputs):
        returned_kind = "no arrays" if isinstance(outputs, Mapping) and not outputs else type(outputs).__name__
        raise TypeError(f"forward returned {returned_kind}; return a dict of name -> array, such as {{'loss': loss}}")
    return outputs


def _convert_floats(value: np.ndarray, dtype: str) -> np.ndarray:
    """Return an array in ``dtype`` if it holds floating-point numbers, and otherwise unchanged."""
    return value.astype(dtype) if value.dtype.kind == "f" else value


def load_module(path: Path) -> ModuleType:
    """Import a Python file by its path, and return the module."""
    spec = importlib.util.spec_from_file_location("port", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def end_with_failure(folder: Path, reason: str) -> NoReturn:
    """Write the reason of a failure to ``failure.txt`` in a folder, and end the process."""
    (folder / "failure.txt").write_text(reason, encoding="utf-8", errors="backslashreplace")
    exit_at_once(1)


def exit_at_once(status: int) -> NoReturn:
    """End the process with an exit status, although threads of the port may still run.

    ``sys.exit`` would wait for these threads.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def main(inputs: str, port: str, folder: str, dtype: str) -> None:
    """Run a port with the arguments of the command line, and end the process.

    If the port raises an error, a reason with the source line is written to ``failure.txt``.

    Args:
        inputs: folder with the weights, the batch, the draws and the names of the reference's tensors.
        port: file of the port.
        folder: folder for the results.
        dtype: dtype of the run.
    """
    port_path, output_folder = Path(port).absolute(), Path(folder)
    try:
        module = load_module(port_path)
        if not hasattr(module, "forward"):
            end_with_failure(output_folder, "has no forward(weights, batch, draws)")
        run_forward(Path(inputs), module, output_folder, dtype)
    except SystemExit as error:  # the port called sys.exit, which prints a text and has the status 1 for it
        if isinstance(error.code, int | None):
            exit_at_once(error.code or 0)
        print(error.code, file=sys.stderr)
        exit_at_once(1)
    except Exception as error:
        traceback.print_exc()
        lines = [
            frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(port_path)
        ]
        where = f"line {lines[-1]}: " if lines else ""
        end_with_failure(output_folder, f"{where}{type(error).__name__}: {' '.join(str(error).split())}")
    exit_at_once(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
