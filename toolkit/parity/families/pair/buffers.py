"""The buffers of a pair's port: its state in addition to the trained parameters.

Frozen parameters count as buffers, because Paddle's batch norm stores its running statistics in them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import paddle
from paddle import nn

from toolkit.parity.job.buffers import is_same
from toolkit.parity.job.pair import BufferFacts, ParameterFacts, ParameterMatch
from toolkit.parity.measure.real_numbers import as_complex, as_real


def buffers_of(model: nn.Layer) -> dict[str, paddle.Tensor]:
    """Return the buffers and the frozen parameters of a layer, by name.

    A buffer without memory is omitted, such as the state of an RNN's dropout on a CPU.
    """
    held = {name: value for name, value in model.named_buffers() if value._is_initialized()}
    return {**held, **{name: value for name, value in model.named_parameters() if value.stop_gradient}}


def values_of(model: nn.Layer) -> dict[str, np.ndarray]:
    """Return copies of the values of a layer's buffers and frozen parameters, by name.

    A complex tensor of shape (...) becomes a real array of shape (..., 2), with the real and imaginary parts.
    """
    return {name: np.array(as_real(value.numpy())) for name, value in buffers_of(model).items()}


def facts_of(
    model: nn.Layer,
    before: Mapping[str, np.ndarray],
    other: Mapping[str, np.ndarray],
    described: Callable[[str, paddle.Tensor], ParameterFacts],
) -> list[BufferFacts]:
    """Return the facts about each buffer and frozen parameter of a port, after a step in training mode.

    Args:
        model: port after the step.
        before: values of its buffers before the step, by name.
        other: values of the buffers of a port that was built with another seed, by name.
        described: function of a tensor's name and the tensor that returns the facts about it.
    """
    kept, tensors, after = _kept(model), buffers_of(model), values_of(model)
    return [
        BufferFacts(
            **vars(described(name, tensors[name])),
            # A tensor that the step replaces by a computed tensor is not state, such as the weight under spectral norm.
            is_state=name in kept or (tensors[name].is_leaf and not is_same(value, after[name])),
            is_drawn=not is_same(value, other[name]),
            is_real=tensors[name].is_floating_point(),
        )
        for name, value in before.items()
    ]


def _kept(model: nn.Layer) -> set[str]:
    """Return the names of the buffers that a checkpoint contains.

    Frozen parameters are not included. If no step changes such a parameter, only its effect on the outputs is compared.
    """
    return {
        ".".join(filter(None, [path, name]))
        for path, layer in model.named_sublayers(include_self=True)
        for name in layer._buffers
        if name not in layer._non_persistable_buffer_names_set
    }


def in_shape_of(value: np.ndarray, counterpart: np.ndarray, match: ParameterMatch) -> np.ndarray:
    """Return a buffer in the shape of the other side's buffer, if both have the same number of elements.

    Otherwise the buffer is returned unchanged.

    Args:
        value: buffer of one side.
        counterpart: value of the matching buffer on the other side.
        match: correspondence of the two buffers; it states whether the port has the transpose.
    """
    if value.size != counterpart.size:
        return value
    return (
        value.reshape(counterpart.shape[::-1]).T
        if match.transpose and counterpart.ndim == 2
        else value.reshape(counterpart.shape)
    )


def give(model: nn.Layer, matches: Sequence[ParameterMatch], given: Mapping[str, np.ndarray]) -> None:
    """Set the port's buffers to the reference's values.

    Args:
        model: port.
        matches: correspondences of the buffers to set.
        given: values of the reference's buffers, by the reference's name.
    """
    ours, values = buffers_of(model), values_of(model)
    for match in matches:
        held = ours[match.port]
        value = given[match.reference]
        if not held.is_complex():
            value = in_shape_of(value, values[match.port], match)
        held.set_value(paddle.to_tensor(as_complex(value) if held.is_complex() else value).astype(held.dtype))
