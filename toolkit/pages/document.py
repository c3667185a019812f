"""The frame of a page, and its tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element

from toolkit.pages.markup import element, html_text
from toolkit.pages.style import STYLE

#: Content security policy: a page must not load anything, even if a name on it contains markup.
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"


def document(title: str, style: str, body: Element, policy: str = POLICY) -> str:
    """Return the HTML of a complete page; ``style`` is added to the style sheet of all pages."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width"),
        element("title", title),
        element("style", STYLE + style),
    )
    return html_text(element("html", head, body, lang="en"))


def name(text: str) -> Element:
    """Return an element for a name in the cell of a table, such as a label or a parameter."""
    return element("span", text, class_="name")


def scrolled(child: Element, heading: str, class_: str = "wide") -> Element:
    """Return a box that scrolls by mouse and keyboard; ``heading`` is the id of the heading that labels it."""
    return element("div", child, class_=class_, tabindex=0, role="region", aria_labelledby=heading)


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[Element | str]],
    caption: str | None = None,
    class_: str | None = None,
) -> Element:
    """Return a table whose first column has the headings of the rows, with an optional caption above it."""
    head = element("tr", *(element("th", title, scope="col") for title in titles))
    lines = [
        element("tr", element("th", first, scope="row"), *(element("td", cell) for cell in cells))
        for first, *cells in rows
    ]
    caption_element = None if caption is None else element("caption", caption)
    return element("table", caption_element, element("thead", head), element("tbody", *lines), class_=class_)
