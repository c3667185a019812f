"""The numbers of tokens that a Reformer trains on and evaluates, which depend on its position table and its chunks."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from models.port.lengths import LENGTH, Fit, LengthError
from models.port.schema import MAX_INTEGER
from models.reformer.positions import cut_config
from models.reformer.schema import check_training_length, chunk_lengths, num_buckets

#: Keys of a new model that follow from the length unless they are set.
FOLLOWING_KEYS = ("axial_pos_shape", "max_position_embeddings")
CHUNK_SIZE_KEYS = ("chunk_size_feed_forward", "chunk_size_lm_head")


def fit(config: Mapping[str, Any], num_tokens: int, set_keys: Collection[str] | None = None) -> Fit:
    """Return the smallest training length for texts of ``num_tokens`` tokens, with the keys that follow from it.

    It is a multiple of the chunk sizes and of the columns of the position table, whose first rows are used. It
    is also a multiple of every chunk length, unless it fits into the shortest chunk.

    Args:
        config: resolved configuration (``schema.resolve``).
        num_tokens: required number of tokens, at least 1.
        set_keys: keys that are set for a new model; the other :data:`FOLLOWING_KEYS` are chosen. None for a stored
            model, whose shapes are fixed.

    Raises:
        LengthError: the model has too few positions for such a length; the error has suggestions.
    """
    free_keys = _free_keys(set_keys)
    length, num_positions = min_training_length(config, num_tokens, free_keys), max_positions(config, free_keys)
    if length > num_positions:
        is_limited_by_table = _has_fixed_table(config, free_keys) and _table_size(config) == num_positions
        key = "axial_pos_shape" if is_limited_by_table else "max_position_embeddings"
        problem = _describe_problem(config, num_tokens, length, num_positions, key)
        raise LengthError(key, problem, list(_suggestions(config, num_tokens, set_keys)))
    keys = _choose_keys(config, length, free_keys)
    full_config = {**config, **keys}
    cut = cut_config(full_config, length) if config["axial_pos_embds"] and _table_size(full_config) != length else {}
    check_training_length({**full_config, **cut}, length)
    return Fit(
        length=length,
        keys=keys,
        cut=cut,
        padding=_describe_padding(config, num_tokens, length, free_keys) if length > num_tokens else "",
        positions=_describe_positions(full_config, length, is_stored=set_keys is None) if cut else "",
    )


def min_training_length(config: Mapping[str, Any], num_tokens: int, free_keys: Collection[str] = ()) -> int:
    """Return the smallest length of at least ``num_tokens`` that satisfies all divisors.

    The number of positions is not checked.

    Args:
        config: resolved configuration.
        num_tokens: required number of tokens.
        free_keys: keys whose values are not chosen yet and do not limit the length.
    """
    unit = math.lcm(*_length_divisors(config, free_keys).values())
    length = _round_up(num_tokens, unit)
    if length <= min(chunk_lengths(config)):
        return length
    return _round_up(num_tokens, math.lcm(unit, *chunk_lengths(config)))


def evaluation_length(config: Mapping[str, Any], length: int) -> int:
    """Return the padded length in evaluation of a text of ``length`` tokens.

    In evaluation, the columns of the position table do not limit the length.
    """
    return min_training_length({**config, "axial_pos_embds": False}, length)


def equivalent_length(config: Mapping[str, Any], length: int, full_length: int) -> int:
    """Return the smallest padded length with the same results in evaluation as ``full_length``.

    All positions beyond the text are padding, which no position attends to. But the chunks form a ring, whose first
    chunks attend to the last chunks, and LSH sorts padding to the end of each round. The text therefore needs as much
    padding as a chunk attends to on one side. With less, the last tokens of the text would be in the place of padding.

    Args:
        config: resolved configuration.
        length: number of tokens of the longest text in the batch.
        full_length: number of tokens of each text with its padding.
    """
    kinds = set(config["attn_layers"])
    if "lsh" in kinds and config["num_buckets"] is None:  # the number of buckets follows from the length
        return full_length
    sides = ("num_chunks_before", "num_chunks_after")
    attended_lengths = [
        config[f"{kind}_attn_chunk_length"] * max(1, *(config[f"{kind}_{side}"] for side in sides)) for kind in kinds
    ]
    return min(full_length, evaluation_length(config, length + max(attended_lengths)))


def max_evaluation_length(config: Mapping[str, Any]) -> int:
    """Return the maximum number of tokens of a text in evaluation, padded to :func:`evaluation_length`."""
    return _max_length_within({**config, "axial_pos_embds": False}, max_positions(config), ())


def stretch_unit(config: Mapping[str, Any], num_chunks: int) -> int:
    """Return the smallest length that a comparison may cut texts to; its multiples are allowed, too.

    Args:
        config: resolved configuration.
        num_chunks: required number of attention chunks of each kind.
    """
    without_chunk_sizes = {**config, **dict.fromkeys(CHUNK_SIZE_KEYS, 0)}
    return min_training_length(without_chunk_sizes, num_chunks * max(chunk_lengths(config)))


def stretch_config(config: Mapping[str, Any], length: int, full_length: int) -> dict[str, Any]:
    """Return the configuration keys that change for the same model on the first tokens of each text.

    They are a cut position table; chunk sizes that divide the length, which do not change the result; and the number of
    LSH buckets for the full length, if it follows from the length.

    Args:
        config: resolved configuration.
        length: number of the first tokens.
        full_length: number of all tokens of each text.
    """
    keys = cut_config(config, length) if config["axial_pos_embds"] else {}
    for key in CHUNK_SIZE_KEYS:
        if chunk_size := min(config[key], length):
            keys[key] = length // 2 if length % chunk_size else chunk_size
    if "lsh" in config["attn_layers"]:
        keys["num_buckets"] = num_buckets(config, full_length)
    return keys


def max_positions(config: Mapping[str, Any], free_keys: Collection[str] = ()) -> int:
    """Return the number of the model's positions.

    Args:
        config: resolved configuration.
        free_keys: keys whose values are not chosen yet and do not limit the number.
    """
    limits = [MAX_INTEGER]
    if _has_fixed_table(config, free_keys):
        limits.append(_table_size(config))
    if "max_position_embeddings" not in free_keys:
        limits.append(config["max_position_embeddings"])
    return min(limits)


def near_square(length: int) -> list[int]:
    """Return the two factors of ``length`` that are nearest to each other, the smaller factor first."""
    small = next(factor for factor in range(math.isqrt(length), 0, -1) if length % factor == 0)
    return [small, length // small]


def _free_keys(set_keys: Collection[str] | None) -> set[str]:
    """Return the keys that may be chosen; none for a stored model (``set_keys`` is None)."""
    return set() if set_keys is None else set(FOLLOWING_KEYS) - set(set_keys)


def _has_fixed_table(config: Mapping[str, Any], free_keys: Collection[str]) -> bool:
    """Return whether the model has a position table whose shape may not be chosen."""
    return config["axial_pos_embds"] and "axial_pos_shape" not in free_keys


def _table_size(config: Mapping[str, Any]) -> int:
    """Return the number of positions in the position table."""
    return math.prod(config["axial_pos_shape"])


def _round_up(number: int, unit: int) -> int:
    """Return the smallest multiple of ``unit`` that is at least ``number``."""
    return -(-number // unit) * unit


def _length_divisors(config: Mapping[str, Any], free_keys: Collection[str]) -> dict[str, int]:
    """Return the numbers that must divide every training length, each with its description."""
    divisors = {f"{key} {config[key]}": config[key] for key in CHUNK_SIZE_KEYS if config[key]}
    if _has_fixed_table(config, free_keys):
        columns = config["axial_pos_shape"][1]
        divisors = {f"the {columns} columns of axial_pos_shape": columns, **divisors}
    return divisors


def _all_divisors(config: Mapping[str, Any], free_keys: Collection[str]) -> dict[str, int]:
    """Return the numbers that must divide a training length beyond the shortest chunk, each with its description."""
    lengths = {length: None for length in chunk_lengths(config)}
    return {
        **_length_divisors(config, free_keys),
        **{f"the attention chunks of {length}": length for length in lengths},
    }


def _choose_keys(config: Mapping[str, Any], length: int, free_keys: Collection[str]) -> dict[str, Any]:
    """Return the values of the free keys for a training length.

    Args:
        config: resolved configuration (``schema.resolve``).
        length: number of tokens of a training text.
        free_keys: elements of :data:`FOLLOWING_KEYS` that the length may change.
    """
    keys: dict[str, Any] = {}
    if "max_position_embeddings" in free_keys:
        keys["max_position_embeddings"] = max(config["max_position_embeddings"], length)
    if "axial_pos_shape" in free_keys and config["axial_pos_embds"]:
        keys["axial_pos_shape"] = near_square(length)
    return keys


# -- messages -------------------------------------------------------------------------------------------------------


def _describe_padding(config: Mapping[str, Any], num_tokens: int, length: int, free_keys: Collection[str]) -> str:
    """Return the note that texts of ``num_tokens`` tokens are padded to ``length``, with the reasons.

    Args:
        config: resolved configuration (``schema.resolve``).
        num_tokens: number of tokens of the longest text.
        length: training length, the number of tokens after padding.
        free_keys: elements of :data:`FOLLOWING_KEYS` that the length may change.
    """
    reasons = [
        description
        for description, unit in _all_divisors(config, free_keys).items()
        if num_tokens % unit and length % unit == 0
    ]
    return f"texts of up to {num_tokens:,} tokens are padded to {length:,}: a multiple of {_join_words(reasons)}"


def _describe_positions(full_config: Mapping[str, Any], length: int, *, is_stored: bool) -> str:
    """Return the note that only the first rows of the position table train.

    Args:
        full_config: configuration with the whole table.
        length: training length.
        is_stored: whether the weights are a checkpoint's.
    """
    rows, columns = full_config["axial_pos_shape"]
    return (
        f"positions: the first {length // columns:,} of {rows:,} rows of the "
        f"{'checkpoint' if is_stored else 'model'}'s table ({length:,} of {rows * columns:,} tokens)"
    )


def _describe_problem(config: Mapping[str, Any], num_tokens: int, length: int, num_positions: int, key: str) -> str:
    """Return the message that the model has too few positions.

    Args:
        config: resolved configuration.
        num_tokens: required number of tokens.
        length: smallest training length of at least ``num_tokens``.
        num_positions: number of the model's positions.
        key: configuration key that limits the positions.
    """
    limit = f"are more than the {num_positions:,} positions of {key} "
    limit += str(config[key] if num_positions < MAX_INTEGER else num_positions)
    if num_tokens > num_positions:
        return f"{num_tokens:,} tokens {limit}"
    padding = f"padded to {length:,}, " if length > num_tokens else ""
    divisors = _join_words([description for description, unit in _all_divisors(config, ()).items() if unit > 1])
    return f"{num_tokens:,} tokens, {padding}a multiple of {divisors}, {limit}"


def _join_words(words: list[str]) -> str:
    """Return the words joined by commas and "and"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# -- suggestions ----------------------------------------------------------------------------------------------------


def _suggestions(
    config: Mapping[str, Any], num_tokens: int, set_keys: Collection[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield changes of the length or the configuration that allow a training length. Each was tried.

    Args:
        config: resolved configuration that allows no length.
        num_tokens: required number of tokens.
        set_keys: keys that are set for a new model; None for a stored model.
    """
    successful: list[dict[str, Any]] = []
    for change in _candidate_changes(config, num_tokens, set_keys):
        is_simplest = not any(simpler.items() <= change.items() for simpler in successful)
        if is_simplest and _allows_length(config, num_tokens, set_keys, change):
            successful.append(change)
    if successful:
        yield from successful
        return
    # No length is possible. Chunks as long as a row divide any number of rows, and no weight depends on their length.
    columns = config["axial_pos_shape"][1] if config["axial_pos_embds"] else 1
    no_chunk_sizes = {key: 0 for key in CHUNK_SIZE_KEYS if config[key]}
    chunks = {f"{kind}_attn_chunk_length": columns for kind in ("local", "lsh") if kind in config["attn_layers"]}
    # With a position table, max_position_embeddings is only a limit, and no weight has this size.
    limit = {"max_position_embeddings": min(_table_size(config), MAX_INTEGER)} if config["axial_pos_embds"] else {}
    for change in (no_chunk_sizes, chunks, limit, {**no_chunk_sizes, **chunks}, {**no_chunk_sizes, **chunks, **limit}):
        if _allows_length(config, num_tokens, set_keys, change):
            yield change
            return
        if max_length := _max_training_length({**config, **change}, _free_keys(set_keys)):
            yield {LENGTH: max_length, **change}
            return


def _candidate_changes(
    config: Mapping[str, Any], num_tokens: int, set_keys: Collection[str] | None
) -> Iterator[dict[str, Any]]:
    """Yield single changes that may allow a training length: fewer tokens, or more positions.

    Args:
        config: resolved configuration (``schema.resolve``).
        num_tokens: required number of tokens.
        set_keys: keys that are set for a new model; None for a stored model, whose shapes are fixed.
    """
    free_keys = _free_keys(set_keys)
    if max_length := _max_training_length(config, free_keys):
        yield {LENGTH: max_length}
    length = min_training_length(config, num_tokens, FOLLOWING_KEYS)
    if config["axial_pos_embds"] and set_keys is not None and length <= MAX_INTEGER:
        yield {"axial_pos_shape": near_square(length)}
        yield {"axial_pos_shape": near_square(length), "max_position_embeddings": length}
    # In a stored model without axial positions, the key is the number of rows of the table, which cannot change.
    if set_keys is not None or config["axial_pos_embds"]:
        yield {"max_position_embeddings": min_training_length(config, num_tokens, free_keys)}


def _max_training_length(config: Mapping[str, Any], free_keys: Collection[str]) -> int:
    """Return the maximum training length, or 0 if no length is possible."""
    return _max_length_within(config, max_positions(config, free_keys), free_keys)


def _max_length_within(config: Mapping[str, Any], num_positions: int, free_keys: Collection[str]) -> int:
    """Return the maximum length of at most ``num_positions`` that satisfies all divisors, or 0.

    Args:
        config: resolved configuration (``schema.resolve``).
        num_positions: upper limit of the length.
        free_keys: elements of :data:`FOLLOWING_KEYS` that the length may change.
    """
    unit = math.lcm(*_length_divisors(config, free_keys).values())
    chunk_unit = math.lcm(unit, *chunk_lengths(config))
    max_chunked_length = num_positions // chunk_unit * chunk_unit
    max_single_chunk = min(num_positions, min(chunk_lengths(config))) // unit * unit
    return max(max_chunked_length, max_single_chunk)


def _allows_length(
    config: Mapping[str, Any], num_tokens: int, set_keys: Collection[str] | None, change: Mapping[str, Any]
) -> bool:
    """Return whether a training length is possible after a change of the length or the configuration.

    Args:
        config: resolved configuration.
        num_tokens: required number of tokens.
        set_keys: keys that are set for a new model; None for a stored model.
        change: keys of the configuration to change.
    """
    changed_config = {**config, **{key: value for key, value in change.items() if key != LENGTH}}
    free_keys = _free_keys(None if set_keys is None else {*set_keys, *change})
    length = min_training_length(changed_config, change.get(LENGTH, num_tokens), free_keys)
    return length <= max_positions(changed_config, free_keys)
