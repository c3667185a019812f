"""Parse lists and mappings that are written as text in a csv cell."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

#: Arrays as NumPy prints them, without commas; Python would concatenate the strings.
NUMPY_NUMBERS = re.compile(r"\[\s*-?[0-9]+(\s+-?[0-9]+)+\s*\]")
QUOTED_STRING = r"""(?:'[^'\\]*'|"[^"\\]*")"""
NUMPY_STRINGS = re.compile(rf"\[\s*{QUOTED_STRING}(\s+{QUOTED_STRING})+\s*\]")


def parse_value(text: str) -> Any:
    """Return the list or mapping that a text represents in JSON, Python or NumPy; return any other text unchanged."""
    if text.lstrip()[:1] not in ("[", "{"):
        return text
    if NUMPY_NUMBERS.fullmatch(text.strip()):
        return [int(part) for part in text.strip("[] \n").split()]
    if NUMPY_STRINGS.fullmatch(text.strip()):
        return [part[1:-1] for part in re.findall(QUOTED_STRING, text)]
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text
