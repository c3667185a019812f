"""Long texts on a page: an excerpt that opens on a click."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from toolkit.pages.markup import element

#: Number of characters of an excerpt, and maximum number of characters after a click.
EXCERPT_LENGTH, MAX_LENGTH = 160, 20_000

STYLE = """
details { max-width: 62rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
details .whole { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0 .6rem; padding: .4rem .7rem;
  background: var(--band); }
summary:focus-visible { outline: 2px solid var(--blue); }
"""


def excerpt(text: str) -> Element:
    """Return an element with a text. A long text shows its first characters and opens on a click."""
    line = " ".join(text[: 4 * EXCERPT_LENGTH].split())
    if len(text) <= EXCERPT_LENGTH and line == text:
        return element("span", text, dir="auto")
    excerpt_text = (
        line
        if len(line) <= EXCERPT_LENGTH and len(text) <= 4 * EXCERPT_LENGTH
        else line[:EXCERPT_LENGTH].rstrip() + "…"
    )
    more = f"\n… {len(text) - MAX_LENGTH:,} more characters" if len(text) > MAX_LENGTH else ""
    return element(
        "details",
        element("summary", excerpt_text or "(blank)", dir="auto"),
        element("div", text[:MAX_LENGTH] + more, class_="whole", dir="auto"),
    )
