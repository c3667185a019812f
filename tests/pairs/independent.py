"""An independent check of a pair, which knows nothing of the gate: NumPy between the two frameworks.

    python tests/pairs/independent.py PORT REFERENCE [KEY=VALUE]...

Each side builds its model in a process of its own, in float64, without dropout. Weights go over by name, else by order
and shape, those of a Paddle `Linear` transposed; then both compute loss and gradients on one batch. It prints the
largest distance, relative to a tensor's size, and says whether that is below 1e-9: a constant that a kernel of Paddle's
holds in float32 is more. Fused weights, random numbers and two models of different parts are not for it.
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


def loaded(file: str):
    spec = importlib.util.spec_from_file_location("side", file)
    assert spec is not None and spec.loader is not None
    sys.path.insert(0, str(Path(file).resolve().parent))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def loss_of(side, model, batch, cross_entropy):
    """Return the loss: the file's, the model's, or cross entropy of its logits."""
    found = side.loss(model, batch) if hasattr(side, "loss") else model(**batch)
    if isinstance(found, dict) and "loss" not in found:
        return sum(found.values())
    found = found["loss"] if isinstance(found, dict) else getattr(found, "loss", found)
    found = found[0] if isinstance(found, tuple) else found
    return found if found.ndim == 0 else cross_entropy(found.reshape((-1, found.shape[-1])), batch["labels"].flatten())


def reference(file: str, config: dict, folder: Path) -> None:
    import torch

    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    side = loaded(file)
    model = side.build(config)
    made = side.batch(config, np.random.default_rng(0)) if hasattr(side, "batch") else None
    if made is not None:
        np.savez(folder / "batch.npz", **made)
    batch = {name: torch.from_numpy(np.asarray(value)) for name, value in np.load(folder / "batch.npz").items()}
    batch = {name: value.double() if value.is_floating_point() else value for name, value in batch.items()}
    for module in model.modules():
        if isinstance(module, (torch.nn.Dropout, torch.nn.Dropout2d)):
            module.p = 0.0
    model.double().train()
    np.savez(folder / "weights.npz", **{name: value.detach().numpy() for name, value in model.named_parameters()})
    loss = loss_of(side, model, batch, torch.nn.functional.cross_entropy)
    loss.backward()
    gradients = {name: one.grad.numpy() for name, one in model.named_parameters() if one.grad is not None}
    np.savez(folder / "reference.npz", loss=loss.detach().numpy(), **gradients)


def port(file: str, config: dict, folder: Path) -> None:
    import paddle

    paddle.set_default_dtype("float64")
    side = loaded(file)
    model = side.build(config)
    batch = {name: paddle.to_tensor(value) for name, value in np.load(folder / "batch.npz").items()}
    batch = {name: value.astype("float64") if value.is_floating_point() else value for name, value in batch.items()}
    layers = dict(model.named_sublayers(include_self=True))
    for layer in layers.values():
        if isinstance(layer, paddle.nn.Dropout):
            layer.p = 0.0
    weights = dict(np.load(folder / "weights.npz"))
    counterparts: dict[str, tuple[str, bool]] = {}
    left = dict(weights)
    for name, parameter in model.named_parameters():
        is_turned = isinstance(layers[name.rpartition(".")[0]], paddle.nn.Linear) and parameter.ndim == 2
        shape = tuple(parameter.shape[::-1] if is_turned else parameter.shape)
        fits = [other for other, value in left.items() if value.shape == shape]
        if not fits and not is_turned:  # an output layer kept as inputs x outputs
            is_turned, shape = True, shape[::-1]
            fits = [other for other, value in left.items() if value.shape == shape]
        if not fits:
            raise SystemExit(f"no parameter of the reference is left for {name}, {list(shape)}")
        counterparts[name] = (name if name in fits else fits[0], is_turned)
        value = left.pop(counterparts[name][0])
        parameter.set_value(paddle.to_tensor(value.T if is_turned else value))
    model.train()
    loss = loss_of(side, model, batch, paddle.nn.functional.cross_entropy)
    loss.backward()
    gradients = {
        theirs: one.grad.numpy().T if is_turned else one.grad.numpy()
        for name, one in model.named_parameters()
        if one.grad is not None
        for theirs, is_turned in [counterparts[name]]
    }
    np.savez(folder / "port.npz", loss=loss.numpy(), **gradients)


def distances(folder: Path) -> dict[str, float]:
    """Return by name how far the port's loss and gradients are off."""
    theirs, ours = np.load(folder / "reference.npz"), np.load(folder / "port.npz")
    largest = max(np.abs(theirs[name]).max() for name in theirs.files)
    found = {}
    for name in theirs.files:
        if name not in ours.files:
            found[name] = np.inf
            continue
        size = max(np.sqrt(np.mean(theirs[name] ** 2)), 1e-6 * largest)  # a key's bias has none
        found[name] = float(np.sqrt(np.mean((ours[name] - theirs[name]) ** 2)) / size)
    return found


def main(port_file: str, reference_file: str, *pairs: str) -> int:
    config = {key: json.loads(value) if value[:1] in "0123456789tf[" else value
              for key, value in (pair.split("=", 1) for pair in pairs)}  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        for side, file in (("reference", reference_file), ("port", port_file)):
            words = [sys.executable, __file__, f"--{side}", file, json.dumps(config), folder]
            done = subprocess.run(words, capture_output=True, text=True)
            if done.returncode:
                print(f"{side}: {done.stderr.strip().splitlines()[-1]}")
                return 2
        found = distances(Path(folder))
    worst = max(found, key=found.__getitem__)
    print(f"{'agrees' if found[worst] < AGREES else 'differs'}: loss {found['loss']:.1e}, {worst} {found[worst]:.1e}")
    return int(found[worst] >= AGREES)


if __name__ == "__main__":
    if sys.argv[1] in ("--reference", "--port"):
        {"--reference": reference, "--port": port}[sys.argv[1]](sys.argv[2], json.loads(sys.argv[3]), Path(sys.argv[4]))
    else:
        sys.exit(main(*sys.argv[1:]))
