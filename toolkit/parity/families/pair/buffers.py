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
    initialized_buffers = {name: value for name, value in model.named_buffers() if value._is_initialized()}
    return {**initialized_buffers, **{name: value for name, value in model.named_parameters() if value.stop_gradient}}


def copy_buffers(model: nn.Layer) -> dict[str, np.ndarray]:
    """Return copies of the values of a layer's buffers and frozen parameters, by name.

    A complex tensor of shape (...) becomes a real array of shape (..., 2), with the real and imaginary parts.
    """
    return {name: np.array(as_real(value.numpy())) for name, value in buffers_of(model).items()}


def describe_buffers(
    model: nn.Layer,
    initial_values: Mapping[str, np.ndarray],
    values_of_other_seed: Mapping[str, np.ndarray],
    describe: Callable[[str, paddle.Tensor], ParameterFacts],
) -> list[BufferFacts]:
    """Return the facts about each buffer and frozen parameter of a port, after a step in training mode.

    Args:
        model: the port, after the step.
        initial_values: values of the port's buffers before the step, by name.
        values_of_other_seed: values of the same buffers after a construction with another seed, by name.
        describe: function that returns the facts about a tensor, given its name and the tensor.
    """
    checkpoint_names, tensors, final_values = _names_in_checkpoint(model), buffers_of(model), copy_buffers(model)
    return [
        BufferFacts(
            **vars(describe(name, tensors[name])),
            # A tensor that the step replaces by a computed tensor is not state, such as the weight under spectral norm.
            is_state=name in checkpoint_names or (tensors[name].is_leaf and not is_same(value, final_values[name])),
            is_drawn=not is_same(value, values_of_other_seed[name]),
            is_real=tensors[name].is_floating_point(),
        )
        for name, value in initial_values.items()
    ]


def _names_in_checkpoint(model: nn.Layer) -> set[str]:
    """Return the names of the buffers that a checkpoint contains.

    Frozen parameters are not included. If no step changes such a parameter, only its effect on the outputs is compared.
    """
    return {
        ".".join(filter(None, [path, name]))
        for path, layer in model.named_sublayers(include_self=True)
        for name in layer._buffers
        if name not in layer._non_persistable_buffer_names_set
    }


def reshape_like(value: np.ndarray, counterpart: np.ndarray, match: ParameterMatch) -> np.ndarray:
    """Return a buffer in the shape of the other side's buffer, if both have the same number of elements.

    Otherwise the buffer is returned unchanged.

    Args:
        value: value of the buffer on one side, of any shape.
        counterpart: value of the matching buffer on the other side.
        match: correspondence of the two buffers; its ``transpose`` states whether the port has the transpose.
    """
    if value.size != counterpart.size:
        return value
    return (
        value.reshape(counterpart.shape[::-1]).T
        if match.transpose and counterpart.ndim == 2
        else value.reshape(counterpart.shape)
    )


def set_buffers(model: nn.Layer, matches: Sequence[ParameterMatch], reference_values: Mapping[str, np.ndarray]) -> None:
    """Set the port's buffers to the reference's values.

    Args:
        model: the port; its buffers are changed.
        matches: pairs of a buffer of the reference and the buffer of the port to set.
        reference_values: values of the reference's buffers, by the reference's name.
    """
    buffers, values = buffers_of(model), copy_buffers(model)
    for match in matches:
        buffer = buffers[match.port]
        value = reference_values[match.reference]
        if not buffer.is_complex():
            value = reshape_like(value, values[match.port], match)
        buffer.set_value(paddle.to_tensor(as_complex(value) if buffer.is_complex() else value).astype(buffer.dtype))
