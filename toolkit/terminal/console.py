"""The console that everything is printed on. What it is given is shown as it is, never taken for markup."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from toolkit.terminal.escape import visible


class LiteralConsole(Console):
    """No markup, no emoji codes, no colours by guess; control characters as backslash escapes, such as ``\\x1b``."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """As rich's, which drops some control characters: these are shown, too."""
        return super().render_str(visible(text).replace("\r", "\\r"), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich's, for what comes as a :class:`rich.text.Text`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(visible(segment.text), segment.style)
