"""Where in the port's source a module is made and defined."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from paddle import nn

from toolkit.parity.job.results import Place


def places(model: nn.Layer) -> dict[str, Place]:
    """For every module of the port: its class and the line that defines it."""
    found = {}
    for name, layer in model.named_sublayers():
        parent = model
        for part in name.split(".")[:-1]:
            parent = getattr(parent, part) if not part.isdigit() else parent[int(part)]
        found[name] = Place(type(layer).__name__, source_of(layer, parent, name.rpartition(".")[2]))
    return found


def source_of(layer: nn.Layer, parent: nn.Layer, attribute: str) -> str:
    """``file:line`` where the parent makes the layer and, if its class is the port's own, where that is defined."""
    made = _line_of(parent, rf"self\.{attribute}\s*=")
    defined = _line_of(layer, r"class ") if type(layer).__module__.startswith("models.") else None
    return ", ".join(filter(None, [made, defined and f"class at {defined}"]))


def _line_of(owner: nn.Layer, pattern: str) -> str | None:
    """``file:line`` of the first line of ``owner``'s class that matches, relative to the repository."""
    try:
        lines, first = inspect.getsourcelines(type(owner))
        file = Path(inspect.getfile(type(owner)))
    except (OSError, TypeError):
        return None
    offset = next((index for index, line in enumerate(lines) if re.search(pattern, line)), None)
    if offset is None:
        return None
    root = Path(__file__).resolve().parents[3]
    return f"{file.relative_to(root) if file.is_relative_to(root) else file}:{first + offset}"
