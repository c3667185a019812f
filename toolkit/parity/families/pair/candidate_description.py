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
from toolkit.parity.families.pair.buffers import copy_buffers, describe_buffers
from toolkit.parity.families.pair.candidate import as_tensors, build_model, compute_output
from toolkit.parity.families.pair.masks import MaskWatch
from toolkit.parity.families.pair.replaced_functions import LIBRARIES, DrawRecorder, use_draws
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
    model = build_model(source, job)
    files.wait_for(folder / "batch.safetensors", files.failure_path(folder, "reference", "describe"))
    batch = as_tensors(files.read_tensors(folder / "batch.safetensors"), "float32")
    modules: list[ModuleFacts] = []
    squares = SquareWeights(_gradient_of)

    def on_leave(name: str, call_name: str, layer: nn.Layer, output: Any) -> None:
        """Record the facts about a module after its first call, and examine its square weights."""
        tensor_name = TensorName.parse(call_name)
        tensor = first_tensor(output) if not tensor_name.call else None
        has_gradient = tensor is not None and tensor.is_floating_point() and not tensor.stop_gradient
        if has_gradient and _role(layer) == "other":
            squares.examine_layer(tensor_name.module, _trained_weights(layer), tensor)
        if tensor is not None and name:
            shape = tuple(tensor.shape) if tensor.is_floating_point() else None
            modules.append(
                ModuleFacts(
                    tensor_name.module,
                    type(layer).__name__,
                    shape,
                    tuple(_settings_of(layer, masked_layers)),
                    _data_format(layer),
                )
            )

    draws = DrawRecorder()
    needs_loss = not job.pair.forward_only
    model.train() if needs_loss else model.eval()
    initial_values = copy_buffers(model)
    other_values = (
        copy_buffers(build_model(source, job, job.seed + 1)) if may_be_drawn(initial_values) else initial_values
    )
    paddle_layers = {name for name, layer in model.named_sublayers() if _runs_paddles_forward(layer)}
    masks = MaskWatch(lambda: draws.stack.module, paddle_layers)
    with (
        use_draws(draws),
        watch(model, draws.stack, on_leave),
        record_masked_layers(model) as masked_layers,
        calls.watch(masks),
        user_code.running(source),
    ):
        compute_output(source, model, batch, needs_loss)
    order = {module.name: number for number, module in reversed(list(enumerate(modules)))}
    buffer_facts = describe_buffers(model, initial_values, other_values, _TensorDescriber(model, order))
    transposed_names = squares.with_output_columns
    parameters = [
        replace(facts, transposed=facts.transposed or facts.name in transposed_names)
        for facts in describe_parameters(model, order)
    ]
    comparisons = masks.comparisons
    return Description(
        parameters,
        modules,
        draws.draw_facts,
        buffer_facts,
        comparisons.facts(),
        comparisons.unreached_facts(),
        num_operations=len(masks.operations),
    )


def _gradient_of(output: paddle.Tensor, index: int, weight: paddle.Tensor) -> np.ndarray | None:
    """Return the gradient of one element of an output for a weight; None without a dependence.

    Args:
        output: output of a layer.
        index: index of the element in the flattened output.
        weight: weight of the layer.
    """
    (gradient,) = paddle.grad(output.flatten()[index], weight, retain_graph=True, allow_unused=True)
    return None if gradient is None else gradient.numpy()


def _trained_weights(layer: nn.Layer) -> dict[str, paddle.Tensor]:
    """Return the trained parameters that a layer holds itself, by name, without the parameters of its children."""
    return {name: value for name, value in layer._parameters.items() if value is not None and not value.stop_gradient}


def _role(layer: nn.Layer) -> str:
    """Return the role of a layer's ``weight`` (:data:`ROLES`); `other` for any other layer class."""
    return next((role for role, kinds in ROLES if isinstance(layer, kinds)), "other")


@contextlib.contextmanager
def record_masked_layers(model: nn.Layer) -> Iterator[set[nn.Layer]]:
    """Yield a set, and add each layer that is called with a mask argument inside the ``with`` block.

    Args:
        model: port.
    """
    masked_layers: set[nn.Layer] = set()
    layers = [layer for layer in model.sublayers() if "forward" not in vars(layer)]

    def watch_masks(layer: nn.Layer) -> Callable:
        forward = layer.forward

        def watched_forward(*args: Any, **kwargs: Any) -> Any:
            if next(mask_arguments(layer, args, kwargs), None):
                masked_layers.add(layer)
            return forward(*args, **kwargs)

        return watched_forward

    for layer in layers:
        if any("mask" in name.lower() for name in inspect.signature(type(layer).forward).parameters):
            vars(layer)["forward"] = watch_masks(layer)  # PaddleNLP's models modify attributes when they are set
    try:
        yield masked_layers
    finally:
        for layer in layers:
            vars(layer).pop("forward", None)


def _runs_paddles_forward(layer: nn.Layer) -> bool:
    """Return whether a layer's ``forward`` is defined in Paddle itself."""
    return (inspect.getsourcefile(type(layer).forward) or "").startswith(LIBRARIES)


def _settings_of(layer: nn.Layer, masked_layers: Collection[nn.Layer]) -> Iterator[str]:
    """Yield the settings of a layer that a fault can change (:attr:`.pair.ModuleFacts.has`).

    They are `epsilon`, `activation`, `dropout` and `mask`.

    Args:
        layer: layer of the port.
        masked_layers: layers that were called with a mask.
    """
    if any(isinstance(getattr(layer, name, None), float) for name in EPSILONS):
        yield "epsilon"
    has_activation = any(callable(getattr(layer, name, None)) for name in ACTIVATIONS)
    if has_activation or type(layer).__module__ == nn.GELU.__module__:
        yield "activation"
    if isinstance(layer, nn.Dropout):
        yield "dropout"
    if layer in masked_layers:
        yield "mask"


def _data_format(layer: nn.Layer) -> str:
    """Return the data layout of a convolution, norm or pooling layer, such as `NCHW`; "" for other layers."""
    data_format = getattr(layer, "_data_format", None) or getattr(layer, "data_format", None)
    return data_format if isinstance(data_format, str) and data_format[:1] == "N" else ""


def describe_parameters(model: nn.Layer, order: Mapping[str, int]) -> Iterator[ParameterFacts]:
    """Yield the facts about each parameter of a model.

    Args:
        model: port.
        order: position of each module's first call, by the module's path.
    """
    describe = _TensorDescriber(model, order)
    for name, parameter in model.named_parameters():
        yield replace(describe(name, parameter), constant=constant_of(parameter.numpy()))


class _TensorDescriber:
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
            for name, parameter in layer._parameters.items():
                names = [".".join(filter(None, [path, name])) for path in paths]
                self.names.setdefault(id(parameter), []).extend(names)

    def __call__(self, name: str, value: paddle.Tensor) -> ParameterFacts:
        """Return the facts about a parameter or buffer.

        Args:
            name: dotted name of the tensor in the model.
            value: the tensor.
        """
        path, _, leaf = name.rpartition(".")
        layer = self.layers[path]
        role = _role(layer)
        is_transposed = role == "linear" and leaf.startswith("weight") and value.ndim == 2
        shape = list(value.shape)
        return ParameterFacts(
            name=name,
            shape=shape[::-1] if is_transposed else shape,
            role=role,
            transposed=is_transposed,
            module=path,
            kind=type(layer).__name__,
            order=self.order.get(path),
            tied=[other for other in self.names.get(id(value), []) if other != name],
        )
