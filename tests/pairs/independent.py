"""Check a pair independently of the gate, with NumPy between the two frameworks.

    python tests/pairs/independent.py PORT REFERENCE [KEY=VALUE]...

Each side builds its model in a separate process, in float64, without dropout. Weights are copied by name, or otherwise
by order and shape; weights of a Paddle `Linear` are transposed. Then both sides compute the loss and the gradients of
one batch. The program prints the largest error, relative to a tensor's size, and whether it is below 1e-9. A constant
that a Paddle kernel stores in float32 is a larger error. Fused weights, random numbers and models with different
modules are not supported.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

AGREES = 1e-9


def load_side(file: str):
    spec = importlib.util.spec_from_file_location("side", file)
    assert spec is not None and spec.loader is not None
    sys.path.insert(0, str(Path(file).resolve().parent))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compute_loss(side, model, batch, cross_entropy):
    """Return the loss: the file's, the model's, or cross entropy of its logits."""
    output = side.loss(model, batch) if hasattr(side, "loss") else model(**batch)
    if isinstance(output, dict) and "loss" not in output:
        return sum(output.values())
    output = output["loss"] if isinstance(output, dict) else getattr(output, "loss", output)
    output = output[0] if isinstance(output, tuple) else output
    return (
        output if output.ndim == 0 else cross_entropy(output.reshape((-1, output.shape[-1])), batch["labels"].flatten())
    )


def run_reference(file: str, config: dict, folder: Path) -> None:
    import torch

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    side = load_side(file)
    model = side.build(config)
    inputs = side.batch(config, np.random.default_rng(0)) if hasattr(side, "batch") else None
    if inputs is not None:
        np.savez(folder / "batch.npz", **inputs)
    batch = {name: torch.from_numpy(np.asarray(value)) for name, value in np.load(folder / "batch.npz").items()}
    batch = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    for module in model.modules():
        if isinstance(module, (torch.nn.Dropout, torch.nn.Dropout2d)):
            module.p = 0.0
    model.double().train()
    np.savez(folder / "weights.npz", **{name: value.detach().numpy() for name, value in model.named_parameters()})
    loss = compute_loss(side, model, batch, torch.nn.functional.cross_entropy)
    loss.backward()
    gradients = {
        name: trained_parameter.grad.numpy()
        for name, trained_parameter in model.named_parameters()
        if trained_parameter.grad is not None
    }
    np.savez(folder / "reference.npz", loss=loss.detach().numpy(), **gradients)


def run_port(file: str, config: dict, folder: Path) -> None:
    import paddle

    paddle.set_default_dtype("float64")
    side = load_side(file)
    model = side.build(config)
    batch = {name: paddle.to_tensor(value) for name, value in np.load(folder / "batch.npz").items()}
    batch = {name: value.astype("float64") if value.is_floating_point() else value for name, value in batch.items()}
    layers = dict(model.named_sublayers(include_self=True))
    for layer in layers.values():
        if isinstance(layer, paddle.nn.Dropout):
            layer.p = 0.0
    weights = dict(np.load(folder / "weights.npz"))
    counterparts: dict[str, tuple[str, bool]] = {}
    remaining_weights = dict(weights)
    for name, parameter in model.named_parameters():
        is_turned = isinstance(layers[name.rpartition(".")[0]], paddle.nn.Linear) and parameter.ndim == 2
        shape = tuple(parameter.shape[::-1] if is_turned else parameter.shape)
        fits = [other for other, value in remaining_weights.items() if value.shape == shape]
        if not fits and not is_turned:  # an output layer stored as inputs x outputs
            is_turned, shape = True, shape[::-1]
            fits = [other for other, value in remaining_weights.items() if value.shape == shape]
        if not fits:
            raise SystemExit(f"no parameter of the reference is left for {name}, {list(shape)}")
        counterparts[name] = (name if name in fits else fits[0], is_turned)
        value = remaining_weights.pop(counterparts[name][0])
        parameter.set_value(paddle.to_tensor(value.T if is_turned else value))
    model.train()
    loss = compute_loss(side, model, batch, paddle.nn.functional.cross_entropy)
    loss.backward()
    gradients = {
        theirs: trained_parameter.grad.numpy().T if is_turned else trained_parameter.grad.numpy()
        for name, trained_parameter in model.named_parameters()
        if trained_parameter.grad is not None
        for theirs, is_turned in [counterparts[name]]
    }
    np.savez(folder / "port.npz", loss=loss.numpy(), **gradients)


def compute_errors(folder: Path) -> dict[str, float]:
    """Return the relative errors of the port's loss and gradients, by name."""
    theirs, ours = np.load(folder / "reference.npz"), np.load(folder / "port.npz")
    largest = max(np.abs(theirs[name]).max() for name in theirs.files)
    errors = {}
    for name in theirs.files:
        if name not in ours.files:
            errors[name] = np.inf
            continue
        size = max(np.sqrt(np.mean(theirs[name] ** 2)), 1e-6 * largest)  # the gradient of a key's bias is zero
        errors[name] = float(np.sqrt(np.mean((ours[name] - theirs[name]) ** 2)) / size)
    return errors


def main(port_file: str, reference_file: str, *pairs: str) -> int:
    config = {key: json.loads(value) if value[:1] in "0123456789tf[" else value
              for key, value in (pair.split("=", 1) for pair in pairs)}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for side, file in (("reference", reference_file), ("port", port_file)):
            words = [sys.executable, __file__, f"--{side}", file, json.dumps(config), folder]
            process = subprocess.run(words, capture_output=True, text=True)
            if process.returncode:
                print(f"{side}: {process.stderr.strip().splitlines()[-1]}")
                return 2
        errors = compute_errors(Path(folder))
    worst_name = max(errors, key=errors.__getitem__)
    worst_error = errors[worst_name]
    verdict = "agrees" if worst_error < AGREES else "differs"
    print(f"{verdict}: loss {errors['loss']:.1e}, {worst_name} {worst_error:.1e}")
    return int(worst_error >= AGREES)


if __name__ == "__main__":
    if sys.argv[1] in ("--reference", "--port"):
        {"--reference": run_reference, "--port": run_port}[sys.argv[1]](
            sys.argv[2], json.loads(sys.argv[3]), Path(sys.argv[4])
        )
    else:
        sys.exit(main(*sys.argv[1:]))
