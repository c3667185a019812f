"""Score answers as SQuAD's official scripts do, and guess answers without a model, as a baseline.

The scripts are v1.1, and v2, in which a question may have no answer.
"""

from __future__ import annotations

import functools
import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from toolkit.errors import UserError
from toolkit.tasks.intervals import bootstrap_intervals
from toolkit.tasks.question_answering.squad import Example, read_examples, read_predictions

PUNCTUATION = set(string.punctuation)

#: Pattern of the gap between two sentences.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


def score(examples: Sequence[Example], predictions: Mapping[str, str]) -> dict[str, float]:
    """Return ``exact_match`` and ``f1`` in percent, as the official script computes them.

    Both are means over all questions of the best agreement with one of the references. The script is v1.1, or v2 if any
    question has no answer. In that case, ``HasAns_exact``, ``HasAns_f1`` and ``HasAns_total`` (their number) are the
    results of the questions with an answer, and ``NoAns_...`` of the others, named as in v2's script.

    A question without a prediction counts as wrong, as in v1.1. The script of v2 leaves it out of the mean, so that a
    file with one correct answer scores 100.

    Args:
        examples: questions.
        predictions: predicted text of each id, "" for no answer; ids without a question are ignored.

    Raises:
        ValueError: ``examples`` is empty.
    """
    if not examples:
        raise ValueError("there are no questions to score")
    has_unanswerable = any(not item.answers for item in examples)
    agreements = _agreements(examples, predictions, has_unanswerable=has_unanswerable)
    scores = dict(zip(("exact_match", "f1"), _percent(agreements), strict=True))
    if has_unanswerable:
        for group, answerable in (("HasAns", True), ("NoAns", False)):
            group_agreements = [
                pair for pair, item in zip(agreements, examples, strict=True) if bool(item.answers) is answerable
            ]
            if group_agreements:
                scores[f"{group}_exact"], scores[f"{group}_f1"] = _percent(group_agreements)
                scores[f"{group}_total"] = len(group_agreements)
    return scores


def score_intervals(examples: Sequence[Example], predictions: Mapping[str, str]) -> dict[str, list[float]]:
    """Return the 95% confidence interval of each score of :func:`score` that is a percentage, [low, high], by name.

    Args:
        examples: questions with their contexts and answers.
        predictions: answer of each question, by its id.
    """
    has_unanswerable = any(not item.answers for item in examples)
    agreements = np.array(_agreements(examples, predictions, has_unanswerable=has_unanswerable)).reshape(-1, 2)
    is_answerable = np.array([bool(item.answers) for item in examples])
    groups = [("exact_match", "f1", np.ones(len(examples), bool))]
    if has_unanswerable:
        groups += [("HasAns_exact", "HasAns_f1", is_answerable), ("NoAns_exact", "NoAns_f1", ~is_answerable)]

    def scores_of(indices: np.ndarray) -> dict[str, float]:
        scores: dict[str, float] = {}
        for exact_name, f1_name, in_group in groups:
            if (group_agreements := agreements[indices[in_group[indices]]]).size:
                scores[exact_name], scores[f1_name] = (100 * group_agreements.mean(axis=0)).tolist()
        return scores

    return bootstrap_intervals(scores_of, len(examples))


def _agreements(
    examples: Sequence[Example], predictions: Mapping[str, str], *, has_unanswerable: bool
) -> list[tuple[float, float]]:
    """Return :func:`agreement` for each question; 0 for a question without a prediction.

    Args:
        examples: questions with their contexts and answers.
        predictions: answer of each question, by its id.
        has_unanswerable: whether some questions of the split have no answer.
    """
    return [
        agreement(predictions[item.id], item.answers, has_unanswerable=has_unanswerable)
        if item.id in predictions
        else (0.0, 0.0)
        for item in examples
    ]


def _percent(agreements: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Return the means of pairs of numbers, in percent."""
    exact_sum = f1_sum = 0.0  # added up one by one in the data's order, as the official scripts do, to the last digit
    for pair in agreements:
        exact_sum, f1_sum = exact_sum + pair[0], f1_sum + pair[1]
    return 100.0 * exact_sum / len(agreements), 100.0 * f1_sum / len(agreements)


def agreement(prediction: str, answers: Sequence[str], *, has_unanswerable: bool) -> tuple[float, float]:
    """Return the best exact match and the best F1 of a prediction over a question's answers, 0 to 1.

    Args:
        prediction: predicted text.
        answers: reference answers; at least one, unless ``has_unanswerable``.
        has_unanswerable: whether some question of the data has no answer, so that scores follow v2.
    """
    references = _references(answers) if has_unanswerable else answers
    exact = max(exact_match(prediction, reference) for reference in references)
    return exact, max(f1(prediction, reference, has_unanswerable=has_unanswerable) for reference in references)


def exact_match(prediction: str, reference: str) -> float:
    """Return 1 if the two texts are equal after :func:`normalize`, and 0 otherwise.

    Args:
        prediction: predicted answer.
        reference: correct answer.
    """
    return float(normalize(prediction) == normalize(reference))


def f1(prediction: str, reference: str, *, has_unanswerable: bool = False) -> float:
    """Return the harmonic mean of precision and recall over normalized words, each counted as often as it occurs.

    Args:
        prediction: predicted text.
        reference: reference answer.
        has_unanswerable: whether an empty side is scored as in v2: 1 if both are empty. v1.1 gives 0.
    """
    predicted_words, reference_words = normalize(prediction).split(), normalize(reference).split()
    if has_unanswerable and not (predicted_words and reference_words):
        return float(predicted_words == reference_words)
    num_common = sum((Counter(predicted_words) & Counter(reference_words)).values())
    if num_common == 0:
        return 0.0
    precision, recall = num_common / len(predicted_words), num_common / len(reference_words)
    return (2 * precision * recall) / (precision + recall)


def normalize(text: str) -> str:
    """Lower-case a text, drop ASCII punctuation and articles, and collapse white space."""
    text = "".join(character for character in text.lower() if character not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _references(answers: Sequence[str]) -> Sequence[str]:
    """Return the answers that are not empty after normalization, or [""] without such answers, as v2 does."""
    return [answer for answer in answers if normalize(answer)] or [""]


def guess(question: str, context: str) -> str:
    """Answer a question without a model, as a baseline.

    The sentence that shares most words with the question is chosen. The answer is its longest run of capitalized words
    and numbers that are not in the question, or the sentence if it has no such run.

    Args:
        question: question to answer.
        context: text with the answer.
    """
    question_words = set(normalize(question).split())
    best_sentence, _ = max(_sentences(context), key=lambda sentence: len(question_words & sentence[1]))
    runs: list[list[str]] = [[]]
    for word in best_sentence.split():
        if (word[:1].isupper() or word[:1].isdigit()) and normalize(word) not in question_words:
            runs[-1].append(word)
        else:
            runs.append([])
    longest = max((" ".join(run) for run in runs), key=len)
    return longest.rstrip(".,;:!?") or best_sentence


@functools.lru_cache(maxsize=4)  # questions about one context follow each other
def _sentences(context: str) -> list[tuple[str, set[str]]]:
    """Return the sentences of a text, each with its words.

    Args:
        context: text with the answer.
    """
    return [(text, set(normalize(text).split())) for text in SENTENCE_END.split(context)]


def score_files(dataset_path: str | Path, predictions: str | Path) -> tuple[dict[str, float], int]:
    """Return :func:`score` of two files, and the number of questions without a prediction.

    Raises:
        UserError: a file cannot be read, or the predictions contain none of the questions' ids.
    """
    examples, predictions_by_id = read_examples(dataset_path), read_predictions(predictions)
    num_missing = sum(item.id not in predictions_by_id for item in examples)
    if num_missing == len(examples):
        raise UserError(
            f"{predictions}: answers none of the {len(examples)} questions of {dataset_path}; are its keys ids?"
        )
    return score(examples, predictions_by_id), num_missing
