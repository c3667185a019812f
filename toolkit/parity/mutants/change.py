"""Small changes of single parameters, which measure how small a fault the gate detects."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from models.families import FAMILIES, part
from toolkit.parity.mutants.fault import Mutant, wrap_method

#: A relative change large enough to show, and so small that all effects are proportional to it.
CHANGE = 1e-6
_PREFIX = "changed:"


def weight_change_name(parameter_name: str) -> str:
    """Return the name of the mutant that scales each value of the parameter by 1 plus or minus :data:`CHANGE`."""
    return _PREFIX + parameter_name


def parse_mutant(name: str) -> Mutant | None:
    """Return the mutant that :func:`weight_change_name` names, or None for any other name."""
    if not name.startswith(_PREFIX):
        return None
    parameter = name.removeprefix(_PREFIX)
    return Mutant(name, f"{parameter} off by {CHANGE:.0e}", parameter, lambda port: _replace_load(parameter))


def _replace_load(parameter_name: str) -> list[tuple[Any, str, Any]]:
    """Return attributes that load the weights and then change one parameter, as :attr:`Mutant.apply` does."""
    # In a pair's job the module is already imported. In other jobs it is not: its import changes what Paddle does.
    if (pair := sys.modules.get("toolkit.parity.families.pair.candidate")) is not None:
        return wrap_method(pair.PairStep, "_load", lambda load, step: _load_changed_pair(load, step, parameter_name))

    modules = [part(model, "weights") for model in FAMILIES]
    load = modules[0].load

    def load_changed(model: Any, weights: Mapping[str, np.ndarray]) -> None:
        load(model, weights)
        _change_values(dict(model.named_parameters())[parameter_name])

    return [(module, "load", load_changed) for module in modules]


def _load_changed_pair(load: Callable[[Any], None], step: Any, parameter_name: str) -> None:
    """Load the weights of a pair's port, and change the counterparts of one parameter of the reference."""
    load(step)
    counterparts = {match.port for match in step.layout.by_reference[parameter_name]}
    for name, tensor in step.model.named_parameters():
        if name in counterparts:
            _change_values(tensor)


def _change_values(tensor: Any) -> None:
    """Multiply each element of a parameter by 1 plus or minus :data:`CHANGE`, in place, with random signs."""
    values = tensor.numpy()
    signs = np.random.default_rng(0).choice([-1.0, 1.0], values.shape)
    tensor.set_value((values * (1 + CHANGE * signs)).astype(values.dtype))
