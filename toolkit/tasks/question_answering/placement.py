"""Answers that are not where their data say: counted all at once, left out, or found again in their contexts.

Published data has them: offsets off by one, counted in another unit (UTF-16 in files that JavaScript made), or from
another version of the text, and answers whose blanks, quotes or composed characters differ from the context's.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.port.tokenization import representable
from toolkit.errors import UserError
from toolkit.tasks.question_answering.squad import NOWHERE, Example, shown
from toolkit.tasks.question_answering.words import GRAPHEME

#: Most questions that a message names.
NAMED = 3

#: How an answer was found again, in words.
UTF16, UTF8 = "by offsets in UTF-16 units, as JavaScript counts them", "by offsets in bytes of UTF-8"
ONLY, FIRST = "as its only occurrence", "as the first of several occurrences"
NEAREST, NORMALIZED = "as the nearest occurrence of the answer", "where blanks, quotes or Unicode forms differ"

#: Variant of a character -> its plain form, for quotes and dashes. Invisible ones are left out.
ALIKE = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4`", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u00ad\u200b\u2060\ufeff", ""),
    }
)


@dataclass(frozen=True)
class Placement:
    """Place of an answer: ``context[start:start + len(text)]`` is ``text``, the context's own characters."""

    start: int
    text: str
    how: str


def placed(examples: Sequence[Example], policy: str, where: str) -> tuple[list[Example], str | None]:
    """Return the questions whose answers are all in place, and a note on the others.

    Args:
        policy: for the others: ``refuse``; ``drop`` leaves them out; ``find`` moves answers to where they are found,
            and leaves out questions with one that is not.
        where: the file or split, for messages.

    Raises:
        UserError: there are others and the policy is to refuse, or nothing is left.
    """
    wrong = [item for item in examples if _misplaced(item)]
    if not wrong:
        return [_within(item) for item in examples], None
    mended = {item.id: _mended(item) for item in wrong} if policy != "drop" else {}
    found = {name: item for name, (item, _) in mended.items() if item is not None}
    ways = Counter(way for item, how in mended.values() if item is not None for way in how)
    count = f"{len(wrong):,} of {len(examples):,} questions"
    unplaced = all(start == NOWHERE for item in wrong for start in item.answer_starts)
    what = "no answer_start" if unplaced else "answers that do not stand where answer_start says"
    if policy == "refuse":
        finds = f"finds {len(found):,} of them{_ways(ways) if len(found) == len(wrong) else ''}"
        raise UserError(
            f"{where}: {count} have {what}: {_first(wrong)}; "
            f"set data.misplaced_answers to find ({finds}) or drop (leaves them out)"
        )
    kept = [_within(found.get(item.id, item)) for item in examples if item.id in found or not _misplaced(item)]
    lost = [item for item in wrong if item.id not in found]
    if not kept:
        raise UserError(
            f"{where}: no question has its answer where answer_start says{', or anywhere' * (policy == 'find')}: "
            f"{_first(wrong)}"
        )
    if policy == "drop":
        return kept, f"{where}: {count} are left out, which have {what}: {_ids(lost)}"
    note = f"{where}: {count} have {what}: {len(found):,} found{_ways(ways)}"
    return kept, note + (f", {len(lost):,} left out: {_ids(lost)}" if lost else "")


def find(context: str, text: str, start: int) -> Placement | None:
    """Find an answer that is not at ``start``: at this offset in another unit, else its occurrence nearest to there,
    else the nearest one of a text that reads the same. None if there is none."""
    if not text.strip():
        return None
    if start == NOWHERE:
        return _first_place(context, text)
    for how, place in (
        (UTF16, to_characters(context, start, "utf-16-le", 2)),
        (UTF8, to_characters(context, start, "utf-8", 1)),
    ):
        if place is not None and context.startswith(text, place):
            return Placement(place, text, how)
    near = min(max(start, 0), len(context))
    places = (context.rfind(text, 0, near + len(text)), context.find(text, near))
    if known := [place for place in places if place >= 0]:
        return Placement(min(known, key=lambda place: abs(place - near)), text, NEAREST)
    return _find_normalized(context, text, near)


def _first_place(context: str, text: str) -> Placement | None:
    """Find an answer whose place is unknown: its first occurrence as whole words, else any."""
    escaped = re.escape(text)
    patterns = (rf"(?<!\w){escaped}(?!\w)", escaped)
    for pattern in patterns:
        if places := [match.start() for match in re.finditer(pattern, context)]:
            return Placement(places[0], text, ONLY if len(places) == 1 else FIRST)
    return _find_normalized(context, text, 0)


def _misplaced(item: Example) -> bool:
    return any(
        bool(text) and (start < 0 or not item.context.startswith(text, start))
        for text, start in zip(item.answers, item.answer_starts, strict=True)
    )


def _within(item: Example) -> Example:
    """Clip starts to the context: those of empty answers mean nothing and may be outside."""
    starts = tuple(min(max(start, 0), len(item.context)) for start in item.answer_starts)
    return item if starts == item.answer_starts else replace(item, answer_starts=starts)


def _mended(item: Example) -> tuple[Example | None, set[str]]:
    """Return the question with all answers in place, None if one is not found; and how they were found."""
    answers, starts, ways = [], [], set()
    for text, start in zip(item.answers, item.answer_starts, strict=True):
        if not text or (start >= 0 and item.context.startswith(text, start)):
            answers.append(text)
            starts.append(start)
            continue
        found = find(item.context, text, start)
        if found is None:
            return None, set()
        answers.append(found.text)
        starts.append(found.start)
        ways.add(found.how)
    return replace(item, answers=tuple(answers), answer_starts=tuple(starts)), ways


def to_characters(context: str, start: int, encoding: str, size: int) -> int | None:
    """Convert an offset in code units of an encoding to characters; None if it lies inside a character."""
    if start < 0 or context.isascii():
        return None
    before = representable(context).encode(encoding)[: size * start]
    try:
        return len(before.decode(encoding))
    except UnicodeDecodeError:
        return None


def _find_normalized(context: str, text: str, start: int) -> Placement | None:
    """Find what reads the same as a text, at the place nearest to ``start``."""
    wanted = _normalized(text)[0].strip()
    if not wanted:
        return None
    characters, firsts, pasts = _normalized(context)
    best: tuple[int, int, int] | None = None
    place = characters.find(wanted)
    while place >= 0:
        last = place + len(wanted) - 1
        # A part of one character's expansion, such as the i of a ligature, is no occurrence.
        begins = place == 0 or firsts[place - 1] != firsts[place]
        ends = last + 1 == len(characters) or pasts[last + 1] != pasts[last]
        if begins and ends:
            span = (abs(firsts[place] - start), firsts[place], pasts[last])
            best = span if best is None else min(best, span)
        place = characters.find(wanted, place + 1)
    return None if best is None else Placement(best[1], context[best[1] : best[2]], NORMALIZED)


@functools.lru_cache(maxsize=2)  # questions about one context follow each other
def _normalized(text: str) -> tuple[str, list[int], list[int]]:
    """Return a text in NFKC, with single blanks, plain quotes and dashes, and where the source of each character begins
    and ends in the text. Normal forms compose within a grapheme cluster, so each cluster is normalized by itself."""
    characters: list[str] = []
    firsts: list[int] = []
    pasts: list[int] = []
    for match in GRAPHEME.finditer(text):
        for character in unicodedata.normalize("NFKC", match.group().translate(ALIKE)):
            plain = " " if character.isspace() else character
            if plain == " " and characters and characters[-1] == " ":
                pasts[-1] = match.end()
                continue
            characters.append(plain)
            firsts.append(match.start())
            pasts.append(match.end())
    return "".join(characters), firsts, pasts


def _first(wrong: Sequence[Example]) -> str:
    """Describe the first: the id, what is at the start, and the answer."""
    said = []
    for item in wrong[:NAMED]:
        text, start = next(
            (text, start)
            for text, start in zip(item.answers, item.answer_starts, strict=True)
            if start < 0 or not item.context.startswith(text, start)
        )
        there = item.context[start : start + len(text)] if start >= 0 else ""
        place = f"{shown(there)} at {start}, not" if start != NOWHERE else "the place of"
        said.append(f"{shown(item.id)} ({place} {shown(text)})")
    return ", ".join(said)


def _ids(items: Sequence[Example]) -> str:
    more = ", ..." if len(items) > NAMED else ""
    return ", ".join(shown(item.id) for item in items[:NAMED]) + more


def _ways(ways: Counter[str]) -> str:
    """Say how they were found: one way for all, or the number for each."""
    if not ways:
        return ""
    if len(ways) == 1:
        return f", all {next(iter(ways))}"
    return f" ({'; '.join(f'{count:,} {way}' for way, count in ways.most_common())})"
