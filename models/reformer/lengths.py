"""The number of tokens a Reformer trains on: position table, chunks and limits solved for a wanted length."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from models.port.lengths import LENGTH, Fit, LengthError
from models.port.schema import MOST
from models.reformer.positions import cut_config
from models.reformer.schema import check_training_length, chunk_lengths, num_buckets

#: Keys that follow from the length of new weights, unless they are set.
FOLLOWING = ("axial_pos_shape", "max_position_embeddings")
CHUNK_SIZES = ("chunk_size_feed_forward", "chunk_size_lm_head")


def fit(config: Mapping[str, Any], wanted: int, given: Collection[str] | None = None) -> Fit:
    """Find the least length of at least ``wanted`` tokens that the model trains on, and its position shape there.

    It is a multiple of the chunk sizes, of the columns of the position table (it uses the first rows), and of every
    chunk length unless it fits into the shortest chunk.

    Args:
        config: a resolved configuration (``schema.resolve``).
        wanted: tokens, at least 1.
        given: the keys that were set for new weights; the others of :data:`FOLLOWING` are chosen. None for stored
            weights, whose shapes are fixed.

    Raises:
        LengthError: no such length is within the model's positions; says what to set.
    """
    free = _free(config, given)
    length, most = least_length(config, wanted, free), most_positions(config, free)
    if length > most:
        key = "axial_pos_shape" if _has_table(config, free) and _whole(config) == most else "max_position_embeddings"
        raise LengthError(key, _problem(config, wanted, length, most, key), list(_ways_out(config, wanted, given)))
    keys = _chosen(config, length, free)
    whole = {**config, **keys}
    cut = cut_config(whole, length) if config["axial_pos_embds"] and _whole(whole) != length else {}
    check_training_length({**whole, **cut}, length)
    return Fit(
        length=length,
        keys=keys,
        cut=cut,
        padding=_padding(config, wanted, length, free) if length > wanted else "",
        positions=_positions(whole, length, given is None) if cut else "",
    )


def least_length(config: Mapping[str, Any], wanted: int, free: Collection[str] = ()) -> int:
    """Return the least length >= ``wanted`` that chunks and columns divide, whatever the number of positions. Keys that
    are ``free``, not yet chosen, constrain nothing."""
    unit = math.lcm(*_units(config, free).values())
    length = _multiple(unit, wanted)
    if length <= min(chunk_lengths(config)):
        return length
    return _multiple(math.lcm(unit, *chunk_lengths(config)), wanted)


def evaluated(config: Mapping[str, Any], length: int) -> int:
    """The least length >= ``length`` in evaluation, where the position table's columns constrain nothing."""
    return least_length({**config, "axial_pos_embds": False}, length)


def read_alike(config: Mapping[str, Any], length: int, whole: int) -> int:
    """Return the least padded length that, in evaluation, gives a text of ``length`` tokens the result that ``whole``
    gives: all beyond the text is padding, which is not attended to.

    The chunks form a ring, in which the first ones see the last; and LSH sorts padding last in each round. So it takes
    as much padding as a chunk sees to one side; with less, the text's last tokens would be seen in its place.
    """
    kinds = set(config["attn_layers"])
    if "lsh" in kinds and config["num_buckets"] is None:  # it follows from the length
        return whole
    sides = ("num_chunks_before", "num_chunks_after")
    seen = [
        config[f"{kind}_attn_chunk_length"] * max(1, *(config[f"{kind}_{side}"] for side in sides)) for kind in kinds
    ]
    return min(whole, evaluated(config, length + max(seen)))


def longest(config: Mapping[str, Any]) -> int:
    """Most tokens of a text in evaluation, where it is padded to :func:`evaluated` ones."""
    return _longest_within({**config, "axial_pos_embds": False}, most_positions(config), ())


def stretch_unit(config: Mapping[str, Any], chunks: int) -> int:
    """The least length of a stretch (:func:`stretched`) with this many chunks of each kind; its multiples fit, too."""
    at_once = {**config, **dict.fromkeys(CHUNK_SIZES, 0)}
    return least_length(at_once, chunks * max(chunk_lengths(config)))


def stretched(config: Mapping[str, Any], length: int, whole: int) -> dict[str, Any]:
    """Return the keys that change for the same model on the first ``length`` of ``whole`` tokens of each text: a cut
    position table; chunk sizes of feed-forward and scores that divide the length, which do not change the result; and
    the bucket count of the whole, if it follows from the length."""
    keys = cut_config(config, length) if config["axial_pos_embds"] else {}
    for key in CHUNK_SIZES:
        if chunk := min(config[key], length):
            keys[key] = length // 2 if length % chunk else chunk
    if "lsh" in config["attn_layers"]:
        keys["num_buckets"] = num_buckets(config, whole)
    return keys


def most_positions(config: Mapping[str, Any], free: Collection[str] = ()) -> int:
    """Number of the model's positions."""
    limits = [MOST]
    if _has_table(config, free):
        limits.append(_whole(config))
    if "max_position_embeddings" not in free:
        limits.append(config["max_position_embeddings"])
    return min(limits)


def near_square(length: int) -> list[int]:
    """Return the two factors of ``length`` nearest to each other, the smaller first."""
    small = next(factor for factor in range(math.isqrt(length), 0, -1) if length % factor == 0)
    return [small, length // small]


def _free(config: Mapping[str, Any], given: Collection[str] | None) -> set[str]:
    return set() if given is None else set(FOLLOWING) - set(given)


def _has_table(config: Mapping[str, Any], free: Collection[str]) -> bool:
    return config["axial_pos_embds"] and "axial_pos_shape" not in free


def _whole(config: Mapping[str, Any]) -> int:
    return math.prod(config["axial_pos_shape"])


def _multiple(unit: int, least: int) -> int:
    return -(-least // unit) * unit


def _units(config: Mapping[str, Any], free: Collection[str]) -> dict[str, int]:
    """What must divide every length, in words -> tokens."""
    units = {f"{key} {config[key]}": config[key] for key in CHUNK_SIZES if config[key]}
    if _has_table(config, free):
        columns = config["axial_pos_shape"][1]
        units = {f"the {columns} columns of axial_pos_shape": columns, **units}
    return units


def _demands(config: Mapping[str, Any], free: Collection[str]) -> dict[str, int]:
    """As :func:`_units`, plus the chunk lengths, which divide lengths beyond the shortest one."""
    chunks = {length: None for length in chunk_lengths(config)}
    return {**_units(config, free), **{f"the attention chunks of {length}": length for length in chunks}}


def _chosen(config: Mapping[str, Any], length: int, free: Collection[str]) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    if "max_position_embeddings" in free:
        keys["max_position_embeddings"] = max(config["max_position_embeddings"], length)
    if "axial_pos_shape" in free and config["axial_pos_embds"]:
        keys["axial_pos_shape"] = near_square(length)
    return keys


# -- in words -------------------------------------------------------------------------------------------------------


def _padding(config: Mapping[str, Any], wanted: int, length: int, free: Collection[str]) -> str:
    whys = [what for what, unit in _demands(config, free).items() if wanted % unit and length % unit == 0]
    return f"texts of up to {wanted:,} tokens are padded to {length:,}: a multiple of {_listed(whys)}"


def _positions(whole: Mapping[str, Any], length: int, stored: bool) -> str:
    rows, columns = whole["axial_pos_shape"]
    return (
        f"positions: the first {length // columns:,} of {rows:,} rows of the {'checkpoint' if stored else 'model'}'s "
        f"table ({length:,} of {rows * columns:,} tokens)"
    )


def _problem(config: Mapping[str, Any], wanted: int, length: int, most: int, key: str) -> str:
    value = config[key] if most < MOST else most
    padded = f"padded to {length:,}, " if length > wanted else ""
    if wanted > most:
        return f"{wanted:,} tokens are more than the {most:,} positions of {key} {value}"
    demands = _listed([what for what, unit in _demands(config, ()).items() if unit > 1])
    return f"{wanted:,} tokens, {padded}a multiple of {demands}, are more than the {most:,} positions of {key} {value}"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


# -- ways out -------------------------------------------------------------------------------------------------------


def _ways_out(config: Mapping[str, Any], wanted: int, given: Collection[str] | None) -> Iterator[dict[str, Any]]:
    """Yield settings with which a length fits; each is tried first."""
    found: list[dict[str, Any]] = []
    for way in _candidates(config, wanted, given):
        if not any(simpler.items() <= way.items() for simpler in found) and _fits(config, wanted, given, way):
            found.append(way)
    if found:
        yield from found
        return
    # No length fits. Chunks as long as a row divide any number of rows, and no weight depends on their length.
    columns = config["axial_pos_shape"][1] if config["axial_pos_embds"] else 1
    at_once = {key: 0 for key in CHUNK_SIZES if config[key]}
    chunks = {f"{kind}_attn_chunk_length": columns for kind in ("local", "lsh") if kind in config["attn_layers"]}
    # With a position table, the limit is only a number.
    limit = {"max_position_embeddings": min(_whole(config), MOST)} if config["axial_pos_embds"] else {}
    for change in (at_once, chunks, limit, {**at_once, **chunks}, {**at_once, **chunks, **limit}):
        if _fits(config, wanted, given, change):
            yield change
            return
        if longest := _longest({**config, **change}, _free(config, given)):
            yield {LENGTH: longest, **change}
            return


def _candidates(config: Mapping[str, Any], wanted: int, given: Collection[str] | None) -> Iterator[dict[str, Any]]:
    free = _free(config, given)
    if shorter := _longest(config, free):
        yield {LENGTH: shorter}
    length = least_length(config, wanted, FOLLOWING)
    if config["axial_pos_embds"] and given is not None and length <= MOST:
        yield {"axial_pos_shape": near_square(length)}
        yield {"axial_pos_shape": near_square(length), "max_position_embeddings": length}
    if given is not None or config["axial_pos_embds"]:  # else it is the row count of a stored table
        yield {"max_position_embeddings": least_length(config, wanted, free)}


def _longest(config: Mapping[str, Any], free: Collection[str]) -> int:
    """Return the longest length that fits, or 0."""
    return _longest_within(config, most_positions(config, free), free)


def _longest_within(config: Mapping[str, Any], most: int, free: Collection[str]) -> int:
    unit = math.lcm(*_units(config, free).values())
    whole = most // (together := math.lcm(unit, *chunk_lengths(config))) * together
    in_one_chunk = min(most, min(chunk_lengths(config))) // unit * unit
    return max(whole, in_one_chunk)


def _fits(config: Mapping[str, Any], wanted: int, given: Collection[str] | None, way: Mapping[str, Any]) -> bool:
    changed = {**config, **{key: value for key, value in way.items() if key != LENGTH}}
    given = None if given is None else {*given, *way}
    free = _free(changed, given)
    length = least_length(changed, way.get(LENGTH, wanted), free)
    return length <= most_positions(changed, free)
