"""What keeps the reference in float64 where its own code does not."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode

from toolkit.parity.reference.recorder import replace


@contextlib.contextmanager
def no_downcast() -> Iterator[list[str]]:
    """Float64 stays float64 where the reference's code says ``.float()`` (its language-model loss does). Gives a list
    that fills with the places where that happened: leaks of the reference, to be reported as such."""
    leaks: list[str] = []
    original = torch.Tensor.float

    def keep_double(tensor, *args, **kwargs):
        if tensor.dtype != torch.float64:
            return original(tensor, *args, **kwargs)
        caller = sys._getframe(1)
        place = f"{Path(caller.f_code.co_filename).name}:{caller.f_lineno}"
        if place not in leaks:
            leaks.append(place)
        return tensor

    undo = replace(torch.Tensor, "float", keep_double)
    try:
        yield leaks
    finally:
        undo()


class ExactNormaliser(TorchFunctionMode):
    """Compute x - logsumexp(x) as (x - max) - log(sum(exp(x - max))) wherever the reference subtracts the former.

    The reference's softmax is exp(x - logsumexp(x)). Where every score of a row is masked, logsumexp(x) is -1e9 +
    log(K), and at -1e9 float64 keeps 7 digits of log(K), float32 none: each of the K weights becomes 1 and not 1/K.
    The positions concerned see nothing but padding, so no result depends on them; but a truth that is wrong by 1e-7
    there is none, and a yardstick of 100% measures nothing. Measured on the demo recipe: without this, a right port
    stood at twice the semantic bound.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[int, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self.saturated = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function is torch.logsumexp:
            normaliser = function(*args, **kwargs)
            scores, dim = args[0], kwargs.get("dim", args[1] if len(args) > 1 else None)
            largest = scores.detach().amax(dim, keepdim=True)
            self.saturated += int((largest < -1e4).sum())
            rest = (scores - largest).exp().sum(dim, keepdim=True).log()
            self.parts[id(normaliser)] = (normaliser, largest, rest)
            return normaliser
        if function in (torch.Tensor.sub, torch.Tensor.__sub__, torch.sub) and id(args[1]) in self.parts:
            _, largest, rest = self.parts[id(args[1])]
            return (args[0] - largest) - rest
        return function(*args, **kwargs)
