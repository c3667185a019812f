"""Names with dots in the cells of a table, which a narrow column wraps after a dot and never within a word."""

from __future__ import annotations

import re
from collections.abc import Iterator

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.measure import Measurement
from rich.text import Text

#: Pattern of a piece that is never wrapped. It ends in a dot or in the blanks after a word.
PIECE = re.compile(r"[^\s.]*\.|[^\s.]+\s*|\s+")


class DottedText:
    """A text that wraps after its dots and blanks in a column that is too narrow for it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def lines(self, width: int) -> list[str]:
        """Return the text in lines of at most ``width`` columns, unless a single piece is wider."""
        lines = [""]
        for piece in PIECE.findall(self.text):
            if lines[-1] and cell_len(f"{lines[-1]}{piece}".rstrip()) > width:
                lines.append("")
            lines[-1] += piece
        return [line.rstrip() for line in lines]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        yield Text("\n".join(self.lines(options.max_width)), overflow="fold")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max((cell_len(piece.rstrip()) for piece in PIECE.findall(self.text)), default=0)
        return Measurement(longest, cell_len(self.text)).with_maximum(options.max_width)
