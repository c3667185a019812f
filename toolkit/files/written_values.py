"""Lists and mappings that a cell of csv holds as text."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

#: Arrays as NumPy prints them, without commas; Python would read the strings as one.
NUMBERS = re.compile(r"\[\s*-?[0-9]+(\s+-?[0-9]+)+\s*\]")
STRING = r"""(?:'[^'\\]*'|"[^"\\]*")"""
STRINGS = re.compile(rf"\[\s*{STRING}(\s+{STRING})+\s*\]")


def value_of(text: str) -> Any:
    """Return the list or mapping that a text is, as JSON, Python or NumPy writes it; any other text as it is."""
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    if NUMBERS.fullmatch(text.strip()):
        return [int(part) for part in text.strip("[] \n").split()]
    if STRINGS.fullmatch(text.strip()):
        return [part[1:-1] for part in re.findall(STRING, text)]
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text
