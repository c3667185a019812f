"""Long texts on a page: the beginning, and all of it on a click."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from toolkit.pages.markup import element

#: Characters of a text shown at once, and at the most.
SHOWN, LONGEST = 160, 20_000

STYLE = """
details { max-width: 62rem; }
summary { cursor: pointer; overflow-wrap: anywhere; }
details .whole { white-space: pre-wrap; overflow-wrap: anywhere; margin: .3rem 0 .6rem; padding: .4rem .7rem;
  background: var(--band); }
summary:focus-visible { outline: 2px solid var(--blue); }
"""


def excerpt(text: str) -> Element:
    """Show the beginning of a text; a longer one opens on a click."""
    line = " ".join(text[: 4 * SHOWN].split())
    if len(text) <= SHOWN and line == text:
        return element("span", text, dir="auto")
    shown = line if len(line) <= SHOWN and len(text) <= 4 * SHOWN else line[:SHOWN].rstrip() + "…"
    more = f"\n… {len(text) - LONGEST:,} more characters" if len(text) > LONGEST else ""
    return element(
        "details",
        element("summary", shown or "(blank)", dir="auto"),
        element("div", text[:LONGEST] + more, class_="whole", dir="auto"),
    )
