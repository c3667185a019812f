"""Discrete choices of torch modules: all runs repeat the indices that ``topk``, ``argmax`` and others choose in R64.

The choices of some functions cannot be replayed in the port. Their names are recorded.
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
#: By the name of each function that returns indices: the names of its arguments after the input, and its default axis.
#: The default axis None means the flattened tensor, or, for ``max`` and ``min``, a call that returns no indices.
SIGNATURES: dict[str, tuple[tuple[str, ...], int | None]] = {
    "topk": (("k", "dim", "largest", "sorted"), -1),
    "argmax": (("dim", "keepdim"), None),
    "argmin": (("dim", "keepdim"), None),
    "max": (("dim", "keepdim"), None),
    "min": (("dim", "keepdim"), None),
    "sort": (("dim", "descending"), -1),
    "argsort": (("dim", "descending"), -1),
}
#: Name of each torch function and method of :data:`SIGNATURES`, by the function object.
CHOOSING = {getattr(owner, name): name for name in SIGNATURES for owner in (torch, torch.Tensor)}
#: Name of each function that chooses by size, sign or order of its input but returns no indices, by the function
#: object. Its choices cannot be replayed in the port.
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
    """Inside the ``with`` block, torch functions that return indices use R64's recorded choices.

    Args:
        recorder: recorder of the run, which has the choices.
        note: called with the name of each choice that cannot be replayed in the port, such as ``round:encoder.norm``;
            None to ignore these choices.
    """

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
        arguments = _name_arguments(name, args, kwargs)
        x, dim = arguments["input"], arguments["dim"]
        is_flat = dim is None and name in ("argmax", "argmin")
        if not x.is_floating_point() or not x.ndim or not (is_flat or isinstance(dim, int)):
            return function(*args, **kwargs)
        axis, scores = (0, x.flatten()) if is_flat else (dim, x)
        result = function(*args, **kwargs)
        own = result if isinstance(result, torch.Tensor) else result[1]
        lacks_axis = own.numel() == scores.numel() // scores.shape[axis] and own.ndim < scores.ndim
        own = own.reshape(1) if is_flat else own.unsqueeze(axis) if lacks_axis else own
        draw_name = TensorName.parse(self.recorder.stack.next_name("choice"))
        is_ordered = name != "topk" or arguments.get("sorted", True)
        indices = self.recorder.draws.choose(draw_name, scores.movedim(axis, -1), own.movedim(axis, -1), is_ordered)
        indices = indices.movedim(-1, axis)
        if isinstance(result, torch.Tensor):
            return indices.reshape(result.shape)
        values = scores.gather(axis, indices)
        return type(result)((values.reshape(result[0].shape), indices.reshape(result[1].shape)))


def _name_arguments(name: str, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by their names in torch, with the default axis under ``dim``.

    Args:
        name: key of :data:`SIGNATURES`.
        args: positional arguments of the call.
        kwargs: keyword arguments of the call.
    """
    names, dim = SIGNATURES[name]
    arguments = {**dict(zip(("input", *names), args, strict=False)), **kwargs}
    for alias, torch_name in (("self", "input"), ("axis", "dim")):
        if alias in arguments:
            arguments[torch_name] = arguments.pop(alias)
    return {"dim": dim, **arguments}
