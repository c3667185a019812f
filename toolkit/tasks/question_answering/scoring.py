"""Score answers as SQuAD's official scripts do (v1.1; v2, where a question may have no answer), and guess answers
without a model, as a baseline."""

from __future__ import annotations

import functools
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from toolkit.errors import UserError
from toolkit.tasks.question_answering.squad import Example, read_examples, read_predictions

PUNCTUATION = set(string.punctuation)

#: Between two sentences.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def score(examples: Sequence[Example], predictions: Mapping[str, str]) -> dict[str, float]:
    """Return ``exact_match`` and ``f1`` in percent, as the official script of v1.1 gives them, or that of v2 if any
    question has no answer: the mean over all questions of the best agreement with one of the references.

    If any question has no answer, add ``HasAns_exact``, ``HasAns_f1`` and ``HasAns_total`` (their number) for those
    with an answer, and ``NoAns_...`` for the others, named as in v2's script.

    A question that has no prediction counts as wrong, as in v1.1; the script of v2 leaves it out of the mean, so that
    a file with one right answer scores 100.

    Args:
        predictions: id -> text, "" for no answer; ids of no question are ignored.

    Raises:
        ValueError: there are no examples.
    """
    if not examples:
        raise ValueError("there are no questions to score")
    unanswerable = any(not item.answers for item in examples)
    agreed = [
        agreement(predictions[item.id], item.answers, unanswerable) if item.id in predictions else (0.0, 0.0)
        for item in examples
    ]
    scores = dict(zip(("exact_match", "f1"), _percent(agreed), strict=True))
    if unanswerable:
        for group, answerable in (("HasAns", True), ("NoAns", False)):
            of = [pair for pair, item in zip(agreed, examples, strict=True) if bool(item.answers) is answerable]
            if of:
                scores[f"{group}_exact"], scores[f"{group}_f1"] = _percent(of)
                scores[f"{group}_total"] = len(of)
    return scores


def _percent(agreed: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """The means of pairs of numbers, in percent."""
    exact = overlap = 0.0  # added up one by one in the data's order, as the official scripts do, to the last digit
    for pair in agreed:
        exact, overlap = exact + pair[0], overlap + pair[1]
    return 100.0 * exact / len(agreed), 100.0 * overlap / len(agreed)


def agreement(prediction: str, answers: Sequence[str], unanswerable: bool) -> tuple[float, float]:
    """Return the best exact match and the best F1 of a prediction over a question's answers, 0 to 1.

    Args:
        answers: at least one, unless ``unanswerable``.
        unanswerable: score as v2 does, since some question of the data has no answer.
    """
    references = _references(answers) if unanswerable else answers
    exact = max(exact_match(prediction, reference) for reference in references)
    return exact, max(f1(prediction, reference, unanswerable) for reference in references)


def exact_match(prediction: str, reference: str) -> float:
    """1 where the two are equal after :func:`normalize`, else 0."""
    return float(normalize(prediction) == normalize(reference))


def f1(prediction: str, reference: str, unanswerable: bool = False) -> float:
    """The harmonic mean of precision and recall over normalised words, each counted as often as it occurs.

    Args:
        unanswerable: score an empty side as v2 does: 1 where both are empty. v1.1 gives 0.
    """
    ours, theirs = normalize(prediction).split(), normalize(reference).split()
    if unanswerable and not (ours and theirs):
        return float(ours == theirs)
    same = sum((Counter(ours) & Counter(theirs)).values())
    if same == 0:
        return 0.0
    precision, recall = same / len(ours), same / len(theirs)
    return (2 * precision * recall) / (precision + recall)


def normalize(text: str) -> str:
    """Lower-case a text, drop ASCII punctuation, a, an and the, and leave single spaces."""
    text = "".join(character for character in text.lower() if character not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _references(answers: Sequence[str]) -> Sequence[str]:
    """Return, as v2 does, the answers that are not empty after normalisation; if there are none, no answer ("")."""
    return [answer for answer in answers if normalize(answer)] or [""]


def guess(question: str, context: str) -> str:
    """Answer without a model, as a baseline: from the sentence that shares most words with the question, take the
    longest run of capitalised words and numbers that are not in the question; without a run, the sentence."""
    asked = set(normalize(question).split())
    best, _ = max(_sentences(context), key=lambda sentence: len(asked & sentence[1]))
    runs: list[list[str]] = [[]]
    for word in best.split():
        if (word[:1].isupper() or word[:1].isdigit()) and normalize(word) not in asked:
            runs[-1].append(word)
        else:
            runs.append([])
    longest = max((" ".join(run) for run in runs), key=len)
    return longest.rstrip(".,;:!?") or best


@functools.lru_cache(maxsize=4)  # questions about one context follow each other
def _sentences(context: str) -> list[tuple[str, set[str]]]:
    """The sentences of a text, each with its words."""
    return [(text, set(normalize(text).split())) for text in SENTENCE_END.split(context)]


def score_files(dataset: str | Path, predictions: str | Path) -> tuple[dict[str, float], int]:
    """:func:`score` of two files, and how many questions have no prediction.

    Raises:
        UserError: as the readers; also where no id of the predictions is a question's.
    """
    examples, found = read_examples(dataset), read_predictions(predictions)
    missing = sum(item.id not in found for item in examples)
    if missing == len(examples):
        raise UserError(f"{predictions}: answers none of the {len(examples)} questions of {dataset}; are its keys ids?")
    return score(examples, found), missing
