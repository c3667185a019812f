"""Spans of entities as annotation tools write them, and where in the text they stand.

Offsets may count UTF-16 units or bytes, may start at 1, or may include the last character. A span with its own text is
compared with it. For spans without a text, the way of counting is used that fits the words of all texts.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from toolkit.tasks.question_answering.placement import NEAREST, UTF8, UTF16, find_answer, to_characters

#: Common keys of a span's start, end and label; the first that is there is read.
STARTS, ENDS = ("start", "start_offset", "begin", "start_char"), ("end", "end_offset", "stop", "end_char")
LABELS = ("label", "labels", "entity_group", "entity", "type", "tag")
#: Fewest spans, and their share, that must fit another way of counting before it is used.
MIN_SPANS, MIN_UNIT_SPANS, MIN_SHARE = 10, 2, 0.9
#: How a span was moved.
OFF_BY_ONE, OTHER_END = "by offsets that are off by one", "with another end"
NEAREST_TEXT = "as the nearest occurrence of their text"


@dataclass(frozen=True)
class EntitySpan:
    """An entity of a text.

    Attributes:
        start, end: offsets of the first character and of the character after the last, as they are counted in the data.
        label: the type of the entity.
        text: the entity's characters as the data repeat them; None if they do not.
    """

    start: int
    end: int
    label: str
    text: str | None = None


@dataclass(frozen=True)
class Counting:
    """A way of counting offsets.

    Attributes:
        encoding, size: the encoding whose code units are counted, and the bytes of a unit; None for characters.
        start_shift, end_shift: numbers that are added to the offsets.
        description: the way of counting, in words.
    """

    encoding: str | None = None
    size: int = 1
    start_shift: int = 0
    end_shift: int = 0
    description: str = ""

    def resolve(self, text: str, span: EntitySpan) -> tuple[int, int] | None:
        """Return the span's offsets in characters; None if one is inside a character."""
        start, end = span.start + self.start_shift, span.end + self.end_shift
        if self.encoding is None or text.isascii():
            return start, end
        places = [to_characters(text, place, self.encoding, self.size) for place in (start, end)]
        return None if None in places else (places[0], places[1])  # type: ignore[return-value]


CHARACTERS = Counting()
UNITS = ((None, 1, ""), ("utf-16-le", 2, UTF16), ("utf-8", 1, UTF8))
SHIFTS = (
    (0, 0, ""),
    (0, 1, "with their last characters included"),
    (-1, 0, "with offsets from 1 and their last characters included"),
    (-1, -1, "with offsets from 1"),
)
COUNTINGS = [
    Counting(encoding, size, start, end, ", ".join(filter(None, (unit, shift))))
    for (encoding, size, unit), (start, end, shift) in itertools.product(UNITS, SHIFTS)
    if unit or shift
]


def entity_spans(items: Sequence[Any]) -> Iterator[EntitySpan]:
    """Yield the spans of a row's entities.

    An item is ``[start, end, label]``; a mapping with these keys, as Doccano and Label Studio write them; one of
    dataturks, with ``points`` whose ends are included; or one of Label Studio with a ``value`` or a ``result``.

    Raises:
        ValueError: an item is none of these.
    """
    for item in items:
        if isinstance(item, Mapping) and isinstance(item.get("result"), list):
            yield from entity_spans(item["result"])
            return  # another annotator's entities of the same text follow
        if isinstance(item, Mapping) and isinstance(item.get("value"), Mapping):
            yield from entity_spans([item["value"]])
        elif isinstance(item, Mapping) and isinstance(item.get("points"), list):
            for point in item["points"]:
                span = _span({**point, "label": item.get("label")}, item)
                yield replace(span, end=span.end + 1)
        else:
            yield _span(item, item)


def _span(fields: Any, item: Any) -> EntitySpan:
    """Return the span of a list or mapping; ``item`` is shown if it is none."""
    text = None
    if isinstance(fields, Mapping):
        text = fields.get("text")
        fields = [_first_of(fields, keys) for keys in (STARTS, ENDS, LABELS)]
    if isinstance(fields, list | tuple) and len(fields) == 3:
        start, end = (_whole(place) for place in fields[:2])
        label = fields[2][0] if isinstance(fields[2], list) and len(fields[2]) == 1 else fields[2]
        if start is not None and end is not None and isinstance(label, str) and label.strip():
            return EntitySpan(start, end, label.strip(), text if isinstance(text, str) and text else None)
    shown_item = {key: value for key, value in item.items() if value is not None} if isinstance(item, Mapping) else item
    right = "[start, end, label], or a mapping with these keys and one label"
    raise ValueError(f"has {shown_item!r:.60} as an entity; it should be {right}")


def _first_of(fields: Mapping[str, Any], key_names: Sequence[str]) -> Any:
    """Return the first value, other than None, that a mapping has for one of the keys; None without one."""
    return next((fields[key] for key in key_names if fields.get(key) is not None), None)


def _whole(place: Any) -> int | None:
    """Return a character offset as an integer, or None if the value is not a whole number."""
    if isinstance(place, bool) or not isinstance(place, int | float) or place != place or place % 1:
        return None
    return int(place)


def counting_of(rows: Iterable[tuple[str, Sequence[EntitySpan], set[int], set[int]]]) -> Counting:
    """Return the way of counting that is the best fit for the spans without a text.

    Args:
        rows: of each text: the text, its spans, and the offsets of its words' starts and ends, in characters.
    """
    counts = {counting: [0, 0, 0] for counting in COUNTINGS}
    for text, spans, starts, ends in rows:

        def fits(places: tuple[int, int] | None, word_starts: set[int] = starts, word_ends: set[int] = ends) -> bool:
            return places is not None and places[0] < places[1] and places[0] in word_starts and places[1] in word_ends

        for span in spans:
            if span.text is None:
                plain = (span.start, span.end)
                is_plain = fits(plain)
                for counting, tally in counts.items():
                    if (places := counting.resolve(text, span)) != plain:
                        tally[0] += 1
                        tally[1] += fits(places)
                        tally[2] += is_plain
    likely = [
        (fitting, counting)
        for counting, (count, fitting, plain_fitting) in counts.items()
        if count >= (MIN_SPANS if counting.start_shift or counting.end_shift else MIN_UNIT_SPANS)
        if fitting >= MIN_SHARE * count and plain_fitting < count / 2
    ]
    return max(likely, key=lambda item: item[0])[1] if likely else CHARACTERS


def place_span(text: str, span: EntitySpan, counting: Counting) -> tuple[int, int, str | None]:
    """Return a span's offsets in characters, and how it was moved there; None if it was not moved.

    Raises:
        ValueError: the span is not inside the text, or the span's text does not occur in it.
    """
    if span.text is not None and not (span.start >= 0 and text[span.start : span.end] == span.text):
        if (occurrence := find_answer(text, span.text, span.start)) is None:
            there = text[span.start : span.end] if 0 <= span.start < span.end else ""
            wrong = f"has {there!r:.40} at {span.start} to {span.end}, not the entity {span.text!r:.40}"
            raise ValueError(f"{wrong}, and does not have it elsewhere; correct or remove it")
        start, end = occurrence.start, occurrence.start + len(occurrence.text)
        if (start, end) == (span.start, span.end):
            return start, end, None
        if start == span.start:
            return start, end, OTHER_END
        if occurrence.how != NEAREST:
            return start, end, occurrence.how
        return start, end, OFF_BY_ONE if abs(start - span.start) == 1 else NEAREST_TEXT
    places = (span.start, span.end) if span.text is not None else counting.resolve(text, span)
    if places is None or not 0 <= places[0] < places[1] <= len(text):
        wrong = f"has an entity from {span.start} to {span.end}, in a text of {len(text)} characters"
        raise ValueError(f"{wrong}; correct or remove it")
    return *places, counting.description if places != (span.start, span.end) else None
