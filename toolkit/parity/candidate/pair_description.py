"""What the port of a pair is made of, before it is compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paddle import nn

from toolkit.parity.candidate.pair import as_tensors, built, computed
from toolkit.parity.candidate.replaced import DrawsInOrder, use
from toolkit.parity.candidate.step import first_tensor, watch
from toolkit.parity.job import files, user_code
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import Description, ModuleFacts, ParameterFacts, batch_of
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.mutants.generic import ACTIVATIONS, EPSILONS

#: By layer: what its ``weight`` is.
ROLES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("linear", (nn.Linear, nn.Bilinear)),
    ("embedding", (nn.Embedding,)),
    ("norm", (nn.LayerNorm, nn.GroupNorm, nn.layer.norm._BatchNormBase)),
    ("conv", (nn.layer.conv._ConvNd,)),
)


def run(job: Job, folder: Path, kernels: object = None) -> Description:
    """Build the layer and run it once, watched."""
    assert job.pair is not None
    source = user_code.load(job.pair.port)
    if job.pair.batch_from == "port":
        files.write_tensors(folder / "batch.safetensors", batch_of(source, dict(job.config), job.seed))
    model = built(source, job)
    files.wait_for(folder / "batch.safetensors", files.failure_path(folder, "reference", "describe"))
    batch = as_tensors(files.read_tensors(folder / "batch.safetensors"), "float32")
    modules: list[ModuleFacts] = []

    def left(name: str, called: str, layer: nn.Layer, output: Any) -> None:
        parsed = TensorName.parse(called)
        tensor = first_tensor(output) if name and not parsed.call else None
        if tensor is not None:
            shape = tuple(tensor.shape) if tensor.is_floating_point() else None
            modules.append(ModuleFacts(parsed.module, type(layer).__name__, shape, tuple(_has(layer))))

    draws = DrawsInOrder()
    model.train()
    with use(draws), watch(model, draws.stack, left), user_code.running(source):
        computed(source, model, batch)
    order = {module.name: number for number, module in reversed(list(enumerate(modules)))}
    return Description([*parameters_of(model, order)], modules, draws.made)


def _has(layer: nn.Layer) -> Iterator[str]:
    """What of :attr:`.pair.ModuleFacts.has` a layer has."""
    if any(isinstance(getattr(layer, name, None), float) for name in EPSILONS):
        yield "epsilon"
    applied = any(callable(getattr(layer, name, None)) for name in ACTIVATIONS)
    if applied or type(layer).__module__ == nn.GELU.__module__:
        yield "activation"
    if isinstance(layer, nn.Dropout):
        yield "dropout"


def parameters_of(model: nn.Layer, order: Mapping[str, int]) -> Iterator[ParameterFacts]:
    """What is known of every parameter."""
    layers = dict(model.named_sublayers(include_self=True))
    for name, parameter in model.named_parameters():
        path, _, leaf = name.rpartition(".")
        layer = layers[path]
        role = next((role for role, kinds in ROLES if isinstance(layer, kinds)), "other")
        transposed = role == "linear" and leaf == "weight" and parameter.ndim == 2
        shape = list(parameter.shape)
        yield ParameterFacts(
            name=name,
            shape=shape[::-1] if transposed else shape,
            role=role,
            transposed=transposed,
            module=path,
            kind=type(layer).__name__,
            order=order.get(path),
        )
