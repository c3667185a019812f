"""Small changes to single parameters, by which the gate's sight is measured."""

from __future__ import annotations

from types import SimpleNamespace

from toolkit.parity.mutants.fault import Mutant

#: A relative change that shows, and that everything answers to in proportion.
CHANGE = 1e-6
_PREFIX = "changed:"


def weight_changed(parameter: str) -> str:
    """The name of the mutant in which that parameter's values are too large or too small by :data:`CHANGE`."""
    return _PREFIX + parameter


def of_name(name: str) -> Mutant | None:
    """The mutant of a name that :func:`weight_changed` gave; None for any other."""
    if not name.startswith(_PREFIX):
        return None
    parameter = name.removeprefix(_PREFIX)
    return Mutant(name, f"{parameter} off by {CHANGE:.0e}", parameter, lambda port: _changed(port, parameter), _port)


def _port() -> SimpleNamespace:
    import numpy as np

    from models.families import FAMILIES, part

    return SimpleNamespace(np=np, weights=[part(model, "weights") for model in FAMILIES])


def _changed(port, parameter: str):
    load = port.weights[0].load

    def changed(model, values) -> None:
        load(model, values)
        target = dict(model.named_parameters())[parameter]
        held = target.numpy()
        signs = port.np.random.default_rng(0).choice([-1.0, 1.0], held.shape)
        target.set_value((held * (1 + CHANGE * signs)).astype(held.dtype))

    return [(weights, "load", changed) for weights in port.weights]
