"""Write question answering's sections of a run's page, from the predictions file only.

They show the scores by question word and by context length, and the worst answers in their contexts.
"""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from markupsafe import Markup

from toolkit.pages.bins import named_bins
from toolkit.pages.elements import Section, render_macro, share, table
from toolkit.run_folder.predictions import REMEDY, read_predictions
from toolkit.run_folder.read import reading

#: English question words; a question without any of them is grouped by its first word.
QUESTION_WORDS = ("who", "whose", "whom", "what", "which", "when", "where", "why", "how")
#: Number of question words and of answers in the lists.
WORDS_SHOWN, WORST_SHOWN = 12, 20
#: Maximum length of a question word. A longer first word belongs to a language without blanks.
MAX_WORD_CHARACTERS = 20
#: Template of the answers in their passages.
ANSWERS = "tasks/question_answering/answers.html"
#: Exact match and F1 of a question, 0 to 1.
Scores = tuple[float, float]


@dataclass
class AnswerOutcome:
    """Results on a split.

    Attributes:
        scores: exact match and F1 of each question, 0 to 1.
        words: question word of each question.
        tokens: number of tokens of each context.
        worst: rows of the answers with the lowest F1; of equal answers, the most confident.
    """

    scores: list[Scores] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    worst: list[dict[str, str]] = field(default_factory=list)


def report_sections(predictions_path: Path) -> Iterator[Section]:
    """Yield the sections, in order.

    Raises:
        UserError: the file is missing or damaged.
    """
    outcome = read_outcome(predictions_path)
    words = Counter(outcome.words).most_common(WORDS_SHOWN)
    groups: dict[str, Sequence[int]] = {
        word: [index for index, word_of_question in enumerate(outcome.words) if word_of_question == word]
        for word, _ in words
    }
    common_words = {word for word, _ in words}
    if other_questions := [index for index, word in enumerate(outcome.words) if word not in common_words]:
        groups["others"] = other_questions
    by_word = _scores_table("question word", groups, outcome.scores, "Exact match and F1, in percent")
    f1_of_words = {word: _mean(outcome.scores[index][1] for index in groups[word]) for word in groups}
    worst_word = min(f1_of_words, key=lambda word: f1_of_words[word])
    highlight = (
        f"Lowest F1: questions with {worst_word}, {100 * f1_of_words[worst_word]:.1f}" if len(groups) > 1 else ""
    )
    yield Section("Answers by the word that asks", [by_word], highlight)
    lengths = named_bins(outcome.tokens)
    by_length = _scores_table("tokens", lengths, outcome.scores, "Contexts by their number of tokens")
    yield Section("Answers by the length of the context", [by_length])
    with reading(predictions_path, REMEDY):
        yield from _worst_answers(outcome.worst)


def read_outcome(predictions_path: Path) -> AnswerOutcome:
    """Read the predictions file, and keep only the texts that are shown."""
    outcome = AnswerOutcome()
    worst: list[tuple[float, float, int, dict[str, str]]] = []
    with reading(predictions_path, REMEDY):
        for number, row in enumerate(read_predictions(predictions_path)):
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
    outcome.worst = [row for *_, row in sorted(worst, key=lambda entry: entry[:3], reverse=True)]
    return outcome


def question_word(question: str) -> str:
    """Return the word that groups a question, in lower case; "others" if the question has no blanks.

    Args:
        question: question to answer.
    """
    words = [word.strip("¿¡?!.,;:\"'«»“”()").lower() for word in question.split()]
    words = [word for word in words if word]
    asking_word = next((word for word in words if word in QUESTION_WORDS), None)
    if asking_word == "how" and (index := words.index("how")) + 1 < len(words) and words[index + 1] in ("many", "much"):
        return f"how {words[index + 1]}"
    if asking_word is not None:
        return asking_word
    return words[0] if words and len(words[0]) <= MAX_WORD_CHARACTERS and len(words) > 1 else "others"


def _scores_table(
    title: str, groups: Mapping[str, Sequence[int]], question_scores: Sequence[Scores], caption: str
) -> Markup:
    """Return a table of exact match and F1 for groups of questions.

    Args:
        title: title of the column of groups.
        groups: indices of the questions of each group, by its name.
        question_scores: exact match and F1 of each question.
        caption: caption of the table.
    """
    rows = []
    for name, indices in groups.items():
        exact, f1 = (100 * _mean(question_scores[index][column] for index in indices) for column in (0, 1))
        rows.append((name, f"{len(indices):,}", share(exact, f"{exact:.1f}", 100), share(f1, f"{f1:.1f}", 100)))
    return table((title, "questions", "exact match", "F1"), rows, caption, "numbers")


def _mean(values: Iterable[float]) -> float:
    """Return the mean of numbers."""
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _worst_answers(rows: Sequence[dict[str, str]]) -> Iterator[Section]:
    """Yield the section with the worst answers, each marked in a passage of its context."""
    if not rows:
        return
    parts = [render_macro(ANSWERS, "marks", "the model's answer", "the answer of the data")]
    for row in rows:
        answers = json.loads(row["answers"])
        verdict = f" (probability {float(row['probability']):.2f}), F1 {100 * float(row['f1']):.0f}; the data say "
        all_answers = " / ".join(dict.fromkeys(answers)) or "(no answer)"
        values = (row["question"], "answered ", row["prediction"] or "(no answer)", verdict, all_answers)
        parts.append(render_macro(ANSWERS, "answer", *values, *marked_passage(row, answers)))
    explanation = "The lowest F1, of equals the one that the model was surest of."
    yield Section("The worst answers", [explanation, *parts])


def marked_passage(row: dict[str, str], answers: Sequence[str]) -> tuple[list[tuple[str, str]], str]:
    """Return the parts of a row's passage, each with its marks, and a note about the passage.

    The marks are ``ours`` for the model's answer, ``theirs`` for the answer of the data, both, or none.
    """
    text, shift = row["passage"], int(row["passage_start"])
    marks = [_span_in_passage(row["start"], row["prediction"], shift, "ours")]
    marks.append(_span_in_passage(row["answer_start"], answers[0] if answers else "", shift, "theirs"))
    visible_marks = [
        (max(start, 0), min(end, len(text)), kind) for start, end, kind in marks if end > 0 and start < len(text)
    ]
    cuts = sorted({0, len(text), *(position for start, end, _ in visible_marks for position in (start, end))})
    parts = [("…", "")] if shift else []
    for start, end in pairwise(cuts):
        kinds = [kind for first, last, kind in visible_marks if first <= start and end <= last]
        parts.append((text[start:end], " ".join(kinds)))
    is_elsewhere = row["prediction"] and not any(kind == "ours" for *_, kind in visible_marks)
    return parts, " (the model's answer stands elsewhere)" if is_elsewhere else ""


def _span_in_passage(start: str, text: str, shift: int, kind: str) -> tuple[int, int, str]:
    """Return the span of an answer in the passage; it is empty without an answer.

    Args:
        start: start of the answer in the context, as text; empty without an answer.
        text: text of the answer.
        shift: start of the passage in the context.
        kind: CSS class of the marked span.
    """
    if not (start and text):
        return 0, 0, kind
    return int(start) - shift, int(start) - shift + len(text), kind
