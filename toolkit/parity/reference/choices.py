"""Discrete choices of any torch module: all runs repeat what ``topk``, ``argmax`` and the like choose in R64.

Other functions choose, too, but their choices cannot be given to the port: the places are noted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from toolkit.parity.measure.naming import TensorName
from toolkit.parity.reference.recorder import Recorder

F = nn.functional
#: Function that returns indices -> arguments after its input, and its default axis.
SIGNATURES: dict[str, tuple[tuple[str, ...], int | None]] = {
    "topk": (("k", "dim", "largest", "sorted"), -1),
    "argmax": (("dim", "keepdim"), None),
    "argmin": (("dim", "keepdim"), None),
    "max": (("dim", "keepdim"), None),
    "min": (("dim", "keepdim"), None),
    "sort": (("dim", "descending"), -1),
    "argsort": (("dim", "descending"), -1),
}
CHOOSING = {getattr(owner, name): name for name in SIGNATURES for owner in (torch, torch.Tensor)}
#: Functions that choose by size, sign or order of their input -> name in a note.
OTHERS = {
    function: name
    for name, owners in {
        "round": (torch, torch.Tensor), "floor": (torch, torch.Tensor), "ceil": (torch, torch.Tensor),
        "trunc": (torch, torch.Tensor), "sign": (torch, torch.Tensor), "median": (torch, torch.Tensor),
        "kthvalue": (torch, torch.Tensor), "bucketize": (torch,), "searchsorted": (torch,), "unique": (torch,),
        "leaky_relu": (F,), "relu6": (F,), "hardtanh": (F,), "hardswish": (F,), "prelu": (F,), "max_pool1d": (F,),
        "max_pool2d": (F,), "max_pool3d": (F,), "adaptive_max_pool1d": (F,), "adaptive_max_pool2d": (F,),
    }.items()
    for owner in owners
    for function in [getattr(owner, name)]
}  # fmt: skip


class Choices(TorchFunctionMode):
    """Take all choices from the recorder's draws; ``note`` is called with the name of each that cannot be given to the
    port, such as ``round:encoder.norm``."""

    def __init__(self, recorder: Recorder, note: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self.recorder = recorder
        self.note = note

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = CHOOSING.get(function)
        if name is None:
            if self.note is not None and function in OTHERS and args and getattr(args[0], "requires_grad", False):
                self.note(self.recorder.stack.next_name(OTHERS[function]))
            return function(*args, **kwargs)
        given = _arguments(name, args, kwargs)
        x, dim = given["input"], given["dim"]
        whole = dim is None and name in ("argmax", "argmin")
        if not x.is_floating_point() or not x.ndim or not (whole or isinstance(dim, int)):
            return function(*args, **kwargs)
        along, scores = (0, x.flatten()) if whole else (dim, x)
        found = function(*args, **kwargs)
        own = found if isinstance(found, torch.Tensor) else found[1]
        kept = own.numel() == scores.numel() // scores.shape[along] and own.ndim < scores.ndim  # the axis is left out
        own = own.reshape(1) if whole else own.unsqueeze(along) if kept else own
        drawn = TensorName.parse(self.recorder.stack.next_name("choice"))
        is_ordered = name != "topk" or given.get("sorted", True)
        indices = self.recorder.draws.chosen(drawn, scores.movedim(along, -1), own.movedim(along, -1), is_ordered)
        indices = indices.movedim(-1, along)
        if isinstance(found, torch.Tensor):
            return indices.reshape(found.shape)
        values = scores.gather(along, indices)
        return type(found)((values.reshape(found[0].shape), indices.reshape(found[1].shape)))


def _arguments(name: str, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return a call's arguments by name."""
    names, dim = SIGNATURES[name]
    given = {**dict(zip(("input", *names), args, strict=False)), **kwargs}
    for other, one in (("self", "input"), ("axis", "dim")):
        if other in given:
            given[one] = given.pop(other)
    return {"dim": dim, **given}
