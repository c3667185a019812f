"""Match parameters that the two sides keep in another shape: with axes of length 1, transposed, split or joined.

These are looked for among what is left when parameters of one shape are matched. Fused projections are the most
common: ``qkv``, ``in_proj`` or ``c_attn`` on one side, three linear layers on the other; ``gate_up`` against ``gate``
and ``up``.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from toolkit.parity.job.pair import ParameterFacts, ParameterMatch
from toolkit.parity.pairs.words import distance, leaf, words

#: A parameter of a map, or rows of it; before them a number that the port adds, behind them a transpose.
PIECE = re.compile(r"(?:([+-]?\d+(?:\.\d+)?) \+ )?(.+?)(?:\[(\d+):(\d+)\])?(\.T)?")
#: Order of the parts of a fused projection. Execution order is no sign: some ports map the key before the query.
PARTS = ("query", "key", "value", "gate", "up")


def as_told(one: ParameterFacts, told: Sequence[str], port: Mapping[str, ParameterFacts]) -> list[ParameterMatch]:
    """Match a parameter of the reference as the user's map says.

    Args:
        told: names of parameters of the port, whose rows follow one another. ``NAME[FIRST:END]`` is rows of one,
            ``NAME.T`` the transpose, and ``1 + NAME`` one that holds the reference's numbers plus 1. A single one may
            have another shape with as many elements.

    Raises:
        ValueError: there is none of a name, or they are not of the same size.
    """
    found, start = [], 0
    for piece in told:
        offset, name, *rows, transpose_mark = PIECE.fullmatch(piece).groups()  # type: ignore[union-attr]  # any text is one
        if transpose_mark and f"{name}.T" in port:
            name, transpose_mark = f"{name}.T", None
        if name not in port:
            raise ValueError(f"the port has no parameter {name}; toolkit parity map lists them")
        other = port[name]
        port_rows = None if rows[0] is None else (int(rows[0]), int(rows[1]))
        shape = list(other.shape) if port_rows is None else [port_rows[1] - port_rows[0], *other.shape[1:]]
        fits = (
            math.prod(shape) == math.prod(one.shape)
            if len(told) == 1
            else shape[1:] == one.shape[1:] and not transpose_mark
        )
        if not fits or (port_rows and not 0 <= port_rows[0] < port_rows[1] <= other.shape[0]):
            raise ValueError(f"{one.name} is {one.shape} in torch's layout, {piece} is {shape}")
        end = start + shape[0] if shape else 0
        is_turned = bool(transpose_mark) or (len(told) == 1 and is_only_turned(one.shape, shape))
        found.append(
            ParameterMatch(
                one.name,
                name,
                (one.transposed != other.transposed) != is_turned,
                True,
                rows=None if len(told) == 1 else (start, end),
                port_rows=port_rows,
                axis=int(one.transposed),
                offset=float(offset or 0),
            )
        )
        start = end
    if len(told) > 1 and start != one.shape[0]:
        raise ValueError(f"{one.name} has {one.shape[0]} rows in torch's layout, {' and '.join(told)} have {start}")
    return found


def is_only_turned(theirs: Sequence[int], ours: Sequence[int]) -> bool:
    """Return whether merging neighboring axes turns only the transposed shape, not the shape itself, into the other."""
    ends, of_ours, of_turned = (set(accumulate(shape, operator.mul)) for shape in (theirs, ours, ours[::-1]))

    def merges(products: set[int]) -> bool:
        return products <= ends or ends <= products

    return len(ours) == 2 and merges(of_turned) and not merges(of_ours)


def fused(reference: Sequence[ParameterFacts], port: Sequence[ParameterFacts]) -> Iterator[ParameterMatch]:
    """Yield the pieces of parameters that are one on a side and several on the other. One that has a counterpart of its
    shape is left alone."""
    for one, part, rows in _split(reference, port):
        certain, transpose = _part(part) is not None, one.transposed != part.transposed
        yield ParameterMatch(one.name, part.name, transpose, certain, rows=rows, axis=int(one.transposed))
    for one, part, rows in _split(port, reference):
        certain, transpose = _part(part) is not None, one.transposed != part.transposed
        yield ParameterMatch(part.name, one.name, transpose, certain, port_rows=rows, axis=int(part.transposed))


def reshaped(reference: Sequence[ParameterFacts], port: Sequence[ParameterFacts]) -> list[ParameterMatch]:
    """Match parameters of one shape but for axes of length 1, or of which one is the transpose of the other in a layer
    that is none of the framework's; those with the nearest names first. Such a layer may give its weight any name."""
    possible = [
        (distance(one.name, other.name), place, one, other)
        for place, one in enumerate(reference)
        for other in port
        if _play_one_part(one, other) and (_squeezed(one) == _squeezed(other) or _is_turned(one, other))
    ]
    found: list[ParameterMatch] = []
    for _, _, one, other in sorted(possible, key=lambda item: item[:2]):
        if all(one.name != match.reference and other.name != match.port for match in found):
            alone = sum(one is here or other is there for _, _, here, there in possible) == 1
            certain = alone or one.name == other.name
            found.append(ParameterMatch(one.name, other.name, _is_transposed(one, other), certain))
    return found


def _play_one_part(one: ParameterFacts, other: ParameterFacts) -> bool:
    leaves = {leaf(one.name), leaf(other.name)}
    return len(leaves) == 1 or ("other" in (one.role, other.role) and "weight" in leaves and "bias" not in leaves)


def _squeezed(one: ParameterFacts) -> list[int]:
    return [length for length in one.shape if length != 1]


def _is_turned(one: ParameterFacts, other: ParameterFacts) -> bool:
    return "other" in (one.role, other.role) and len(one.shape) == 2 and one.shape == other.shape[::-1]


def _is_transposed(one: ParameterFacts, other: ParameterFacts) -> bool:
    """Whether the arrays that the two sides hold are transposes of each other."""
    turned = _squeezed(one) != _squeezed(other)
    return (one.transposed != other.transposed) != turned


def _split(
    whole: Sequence[ParameterFacts], pieces: Sequence[ParameterFacts]
) -> Iterator[tuple[ParameterFacts, ParameterFacts, tuple[int, int]]]:
    """Yield parameters whose rows are those of several on the other side, in layers side by side; with each of these,
    and its rows of the whole."""
    alike = {(leaf(one.name), *one.shape) for one in pieces}
    groups: dict[tuple, list[ParameterFacts]] = defaultdict(list)
    for one in pieces:
        if one.shape:  # a number has no rows
            groups[_beside(one)].append(one)
    for one in whole:
        if (leaf(one.name), *one.shape) in alike or not one.shape:
            continue
        fitting = {key: parts for key, group in groups.items() if (parts := _adding_up(one, key, group))}
        if not fitting:
            continue
        around = one.module.rpartition(".")[0]
        key = min(fitting, key=lambda key: distance(around, str(key[0])))
        groups[key] = [part for part in groups[key] if part not in fitting[key]]
        ends = list(accumulate(part.shape[0] for part in fitting[key]))
        for part, end in zip(fitting[key], ends, strict=True):
            yield one, part, (end - part.shape[0], end)


def _beside(one: ParameterFacts) -> tuple:
    """Return what the parts of a fused projection have in common: the layer around, the leaf and the columns."""
    return (one.module.rpartition(".")[0], leaf(one.name), *one.shape[1:])


def _adding_up(one: ParameterFacts, key: tuple, group: Sequence[ParameterFacts]) -> list[ParameterFacts]:
    """Return those of a group whose rows are all rows of a parameter, in the order in which it holds them."""
    if key[1:] != (leaf(one.name), *one.shape[1:]):
        return []
    for parts in (group, [part for part in group if _part(part) is not None]):
        if len(parts) > 1 and sum(part.shape[0] for part in parts) == one.shape[0]:
            places = [_part(part) for part in parts]
            is_named = None not in places and len(set(places)) == len(places)
            return sorted(parts, key=lambda part: _part(part) or 0) if is_named else list(parts)
    return []


def _part(one: ParameterFacts) -> int | None:
    """Return which part of a fused projection a layer is by its name; None for any other."""
    named = words(one.module.rpartition(".")[2])
    return next((PARTS.index(word) for word in named if word in PARTS), None)
