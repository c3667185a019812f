"""Convert PaddleNLP's models to Hugging Face's configuration keys and parameter names.

PaddleNLP stores the weight of a linear layer as (in, out), Hugging Face as (out, in). ``FAMILY/weights.py`` lists the
linear weights, and ``FAMILY/paddlenlp_layout.py`` all other differences. Both forms of ``save_pretrained`` are read:
PaddleNLP 2 writes ``model_config.json`` with ``init_args``, PaddleNLP 3 writes ``config.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.families import families_with_module, join_titles, part
from models.port.schema import ConfigError
from models.port.weights import WeightsError, to_paddle

#: Keys that do not change the computation of a model.
INERT = frozenset({
    "attn_impl", "dtype", "fuse_attention_ffn", "fuse_attention_qkv", "init_class", "model_type", "name_or_path",
    "paddle_dtype", "paddlenlp_version", "use_cache", "use_flash_attention",
})  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """PaddleNLP's layout of a family, ``LAYOUT`` of ``models/FAMILY/paddlenlp_layout.py``.

    Attributes:
        paddlenlp_prefix: prefix of the body's parameters in PaddleNLP.
        prefix: prefix of the body's parameters in Hugging Face.
        key_names: Hugging Face's names of configuration keys, by PaddleNLP's names, if they differ.
        defaults: PaddleNLP's defaults of configuration keys, if they differ from Hugging Face's.
        roles: roles of parameters that only PaddleNLP stores.
    """

    paddlenlp_prefix: str
    prefix: str
    key_names: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)

    def complete_config(self, keys: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Add the configuration keys that follow from the arrays.

        Args:
            keys: configuration keys by Hugging Face's names, changed in place.
            arrays: arrays of the checkpoint by PaddleNLP's names.

        Raises:
            ConfigError: the port does not support a value.
        """

    def is_constant(self, name: str) -> bool:
        """Return whether the array of this name is a computed table or mask value, and not a parameter."""
        return False

    def check_constants(self, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
        """Check that stored constants equal the port's, so that no learned value is lost.

        Args:
            arrays: arrays of the checkpoint by PaddleNLP's names.
            config: resolved configuration.

        Raises:
            WeightsError: a constant differs.
        """


def family_of_config(config: Mapping[str, Any]) -> str:
    """Return the family of a PaddleNLP configuration. Raise ConfigError for any other configuration."""
    flat_config = _flatten_config(config)
    names = [flat_config.get("init_class"), *_select_strings(flat_config.get("architectures"))]
    class_names = [name for name in names if isinstance(name, str)]
    families = families_with_module("paddlenlp_layout")
    for family in families:
        if flat_config.get("model_type") == family or any(name.lower().startswith(family) for name in class_names):
            return family
    model_name = flat_config.get("model_type") or next(iter(class_names), None)
    problem = f"describes {model_name!r:.60}" if model_name else "does not say of which model it is"
    raise ConfigError("architectures", f"{problem}; {join_titles(families)} are read")


def convert_config(config: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the ``config.json`` of the same model in Hugging Face's form.

    Args:
        config: content of PaddleNLP's ``config.json`` or ``model_config.json``.
        arrays: arrays of the checkpoint by PaddleNLP's names.

    Raises:
        ConfigError: the model is of another family, or a key or value is not supported.
    """
    family = family_of_config(config)
    flat_config = _flatten_config(config)
    layout = _import_layout(family)
    keys = dict(layout.defaults)
    for key, value in flat_config.items():
        if key not in INERT:
            keys[layout.key_names.get(key, key)] = value
    layout.complete_config(keys, arrays)
    if keys.get("id2label"):
        keys.pop("num_labels", None)
    schema = part(family, "schema")
    resolved_config = schema.resolve(keys)
    hf_config = {key: resolved_config[key] for key in schema.DEFAULTS if key in keys}
    if "id2label" in hf_config:
        hf_config["id2label"] = {str(index): name for index, name in resolved_config["id2label"].items()}
    architectures = list(_select_strings(flat_config.get("architectures")))
    return {**hf_config, "model_type": family, "architectures": architectures}


def convert_tensors(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the Hugging Face name and value of each parameter, one at a time; bfloat16 becomes float32.

    Args:
        arrays: arrays of the checkpoint by PaddleNLP's names.
        config: configuration from :func:`convert_config`.

    Raises:
        WeightsError: no head of the family has a parameter of this name, or a parameter of the body is missing.
    """
    family = config["model_type"]
    weights = part(family, "weights")
    resolved_config = part(family, "schema").resolve(config)
    layout = _import_layout(family)
    roles = {
        name: parameter.role
        for head in weights.HEADS
        for name, parameter in weights.parameters(resolved_config, head).items()
    }
    roles.update(layout.roles)
    has_prefix = any(name.startswith(layout.paddlenlp_prefix) for name in arrays)
    paddlenlp_names = {
        _rename_parameter(name, layout, roles, has_prefix=has_prefix): name
        for name in arrays
        if not layout.is_constant(name)
    }
    unknown = [paddlenlp_name for name, paddlenlp_name in paddlenlp_names.items() if name not in roles]
    missing = [name for name in roles if name.startswith(layout.prefix) and name not in paddlenlp_names]
    if unknown or missing:
        problems = [
            f"{len(names)} {problem} ({', '.join(names[:3])})"
            for problem, names in (("unknown", unknown), ("missing", missing))
            if names
        ]
        description = " and ".join(problems)
        raise WeightsError(f"not PaddleNLP's layout of this {family} model: of its parameters {description}")
    layout.check_constants(arrays, resolved_config)
    for name, paddlenlp_name in paddlenlp_names.items():
        yield name, np.ascontiguousarray(to_paddle(as_floats(arrays[paddlenlp_name]), roles[name]))


def _flatten_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return all keys of either form in one dict. In PaddleNLP 2, ``init_args`` of a head has the keys of its body."""
    flat_config = {key: value for key, value in config.items() if key != "init_args"}
    arguments = config.get("init_args")
    for argument in arguments if isinstance(arguments, list) else []:
        if isinstance(argument, dict):
            flat_config = {**_flatten_config(argument), **flat_config}
        elif argument is not None:
            raise ConfigError("init_args", f"{argument!r:.60} has no name; only named arguments are read")
    if "init_class" in flat_config and "architectures" not in flat_config:
        flat_config["architectures"] = [flat_config["init_class"]]
    return flat_config


def _import_layout(family: str) -> Layout:
    """Return the PaddleNLP layout of a model family, such as ``reformer``."""
    return part(family, "paddlenlp_layout").LAYOUT


def _select_strings(value: Any) -> Iterator[str]:
    """Yield the strings of a list; none if the value is not a list."""
    yield from (item for item in (value if isinstance(value, list) else []) if isinstance(item, str))


def _rename_parameter(name: str, layout: Layout, roles: Mapping[str, str], *, has_prefix: bool) -> str:
    """Return Hugging Face's name of a parameter.

    Args:
        name: PaddleNLP's name.
        layout: layout of the family.
        has_prefix: whether the checkpoint stores the body's parameters with PaddleNLP's prefix.
        roles: role of each parameter by Hugging Face's name.
    """
    if has_prefix:
        is_body = name.startswith(layout.paddlenlp_prefix)
        return layout.prefix + name.removeprefix(layout.paddlenlp_prefix) if is_body else name
    return name if name in roles else layout.prefix + name


def as_floats(array: np.ndarray) -> np.ndarray:
    """Return the values of an array as floats. Paddle stores bfloat16, the upper half of a float32, as uint16."""
    if array.dtype == np.uint16 or array.dtype.newbyteorder("=") == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(array.dtype.newbyteorder("="), copy=False)
