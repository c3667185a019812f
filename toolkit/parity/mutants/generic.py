"""Faults of any Paddle layer, made from its tree of modules: what the gate would catch in an unknown port.

A fault's name says all of it: ``KIND:MODULE``, or ``KIND:MODULE+OTHER``, by the port's paths. The layer is changed
once it holds the weights that it is compared with.
"""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from toolkit.parity.mutants.fault import Modules, Mutant, around

#: Names of a norm's epsilon.
EPSILONS = ("_epsilon", "epsilon", "variance_epsilon", "eps")
#: Names of the function that a layer applies between two maps.
ACTIVATIONS = ("activation", "act", "act_fn", "activation_fn", "hidden_act")
#: Relative error of a product that is slightly off.
SLIGHTLY = 1e-6


def _epsilon(port: SimpleNamespace, layer: Any) -> None:
    name = next(name for name in EPSILONS if hasattr(layer, name))
    setattr(layer, name, 10 * getattr(layer, name))


def _no_bias(port: SimpleNamespace, layer: Any) -> None:
    _with_parameter(layer, "bias", port.paddle.zeros_like)


def _swapped(port: SimpleNamespace, layer: Any, other: Any) -> None:
    first, second = layer.weight, other.weight
    _with_parameter(layer, "weight", lambda _: second)
    _with_parameter(other, "weight", lambda _: first)


def _transposed(port: SimpleNamespace, layer: Any) -> None:
    _with_parameter(layer, "weight", lambda weight: weight.T)


def _dropout_off(port: SimpleNamespace, layer: Any) -> None:
    if isinstance(layer, port.paddle.nn.Dropout):
        layer.p = 0
    else:
        _asking(port, layer, lambda draws, p, shape: port.paddle.full(shape, 1 - p, "float64"))


def _dropout_unscaled(port: SimpleNamespace, layer: Any) -> None:
    if isinstance(layer, port.paddle.nn.Dropout):
        layer.mode = "downscale_in_infer"
    else:
        _asking(port, layer, lambda draws, p, shape: draws.kept(p, shape).astype("float64") * (1 - p))


def _dropout_rate(port: SimpleNamespace, layer: Any) -> None:
    if isinstance(layer, port.paddle.nn.Dropout):
        layer.p = layer.p / 2
    else:
        scaled = lambda p: (1 - p) / (1 - p / 2)  # noqa: E731
        _asking(port, layer, lambda draws, p, shape: draws.kept(p / 2, shape).astype("float64") * scaled(p))


def _dropout_shared(port: SimpleNamespace, layer: Any, other: Any) -> None:
    made: list[Any] = []

    def first(draws: Any, p: float, shape: Sequence[int]) -> Any:
        made.append(draws.kept(p, shape))
        return made[-1]

    _asking(port, layer, first, port.paths[0])
    _asking(port, other, lambda draws, p, shape: made[-1], port.paths[1])


def _dropout_always(port: SimpleNamespace, layer: Any) -> None:
    layer.forward = lambda x: port.F.dropout(x, layer.p, axis=layer.axis, mode=layer.mode)


def _asking(port: SimpleNamespace, layer: Any, kept: Callable, path: str = "") -> None:
    """Let ``kept(draws, p, shape)`` give the mask of each dropout of a layer's own while it runs."""
    forward, path = layer.forward, path or port.paths[0]

    def asking(*given: Any, **more: Any) -> Any:
        if port.replaced._draws is None:
            return forward(*given, **more)
        with port.replaced.use(_Asked(port.replaced._draws, path, kept=kept)):
            return forward(*given, **more)

    vars(layer)["forward"] = asking  # PaddleNLP's models change what is set as an attribute


class _Asked:
    """Wraps other draws, and replaces those that the layer at a path asks for."""

    def __init__(self, draws: Any, path: str, **instead: Callable) -> None:
        self.draws, self.path, self.instead = draws, path, instead

    def __getattr__(self, name: str) -> Any:
        instead = self.instead.get(name)
        if instead is None or self.draws.stack.module != self.path:
            return getattr(self.draws, name)
        return lambda *given: instead(self.draws, *given)


def _second_best(port: SimpleNamespace, layer: Any) -> None:
    forward, path = layer.forward, port.paths[0]

    def chosen(draws: Any, scores: Any, own: Any, descending: bool) -> Any:
        count = own.shape[-1]
        ranks = [*range(count - 1), count] if count < scores.shape[-1] else [1, 0, *range(2, count)]
        order = port.paddle.argsort.of_paddle(scores.detach(), -1, descending)  # which asks nobody
        return draws.chosen(scores, order.index_select(port.paddle.to_tensor(ranks), -1), descending)

    def choosing(*given: Any, **more: Any) -> Any:
        if port.replaced._draws is None:
            return forward(*given, **more)
        with port.replaced.use(_Asked(port.replaced._draws, path, chosen=chosen)):
            return forward(*given, **more)

    vars(layer)["forward"] = choosing


def masks_of(layer: Any, given: Sequence[Any], more: Mapping[str, Any]) -> Iterator[str]:
    """Yield the names of a layer's arguments that are masks: tensors of two axes and more."""
    bound = inspect.signature(type(layer).forward).bind(layer, *given, **more)
    for name, value in bound.arguments.items():
        if "mask" in name.lower() and getattr(value, "ndim", 0) >= 2:
            yield name


def _mask_shifted(port: SimpleNamespace, layer: Any) -> None:
    forward = layer.forward

    def shifted(*given: Any, **more: Any) -> Any:
        bound = inspect.signature(type(layer).forward).bind(layer, *given, **more)
        for name in masks_of(layer, given, more):
            bound.arguments[name] = port.paddle.roll(bound.arguments[name], 1, -1)
        return forward(*bound.args[1:], **bound.kwargs)

    vars(layer)["forward"] = shifted


def _index_shifted(port: SimpleNamespace, layer: Any) -> None:
    _with_parameter(layer, "weight", lambda weight: port.paddle.roll(weight, -1, 0))


def _untied(port: SimpleNamespace, _: Any) -> None:
    path, _, leaf = port.paths[0].rpartition(".")
    around, _, name = path.rpartition(".")
    layer = port.at[path]
    if sum(one is layer for one in port.at.values()) > 1:  # one layer in two places
        port.at[around]._sub_layers[name] = copy.deepcopy(layer)
    else:
        layer._parameters[leaf] = copy.deepcopy(layer._parameters[leaf])


def _activation(port: SimpleNamespace, layer: Any) -> None:
    name = next((name for name in ACTIVATIONS if callable(getattr(layer, name, None))), None)
    if name is None:
        layer.forward = port.F.silu
    elif isinstance(getattr(layer, name), port.paddle.nn.Layer):
        getattr(layer, name).forward = port.F.silu
    else:
        setattr(layer, name, port.F.silu)


def _detached(port: SimpleNamespace, layer: Any) -> None:
    forward = layer.forward
    layer.forward = lambda x, *rest, **more: forward(x.detach(), *rest, **more)


def _gradient_doubled(port: SimpleNamespace, layer: Any) -> None:
    forward = layer.forward

    def doubled(*given: Any, **more: Any) -> Any:
        result = forward(*given, **more)
        return result + (result - result.detach())

    layer.forward = doubled


def _slightly_off(port: SimpleNamespace, layer: Any) -> None:
    forward = layer.forward
    layer.forward = lambda *given, **more: forward(*given, **more) * (1 + SLIGHTLY)


def _in_float32(port: SimpleNamespace, layer: Any) -> None:
    cast, forward = port.paddle._C_ops.cast, layer.forward

    def narrowed(x: Any, *rest: Any, **more: Any) -> Any:
        return forward(cast(cast(x, port.paddle.float32), x.dtype), *rest, **more)

    layer.forward = narrowed


def _frozen(port: SimpleNamespace, layer: Any) -> None:
    layer.weight.stop_gradient = True


def _copied(port: SimpleNamespace, layer: Any) -> None:
    _with_parameter(layer, "weight", lambda weight: weight.detach())


def _with_parameter(layer: Any, name: str, change: Callable) -> None:
    """Let a layer run with one of its parameters changed."""
    forward = layer.forward

    def changed(*given: Any, **more: Any) -> Any:
        original_parameter = layer._parameters[name]
        layer._parameters[name] = change(original_parameter)
        try:
            return forward(*given, **more)
        finally:
            layer._parameters[name] = original_parameter

    layer.forward = changed


#: Kind -> what is wrong, in words, and what changes one layer or two so.
FAULTS: dict[str, tuple[str, Callable[..., None]]] = {
    "epsilon": ("its epsilon is ten times as large", _epsilon),
    "no-bias": ("its bias is not added", _no_bias),
    "swapped": ("two weights of one shape are swapped", _swapped),
    "transposed": ("its square weight is transposed", _transposed),
    "dropout-off": ("nothing is dropped", _dropout_off),
    "dropout-unscaled": ("what dropout keeps is not scaled up", _dropout_unscaled),
    "dropout-rate": ("half as much is dropped", _dropout_rate),
    "dropout-shared": ("the second drops what the first drops", _dropout_shared),
    "dropout-always": ("it drops in evaluation, too", _dropout_always),
    "mask-shifted": ("its mask is shifted by one", _mask_shifted),
    "index-shifted": ("what it looks up is one row further on", _index_shifted),
    "second-best": ("it chooses the second best", _second_best),
    "untied": ("it is no longer the weight that it is tied to", _untied),
    "activation": ("SiLU in place of its activation", _activation),
    "detached": ("its input is detached", _detached),
    "gradient-doubled": ("what comes back to it is doubled", _gradient_doubled),
    "slightly-off": (f"its output is off by {SLIGHTLY:.0e} of itself", _slightly_off),
    "in-float32": ("its input passes through float32", _in_float32),
    "frozen": ("its weight takes no gradient", _frozen),
    "copied": ("a copy of its weight is used, which takes no gradient", _copied),
}


#: Kind of a fault in a comparison that makes a mask, whose place stands for a module's path.
BOUND = "bound-shifted"
#: Why a fault in such a comparison is not seen if it excludes nothing on the batch.
UNREACHED = "the mask excludes nothing on this batch; use longer texts or a smaller bound"

#: Kind -> why the fault changes nothing, where it changes nothing.
HARMLESS = {
    BOUND: "no position of the batch lies at the bound",
    "no-bias": "what follows depends on differences alone, as a softmax does, or is not used",
    "swapped": "both weights are equal, or what they make is not used",
    "transposed": "the weight is symmetric, or what it makes is not used",
    "mask-shifted": "the mask hides nothing that would be seen",
    "index-shifted": "the rows are equal, or what is looked up is not used",
    "activation": "what it gives is not used",
    "detached": "its input takes no gradient, or no way back leads through it",
    "in-float32": "what comes in is float32, or what it gives is not used",
}
NOT_USED = "nothing that is computed depends on it"


def fault(kind: str, *paths: str, expected: str = "", operation: str = "") -> Mutant:
    """Return a fault of the module at ``paths``. ``expected`` and ``operation`` are as in :class:`.fault.Mutant`, by
    the reference's names."""
    words, change = FAULTS[kind]

    def apply(port: Modules) -> list[tuple[Any, str, Any]]:
        pair = "toolkit.parity.families.pair"
        paths_of = importlib.import_module("toolkit.parity.candidate.step").paths_of
        replaced = importlib.import_module(f"{pair}.replaced")

        def changed(original: Callable, step: Any) -> None:
            original(step)
            at = {path: layer for layer, found in paths_of(step.model).items() for path in found}
            paddle = port.paddle
            here = SimpleNamespace(paddle=paddle, F=paddle.nn.functional, replaced=replaced, paths=paths, at=at)
            change(here, *(at.get(path) for path in paths))

        return around(importlib.import_module(f"{pair}.candidate").PairStep, "_load", changed)

    name = f"{kind}:{'+'.join(paths)}"
    return Mutant(name, f"{' and '.join(paths)}: {words}", expected, apply, operation=operation)


def shifted_bound(site: str, expected: str = "", unreached: str = "") -> Mutant:
    """Return a fault of a comparison that makes a mask: its bound includes one position more.

    Args:
        site: ``file:line:column`` of the comparison in the port's code.
        expected, unreached: as in :class:`.fault.Mutant`.
    """

    def apply(port: Modules) -> list[tuple[Any, str, Any]]:
        return [(importlib.import_module("toolkit.parity.families.pair.calls"), "shifted_site", site)]

    words = f"{site}: its bound includes one position more"
    return Mutant(f"{BOUND}:{site}", words, expected, apply, unreached=unreached)


def of_name(name: str) -> Mutant | None:
    """Return the fault of a name that :func:`fault` or :func:`shifted_bound` gave; None for any other."""
    kind, colon, paths = name.partition(":")
    if kind == BOUND:
        return shifted_bound(paths)
    return fault(kind, *paths.split("+")) if colon and kind in FAULTS else None
