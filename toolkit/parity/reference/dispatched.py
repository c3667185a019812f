"""Fingerprints of all that a reference's forward computes, to tell which function of a port is wrong."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from toolkit.parity.job.results import Fingerprints
from toolkit.parity.measure.fingerprint import Fingerprint, take_fingerprint
from toolkit.parity.reference.points import values_of

#: Kernels that compute a loss from scores and labels at once.
LOSSES = (
    *("nll_loss_forward", "nll_loss2d_forward", "binary_cross_entropy", "binary_cross_entropy_with_logits"),
    *("mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss", "_ctc_loss"),
    *("multi_margin_loss", "multilabel_margin_loss_forward"),
)


class DispatchedResults(TorchDispatchMode):
    """Inside the ``with`` block, takes the fingerprint of every result of an operation in the forward.

    Attributes:
        seen: all fingerprints, those of the batch, the parameters and the buffers first.
        inputs: by module, of the first tensor that it is given.
        taken_by_losses: of what the kernels of losses take.
    """

    def __init__(self, model: nn.Module, batch: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.seen: dict[Fingerprint, None] = {}
        self.inputs: dict[str, Fingerprint] = {}
        self.taken_by_losses: dict[Fingerprint, None] = {}
        for value in (*batch, *model.parameters(), *model.buffers()):
            self._see(value)
        self._hooks = [
            module.register_forward_pre_hook(functools.partial(self._enter, name))
            for name, module in model.named_modules()
        ]

    def __exit__(self, *raised: Any) -> None:
        for hook in self._hooks:
            hook.remove()
        super().__exit__(*raised)

    def found(self) -> Fingerprints:
        """Return what was seen."""
        return Fingerprints(list(self.seen), self.inputs, list(self.taken_by_losses))

    def _enter(self, name: str, module: nn.Module, args: tuple) -> None:
        given = next((one for one in args if isinstance(one, torch.Tensor)), None)
        found = None if given is None else take_fingerprint(values_of(given))
        if found is not None:
            self.inputs.setdefault(name, found)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if torch._C._current_autograd_node() is None:  # no backward is running
            for value in tree_leaves(result):
                if isinstance(value, torch.Tensor):
                    self._see(value)
            if function.overloadpacket.__name__ in LOSSES:
                fingerprints = (take_fingerprint(values_of(value)) for value in args if isinstance(value, torch.Tensor))
                self.taken_by_losses |= {one: None for one in fingerprints if one is not None}
        return result

    def _see(self, value: torch.Tensor) -> None:
        found = take_fingerprint(values_of(value))
        if found is not None:
            self.seen[found] = None
