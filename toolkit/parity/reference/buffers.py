"""Buffers of a torch module: tables, and statistics that a step in training mode changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from toolkit.parity.job.buffers import is_same
from toolkit.parity.job.pair import BufferFacts, ParameterFacts
from toolkit.parity.reference.points import to_numpy


def buffers_of(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the values of a model's buffers by name, without a batch norm's unused step count, which Paddle lacks."""
    modules = dict(model.named_modules())
    return {
        name: to_numpy(value)
        for name, value in model.named_buffers()
        if not _is_unread(modules[name.rpartition(".")[0]], name.rpartition(".")[2])
    }


def frozen_parameters(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the values of a model's parameters without gradients, by name.

    A port may store such a table as a buffer.
    """
    return {name: to_numpy(value) for name, value in model.named_parameters() if not value.requires_grad}


def _is_unread(module: nn.Module, leaf: str) -> bool:
    """Return whether a module never uses its buffer in its output.

    Such a buffer is the step count of a batch norm with a fixed momentum.

    Args:
        module: module with the buffer.
        leaf: name of the buffer within the module.
    """
    is_norm = isinstance(module, nn.modules.batchnorm._NormBase)
    return is_norm and leaf == "num_batches_tracked" and module.momentum is not None


def describe_buffers(
    model: nn.Module,
    values_before: Mapping[str, np.ndarray],
    other_values: Mapping[str, np.ndarray],
    describe_tensor: Callable[[str, torch.Tensor], ParameterFacts],
) -> list[BufferFacts]:
    """Return the facts about each buffer and each frozen parameter of a model.

    Args:
        model: the model after a step in training mode.
        values_before: values of the buffers and frozen parameters before the step, by name.
        other_values: values of a model that was built with another seed, by name.
        describe_tensor: returns the facts of a tensor, given its name and the tensor.
    """
    tensors, frozen_values = dict(model.named_buffers()), frozen_parameters(model)
    # A frozen parameter without a counterpart is reported as a missing parameter.
    checkpoint_names = model.state_dict().keys() - frozen_values.keys()
    tensors |= dict(model.named_parameters())
    after = {**buffers_of(model), **frozen_values}
    return [
        BufferFacts(
            **vars(describe_tensor(name, tensors[name])),
            is_state=name in checkpoint_names or not is_same(value, after[name]),
            is_drawn=not is_same(value, other_values[name]),
            is_real=tensors[name].is_floating_point(),
        )
        for name, value in values_before.items()
    ]
