"""Fingerprints of all results in a reference's forward, which show which function of a port is wrong.

A fingerprint is a short summary of a tensor (:mod:`toolkit.parity.measure.fingerprint`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from toolkit.parity.exchange.results import Fingerprints
from toolkit.parity.measure.fingerprint import Fingerprint, take_fingerprint
from toolkit.parity.reference.points import values_of

#: Kernels that compute a loss from scores and labels in a single call.
LOSSES = (
    *("nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "_ctc_loss"),
    *("multi_margin_loss", "multilabel_margin_loss_forward"),
)


class DispatchedResults(TorchDispatchMode):
    """Inside the ``with`` block, records the fingerprint of each result of an operation in the reference's forward.

    A fingerprint is a short summary of a tensor (:mod:`toolkit.parity.measure.fingerprint`). Results of the backward
    are not recorded.

    Attributes:
        all_fingerprints: fingerprints of the batch, the parameters, the buffers and the results, as keys, in this
            order.
        inputs: fingerprint of each module's first input tensor in its first call, by the module's path.
        taken_by_losses: fingerprints of the input tensors of the kernels in :data:`LOSSES`, as keys.

    Args:
        model: the reference model.
        batch: tensors of the batch.
    """

    def __init__(self, model: nn.Module, batch_tensors: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.all_fingerprints: dict[Fingerprint, None] = {}
        self.inputs: dict[str, Fingerprint] = {}
        self.taken_by_losses: dict[Fingerprint, None] = {}
        for value in (*batch_tensors, *model.parameters(), *model.buffers()):
            self._add(value)
        self._hooks = [
            module.register_forward_pre_hook(functools.partial(self._enter, name))
            for name, module in model.named_modules()
        ]

    def __exit__(self, *raised: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*raised)

    def collect(self) -> Fingerprints:
        """Return all fingerprints that were recorded inside the ``with`` block."""
        return Fingerprints(list(self.all_fingerprints), self.inputs, list(self.taken_by_losses))

    def _enter(self, name: str, module: nn.Module, args: tuple) -> None:
        """Record the fingerprint of a module's first input tensor, as a forward pre-hook of the module."""
        first_tensor = next((argument for argument in args if isinstance(argument, torch.Tensor)), None)
        fingerprint = None if first_tensor is None else take_fingerprint(values_of(first_tensor))
        if fingerprint is not None:
            self.inputs.setdefault(name, fingerprint)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if torch._C._current_autograd_node() is None:  # no backward is running
            for value in tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    self._add(value)
            if function.overloadpacket.__name__ in LOSSES:
                fingerprints = (take_fingerprint(values_of(value)) for value in args if isinstance(value, torch.Tensor))
                self.taken_by_losses |= {fingerprint: None for fingerprint in fingerprints if fingerprint is not None}
        return result

    def _add(self, value: torch.Tensor) -> None:
        """Record a fingerprint of a tensor's values, to find equal tensors of the port later.

        Tensors without a fingerprint are left out.
        """
        fingerprint = take_fingerprint(values_of(value))
        if fingerprint is not None:
            self.all_fingerprints[fingerprint] = None
