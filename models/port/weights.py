"""Parameters by name, shape and role, for every family: initial values, strict loading, and dumping.

The names and layouts are those of Hugging Face's checkpoints. A parameter's *role* decides its layout in Paddle and its
first value. Its shape never does, since a square weight looks right either way round. The family decides which
parameters a model has (``models/FAMILY/weights.py``).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from models.files.tensor_file import OnDemand


class Parameter(NamedTuple):
    """A parameter's shape in a Hugging Face checkpoint and its role.

    Roles: ``linear`` (out, in; Paddle holds it transposed), ``bias``, ``embedding``, ``axial`` (a position table along
    one axis), ``norm_gain``, ``norm_bias``.
    """

    shape: tuple[int, ...]
    role: str


class WeightsError(ValueError):
    """Weights that do not fit the model one to one."""


def linear(name: str, inputs: int, outputs: int, bias: bool = True) -> dict[str, Parameter]:
    """The parameters of a linear map."""
    table = {f"{name}.weight": Parameter((outputs, inputs), "linear")}
    return {**table, f"{name}.bias": Parameter((outputs,), "bias")} if bias else table


def layer_norm(name: str, width: int) -> dict[str, Parameter]:
    """The parameters of a layer norm."""
    return {f"{name}.weight": Parameter((width,), "norm_gain"), f"{name}.bias": Parameter((width,), "norm_bias")}


def new_values(table: Mapping[str, Parameter], deviations: Mapping[str, float], seed: int) -> OnDemand:
    """Return each parameter's initial float32 value; a seed gives the same on any machine, in any framework.

    Each parameter has a generator of its own, so that a model with one more layer shares all other values.

    Args:
        deviations: role -> standard deviation of its normal values; norm gains are 1, other roles 0.
    """
    return OnDemand({name: partial(_new_value, name, one, deviations, seed) for name, one in table.items()})


def _new_value(name: str, parameter: Parameter, deviations: Mapping[str, float], seed: int) -> np.ndarray:
    shape, role = parameter
    if role in deviations:
        draws = generator(seed, name).standard_normal(shape, dtype=np.float32)
        draws *= np.float32(deviations[role])
        return draws
    return np.full(shape, 1 if role == "norm_gain" else 0, np.float32)


def generator(seed: int, name: str) -> np.random.Generator:
    """Return a separate NumPy generator per (seed, name)."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def to_paddle(value: np.ndarray, role: str) -> np.ndarray:
    """Convert a value to Paddle's layout, or back: only ``linear`` is transposed."""
    return value.T if role == "linear" else value


def collect(
    tensors: Iterable[tuple[str, np.ndarray]], wanted: Mapping[str, Parameter], foreign: Iterable[str], body: str
) -> dict[str, np.ndarray]:
    """Return the wanted tensors of a checkpoint, checked; no others go unnoticed.

    Args:
        tensors: names as in ``wanted``, values; a name may come twice with equal values.
        foreign: names that are allowed but not wanted: parameters of other heads.
        body: prefix of the parameters that must not be missing.

    Raises:
        WeightsError: a wrong shape, a missing body parameter, an unknown tensor, two values of one name, or values that
            are no numbers.
    """
    found: dict[str, np.ndarray] = {}
    unknown = []
    foreign = set(foreign) - set(wanted)
    for name, value in tensors:
        if name in wanted:
            if tuple(value.shape) != wanted[name].shape:
                raise WeightsError(
                    f"{name}: shape {tuple(value.shape)}, but the configuration wants {wanted[name].shape}"
                )
            if name in found and not np.array_equal(found[name], value):
                raise WeightsError(f"{name}: occurs twice, with different values")
            stored = np.asarray(value)
            if stored.dtype.kind != "f":
                raise WeightsError(f"{name}: holds {stored.dtype}, not floating-point numbers")
            with np.errstate(over="ignore"):  # what overflows float32 becomes infinite
                numbers = stored.astype(np.float32, copy=False)
            if lost := np.count_nonzero(~np.isfinite(numbers)):
                raise WeightsError(f"{name}: {lost} of its {math.prod(value.shape)} values are NaN or infinite")
            found[name] = value
        elif name not in foreign:
            unknown.append(name)
    missing = [name for name in wanted if name not in found and name.startswith(body)]
    if unknown or missing:
        raise WeightsError("; ".join(_listed("unknown", unknown) + _listed("missing", missing)))
    return found


def _listed(what: str, names: list[str]) -> list[str]:
    return [f"{len(names)} {what}: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"] if names else []


def load(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Put Hugging Face weights into a port, one to one by name and role, cast to the port's dtype. The ``table`` of the
    model lists the required parameters. Raises WeightsError for a name missing or left over on either side, or a shape
    that differs."""
    table = model.table
    ours = dict(model.named_parameters())
    absent = _listed("missing from the weights", [name for name in table if name not in weights])
    extra = _listed("left over in the weights", [name for name in weights if name not in table])
    unmapped = _listed("not in the port", [name for name in table if name not in ours])
    unnamed = _listed("in the port alone", [name for name in ours if name not in table])
    if problems := absent + extra + unmapped + unnamed:
        raise WeightsError("; ".join(problems))
    for name, (shape, role) in table.items():
        value = np.asarray(weights[name])
        if tuple(value.shape) != shape:
            raise WeightsError(f"{name}: shape {tuple(value.shape)}, but the configuration wants {shape}")
        dtype = str(ours[name].dtype).rsplit(".", 1)[-1]
        ours[name].set_value(np.ascontiguousarray(to_paddle(value, role)).astype(dtype, copy=False))


def dump(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Name and value of every parameter of a port, in Hugging Face's names and layout."""
    return iter(values_of(model).items())


def values_of(model: Any) -> OnDemand:
    """Return a port's parameter values by name, in Hugging Face's names and layout, each copied on access."""
    ours = dict(model.named_parameters())
    return OnDemand({name: partial(_value_of, ours[name], role) for name, (_, role) in model.table.items()})


def _value_of(parameter: Any, role: str) -> np.ndarray:
    return np.ascontiguousarray(to_paddle(parameter.numpy(), role))
