"""Convert PaddleNLP's Reformer and CTRL to Hugging Face's configuration keys and parameter names.

PaddleNLP keeps a linear map's weight as (in, out), Hugging Face as (out, in); ``FAMILY/weights.py`` says which weights
are linear maps. The layouts are those of ``save_pretrained`` of PaddleNLP 2 (``model_config.json``, with
``init_args``) and 3 (``config.json``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from models.families import FAMILIES, part
from models.port.schema import ConfigError
from models.port.weights import WeightsError, to_paddle

#: Prefix of each family's body in PaddleNLP and in Hugging Face.
BODIES = {"reformer": ("reformer.", "reformer."), "ctrl": ("ctrl.", "transformer.")}

#: PaddleNLP's configuration keys that have another name here.
RENAMED = {
    "reformer": {"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers", "num_classes": "num_labels"},
    "ctrl": {
        "max_position_embeddings": "n_positions", "hidden_size": "n_embd", "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer", "intermediate_size": "dff", "num_classes": "num_labels",
    },
}  # fmt: skip

#: PaddleNLP's defaults of keys for which Hugging Face has another default.
DEFAULTS: dict[str, dict[str, Any]] = {
    "reformer": {
        "attention_head_size": 128,
        "attn_layers": ["local", "local", "lsh", "local"] * 3,
        "axial_pos_embds_dim": [256, 768],
        "axial_pos_shape": [128, 512],
        "feed_forward_size": 4096,
        "hidden_dropout_prob": 0.2,
        "hidden_size": 1024,
        "is_decoder": True,
        "local_attention_probs_dropout_prob": 0.2,
        "local_attn_chunk_length": 128,
        "lsh_attention_probs_dropout_prob": 0.1,
        "lsh_attn_chunk_length": 256,
        "max_position_embeddings": 65536,
        "num_attention_heads": 8,
        "num_buckets": 512,
        "num_hashes": 4,
        "vocab_size": 258,
    },
    "ctrl": {},
}

#: Keys on how a model runs, not what it computes.
INERT = frozenset({
    "attn_impl", "dtype", "fuse_attention_ffn", "fuse_attention_qkv", "init_class", "model_type", "name_or_path",
    "paddle_dtype", "paddlenlp_version", "use_cache", "use_flash_attention",
})  # fmt: skip

#: Tolerance for float32 sines of positions up to 50,000 from any library: such an angle is off by 0.003.
NEAR_TABLE = 0.02


def family_of(stored: Mapping[str, Any]) -> str:
    """Return the family of a PaddleNLP configuration.

    Raises:
        ConfigError: none, or another model.
    """
    flat = _flattened(stored)
    names = [flat.get("init_class"), *_texts(flat.get("architectures"))]
    classes = [name for name in names if isinstance(name, str)]
    for family in FAMILIES:
        if flat.get("model_type") == family or any(name.lower().startswith(family) for name in classes):
            return family
    said = flat.get("model_type") or next(iter(classes), None)
    what = f"describes {said!r:.60}" if said else "does not say of which model it is"
    raise ConfigError("architectures", f"{what}; Reformer and CTRL are read")


def hf_config(stored: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the same model's ``config.json`` in Hugging Face's form.

    Args:
        stored: PaddleNLP's ``config.json`` or ``model_config.json``.
        arrays: the checkpoint's, by PaddleNLP's names; they give CTRL's number of positions if no key does.

    Raises:
        ConfigError: another kind of model, an unknown key, or a value that the port lacks.
    """
    family = family_of(stored)
    flat = _flattened(stored)
    keys = dict(DEFAULTS[family])
    for key, value in flat.items():
        if key not in INERT:
            keys[RENAMED[family].get(key, key)] = value
    if family == "reformer":
        _check_layers(keys)
    elif "n_positions" not in keys and (table := _positions(arrays)) is not None:
        keys["n_positions"] = len(table)
    if family == "ctrl" and keys.get("layer_norm_epsilon", 1e-6) != 1e-6:
        given = keys["layer_norm_epsilon"]
        raise ConfigError("layer_norm_epsilon", f"{given} is that of every layer in PaddleNLP; only 1e-06 is supported")
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
    theirs, ours = BODIES[family]
    roles = {
        name: parameter.role for head in weights.HEADS for name, parameter in weights.parameters(resolved, head).items()
    }
    roles["lm_head.decoder.bias"] = "bias"
    if family == "ctrl":
        roles["lm_head.weight"] = "embedding"  # also where it is tied
    whole = any(name.startswith(theirs) for name in arrays)
    renamed = {_renamed(name, theirs if whole else "", ours, roles): name for name in arrays if not _constant(name)}
    unknown = [original for name, original in renamed.items() if name not in roles]
    missing = [name for name in roles if name.startswith(ours) and name not in renamed]
    if unknown or missing:
        found = f"{len(unknown)} unknown ({', '.join(unknown[:3])})" if unknown else ""
        lacking = f"{len(missing)} missing ({', '.join(missing[:3])})" if missing else ""
        said = " and ".join(filter(None, (found, lacking)))
        raise WeightsError(f"not PaddleNLP's layout of this {family} model: of its parameters {said}")
    _check_constants(family, arrays, resolved)
    for name, original in renamed.items():
        yield name, np.ascontiguousarray(to_paddle(_numbers(arrays[original]), roles[name]))


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


def _texts(names: Any) -> Iterator[str]:
    yield from (name for name in (names if isinstance(names, list) else []) if isinstance(name, str))


def _check_layers(keys: Mapping[str, Any]) -> None:
    """Check that ``attn_layers``, which counts layers here, agrees with PaddleNLP's ``num_hidden_layers``."""
    kinds, count = keys["attn_layers"], keys.get("num_hidden_layers")
    if count is not None and isinstance(kinds, list) and len(kinds) != count:
        raise ConfigError("num_hidden_layers", f"{count} does not fit the {len(kinds)} entries of attn_layers")


def _constant(name: str) -> bool:
    """Whether this is a computed table or mask value, not a parameter."""
    last = name.rsplit(".", 1)[-1]
    return name in ("ctrl.pos_encoding.weight", "pos_encoding.weight") or last in (
        "mask_value_float16", "mask_value_float32", "self_mask_value_float16", "self_mask_value_float32",
    )  # fmt: skip


def _renamed(name: str, theirs: str, ours: str, roles: Mapping[str, str]) -> str:
    if theirs:
        return ours + name[len(theirs) :] if name.startswith(theirs) else name
    return name if name in roles else ours + name


def _positions(arrays: Mapping[str, np.ndarray]) -> np.ndarray | None:
    return next((arrays[name] for name in ("ctrl.pos_encoding.weight", "pos_encoding.weight") if name in arrays), None)


def _check_constants(family: str, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> None:
    """Check that stored constants equal those computed here, so that no learned value is dropped."""
    if family == "reformer":
        known = part(family, "weights").MASK_CONSTANTS
        for name, value in arrays.items():
            constant = known.get(name.rsplit(".", 1)[-1])
            if constant is not None and not np.allclose(_numbers(value), constant, rtol=1e-2):
                raise WeightsError(f"{name}: it is not the {constant} of the model")
        return
    table = _positions(arrays)
    if table is None:
        return
    rates = 10000.0 ** (-np.arange(0, config["n_embd"], 2) / config["n_embd"])
    wanted = (config["n_positions"], config["n_embd"])
    if table.shape != wanted:
        raise WeightsError(f"pos_encoding.weight: shape {table.shape}, but the configuration wants {wanted}")
    for start in range(0, wanted[0], 1000):  # in parts: the table of 50,000 positions has 64 million numbers
        rows = _numbers(table[start : start + 1000])
        angles = np.arange(start, start + len(rows))[:, None] * rates
        wanted_rows = np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
        if not np.allclose(rows, wanted_rows, rtol=0, atol=NEAR_TABLE):
            raise WeightsError("pos_encoding.weight: these are no sines and cosines of positions, which the port has")


def _numbers(value: np.ndarray) -> np.ndarray:
    """Return the values as floats. Paddle stores bfloat16, the upper half of a float32, as uint16."""
    if value.dtype == np.uint16 or value.dtype.newbyteorder("=") == np.uint16:
        return (value.astype(np.uint32) << 16).view(np.float32)
    return value.astype(value.dtype.newbyteorder("="), copy=False)
