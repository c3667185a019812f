"""Elements of HTML, SVG and XML. The serializer escapes names and messages of users."""

from __future__ import annotations

from xml.etree.ElementTree import Element, tostring

from toolkit.terminal.escape import visible


def element(tag: str, *children: Element | str | None, **attributes: object) -> Element:
    """Return an element with children and attributes; None values are skipped.

    Attributes are written as Python names: ``class_`` -> ``class``, ``aria_label`` -> ``aria-label``.
    """
    new_element = Element(tag)
    for name, value in attributes.items():
        if value is not None:
            new_element.set(name.rstrip("_").replace("_", "-"), visible(str(value)))
    for child in children:
        if isinstance(child, str):
            _append_text(new_element, visible(child))
        elif child is not None:
            new_element.append(child)
    return new_element


def html_text(root: Element) -> str:
    """Return the text of an HTML document; ``root`` is its ``html`` element."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def xml_text(root: Element) -> str:
    """Return the text of an XML document in UTF-8."""
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def _append_text(parent: Element, text: str) -> None:
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
