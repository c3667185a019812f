"""Small changes to single parameters, which measure how small a fault the gate sees."""

from __future__ import annotations

import sys

import numpy as np

from models.families import FAMILIES, part
from toolkit.parity.mutants.fault import Mutant, around

#: A relative change large enough to show, and so small that all effects are proportional to it.
CHANGE = 1e-6
_PREFIX = "changed:"


def weight_changed(parameter: str) -> str:
    """Return the name of the mutant in which that parameter's values are off by :data:`CHANGE`, up or down."""
    return _PREFIX + parameter


def of_name(name: str) -> Mutant | None:
    """Return the mutant of a name that :func:`weight_changed` gave; None for any other."""
    if not name.startswith(_PREFIX):
        return None
    parameter = name.removeprefix(_PREFIX)
    return Mutant(name, f"{parameter} off by {CHANGE:.0e}", parameter, lambda port: _changed(parameter))


def _changed(parameter: str):
    # In a pair's job it is already imported; importing it changes what Paddle does.
    if (pair := sys.modules.get("toolkit.parity.families.pair.candidate")) is not None:
        return around(pair.PairStep, "_load", lambda load, step: _change_of_pair(load, step, parameter))

    modules = [part(model, "weights") for model in FAMILIES]
    load = modules[0].load

    def changed(model, values) -> None:
        load(model, values)
        _change(dict(model.named_parameters())[parameter])

    return [(weights, "load", changed) for weights in modules]


def _change_of_pair(load, step, parameter: str) -> None:
    load(step)
    of_port = {match.port for match in step.layout.by_reference[parameter]}
    for name, value in step.model.named_parameters():
        if name in of_port:
            _change(value)


def _change(target) -> None:
    held = target.numpy()
    signs = np.random.default_rng(0).choice([-1.0, 1.0], held.shape)
    target.set_value((held * (1 + CHANGE * signs)).astype(held.dtype))
