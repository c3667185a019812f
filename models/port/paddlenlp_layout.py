"""Convert PaddleNLP's models to Hugging Face's configuration keys and parameter names.

PaddleNLP keeps a linear map's weight as (in, out), Hugging Face as (out, in). ``FAMILY/weights.py`` says which weights
are linear maps, ``FAMILY/paddlenlp_layout.py`` what else differs. The layouts are those of ``save_pretrained`` of
PaddleNLP 2 (``model_config.json``, with ``init_args``) and 3 (``config.json``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from models.families import having, listed, part
from models.port.schema import ConfigError
from models.port.weights import WeightsError, to_paddle

#: Keys on how a model runs, not what it computes.
INERT = frozenset({
    "attn_impl", "dtype", "fuse_attention_ffn", "fuse_attention_qkv", "init_class", "model_type", "name_or_path",
    "paddle_dtype", "paddlenlp_version", "use_cache", "use_flash_attention",
})  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """PaddleNLP's layout of a family: ``LAYOUT`` of ``models/FAMILY/paddlenlp_layout.py``.

    Attributes:
        theirs, ours: prefix of the body in PaddleNLP and in Hugging Face.
        renamed: configuration keys that have another name here.
        defaults: PaddleNLP's, of keys for which Hugging Face has another default.
        roles: of parameters that have more names in PaddleNLP than here.
    """

    theirs: str
    ours: str
    renamed: Mapping[str, str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    roles: Mapping[str, str] = field(default_factory=dict)

    def settle(self, keys: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Add keys that follow from the arrays; raise :class:`ConfigError` for those that the port lacks."""

    def is_constant(self, name: str) -> bool:
        """Whether this is a computed table or mask value, not a parameter."""
        return False

    def check_constants(self, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
        """Check that stored constants equal those computed here, so that no learned value is dropped. Raises
        WeightsError if one does not."""


def family_of(stored: Mapping[str, Any]) -> str:
    """Return the family of a PaddleNLP configuration. Raises ConfigError if it is none, or of another model."""
    flat = _flattened(stored)
    names = [flat.get("init_class"), *_texts(flat.get("architectures"))]
    classes = [name for name in names if isinstance(name, str)]
    known = having("paddlenlp_layout")
    for family in known:
        if flat.get("model_type") == family or any(name.lower().startswith(family) for name in classes):
            return family
    said = flat.get("model_type") or next(iter(classes), None)
    what = f"describes {said!r:.60}" if said else "does not say of which model it is"
    raise ConfigError("architectures", f"{what}; {listed(known)} are read")


def hf_config(stored: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the same model's ``config.json`` in Hugging Face's form.

    Args:
        stored: PaddleNLP's ``config.json`` or ``model_config.json``.
        arrays: the checkpoint's, by PaddleNLP's names.

    Raises:
        ConfigError: another kind of model, an unknown key, or a value that the port lacks.
    """
    family = family_of(stored)
    flat = _flattened(stored)
    layout = _layout(family)
    keys = dict(layout.defaults)
    for key, value in flat.items():
        if key not in INERT:
            keys[layout.renamed.get(key, key)] = value
    layout.settle(keys, arrays)
    if keys.get("id2label"):
        keys.pop("num_labels", None)
    schema = part(family, "schema")
    resolved = schema.resolve(keys)
    written = {key: resolved[key] for key in schema.DEFAULTS if key in keys}
    if "id2label" in written:
        written["id2label"] = {str(index): name for index, name in resolved["id2label"].items()}
    return {**written, "model_type": family, "architectures": list(_texts(flat.get("architectures")))}


def hf_tensors(arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield each parameter's Hugging Face name and value, one at a time; bfloat16 becomes float32.

    Args:
        arrays: by PaddleNLP's names.
        config: of :func:`hf_config`.

    Raises:
        WeightsError: a name that no head of the family has, or a missing one of the body.
    """
    family = config["model_type"]
    weights = part(family, "weights")
    resolved = part(family, "schema").resolve(config)
    layout = _layout(family)
    theirs, ours = layout.theirs, layout.ours
    roles = {
        name: parameter.role for head in weights.HEADS for name, parameter in weights.parameters(resolved, head).items()
    }
    roles.update(layout.roles)
    prefix = theirs if any(name.startswith(theirs) for name in arrays) else ""
    renamed = {_renamed(name, prefix, ours, roles): name for name in arrays if not layout.is_constant(name)}
    unknown = [original for name, original in renamed.items() if name not in roles]
    missing = [name for name in roles if name.startswith(ours) and name not in renamed]
    if unknown or missing:
        found = f"{len(unknown)} unknown ({', '.join(unknown[:3])})" if unknown else ""
        lacking = f"{len(missing)} missing ({', '.join(missing[:3])})" if missing else ""
        said = " and ".join(filter(None, (found, lacking)))
        raise WeightsError(f"not PaddleNLP's layout of this {family} model: of its parameters {said}")
    layout.check_constants(arrays, resolved)
    for name, original in renamed.items():
        yield name, np.ascontiguousarray(to_paddle(numbers(arrays[original]), roles[name]))


def _flattened(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Flatten the keys of either form. In PaddleNLP 2, a head's ``init_args`` hold its body's."""
    flat = {key: value for key, value in stored.items() if key != "init_args"}
    arguments = stored.get("init_args")
    for inner in arguments if isinstance(arguments, list) else []:
        if isinstance(inner, dict):
            flat = {**_flattened(inner), **flat}
        elif inner is not None:
            raise ConfigError("init_args", f"{inner!r:.60} has no name; only named arguments are read")
    if "init_class" in flat and "architectures" not in flat:
        flat["architectures"] = [flat["init_class"]]
    return flat


def _layout(family: str) -> Layout:
    return part(family, "paddlenlp_layout").LAYOUT


def _texts(names: Any) -> Iterator[str]:
    yield from (name for name in (names if isinstance(names, list) else []) if isinstance(name, str))


def _renamed(name: str, theirs: str, ours: str, roles: Mapping[str, str]) -> str:
    if theirs:
        return ours + name[len(theirs) :] if name.startswith(theirs) else name
    return name if name in roles else ours + name


def numbers(value: np.ndarray) -> np.ndarray:
    """Return the values as floats. Paddle stores bfloat16, the upper half of a float32, as uint16."""
    if value.dtype == np.uint16 or value.dtype.newbyteorder("=") == np.uint16:
        return (value.astype(np.uint32) << 16).view(np.float32)
    return value.astype(value.dtype.newbyteorder("="), copy=False)
