"""Runs a port in JAX: python in_jax.py BUNDLE PORT.py FOLDER DTYPE

PORT.py has ``forward(weights, batch, draws)``. It returns name -> array, by the reference's names: ``logits``,
``loss``, ``output:MODULE``. If there is a ``loss``, its gradients by the weights are computed and saved, too. The
weights have the reference's names and shapes. ``draws`` holds the random numbers of the reference's step, such as
dropout masks.

A program of its own: it imports nothing of the toolkit, since the Python that has JAX need not have it.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from pathlib import Path
from types import ModuleType

#: Exit status where a package is missing.
LACKS = 3

try:
    import jax
    import jax.numpy as jnp
    import numpy as np
    from safetensors.numpy import load_file, save_file
except ImportError as problem:
    print(problem, file=sys.stderr)
    sys.exit(LACKS)


def run(bundle: Path, port: ModuleType, folder: Path, dtype: str) -> None:
    """Save what the port computes as ``DTYPE.safetensors``."""
    jax.config.update("jax_enable_x64", dtype == "float64")
    jax.config.update("jax_default_matmul_precision", "highest")  # no TF32, no bfloat16
    weights, batch, draws = (
        {name: jnp.asarray(_as(value, dtype)) for name, value in load_file(bundle / name).items()}
        for name in ("weights.safetensors", "batch.safetensors", "reference/draws-training.safetensors")
    )

    def loss_of(weights: dict) -> tuple:
        outputs = port.forward(weights, batch, draws)
        return outputs.get("loss", jnp.zeros(())), outputs

    (_, outputs), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights)
    if "loss" in outputs:
        outputs = {**outputs, **{f"gradient:{name}": value for name, value in gradients.items()}}
    save_file({name: np.asarray(value, order="C") for name, value in outputs.items()}, folder / f"{dtype}.safetensors")
    (folder / "versions.json").write_text(json.dumps({"jax": jax.__version__}))


def _as(value: np.ndarray, dtype: str) -> np.ndarray:
    return value.astype(dtype) if value.dtype.kind == "f" else value


def loaded(path: Path) -> ModuleType:
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location("port", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def main(bundle: str, port: str, folder: str, dtype: str) -> None:
    """Run it; of an error in the port, the last line says where."""
    path = Path(port).absolute()
    try:
        module = loaded(path)
        if not hasattr(module, "forward"):
            sys.exit("has no forward(weights, batch, draws)")
        run(Path(bundle), module, Path(folder), dtype)
    except Exception as problem:
        traceback.print_exc()
        lines = [one.lineno for one in traceback.extract_tb(problem.__traceback__) if one.filename == str(path)]
        where = f"line {lines[-1]}: " if lines else ""
        sys.exit(f"{where}{type(problem).__name__}: {' '.join(str(problem).split())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
