"""The map of a pair as YAML, which a user may correct."""

from __future__ import annotations

from pathlib import Path

import yaml

from toolkit.errors import UserError
from toolkit.parity.pairs.describe import Sides

HEAD = """\
# Which parameter of the reference is which of the port. A guess is one where the name and the place in the order of
# execution say different things: look at it. Correct what is wrong and give the file to toolkit parity --map FILE;
# what it names wins, and what it leaves out is matched as before.
"""


def text_of(sides: Sides) -> str:
    """Return the map of a pair as text; comments mark what is a guess, transposed or unmatched."""
    shapes = {one.name: one.shape for one in sides.reference.parameters}
    lines = [HEAD + "parameters:"]
    for match in sides.map.parameters:
        shape = "x".join(map(str, shapes[match.reference])) or "a number"
        words = [shape, "transposed" if match.transpose else "", "" if match.certain else "a guess"]
        lines.append(f"  {_quoted(match.reference)}: {_quoted(match.port)}  # {', '.join(filter(None, words))}")
    theirs, ours = sides.alone()
    for side, names in (("reference", theirs), ("port", ours)):
        lines += [f"# in the {side} alone: {name}" for name in names]
    lines += [f"# buffer {match.reference}: {match.port}" for match in sides.map.buffers]
    for side, names in (("reference", sides.map.reference_state), ("port", sides.map.port_state)):
        lines += [f"# buffer in the {side} alone: {name}" for name in names]
    lines.append(f"# {len(sides.map.modules)} modules whose outputs are compared:")
    lines += [f"#   {reference}: {port}" for reference, port in sides.map.modules.items()]
    return "\n".join(lines) + "\n"


def _quoted(name: str) -> str:
    return yaml.safe_dump(name, width=10**6).splitlines()[0]


def read_map(path: Path) -> dict[str, str]:
    """Return the parameters that a map names.

    Raises:
        UserError: it is no map.
    """
    right = "write what toolkit parity map prints: parameters, and below it NAME: NAME"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise UserError(f"--map {path}: {problem.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as problem:
        mark = getattr(problem, "problem_mark", None)
        line = "" if mark is None else f":{mark.line + 1}"
        raise UserError(f"--map {path}{line}: is no YAML; {right}") from None
    names = content.get("parameters") if isinstance(content, dict) else None
    if not isinstance(names, dict) or set(content) != {"parameters"}:
        raise UserError(f"--map {path}: is no map of a pair; {right}")
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in names.items()):
        raise UserError(f"--map {path}: parameters holds what is no name; {right}")
    return names
