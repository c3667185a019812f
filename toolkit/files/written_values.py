"""Lists and mappings that a cell of csv holds as text."""

from __future__ import annotations

import ast
import json
import re
from typing import Any

#: Strings without a comma between them, as NumPy prints an array: Python would read them as one.
UNSEPARATED = re.compile(r"""['"]\s+['"]""")


def value_of(text: str) -> Any:
    """Return the list or mapping that a text is, as JSON or Python writes it; any other text as it is."""
    if text.lstrip()[:1] not in ("[", "{") or UNSEPARATED.search(text):
        return text
    for read in (json.loads, ast.literal_eval):
        try:
            return read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
    return text
