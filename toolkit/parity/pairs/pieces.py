"""Match parameters that the two sides keep in another shape: with axes of length 1, transposed, split or joined.

This is tried with the parameters that are left after parameters of the same shape are matched. The most common case are
fused projections: ``qkv``, ``in_proj`` or ``c_attn`` on one side and three linear layers on the other side; ``gate_up``
on one side and ``gate`` and ``up`` on the other side.
"""

from __future__ import annotations

import math
import operator
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from toolkit.parity.job.pair import ParameterFacts, ParameterMatch
from toolkit.parity.pairs.words import last_word, name_distance, split_words

#: A parameter in a map: an offset, the name, a range of rows and a transpose. Only the name is required.
PIECE = re.compile(r"(?:([+-]?\d+(?:\.\d+)?) \+ )?(.+?)(?:\[(\d+):(\d+)\])?(\.T)?")
#: Names of the parts of a fused projection, in the order of its rows. Execution order does not show it: some ports
#: compute the key before the query.
PART_NAMES = ("query", "key", "value", "gate", "up")


def match_by_map(
    parameter: ParameterFacts, port_names: Sequence[str], port_parameters: Mapping[str, ParameterFacts]
) -> list[ParameterMatch]:
    """Match a parameter of the reference according to the user's map.

    Args:
        parameter: parameter of the reference.
        port_names: names of parameters of the port, whose rows are concatenated. ``NAME[FIRST:END]`` stands for rows of
            a parameter, ``NAME.T`` for the transpose, and ``1 + NAME`` for a parameter that holds the reference's
            numbers plus 1. A single name may have another shape with as many elements.
        port_parameters: parameters of the port by name.

    Raises:
        ValueError: the port has no parameter of this name, or the sizes do not fit.
    """
    matches, start = [], 0
    for piece in port_names:
        offset, name, *rows, transpose_mark = PIECE.fullmatch(piece).groups()  # type: ignore[union-attr]  # any text is one
        if transpose_mark and f"{name}.T" in port_parameters:
            name, transpose_mark = f"{name}.T", None
        if name not in port_parameters:
            raise ValueError(f"the port has no parameter {name}; toolkit parity map lists them")
        counterpart = port_parameters[name]
        port_rows = None if rows[0] is None else (int(rows[0]), int(rows[1]))
        shape = list(counterpart.shape) if port_rows is None else [port_rows[1] - port_rows[0], *counterpart.shape[1:]]
        fits = (
            math.prod(shape) == math.prod(parameter.shape)
            if len(port_names) == 1
            else shape[1:] == parameter.shape[1:] and not transpose_mark
        )
        if not fits or (port_rows and not 0 <= port_rows[0] < port_rows[1] <= counterpart.shape[0]):
            raise ValueError(f"{parameter.name} is {parameter.shape} in torch's layout, {piece} is {shape}")
        end = start + shape[0] if shape else 0
        is_turned = bool(transpose_mark) or (len(port_names) == 1 and is_only_turned(parameter.shape, shape))
        matches.append(
            ParameterMatch(
                parameter.name,
                name,
                (parameter.transposed != counterpart.transposed) != is_turned,
                True,
                rows=None if len(port_names) == 1 else (start, end),
                port_rows=port_rows,
                axis=int(parameter.transposed),
                offset=float(offset or 0),
            )
        )
        start = end
    if len(port_names) > 1 and start != parameter.shape[0]:
        raise ValueError(
            f"{parameter.name} has {parameter.shape[0]} rows in torch's layout, {' and '.join(port_names)} have {start}"
        )
    return matches


def is_only_turned(theirs: Sequence[int], ours: Sequence[int]) -> bool:
    """Return whether merging neighboring axes turns only the transposed shape, not the shape itself, into the other.

    Args:
        theirs: shape in the reference.
        ours: shape in the port.
    """
    ends, of_ours, of_turned = (set(accumulate(shape, operator.mul)) for shape in (theirs, ours, ours[::-1]))

    def merges(products: set[int]) -> bool:
        return products <= ends or ends <= products

    return len(ours) == 2 and merges(of_turned) and not merges(of_ours)


def match_fused(
    reference_parameters: Sequence[ParameterFacts], port_parameters: Sequence[ParameterFacts]
) -> Iterator[ParameterMatch]:
    """Yield the matches of parameters that are one parameter on a side and several on the other side.

    A parameter with a counterpart of the same shape is left out.

    Args:
        reference_parameters: parameters of the reference.
        port_parameters: parameters of the port.
    """
    for whole, part, rows in _find_parts(reference_parameters, port_parameters):
        certain, transpose = _part_index(part) is not None, whole.transposed != part.transposed
        yield ParameterMatch(whole.name, part.name, transpose, certain, rows=rows, axis=int(whole.transposed))
    for whole, part, rows in _find_parts(port_parameters, reference_parameters):
        certain, transpose = _part_index(part) is not None, whole.transposed != part.transposed
        yield ParameterMatch(part.name, whole.name, transpose, certain, port_rows=rows, axis=int(part.transposed))


def match_reshaped(
    reference_parameters: Sequence[ParameterFacts], port_parameters: Sequence[ParameterFacts]
) -> list[ParameterMatch]:
    """Match parameters whose shapes differ only by axes of length 1 or by a transpose, the nearest names first.

    A transpose is only tried in the user's own layers, which may give their weights any name.

    Args:
        reference_parameters: parameters of the reference.
        port_parameters: parameters of the port.
    """
    possible = [
        (name_distance(theirs.name, ours.name), place, theirs, ours)
        for place, theirs in enumerate(reference_parameters)
        for ours in port_parameters
        if _play_one_part(theirs, ours)
        and (_without_unit_axes(theirs) == _without_unit_axes(ours) or _is_turned(theirs, ours))
    ]
    matches: list[ParameterMatch] = []
    for _, _, theirs, ours in sorted(possible, key=lambda item: item[:2]):
        if all(theirs.name != match.reference and ours.name != match.port for match in matches):
            alone = (
                sum(theirs is other_theirs or ours is other_ours for _, _, other_theirs, other_ours in possible) == 1
            )
            certain = alone or theirs.name == ours.name
            matches.append(ParameterMatch(theirs.name, ours.name, _is_transposed(theirs, ours), certain))
    return matches


def _play_one_part(theirs: ParameterFacts, ours: ParameterFacts) -> bool:
    """Return whether two parameters may be the same kind of parameter, such as a weight.

    Args:
        theirs: parameter of the reference.
        ours: parameter of the port.
    """
    leaves = {last_word(theirs.name), last_word(ours.name)}
    return len(leaves) == 1 or ("other" in (theirs.role, ours.role) and "weight" in leaves and "bias" not in leaves)


def _without_unit_axes(parameter: ParameterFacts) -> list[int]:
    """Return the shape of a parameter without its axes of length 1."""
    return [length for length in parameter.shape if length != 1]


def _is_turned(theirs: ParameterFacts, ours: ParameterFacts) -> bool:
    """Return whether a matrix of a layer of unknown type has the other side's shape with its axes exchanged.

    Args:
        theirs: parameter of the reference.
        ours: parameter of the port.
    """
    return "other" in (theirs.role, ours.role) and len(theirs.shape) == 2 and theirs.shape == ours.shape[::-1]


def _is_transposed(theirs: ParameterFacts, ours: ParameterFacts) -> bool:
    """Return whether the arrays of the two sides are transposes of each other.

    Args:
        theirs: parameter of the reference.
        ours: parameter of the port.
    """
    is_turned = _without_unit_axes(theirs) != _without_unit_axes(ours)
    return (theirs.transposed != ours.transposed) != is_turned


def _find_parts(
    wholes: Sequence[ParameterFacts], pieces: Sequence[ParameterFacts]
) -> Iterator[tuple[ParameterFacts, ParameterFacts, tuple[int, int]]]:
    """Yield a parameter, one of its parts on the other side, and the rows of the part in the parameter.

    The parts belong to layers next to each other in the same layer around them.

    Args:
        wholes: parameters that may consist of parts.
        pieces: parameters of the other side that may be parts.
    """
    matched_kinds = {(last_word(parameter.name), *parameter.shape) for parameter in pieces}
    groups: dict[tuple, list[ParameterFacts]] = defaultdict(list)
    for parameter in pieces:
        if parameter.shape:  # a number has no rows
            groups[_part_key(parameter)].append(parameter)
    for parameter in wholes:
        if (last_word(parameter.name), *parameter.shape) in matched_kinds or not parameter.shape:
            continue
        fitting = {key: parts for key, group in groups.items() if (parts := _parts_of_fused(parameter, key, group))}
        if not fitting:
            continue
        around = parameter.module.rpartition(".")[0]
        key = min(fitting, key=lambda key: name_distance(around, str(key[0])))
        groups[key] = [part for part in groups[key] if part not in fitting[key]]
        ends = list(accumulate(part.shape[0] for part in fitting[key]))
        for part, end in zip(fitting[key], ends, strict=True):
            yield parameter, part, (end - part.shape[0], end)


def _part_key(parameter: ParameterFacts) -> tuple:
    """Return the common key of the parts of a fused projection: the outer layer, the last word and the columns."""
    return (parameter.module.rpartition(".")[0], last_word(parameter.name), *parameter.shape[1:])


def _parts_of_fused(
    fused_parameter: ParameterFacts, group_key: tuple, group: Sequence[ParameterFacts]
) -> list[ParameterFacts]:
    """Return the parameters of a group that are the parts of a fused parameter, in the order of its rows, or []."""
    if group_key[1:] != (last_word(fused_parameter.name), *fused_parameter.shape[1:]):
        return []
    for parts in (group, [part for part in group if _part_index(part) is not None]):
        if len(parts) > 1 and sum(part.shape[0] for part in parts) == fused_parameter.shape[0]:
            places = [_part_index(part) for part in parts]
            is_named = None not in places and len(set(places)) == len(places)
            return sorted(parts, key=lambda part: _part_index(part) or 0) if is_named else list(parts)
    return []


def _part_index(parameter: ParameterFacts) -> int | None:
    """Return the index in :data:`PART_NAMES` of a parameter's layer; None if it is not such a part."""
    layer_words = split_words(parameter.module.rpartition(".")[2])
    return next((PART_NAMES.index(word) for word in layer_words if word in PART_NAMES), None)
