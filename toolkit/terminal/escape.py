"""Text that comes from data, arguments or file names, written so that it stays text wherever it is shown."""

from __future__ import annotations

import re

#: What XML 1.0 cannot hold (most control characters, lone surrogates), and the control characters that it should not.
UNWRITABLE = re.compile("[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
#: What Markdown or HTML would take for markup. An underscore within a word is none.
MARKDOWN = re.compile(r"[\\`*\[\]<>|#~&]|(?<!\w)_|_(?!\w)")


def visible(text: str) -> str:
    """``text`` with what cannot be written down as a backslash escape, such as ``\\x1b``."""
    return UNWRITABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """``text`` on one line: :func:`visible`, with its line breaks as blanks."""
    return " ".join(visible(text).split())


def markdown(text: str) -> str:
    """``text`` as a piece of a Markdown line or table cell that shows it as it is."""
    return MARKDOWN.sub(r"\\\g<0>", one_line(text))


def markdown_code(text: str) -> str:
    """``text`` as a code span, in a fence that no backtick in it closes."""
    line = visible(text).replace("\n", "\\n").replace("\r", "\\r")
    longest = max(map(len, re.findall("`+", line)), default=0)
    fence, room = "`" * (longest + 1), " " if longest or not line.strip() else ""
    return f"{fence}{room}{line}{room}{fence}"
