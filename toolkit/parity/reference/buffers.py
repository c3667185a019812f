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
    """Return every buffer by name, without a batch norm's unread count of steps, which Paddle lacks."""
    modules = dict(model.named_modules())
    return {
        name: to_numpy(value)
        for name, value in model.named_buffers()
        if not _is_unread(modules[name.rpartition(".")[0]], name.rpartition(".")[2])
    }


def frozen_parameters(model: nn.Module) -> dict[str, np.ndarray]:
    """Return the parameters that take no gradient, by name. A port may hold such a table as a buffer."""
    return {name: to_numpy(value) for name, value in model.named_parameters() if not value.requires_grad}


def _is_unread(module: nn.Module, leaf: str) -> bool:
    norm = isinstance(module, nn.modules.batchnorm._NormBase)
    return norm and leaf == "num_batches_tracked" and module.momentum is not None


def facts_of(
    model: nn.Module,
    before: Mapping[str, np.ndarray],
    other: Mapping[str, np.ndarray],
    described: Callable[[str, torch.Tensor], ParameterFacts],
) -> list[BufferFacts]:
    """Describe each buffer and each frozen parameter.

    Args:
        before: their values before a step in training mode.
        other: the values of a model that was built with another seed.
        described: describes a tensor of that name.
    """
    tensors, frozen_values = dict(model.named_buffers()), frozen_parameters(model)
    checkpoint_names = (
        model.state_dict().keys() - frozen_values.keys()
    )  # a frozen parameter without a counterpart is missed as a parameter
    tensors |= dict(model.named_parameters())
    after = {**buffers_of(model), **frozen_values}
    return [
        BufferFacts(
            **vars(described(name, tensors[name])),
            is_state=name in checkpoint_names or not is_same(value, after[name]),
            is_drawn=not is_same(value, other[name]),
            is_real=tensors[name].is_floating_point(),
        )
        for name, value in before.items()
    ]
