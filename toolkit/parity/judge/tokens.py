"""Verdict 5: both tokenizers' outputs for the same texts, and which text shows a difference best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.parity.job.results import Tokens

#: Compared results of a tokenizer, in this order -> the name in a message.
COMPARED = {
    "ids": "ids",
    "decoded": "decoded texts",
    "right": "ids or mask, padded on the right,",
    "left": "ids or mask, padded on the left,",
    "offsets": "offsets",
}
#: Longest value shown whole; else so many characters or tokens before and after a difference are shown.
SHOWN, BEFORE, AFTER = 60, 10, 30


def differing(theirs: Sequence[Tokens], ours: Sequence[Tokens]) -> dict[str, list[int]]:
    """Return, by key of :data:`COMPARED`, the indices of the texts that differ, the shortest text first. Texts that the
    reference cannot encode are not compared; if the port alone cannot encode one, its ids differ."""
    found = {}
    for key in COMPARED:
        places = [
            place
            for place, (reference, port) in enumerate(zip(theirs, ours, strict=True))
            if reference.error is None and _differs(key, reference, port)
        ]
        if places:
            found[key] = sorted(places, key=lambda place: len(theirs[place].text))
    return found


def _differs(key: str, reference: Tokens, port: Tokens) -> bool:
    if port.error is not None:
        return key == "ids"
    return bool(getattr(reference, key) != getattr(port, key))


def faults(theirs: Sequence[Tokens], ours: Sequence[Tokens]) -> list[tuple[str, str]]:
    """Return name and message of a finding for each key that differs, with the shortest such text."""
    return [
        (f"tokenizer:{key}", message(key, theirs[places[0]], ours[places[0]]) + _others(len(places) - 1, len(theirs)))
        for key, places in differing(theirs, ours).items()
    ]


def message(key: str, reference: Tokens, port: Tokens) -> str:
    """Describe how two outputs for a text differ."""
    what, wanted, got = COMPARED[key], getattr(reference, key), getattr(port, key)
    if port.error is not None:
        return f"{what} of {_around(reference.text, 0)}: the port ends with {port.error}"
    if got is None:
        return f"{what} of {_around(reference.text, 0)}: the port gives none"
    if key in ("right", "left"):  # ids and mask
        wanted, got = next(pair for pair in zip(wanted, got, strict=True) if pair[0] != pair[1])
    place = _first_difference(wanted, got)
    in_text = place if key == "decoded" else _start(port.starts, place) if key in ("ids", "offsets") else 0
    where = "" if _is_short(wanted) and _is_short(got) else f" from {place} on"
    shown = f"{_around(got, place)}, the reference gives {_around(wanted, place)}"
    return f"{what} of {_around(reference.text, in_text)} differ{where}: {shown}"


def _first_difference(wanted: Sequence, got: Sequence) -> int:
    """Index where two sequences first differ."""
    pairs = enumerate(zip(wanted, got, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(wanted), len(got)))


def _start(starts: Sequence[int], token: int) -> int:
    """Where a token begins in its text; 0 if that is unknown, as for a text shown whole."""
    return starts[min(token, len(starts) - 1)] if starts else 0


def _is_short(value: Any) -> bool:
    return len(repr(value)) <= SHOWN


def _around(value: Sequence, place: int) -> str:
    """Return the repr of a text or list: whole, or of the part around a place."""
    if _is_short(value):
        return repr(value)
    first, past = max(0, place - BEFORE), place + (AFTER if isinstance(value, str) else BEFORE)
    return "..." * (first > 0) + repr(value[first:past]) + "..." * (past < len(value))


def _others(count: int, texts: int) -> str:
    return f"; those of {count} more of {texts} texts, too" if count else ""
