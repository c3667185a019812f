"""Describes the parts of a pair's port before the comparison: parameters, modules, draws, buffers and masks."""

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
from toolkit.parity.exchange import files
from toolkit.parity.families.pair import calls
from toolkit.parity.families.pair.batches import write_batches
from toolkit.parity.families.pair.buffers import facts_of, values_of
from toolkit.parity.families.pair.candidate import as_tensors, built, computed
from toolkit.parity.families.pair.masks import MaskWatch
from toolkit.parity.families.pair.replaced import LIBRARIES, DrawsInOrder, use
from toolkit.parity.job import user_code
from toolkit.parity.job.buffers import constant_of, may_be_drawn
from toolkit.parity.job.job import Job
from toolkit.parity.job.pair import Description, ModuleFacts, ParameterFacts
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.measure.square_weights import SquareWeights
from toolkit.parity.mutants.generic import ACTIVATIONS, EPSILONS, mask_arguments

#: Role of a layer's ``weight``, with the layer classes that have this role.
ROLES: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("linear", (nn.Linear, nn.Bilinear)),
    ("embedding", (nn.Embedding,)),
    ("norm", (nn.LayerNorm, nn.GroupNorm, nn.layer.norm._BatchNormBase)),
    ("conv", (nn.layer.conv._ConvNd,)),
)


def run(job: Job, folder: Path, sender: object = None, kernels: object = None) -> Description:
    """Build the user's layer, run it once, and return the description of its parts.

    Args:
        job: job of the pair.
        folder: job folder. The batch is written there if the port's file has the ``batch`` function.
        sender: unused.
        kernels: unused.
    """
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
        """Record the facts about a module after its first call, and examine its square weights."""
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
    """Return the gradient of one element of an output for a weight; None without a dependence.

    Args:
        output: output of a layer.
        place: index of the element in the flattened output.
        weight: weight of the layer.
    """
    (gradient,) = paddle.grad(output.flatten()[place], weight, retain_graph=True, allow_unused=True)
    return None if gradient is None else gradient.numpy()


def _trained_weights(layer: nn.Layer) -> dict[str, paddle.Tensor]:
    """Return the trained parameters that a layer holds itself, by name, without the parameters of its children."""
    return {name: one for name, one in layer._parameters.items() if one is not None and not one.stop_gradient}


def _role(layer: nn.Layer) -> str:
    """Return the role of a layer's ``weight`` (:data:`ROLES`); `other` for any other layer class."""
    return next((role for role, kinds in ROLES if isinstance(layer, kinds)), "other")


@contextlib.contextmanager
def masks_seen(model: nn.Layer) -> Iterator[set[nn.Layer]]:
    """Yield a set, and add each layer that is called with a mask argument inside the ``with`` block.

    Args:
        model: port.
    """
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
            vars(layer)["forward"] = watching(layer)  # PaddleNLP's models modify attributes when they are set
    try:
        yield seen
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _runs_paddles_forward(layer: nn.Layer) -> bool:
    """Return whether a layer's ``forward`` is defined in Paddle itself."""
    return (inspect.getsourcefile(type(layer).forward) or "").startswith(LIBRARIES)


def _has(layer: nn.Layer, masked: Collection[nn.Layer]) -> Iterator[str]:
    """Yield the settings of a layer that a fault can change (:attr:`.pair.ModuleFacts.has`).

    They are `epsilon`, `activation`, `dropout` and `mask`.

    Args:
        layer: layer of the port.
        masked: layers that were called with a mask.
    """
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
    """Return the data layout of a convolution, norm or pooling layer, such as `NCHW`; "" for other layers."""
    told = getattr(layer, "_data_format", None) or getattr(layer, "data_format", None)
    return told if isinstance(told, str) and told[:1] == "N" else ""


def parameters_of(model: nn.Layer, order: Mapping[str, int]) -> Iterator[ParameterFacts]:
    """Yield the facts about each parameter of a model.

    Args:
        model: port.
        order: position of each module's first call, by the module's path.
    """
    described = _Describing(model, order)
    for name, parameter in model.named_parameters():
        yield replace(described(name, parameter), constant=constant_of(parameter.numpy()))


class _Describing:
    """Function that returns the facts about a tensor of a model, given its name and the tensor.

    Args:
        model: port.
        order: position of each module's first call, by the module's path.

    Attributes:
        layers: all layers of the model by path.
        names: all names of each parameter, by the parameter's ``id``.
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
        """Return the facts about a parameter or buffer.

        Args:
            name: dotted name of the tensor in the model.
            value: the tensor.
        """
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
