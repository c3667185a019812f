"""Escaping of text from data, arguments or file names, so that it stays text wherever it is shown."""

from __future__ import annotations

import re

#: Characters that XML 1.0 cannot hold (most control characters, lone surrogates), and controls that it should not.
UNWRITABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: Characters between two lines, or two cells of a line, that :data:`UNWRITABLE` leaves out.
SEPARATOR = re.compile("[\t\n\r\u2028\u2029]")
#: Pattern of markup characters of Markdown or HTML. An underscore within a word is not markup.
MARKDOWN = re.compile(r"[\\`*\[\]<>|#~&]|(?<!\w)_|_(?!\w)")


def visible(text: str) -> str:
    """Return ``text`` with unwritable characters as escapes, such as ``\\x1b``."""
    return UNWRITABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def escape_line(text: str) -> str:
    """Return ``text`` on one line: :func:`visible`, tabs and line breaks as escapes, such as ``\\n``."""
    return SEPARATOR.sub(lambda match: match[0].encode("unicode_escape").decode(), visible(text))


def shorten_middle(text: str, max_length: int) -> str:
    """Return a text without its middle if it has more than ``max_length`` characters."""
    half = max_length // 2
    return text if len(text) <= max_length else f"{text[:half]} ... {text[-half:]}"


def one_line(text: str) -> str:
    """Return ``text`` on one line: :func:`visible`, line breaks as blanks."""
    return " ".join(visible(text).split())


def markdown(text: str) -> str:
    """Escape ``text`` for a Markdown line or table cell to show it literally."""
    return MARKDOWN.sub(r"\\\g<0>", one_line(text))


def markdown_code(text: str) -> str:
    """Return ``text`` as a code span, whose fence is longer than all backticks in the text."""
    line = visible(text).replace("\n", "\\n").replace("\r", "\\r")
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, padding = "`" * (longest + 1), " " if longest or not line.strip() else ""
    return f"{fence}{padding}{line}{padding}{fence}"
