"""Faults of any Paddle layer, made from its tree of modules: what the gate would catch in a port that nobody knows.

A fault's name says all of it: ``KIND:MODULE``, or ``KIND:MODULE+OTHER``, by the port's paths. The layer is changed
right after the user's ``build`` has made it.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from toolkit.parity.mutants.fault import Mutant, around

#: What a norm calls its epsilon.
EPSILONS = ("_epsilon", "epsilon", "variance_epsilon", "eps")
#: What a layer calls a function that it applies between two maps.
ACTIVATIONS = ("activation", "act", "act_fn", "activation_fn", "hidden_act")
#: By how much a product is off where it is off by little.
SLIGHTLY = 1e-6


def _epsilon(port: SimpleNamespace, layer: Any) -> None:
    name = next(name for name in EPSILONS if hasattr(layer, name))
    setattr(layer, name, 10 * getattr(layer, name))


def _no_bias(port: SimpleNamespace, layer: Any) -> None:
    layer.forward = lambda x: port.F.linear(x, layer.weight)


def _swapped(port: SimpleNamespace, layer: Any, other: Any) -> None:
    layer.forward = lambda x: port.F.linear(x, other.weight, layer.bias)
    other.forward = lambda x: port.F.linear(x, layer.weight, other.bias)


def _transposed(port: SimpleNamespace, layer: Any) -> None:
    layer.forward = lambda x: port.F.linear(x, layer.weight.T, layer.bias)


def _dropout_off(port: SimpleNamespace, layer: Any) -> None:
    layer.p = 0


def _dropout_unscaled(port: SimpleNamespace, layer: Any) -> None:
    layer.mode = "downscale_in_infer"


def _dropout_rate(port: SimpleNamespace, layer: Any) -> None:
    layer.p = layer.p / 2


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
    forward = layer.forward

    def with_a_copy(*given: Any, **more: Any) -> Any:
        held = layer.weight
        layer._parameters["weight"] = held.detach()
        try:
            return forward(*given, **more)
        finally:
            layer._parameters["weight"] = held

    layer.forward = with_a_copy


#: Kind -> what is wrong, in words, and what does it to one layer or two.
FAULTS: dict[str, tuple[str, Callable[..., None]]] = {
    "epsilon": ("its epsilon is ten times as large", _epsilon),
    "no-bias": ("its bias is not added", _no_bias),
    "swapped": ("two weights of one shape are swapped", _swapped),
    "transposed": ("its square weight is transposed", _transposed),
    "dropout-off": ("nothing is dropped", _dropout_off),
    "dropout-unscaled": ("what dropout keeps is not scaled up", _dropout_unscaled),
    "dropout-rate": ("half as much is dropped", _dropout_rate),
    "activation": ("SiLU in place of its activation", _activation),
    "detached": ("its input is detached", _detached),
    "gradient-doubled": ("what comes back to it is doubled", _gradient_doubled),
    "slightly-off": (f"its output is off by {SLIGHTLY:.0e} of itself", _slightly_off),
    "in-float32": ("its input passes through float32", _in_float32),
    "frozen": ("its weight takes no gradient", _frozen),
    "copied": ("a copy of its weight is used, which takes no gradient", _copied),
}


def fault(kind: str, *paths: str, expected: str = "", operation: str = "") -> Mutant:
    """A fault of the module at ``paths``.

    Args:
        expected, operation: as :class:`.fault.Mutant`; by the reference's names.
    """
    words, change = FAULTS[kind]

    def apply(port: SimpleNamespace) -> list[tuple[Any, str, Any]]:
        def changed(original: Callable, source: Any, job: Any) -> Any:
            model = original(source, job)
            layers = dict(model.named_sublayers(include_self=True))
            change(port, *(layers[path] for path in paths))
            return model

        return around(port.pair, "built", changed)

    name = f"{kind}:{'+'.join(paths)}"
    return Mutant(name, f"{' and '.join(paths)}: {words}", expected, apply, _port, operation=operation)


def of_name(name: str) -> Mutant | None:
    """The fault of a name that :func:`fault` gave; None for any other."""
    kind, colon, paths = name.partition(":")
    return fault(kind, *paths.split("+")) if colon and kind in FAULTS else None


def _port() -> SimpleNamespace:
    import paddle

    return SimpleNamespace(
        paddle=paddle, F=paddle.nn.functional, pair=importlib.import_module("toolkit.parity.families.pair.candidate")
    )
