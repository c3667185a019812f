"""Handle answers that are not at their position: report all at once, drop them, or find them in their contexts.

Published data has them: offsets off by one, counted in another unit (UTF-16 in files that JavaScript wrote), or from
another version of the text, and answers whose blanks, quotes or composed characters differ from the context's.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.port.tokenization import replace_surrogates
from toolkit.errors import UserError
from toolkit.tasks.question_answering.squad import UNKNOWN_START, Example, format_value
from toolkit.tasks.question_answering.words import GRAPHEME

#: Maximum number of questions that a message names.
MAX_NAMED = 3

#: Descriptions of the ways in which an answer was found.
UTF16, UTF8 = "by offsets in UTF-16 units, as JavaScript counts them", "by offsets in bytes of UTF-8"
ONLY, FIRST = "as its only occurrence", "as the first of several occurrences"
NEAREST, NORMALIZED_MATCH = "as the nearest occurrence of the answer", "where blanks, quotes or Unicode forms differ"

#: Plain form of each variant of a quote or dash. Invisible characters become empty.
PLAIN_CHARACTERS = str.maketrans(
    {
        **dict.fromkeys("\u2018\u2019\u201a\u201b\u2032\u00b4`", "'"),
        **dict.fromkeys("\u201c\u201d\u201e\u201f\u2033\u00ab\u00bb", '"'),
        **dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"),
        **dict.fromkeys("\u00ad\u200b\u2060\ufeff", ""),
    }
)


@dataclass(frozen=True)
class Placement:
    """Position of an answer: ``context[start:start + len(text)]`` is ``text``, the context's own characters.

    Attributes:
        start: position in the context, in characters.
        text: the context's characters.
        how: description of the way in which the answer was found.
    """

    start: int
    text: str
    how: str


def place_answers(examples: Sequence[Example], policy: str, source: str) -> tuple[list[Example], str | None]:
    """Return the questions whose answers are all at their position, and a note on the other questions.

    Args:
        examples: questions to check.
        policy: handling of the other questions: ``refuse`` raises an error, ``drop`` leaves them out, and ``find``
            moves their answers to their nearest occurrences, and leaves out questions with an answer that does not
            occur.
        source: name of the file or split, for messages.

    Raises:
        UserError: the policy is ``refuse`` and an answer is misplaced, or all questions are left out.
    """
    invalid_examples = [item for item in examples if _is_misplaced(item)]
    if not invalid_examples:
        return [_clip_starts(item) for item in examples], None
    relocations = {item.id: _relocate_answers(item) for item in invalid_examples} if policy != "drop" else {}
    relocated_by_id = {name: item for name, (item, _) in relocations.items() if item is not None}
    ways = Counter(way for item, how in relocations.values() if item is not None for way in how)
    count = f"{len(invalid_examples):,} of {len(examples):,} questions"
    has_no_starts = all(start == UNKNOWN_START for item in invalid_examples for start in item.answer_starts)
    problem = "no answer_start" if has_no_starts else "answers that do not stand where answer_start says"
    if policy == "refuse":
        result = (
            f"finds {len(relocated_by_id):,} of them"
            f"{_describe_ways(ways) if len(relocated_by_id) == len(invalid_examples) else ''}"
        )
        raise UserError(
            f"{source}: {count} have {problem}: {_describe_misplaced(invalid_examples)}; "
            f"set data.misplaced_answers to find ({result}) or drop (leaves them out)"
        )
    kept_examples = [
        _clip_starts(relocated_by_id.get(item.id, item))
        for item in examples
        if item.id in relocated_by_id or not _is_misplaced(item)
    ]
    lost_examples = [item for item in invalid_examples if item.id not in relocated_by_id]
    if not kept_examples:
        raise UserError(
            f"{source}: no question has its answer where answer_start says{', or anywhere' * (policy == 'find')}: "
            f"{_describe_misplaced(invalid_examples)}"
        )
    if policy == "drop":
        return kept_examples, f"{source}: {count} are left out, which have {problem}: {_list_ids(lost_examples)}"
    note = f"{source}: {count} have {problem}: {len(relocated_by_id):,} found{_describe_ways(ways)}"
    return kept_examples, note + (
        f", {len(lost_examples):,} left out: {_list_ids(lost_examples)}" if lost_examples else ""
    )


def find_answer(context: str, text: str, start: int) -> Placement | None:
    """Find an answer that is not at ``start``; return None if it does not occur.

    The candidates, in this order: the offset in another unit, the nearest occurrence, and the nearest occurrence of a
    text that is equal after normalization.
    """
    if not text.strip():
        return None
    if start == UNKNOWN_START:
        return _find_first(context, text)
    for how, position in (
        (UTF16, to_characters(context, start, "utf-16-le", 2)),
        (UTF8, to_characters(context, start, "utf-8", 1)),
    ):
        if position is not None and context.startswith(text, position):
            return Placement(position, text, how)
    clipped_start = min(max(start, 0), len(context))
    candidates = (context.rfind(text, 0, clipped_start + len(text)), context.find(text, clipped_start))
    if occurrences := [position for position in candidates if position >= 0]:
        return Placement(min(occurrences, key=lambda position: abs(position - clipped_start)), text, NEAREST)
    return _find_normalized(context, text, clipped_start)


def _find_first(context: str, text: str) -> Placement | None:
    """Find an answer whose position is unknown: its first occurrence as whole words, or otherwise any occurrence."""
    pattern_text = re.escape(text)
    patterns = (rf"(?<!\w){pattern_text}(?!\w)", pattern_text)
    for pattern in patterns:
        if positions := [match.start() for match in re.finditer(pattern, context)]:
            return Placement(positions[0], text, ONLY if len(positions) == 1 else FIRST)
    return _find_normalized(context, text, 0)


def _is_misplaced(item: Example) -> bool:
    """Return whether an answer of the example is not in the context at the start that the data gives."""
    return any(
        bool(text) and (start < 0 or not item.context.startswith(text, start))
        for text, start in zip(item.answers, item.answer_starts, strict=True)
    )


def _clip_starts(item: Example) -> Example:
    """Clip starts to the context, because starts of empty answers may be outside."""
    starts = tuple(min(max(start, 0), len(item.context)) for start in item.answer_starts)
    return item if starts == item.answer_starts else replace(item, answer_starts=starts)


def _relocate_answers(item: Example) -> tuple[Example | None, set[str]]:
    """Return the question with all answers at their position, or None if one is not found; and the ways of finding."""
    answers, starts, ways = [], [], set()
    for text, start in zip(item.answers, item.answer_starts, strict=True):
        if not text or (start >= 0 and item.context.startswith(text, start)):
            answers.append(text)
            starts.append(start)
            continue
        placement = find_answer(item.context, text, start)
        if placement is None:
            return None, set()
        answers.append(placement.text)
        starts.append(placement.start)
        ways.add(placement.how)
    return replace(item, answers=tuple(answers), answer_starts=tuple(starts)), ways


def to_characters(context: str, start: int, encoding: str, size: int) -> int | None:
    """Convert an offset in code units of an encoding to characters; return None inside a character.

    Args:
        context: text with the answer.
        start: offset in code units.
        encoding: name of the encoding.
        size: number of bytes of a code unit.
    """
    if start < 0 or context.isascii():
        return None
    prefix = replace_surrogates(context).encode(encoding)[: size * start]
    try:
        return len(prefix.decode(encoding))
    except UnicodeDecodeError:
        return None


def _find_normalized(context: str, text: str, start: int) -> Placement | None:
    """Find the occurrence nearest to ``start`` of a text that is equal after normalization."""
    normalized_answer = _normalize_text(text)[0].strip()
    if not normalized_answer:
        return None
    normalized_context, firsts, pasts = _normalize_text(context)
    best: tuple[int, int, int] | None = None
    position = normalized_context.find(normalized_answer)
    while position >= 0:
        last = position + len(normalized_answer) - 1
        # A part of one character's expansion, such as the i of a ligature, does not count.
        is_start = position == 0 or firsts[position - 1] != firsts[position]
        is_end = last + 1 == len(normalized_context) or pasts[last + 1] != pasts[last]
        if is_start and is_end:
            span = (abs(firsts[position] - start), firsts[position], pasts[last])
            best = span if best is None else min(best, span)
        position = normalized_context.find(normalized_answer, position + 1)
    return None if best is None else Placement(best[1], context[best[1] : best[2]], NORMALIZED_MATCH)


@functools.lru_cache(maxsize=2)  # questions about one context follow each other
def _normalize_text(text: str) -> tuple[str, list[int], list[int]]:
    """Return a text in NFKC with single blanks and plain quotes and dashes, and the source span of each character.

    Normal forms compose within a grapheme cluster, so each cluster is normalized separately.
    """
    characters: list[str] = []
    firsts: list[int] = []
    pasts: list[int] = []
    for match in GRAPHEME.finditer(text):
        for character in unicodedata.normalize("NFKC", match.group().translate(PLAIN_CHARACTERS)):
            plain = " " if character.isspace() else character
            if plain == " " and characters and characters[-1] == " ":
                pasts[-1] = match.end()
                continue
            characters.append(plain)
            firsts.append(match.start())
            pasts.append(match.end())
    return "".join(characters), firsts, pasts


def _describe_misplaced(examples: Sequence[Example]) -> str:
    """Describe the first misplaced answers: the id, the text at the start position, and the answer.

    Args:
        examples: questions with their contexts and answers.
    """
    descriptions = []
    for item in examples[:MAX_NAMED]:
        text, start = next(
            (text, start)
            for text, start in zip(item.answers, item.answer_starts, strict=True)
            if start < 0 or not item.context.startswith(text, start)
        )
        actual_text = item.context[start : start + len(text)] if start >= 0 else ""
        position_note = f"{format_value(actual_text)} at {start}, not" if start != UNKNOWN_START else "the place of"
        descriptions.append(f"{format_value(item.id)} ({position_note} {format_value(text)})")
    return ", ".join(descriptions)


def _list_ids(items: Sequence[Example]) -> str:
    """Return the ids of the first examples as words for a message."""
    ellipsis = ", ..." if len(items) > MAX_NAMED else ""
    return ", ".join(format_value(item.id) for item in items[:MAX_NAMED]) + ellipsis


def _describe_ways(ways: Counter[str]) -> str:
    """Describe how answers were found: the single way, or the number for each way."""
    if not ways:
        return ""
    if len(ways) == 1:
        return f", all {next(iter(ways))}"
    return f" ({'; '.join(f'{count:,} {way}' for way, count in ways.most_common())})"
