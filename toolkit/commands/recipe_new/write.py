"""Format the values and align the comments of a new recipe, which comes from a template."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

#: Text that every YAML parser reads as a string without quotes.
PLAIN_TEXT = re.compile(r"[A-Za-z_][\w./-]*( [\w./-]+)*", re.ASCII)
YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
#: Column at which comments begin after short settings.
COMMENT_COLUMN = 32
#: A line with a setting and a comment. A ``#`` in quotes begins no comment.
COMMENTED_SETTING = re.compile(r'^(?! *#)((?:[^"#\n]|"(?:[^"\\\n]|\\.)*")+?) +# ?(.*)$', re.MULTILINE)


def align_comments(recipe: str) -> str:
    """Return a recipe whose comments after settings begin at :data:`COMMENT_COLUMN`; an empty comment is removed."""
    return COMMENTED_SETTING.sub(_align_comment, recipe)


def _align_comment(match: re.Match[str]) -> str:
    """Return the line of a setting with its comment at :data:`COMMENT_COLUMN`."""
    setting, comment = match.groups()
    return f"{setting.ljust(COMMENT_COLUMN - 1)} # {comment}" if comment else setting


def format_scalar(value: Any) -> str:
    """Format a value so that YAML reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if PLAIN_TEXT.fullmatch(value) and value.lower() not in YAML_WORDS else quote_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(format_scalar, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{format_scalar(key)}: {format_scalar(item)}' for key, item in value.items())}}}"
    return repr(value)


def quote_text(text: str) -> str:
    """Quote a text, with unprintable characters escaped."""
    letters = []
    for letter in text:
        json_escapes_it = letter.isprintable() or letter < " "
        letters.append(json.dumps(letter, ensure_ascii=False)[1:-1] if json_escapes_it else f"\\U{ord(letter):08x}")
    return f'"{"".join(letters)}"'
