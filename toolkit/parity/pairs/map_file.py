"""The map of a pair as YAML: what corresponds to what, which a user may correct, and which differences are known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from toolkit.errors import UserError
from toolkit.parity.job.pair import KnownDifference, ParameterMatch
from toolkit.parity.pairs.axes import AS_IT_IS, CHANNELS_LAST
from toolkit.parity.pairs.describe import Sides
from toolkit.parity.pairs.pieces import is_only_turned

RIGHT = "write what toolkit parity map prints: parameters, and below it NAME: NAME, or NAME: [NAME, NAME]"
HEAD = """\
# Which parameter of the reference is which of the port. A guess is one where the name and the place in the order of
# execution say different things: look at it. Correct what is wrong and give the file to toolkit parity --map FILE;
# what it names wins, and what it leaves out is matched as before. NAME: [A, B] is one whose rows are those of A and B;
# NAME: A[0:8] is one whose rows are the first eight of A (rows are outputs, as in torch's layout). NAME: A may also
# have another shape with as many elements; A.T is the transpose, and 1 + A is what holds the numbers of NAME plus 1.
"""


def text_of(sides: Sides) -> str:
    """Return the map of a pair as text; comments mark what is a guess, transposed or unmatched."""
    shapes = {one.name: one.shape for one in sides.reference.parameters}
    lines = [HEAD + "parameters:"]
    matches: dict[str, list[ParameterMatch]] = {}
    for match in sides.map.parameters:
        matches.setdefault(match.reference, []).append(match)
    for name, pieces in matches.items():
        shape = "x".join(map(str, shapes[name])) or "a number"
        is_guess = not all(match.certain for match in pieces)
        words = [shape, "transposed" if pieces[0].transpose else "", "a guess" if is_guess else ""]
        lines.append(f"  {_quote_name(name)}: {_format_pieces(pieces, sides)}  # {', '.join(filter(None, words))}")
    theirs, ours = sides.alone()
    for side, names in (("reference", theirs), ("port", ours)):
        lines += [f"# in the {side} alone: {name}" for name in names]
    lines += [f"# buffer {match.reference}: {match.port}" for match in sides.map.buffers]
    for side, names in (("reference", sides.map.reference_state), ("port", sides.map.port_state)):
        lines += [f"# buffer in the {side} alone: {name}" for name in names]
    lines.append(f"# {len(sides.map.modules)} modules whose outputs are compared:")
    axes = sides.map.axes
    lines += [
        f"#   {reference}: {port}{f' {axes[reference]}' if reference in axes else ''}"
        for reference, port in sides.map.modules.items()
    ]
    return "\n".join(lines) + "\n"


def _format_pieces(pieces: Sequence[ParameterMatch], sides: Sides) -> str:
    """Return a map's entry for a parameter's counterpart, or for the pieces of its counterpart."""
    theirs, ours = ({match.name: match for match in side.parameters} for side in (sides.reference, sides.port))
    names = []
    for match in pieces:
        offset = f"{match.offset:g} + " if match.offset else ""
        rows = "" if match.port_rows is None else f"[{match.port_rows[0]}:{match.port_rows[1]}]"
        parameter, counterpart = theirs[match.reference], ours[match.port]
        is_turned = match.transpose != (parameter.transposed != counterpart.transposed)
        is_turned = is_turned and not is_only_turned(parameter.shape, counterpart.shape)  # the shapes already show it
        names.append(_quote_name(f"{offset}{match.port}{rows}{'.T' if is_turned else ''}"))
    return names[0] if len(names) == 1 else f"[{', '.join(names)}]"


def _quote_name(name: str) -> str:
    """Return a name as YAML text, with quotes if it needs them."""
    return yaml.safe_dump(name, width=10**6).splitlines()[0]


class MapFile(NamedTuple):
    """The content of a user's map.

    Attributes:
        parameters: name of a parameter of the reference -> names of the port (:func:`.pieces.match_by_map`).
        accept: pattern of tensor names -> known difference.
        layouts: pattern of module and draw names of the reference -> axes (:func:`.axes.axes_of`).
    """

    parameters: dict[str, list[str]]
    accept: dict[str, KnownDifference]
    layouts: dict[str, str | list[int]]


def read_map(map_path: Path | None) -> MapFile:
    """Return the content of a map; an empty map without a file.

    Raises:
        UserError: the file is not a map.
    """
    if map_path is None:
        return MapFile({}, {}, {})
    try:
        content = yaml.safe_load(map_path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"--map {map_path}: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        mark = getattr(error, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise UserError(f"--map {map_path}{line}: is no YAML; {RIGHT}") from None
    if not isinstance(content, dict) or not content or not {"parameters", "accept", "layouts"} >= content.keys():
        raise UserError(f"--map {map_path}: is no map of a pair; {RIGHT}")
    return MapFile(
        _check_parameters(map_path, content.get("parameters", {})),
        _known_differences(map_path, content.get("accept", {})),
        _check_layouts(map_path, content.get("layouts", {})),
    )


def _check_parameters(path: Path, parameter_names: Any) -> dict[str, list[str]]:
    """Return the port's parameter names for each name of the reference in a map file.

    Args:
        path: the map file, for errors.
        parameter_names: value of the key ``parameters``.
    """
    if not isinstance(parameter_names, dict):
        raise UserError(f"--map {path}: is no map of a pair; {RIGHT}")
    names_of_port = {key: value if isinstance(value, list) else [value] for key, value in parameter_names.items()}
    words = [*names_of_port, *(name for pieces in names_of_port.values() for name in pieces)]
    if not all(names_of_port.values()) or not all(isinstance(word, str) and word for word in words):
        raise UserError(f"--map {path}: parameters holds what is no name; {RIGHT}")
    return names_of_port


def _check_layouts(path: Path, patterns: Any) -> dict[str, str | list[int]]:
    """Return the order of axes for each name pattern in a map file.

    Args:
        path: the map file, for errors.
        patterns: value of the key ``layouts``.
    """
    for pattern, user_axes in patterns.items() if isinstance(patterns, dict) else [("layouts", patterns)]:
        is_axes = isinstance(user_axes, list) and sorted(map(str, user_axes)) == [
            str(axis) for axis in range(len(user_axes))
        ]
        if not is_axes and user_axes not in (CHANNELS_LAST, AS_IT_IS):
            raise UserError(
                f"--map {path}: layouts: {pattern}: {user_axes!r} is no order of axes; write {CHANNELS_LAST}, "
                f"{AS_IT_IS} or the port's axes in the reference's order, such as [0, 3, 1, 2]"
            )
    return {str(pattern): user_axes for pattern, user_axes in patterns.items()}


def _known_differences(path: Path, patterns: Any) -> dict[str, KnownDifference]:
    """Return the accepted difference for each name pattern in a map file.

    Args:
        path: the map file, for errors.
        patterns: value of the key ``accept``.
    """
    right = "write 'buffer:*.running_var': {why: Paddle keeps the biased variance, within: 1e-2}"
    differences = {}
    for pattern, difference in patterns.items() if isinstance(patterns, dict) else [("accept", patterns)]:
        is_complete = (
            isinstance(difference, dict)
            and difference.keys() == {"why", "within"}
            and isinstance(difference["why"], str)
        )
        if not is_complete or not difference["why"].strip():
            raise UserError(f"--map {path}: accept: {pattern} does not say why, and within what; {right}")
        try:
            within = float(difference["within"])  # YAML takes 1e-2 for a text
        except (TypeError, ValueError):
            within = math.nan
        if not 0 < within < math.inf:
            what = f"within is {difference['within']!r}, which is no part of a size"
            raise UserError(f"--map {path}: accept: {pattern}: {what}; {right}")
        differences[str(pattern)] = KnownDifference(difference["why"], within)
    return differences
