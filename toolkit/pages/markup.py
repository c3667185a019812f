"""Elements of HTML, SVG and XML. Names and messages come from outside; the serializer escapes whatever is in them."""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from toolkit.terminal.escape import visible


def element(tag: str, *children: Element | str | None, **attributes: object) -> Element:
    """Make an element with its children in order; None is skipped.

    Attributes are written as Python names: ``class_`` is ``class``, ``aria_label`` is ``aria-label``. One that is None
    is left out.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            made.set(name.rstrip("_").replace("_", "-"), visible(str(value)))
    for child in children:
        if isinstance(child, str):
            _append_text(made, visible(child))
        elif child is not None:
            made.append(child)
    return made


def html_text(root: Element) -> str:
    """A whole HTML document; ``root`` is its ``html`` element."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def xml_text(root: Element) -> str:
    """A whole XML document in UTF-8."""
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _append_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
