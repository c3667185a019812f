"""Elements of pages, rendered by the jinja2 templates next to the code. Text of users is escaped, never markup."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup

from toolkit.terminal.escape import markdown, markdown_code, visible

if TYPE_CHECKING:
    from jinja2 import Environment

#: Number of characters of an excerpt, and maximum number of characters after a click.
EXCERPT_LENGTH, MAX_LENGTH = 160, 20_000
#: The folders of an absolute path. A URL, a relative path and the name of a repository do not match.
FOLDERS = re.compile(r"(?<![\w./:~<-])(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\'\",:;<>()\[\]]+[/\\])+")


@dataclass(frozen=True)
class Section:
    """A section of a page.

    Attributes:
        title: heading, which is also an entry of the table of contents.
        parts: elements; plain text becomes a paragraph, and None is skipped.
        highlight: the most important result, which the top of a run's page links to; empty for none.
    """

    title: str
    parts: Sequence[Markup | str | None]
    highlight: str = ""

    @property
    def id(self) -> str:
        """Id of the heading."""
        return re.sub(r"\W+", "-", self.title.lower()).strip("-")


@cache
def _environment() -> Environment:
    """Return the Jinja environment of the pages, which escapes values in HTML and rejects undefined names.

    In Markdown the filters ``markdown`` and ``code`` escape them.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parents[1]),
        autoescape=select_autoescape(),
        undefined=StrictUndefined,
        finalize=_to_writable,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"markdown": markdown, "code": markdown_code}
    return environment


def _to_writable(value: object) -> object:
    """Return a value for a page: control characters of plain text become visible, and None becomes empty."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return visible(value)
    return "" if value is None else value


def render_page(template: str, **values: Any) -> str:
    """Return the text of a page from its template, whose path is relative to the folder ``toolkit/``."""
    return _environment().get_template(template).render(**values)


def render_macro(template: str, macro: str, *values: Any) -> Markup:
    """Return the elements of a macro in a template, called with ``values``."""
    return getattr(_environment().get_template(template).module, macro)(*values)


def name(text: str) -> Markup:
    """Return an element for a name in the cell of a table, such as a label or a parameter."""
    return render_macro("pages/elements.html", "name", text)


def share(value: float, text: str, highest: float = 1.0) -> Markup:
    """Return a number with a bar for the cell of a table; screen readers skip the bar."""
    width = 100 * min(max(value / highest, 0.0), 1.0) if highest > 0 and math.isfinite(value) else 0.0
    return render_macro("pages/elements.html", "share", width, text)


def excerpt(text: str) -> Markup:
    """Return an element with a text. A long text shows its first characters and opens on a click."""
    line = " ".join(text[: 4 * EXCERPT_LENGTH].split())
    is_whole = len(line) <= EXCERPT_LENGTH and len(text) <= 4 * EXCERPT_LENGTH
    summary = None if is_whole and line == text else line if is_whole else line[:EXCERPT_LENGTH].rstrip() + "…"
    return render_macro("pages/elements.html", "excerpt", summary, text[:MAX_LENGTH], max(len(text) - MAX_LENGTH, 0))


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[Markup | str]],
    caption: str = "",
    class_: str = "",
    num_shown: int | None = None,
    total: int | None = None,
) -> Markup:
    """Return a table in a box that scrolls by mouse and keyboard.

    Args:
        titles: titles of the columns. The first column has the headings of the rows.
        rows: cells of each row.
        caption: text above the table.
        class_: classes of the table in the style sheet; ``cards`` shows each row as a card on a narrow screen.
        num_shown: number of rows to show; the other rows open on a click. None shows all rows.
        total: number of rows that exist; the caption has it if fewer are shown. None is the number of ``rows``.
    """
    all_rows = list(rows)
    shown_rows, hidden_rows = all_rows[:num_shown], all_rows[len(all_rows) if num_shown is None else num_shown :]
    total = len(all_rows) if total is None else total
    caption += f": {len(shown_rows):,} of {total:,}" if len(shown_rows) < total else ""
    return render_macro("pages/elements.html", "table", titles, shown_rows, hidden_rows, caption, class_)


def hide_folders(text: str) -> str:
    """Return ``text`` with the folders of absolute paths as ``…/``, which are private."""
    return FOLDERS.sub("…/", text)


def format_same_decimals(values: Sequence[float | None]) -> list[str]:
    """Return numbers with the same number of decimals: four significant digits of the largest, at least two decimals.

    Example:
        ``[0.205, 0.93461]`` -> ``["0.2050", "0.9346"]``
    """
    sizes = [abs(value) for value in values if value and math.isfinite(value)]
    decimals = max(3 - math.floor(math.log10(max(sizes))), 2) if sizes else 0
    return ["" if value is None else f"{value:,.{decimals}f}" for value in values]


def flatten_values(values: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, Markup]]:
    """Yield nested values as rows of a table, without folders: the keys of a value, joined by blanks, and the value."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flatten_values(value, f"{prefix}{key} ")
        else:
            yield hide_folders(f"{prefix}{key}"), name(hide_folders(str(value)))
