"""Describes what the port of a pair is made of, before it is compared."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import paddle
from paddle import nn

from toolkit.parity.candidate.step import first_tensor, paths_of, watch
from toolkit.parity.families.pair import calls
from toolkit.parity.families.pair.batches import write_batches
from toolkit.parity.families.pair.buffers import facts_of, values_of
from toolkit.parity.families.pair.candidate import as_tensors, built, computed
from toolkit.parity.families.pair.masks import MaskWatch
from toolkit.parity.families.pair.replaced import LIBRARIES, DrawsInOrder, use
from toolkit.parity.job import files, user_code
from toolkit.parity.job.buffers import constant_of, may_be_drawn
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import Description, ModuleFacts, ParameterFacts
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.measure.square_weights import SquareWeights
from toolkit.parity.mutants.generic import ACTIVATIONS, EPSILONS, mask_arguments

#: Role of the ``weight`` of each layer class.
ROLES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("linear", (nn.Linear, nn.Bilinear)),
    ("embedding", (nn.Embedding,)),
    ("norm", (nn.LayerNorm, nn.GroupNorm, nn.layer.norm._BatchNormBase)),
    ("conv", (nn.layer.conv._ConvNd,)),
)


def run(job: Job, folder: Path, sender: object = None, kernels: object = None) -> Description:
    """Build the layer and run it once, watched."""
    assert job.pair is not None
    source = user_code.load(job.pair.port)
    if job.pair.batch_from == "port":
        write_batches(source, job, folder)
    model = built(source, job)
    files.wait_for(folder / "batch.safetensors", files.failure_path(folder, "reference", "describe"))
    batch = as_tensors(files.read_tensors(folder / "batch.safetensors"), "float32")
    modules: list[ModuleFacts] = []
    squares = SquareWeights(_gradient_of)

    def left(name: str, called: str, layer: nn.Layer, output: Any) -> None:
        parsed = TensorName.parse(called)
        tensor = first_tensor(output) if not parsed.call else None
        has_gradient = tensor is not None and tensor.is_floating_point() and not tensor.stop_gradient
        if has_gradient and _role(layer) == "other":
            squares.examine_layer(parsed.module, _trained_weights(layer), tensor)
        if tensor is not None and name:
            shape = tuple(tensor.shape) if tensor.is_floating_point() else None
            modules.append(
                ModuleFacts(
                    parsed.module, type(layer).__name__, shape, tuple(_has(layer, masked_layers)), _layout(layer)
                )
            )

    draws = DrawsInOrder()
    needs_loss = not job.pair.forward_only
    model.train() if needs_loss else model.eval()
    before = values_of(model)
    other = values_of(built(source, job, job.seed + 1)) if may_be_drawn(before) else before
    paddle_layers = {name for name, layer in model.named_sublayers() if _runs_paddles_forward(layer)}
    masks = MaskWatch(lambda: draws.stack.module, paddle_layers)
    with (
        use(draws),
        watch(model, draws.stack, left),
        masks_seen(model) as masked_layers,
        calls.watch(masks),
        user_code.running(source),
    ):
        computed(source, model, batch, needs_loss)
    order = {module.name: number for number, module in reversed(list(enumerate(modules)))}
    described = facts_of(model, before, other, _Describing(model, order))
    transposed_names = squares.with_output_columns
    parameters = [
        replace(one, transposed=one.transposed or one.name in transposed_names) for one in parameters_of(model, order)
    ]
    num_operations = len(masks.operations)
    return Description(parameters, modules, draws.made, described, masks.comparisons.facts(), num_operations)


def _gradient_of(output: paddle.Tensor, place: int, weight: paddle.Tensor) -> np.ndarray | None:
    (gradient,) = paddle.grad(output.flatten()[place], weight, retain_graph=True, allow_unused=True)
    return None if gradient is None else gradient.numpy()


def _trained_weights(layer: nn.Layer) -> dict[str, paddle.Tensor]:
    """Return the weights that a layer holds itself and that take a gradient."""
    return {name: one for name, one in layer._parameters.items() if one is not None and not one.stop_gradient}


def _role(layer: nn.Layer) -> str:
    """Return the role of a layer's parameters, by the type of the layer."""
    return next((role for role, kinds in ROLES if isinstance(layer, kinds)), "other")


@contextlib.contextmanager
def masks_seen(model: nn.Layer) -> Iterator[set[nn.Layer]]:
    """Yield a set that collects the layers which get a mask inside the ``with`` block."""
    seen: set[nn.Layer] = set()
    layers = [one for one in model.sublayers() if "forward" not in vars(one)]

    def watching(layer: nn.Layer) -> Callable:
        forward = layer.forward

        def forward_watched(*given: Any, **more: Any) -> Any:
            if next(mask_arguments(layer, given, more), None):
                seen.add(layer)
            return forward(*given, **more)

        return forward_watched

    for layer in layers:
        if any("mask" in name.lower() for name in inspect.signature(type(layer).forward).parameters):
            vars(layer)["forward"] = watching(layer)  # PaddleNLP's models change what is set as an attribute
    try:
        yield seen
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _runs_paddles_forward(layer: nn.Layer) -> bool:
    return (inspect.getsourcefile(type(layer).forward) or "").startswith(LIBRARIES)


def _has(layer: nn.Layer, masked: Collection[nn.Layer]) -> Iterator[str]:
    """Yield those of :attr:`.pair.ModuleFacts.has` that a layer has."""
    if any(isinstance(getattr(layer, name, None), float) for name in EPSILONS):
        yield "epsilon"
    applied = any(callable(getattr(layer, name, None)) for name in ACTIVATIONS)
    if applied or type(layer).__module__ == nn.GELU.__module__:
        yield "activation"
    if isinstance(layer, nn.Dropout):
        yield "dropout"
    if layer in masked:
        yield "mask"


def _layout(layer: nn.Layer) -> str:
    """Return the layout of a convolution's data, a norm's or a pooling's."""
    told = getattr(layer, "_data_format", None) or getattr(layer, "data_format", None)
    return told if isinstance(told, str) and told[:1] == "N" else ""


def parameters_of(model: nn.Layer, order: Mapping[str, int]) -> Iterator[ParameterFacts]:
    """Describe every parameter."""
    described = _Describing(model, order)
    for name, parameter in model.named_parameters():
        yield replace(described(name, parameter), constant=constant_of(parameter.numpy()))


class _Describing:
    """Describes a tensor that a model holds by a name.

    Args:
        order: by module, when it first ran.
    """

    def __init__(self, model: nn.Layer, order: Mapping[str, int]) -> None:
        self.layers = dict(model.named_sublayers(include_self=True))
        self.order = order
        self.names: dict[int, list[str]] = {}
        for layer, paths in paths_of(model).items():
            for name, held in layer._parameters.items():
                names = [".".join(filter(None, [path, name])) for path in paths]
                self.names.setdefault(id(held), []).extend(names)

    def __call__(self, name: str, value: paddle.Tensor) -> ParameterFacts:
        path, _, leaf = name.rpartition(".")
        layer = self.layers[path]
        role = _role(layer)
        transposed = role == "linear" and leaf.startswith("weight") and value.ndim == 2
        shape = list(value.shape)
        return ParameterFacts(
            name=name,
            shape=shape[::-1] if transposed else shape,
            role=role,
            transposed=transposed,
            module=path,
            kind=type(layer).__name__,
            order=self.order.get(path),
            tied=[other for other in self.names.get(id(value), []) if other != name],
        )
