"""Question answering's sections of a run's page, from the predictions file alone: scores by question word and by
context length, and the worst answers in their contexts."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from xml.etree.ElementTree import Element

from toolkit.pages.document import table
from toolkit.pages.markup import element
from toolkit.pages.plot import named_bins, share
from toolkit.run_folder.predictions import REMEDY, read_predictions
from toolkit.run_folder.read import reading

#: English question words; a question without any of them is grouped by its first word.
QUESTION_WORDS = ("who", "whose", "whom", "what", "which", "when", "where", "why", "how")
#: Number of listed question words, and answers.
WORDS_SHOWN, WORST_SHOWN = 12, 20
#: A longer first word is no word: a language without blanks.
LONGEST_WORD = 20
#: Exact match, F1.
Scores = tuple[float, float]


@dataclass
class AnswerOutcome:
    """Results on a split.

    Attributes:
        scores: of each question, 0 to 1.
        words: the question word of each.
        tokens: of each context.
        worst: the rows of the lowest-scoring answers, of equals the surest.
    """

    scores: list[Scores] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    worst: list[dict[str, str]] = field(default_factory=list)


def sections(predictions: Path) -> Iterator[Element]:
    """The sections, in order.

    Raises:
        UserError: the file is missing or damaged.
    """
    found = read_outcome(predictions)
    yield element("h2", "Answers by the word that asks")
    words = Counter(found.words).most_common(WORDS_SHOWN)
    groups: dict[str, Sequence[int]] = {
        word: [place for place, one in enumerate(found.words) if one == word] for word, _ in words
    }
    listed = {word for word, _ in words}
    if others := [place for place, word in enumerate(found.words) if word not in listed]:
        groups["others"] = others
    yield _scores("question word", groups, found.scores, "Exact match and F1, in percent")
    yield element("h2", "Answers by the length of the context")
    yield _scores("tokens", named_bins(found.tokens), found.scores, "Contexts by their number of tokens")
    with reading(predictions, REMEDY):
        yield from _worst(found.worst)


def read_outcome(predictions: Path) -> AnswerOutcome:
    """Read the predictions file, keeping only the texts that are shown."""
    outcome = AnswerOutcome()
    worst: list[tuple[float, float, int, dict[str, str]]] = []
    with reading(predictions, REMEDY):
        for number, row in enumerate(read_predictions(predictions)):
            exact, f1 = float(row["exact_match"]), float(row["f1"])
            outcome.scores.append((exact, f1))
            outcome.words.append(question_word(row["question"]))
            outcome.tokens.append(int(row["context_tokens"]))
            if exact < 1.0:
                heapq.heappush(worst, (-f1, float(row["probability"]), -number, row))
                if len(worst) > WORST_SHOWN:
                    heapq.heappop(worst)
        if not outcome.scores:
            raise ValueError("it has no rows")
    outcome.worst = [row for *_, row in sorted(worst, key=lambda one: one[:3], reverse=True)]
    return outcome


def question_word(question: str) -> str:
    """Return the word that groups a question, in lower case; "others" if it has no blanks."""
    words = [word.strip("¿¡?!.,;:\"'«»“”()").lower() for word in question.split()]
    words = [word for word in words if word]
    asking = next((word for word in words if word in QUESTION_WORDS), None)
    if asking == "how" and (place := words.index("how")) + 1 < len(words) and words[place + 1] in ("many", "much"):
        return f"how {words[place + 1]}"
    if asking is not None:
        return asking
    return words[0] if words and len(words[0]) <= LONGEST_WORD and len(words) > 1 else "others"


def _scores(title: str, groups: Mapping[str, Sequence[int]], scores: Sequence[Scores], caption: str) -> Element:
    rows = []
    for name, places in groups.items():
        exact, f1 = (100 * _mean(scores[place][which] for place in places) for which in (0, 1))
        rows.append((name, f"{len(places):,}", share(exact, f"{exact:.1f}", 100), share(f1, f"{f1:.1f}", 100)))
    return table((title, "questions", "exact match", "F1"), rows, caption, "numbers")


def _mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)


def _worst(rows: Sequence[dict[str, str]]) -> Iterator[Element]:
    if not rows:
        return
    yield element("h2", "The worst answers")
    yield element(
        "p",
        "The lowest F1, of equals the one that the model was surest of. In the passage of the context, ",
        element("mark", "the model's answer", class_="ours"),
        " and ",
        element("mark", "the answer of the data", class_="theirs"),
        ".",
    )
    for row in rows:
        answers = json.loads(row["answers"])
        yield element(
            "article",
            element("h3", row["question"], dir="auto"),
            element(
                "p",
                "answered ",
                element("strong", row["prediction"] or "(no answer)", dir="auto"),
                f" (probability {float(row['probability']):.2f}), F1 {100 * float(row['f1']):.0f}; the data say ",
                element("strong", " / ".join(dict.fromkeys(answers)) or "(no answer)", dir="auto"),
            ),
            marked_passage(row, answers),
            class_="answer",
        )


def marked_passage(row: dict[str, str], answers: Sequence[str]) -> Element:
    """Mark the two answers in a row's passage; where they overlap, both marks apply."""
    text, shift = row["passage"], int(row["passage_start"])
    marks = [_span(row["start"], row["prediction"], shift, "ours")]
    marks.append(_span(row["answer_start"], answers[0] if answers else "", shift, "theirs"))
    found = [(max(start, 0), min(end, len(text)), kind) for start, end, kind in marks if end > 0 and start < len(text)]
    cuts = sorted({0, len(text), *(place for start, end, _ in found for place in (start, end))})
    parts: list[Element | str] = ["…"] if shift else []
    for start, end in pairwise(cuts):
        kinds = [kind for left, right, kind in found if left <= start and end <= right]
        parts.append(element("mark", text[start:end], class_=" ".join(kinds)) if kinds else text[start:end])
    note = None
    if row["prediction"] and not any(kind == "ours" for *_, kind in found):
        note = element("span", " (the model's answer stands elsewhere)", class_="soft")
    return element("p", *parts, note, class_="passage", dir="auto")


def _span(start: str, text: str, shift: int, kind: str) -> tuple[int, int, str]:
    """Span of an answer in the passage; empty without an answer."""
    if not (start and text):
        return 0, 0, kind
    return int(start) - shift, int(start) - shift + len(text), kind
