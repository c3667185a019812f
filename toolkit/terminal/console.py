"""The console for all output. It shows text literally, never as markup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from toolkit.terminal.escape import visible


class LiteralConsole(Console):
    """Console without markup, emoji codes or highlighting; control characters become escapes, such as ``\\x1b``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render as rich does, but show the control characters that rich drops."""
        return super().render_str(visible(text).replace("\r", "\\r"), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, but escape :class:`rich.text.Text`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
