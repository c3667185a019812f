"""Parameters of all families by name, shape and role: initial values, strict loading, and reading from a port.

Names and layouts are as in Hugging Face's checkpoints. The *role* of a parameter determines its layout in Paddle and
its initial values. The shape could not: a square weight fits either way. ``models/FAMILY/weights.py`` lists the
parameters of a model.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from models.files.tensor_file import LazyArrays


class Parameter(NamedTuple):
    """The shape of a parameter in a Hugging Face checkpoint, and its role.

    Roles: ``linear`` (out, in), which Paddle stores transposed; ``bias``; ``embedding``; ``axial``, a position table of
    one axis; ``norm_gain``; ``norm_bias``.
    """

    shape: tuple[int, ...]
    role: str


class WeightsError(ValueError):
    """The weights do not match the parameters of the model one to one."""


def linear_parameters(name: str, num_inputs: int, num_outputs: int, *, has_bias: bool = True) -> dict[str, Parameter]:
    """Return the parameters of a linear layer by name, with or without a bias.

    Args:
        name: path of the layer.
        num_inputs: number of input features.
        num_outputs: number of output features.
        has_bias: whether the layer has a bias.
    """
    table = {f"{name}.weight": Parameter((num_outputs, num_inputs), "linear")}
    return {**table, f"{name}.bias": Parameter((num_outputs,), "bias")} if has_bias else table


def layer_norm_parameters(name: str, width: int) -> dict[str, Parameter]:
    """Return the parameters of a layer norm by name."""
    return {f"{name}.weight": Parameter((width,), "norm_gain"), f"{name}.bias": Parameter((width,), "norm_bias")}


def draw_values(table: Mapping[str, Parameter], deviations: Mapping[str, float], seed: int) -> LazyArrays:
    """Return the initial float32 value of each parameter by name, computed on access.

    A seed gives the same values on any machine. Each parameter has a separate generator, so that a model with one more
    layer has the same values in all other layers.

    Args:
        table: parameters by name.
        deviations: standard deviation of the normal values of each role. Without one, norm gains are 1, others 0.
        seed: seed of the random draws.
    """
    return LazyArrays(
        {name: partial(_draw_value, name, parameter, deviations, seed) for name, parameter in table.items()}
    )


def _draw_value(name: str, parameter_spec: Parameter, deviations: Mapping[str, float], seed: int) -> np.ndarray:
    """Return the initial float32 value of one parameter.

    Args:
        name: name of the parameter, which determines the draw together with the seed.
        parameter_spec: shape and role of the parameter.
        deviations: standard deviation of the normal values of each role. Without one, norm gains are 1, others 0.
        seed: seed of the random draws.
    """
    shape, role = parameter_spec
    if role in deviations:
        draws = make_generator(seed, name).standard_normal(shape, dtype=np.float32)
        draws *= np.float32(deviations[role])
        return draws
    return np.full(shape, 1 if role == "norm_gain" else 0, np.float32)


def make_generator(seed: int, name: str) -> np.random.Generator:
    """Return the NumPy generator of a seed and a name, independent of all other names."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))


def to_paddle(value: np.ndarray, role: str) -> np.ndarray:
    """Convert a value from Hugging Face's to Paddle's layout or back. Only the role ``linear`` is transposed."""
    return value.T if role == "linear" else value


def select_tensors(
    tensors: Iterable[tuple[str, np.ndarray]],
    table: Mapping[str, Parameter],
    ignored_names: Iterable[str],
    body_prefix: str,
) -> dict[str, np.ndarray]:
    """Return the checked tensors of a checkpoint for the parameters of a model, by name.

    Args:
        tensors: names and values of the checkpoint's tensors; a name may occur twice with equal values.
        table: parameters of the model by name.
        ignored_names: names that are allowed but not returned: parameters of other heads.
        body_prefix: prefix of the parameters that must not be missing.

    Raises:
        WeightsError: a shape is wrong, a parameter of the body is missing, a tensor is unknown, a name has two
            different values, or a value is not a finite number.
    """
    weights: dict[str, np.ndarray] = {}
    unknown = []
    ignored_names = set(ignored_names) - set(table)
    for name, value in tensors:
        if name in table:
            if tuple(value.shape) != table[name].shape:
                raise WeightsError(
                    f"{name}: shape {tuple(value.shape)}, but the configuration wants {table[name].shape}"
                )
            if name in weights and not np.array_equal(weights[name], value):
                raise WeightsError(f"{name}: occurs twice, with different values")
            array = np.asarray(value)
            if array.dtype.kind != "f":
                raise WeightsError(f"{name}: holds {array.dtype}, not floating-point numbers")
            with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite
                array = array.astype(np.float32, copy=False)
            if count := np.count_nonzero(~np.isfinite(array)):
                raise WeightsError(f"{name}: {count} of its {math.prod(value.shape)} values are NaN or infinite")
            weights[name] = value
        elif name not in ignored_names:
            unknown.append(name)
    missing = [name for name in table if name not in weights and name.startswith(body_prefix)]
    if unknown or missing:
        raise WeightsError("; ".join(_describe_names("unknown", unknown) + _describe_names("missing", missing)))
    return weights


def _describe_names(problem: str, names: list[str]) -> list[str]:
    """Return a list with a description of the names that have a problem; an empty list without names."""
    return [f"{len(names)} {problem}: {', '.join(names[:4])}{', ...' if len(names) > 4 else ''}"] if names else []


def load(model: Any, weights: Mapping[str, np.ndarray]) -> None:
    """Load weights into a port, one to one by name and role, cast to the port's dtype.

    Args:
        model: port, whose ``parameter_table`` lists the parameters.
        weights: values of all parameters by name, in Hugging Face's names and layout.

    Raises:
        WeightsError: a name is missing or superfluous, or a shape differs.
    """
    table = model.parameter_table
    parameters = dict(model.named_parameters())
    problems = [
        *_describe_names("missing from the weights", [name for name in table if name not in weights]),
        *_describe_names("left over in the weights", [name for name in weights if name not in table]),
        *_describe_names("not in the port", [name for name in table if name not in parameters]),
        *_describe_names("in the port alone", [name for name in parameters if name not in table]),
    ]
    if problems:
        raise WeightsError("; ".join(problems))
    for name, (shape, role) in table.items():
        value = np.asarray(weights[name])
        if tuple(value.shape) != shape:
            raise WeightsError(f"{name}: shape {tuple(value.shape)}, but the configuration wants {shape}")
        dtype = str(parameters[name].dtype).rsplit(".", 1)[-1]
        parameters[name].set_value(np.ascontiguousarray(to_paddle(value, role)).astype(dtype, copy=False))


def dump(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and value of every parameter of a port, in Hugging Face's names and layout."""
    return iter(parameter_values(model).items())


def parameter_values(model: Any) -> LazyArrays:
    """Return a port's parameter values by name, in Hugging Face's names and layout, each copied on access."""
    parameters = dict(model.named_parameters())
    return LazyArrays(
        {name: partial(_copy_value, parameters[name], role) for name, (_, role) in model.parameter_table.items()}
    )


def _copy_value(parameter: Any, role: str) -> np.ndarray:
    """Return the value of a Paddle parameter in Hugging Face's layout."""
    return np.ascontiguousarray(to_paddle(parameter.numpy(), role))
