"""State that a user's layer holds beside its trained parameters: buffers, and parameters that nothing trains. Paddle's
batch norm holds its running statistics so."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import paddle
from paddle import nn

from toolkit.parity.job.buffers import is_same
from toolkit.parity.job.pair import BufferFacts, ParameterFacts, ParameterMatch
from toolkit.parity.measure.real_numbers import as_complex, as_real


def buffers_of(model: nn.Layer) -> dict[str, paddle.Tensor]:
    """Return every buffer that has memory (an RNN's state of dropout has none on a CPU), and every parameter that takes
    no gradient, by its name."""
    held = {name: value for name, value in model.named_buffers() if value._is_initialized()}
    return {**held, **{name: value for name, value in model.named_parameters() if value.stop_gradient}}


def values_of(model: nn.Layer) -> dict[str, np.ndarray]:
    """Return copies of their values; of complex ones, both parts."""
    return {name: np.array(as_real(value.numpy())) for name, value in buffers_of(model).items()}


def facts_of(
    model: nn.Layer,
    before: Mapping[str, np.ndarray],
    other: Mapping[str, np.ndarray],
    described: Callable[[str, paddle.Tensor], ParameterFacts],
) -> list[BufferFacts]:
    """Describe each of them.

    Args:
        before: their values before a step in training mode.
        other: the values of a model that was built with another seed.
        described: describes a tensor of that name.
    """
    kept, tensors, after = _kept(model), buffers_of(model), values_of(model)
    return [
        BufferFacts(
            **vars(described(name, tensors[name])),
            # A tensor that the step computed anew is none, such as the weight under spectral norm.
            is_state=name in kept or (tensors[name].is_leaf and not is_same(value, after[name])),
            is_drawn=not is_same(value, other[name]),
            is_real=tensors[name].is_floating_point(),
        )
        for name, value in before.items()
    ]


def _kept(model: nn.Layer) -> set[str]:
    """Return buffers that a checkpoint holds. Of a parameter that no step changes, only the effect is compared."""
    return {
        ".".join(filter(None, [path, name]))
        for path, layer in model.named_sublayers(include_self=True)
        for name in layer._buffers
        if name not in layer._non_persistable_buffer_names_set
    }


def in_shape_of(value: np.ndarray, counterpart: np.ndarray, match: ParameterMatch) -> np.ndarray:
    """Return a buffer in the shape of its counterpart, if both have the same number of elements."""
    if value.size != counterpart.size:
        return value
    return (
        value.reshape(counterpart.shape[::-1]).T
        if match.transpose and counterpart.ndim == 2
        else value.reshape(counterpart.shape)
    )


def give(model: nn.Layer, matches: Sequence[ParameterMatch], given: Mapping[str, np.ndarray]) -> None:
    """Give the port the reference's values."""
    ours, values = buffers_of(model), values_of(model)
    for match in matches:
        held = ours[match.port]
        value = given[match.reference]
        if not held.is_complex():
            value = in_shape_of(value, values[match.port], match)
        held.set_value(paddle.to_tensor(as_complex(value) if held.is_complex() else value).astype(held.dtype))
