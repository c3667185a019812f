"""SQuAD: reading its files in every layout they come in, and scoring answers as its official scripts do.

Rajpurkar et al. 2016 (v1.1), 2018 (v2, with questions that have no answer). A file is *nested*, as published
(articles, paragraphs, questions), or *flat*, as the hub's data sets are: a JSON list or JSON lines of rows with
``id``, ``context``, ``question`` and ``answers`` (``text`` and ``answer_start``, lists of equal length).
"""

from __future__ import annotations

import functools
import json
import re
import string
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.files import UnreadableFile, read_text
from toolkit.errors import UserError

PUNCTUATION = set(string.punctuation)

#: Between the paragraphs of a document.
BETWEEN = "\n\n"

#: Between two sentences.
SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")

#: The keys of a question, by SQuAD's names.
SQUAD_COLUMNS = {name: name for name in ("id", "context", "question", "answers")}


@dataclass(frozen=True)
class Example:
    """A question about a context.

    Attributes:
        id: names it in a predictions file.
        answers: the references; more than one where several people were asked, none where there is no answer.
        answer_starts: where in the context each begins, in characters: ``context[start:start + len(answer)]``.
        document: what the context is a part of, such as an article's title; "" where that is not known.
    """

    id: str
    context: str
    question: str
    answers: tuple[str, ...]
    answer_starts: tuple[int, ...]
    document: str = ""


# -- reading --------------------------------------------------------------------------------------------------------


def read_examples(
    path: str | Path, columns: Mapping[str, str] = SQUAD_COLUMNS, document: str | None = None
) -> list[Example]:
    """The questions of a SQuAD file, nested or flat, in the file's order.

    Args:
        columns: SQuAD's key -> the file's, where its rows have other names.
        document: the key that says which document a context is a part of; ``title`` in SQuAD's own files.

    Raises:
        UserError: no such file, not JSON, a question that lacks something or whose answer does not stand in its context
            where it says, or an id that is there twice; with the place in the file.
    """
    path = Path(path)
    rows = _rows(read_json(path), path)
    examples = [example(_renamed(row, columns, document), f"{path}: {where}") for where, row in rows]
    if not examples:
        raise UserError(f"{path}: holds no questions")
    return _unique(examples, str(path))


def check_rows(rows: Iterable[Mapping[str, Any]], where: str) -> list[Example]:
    """Flat rows as questions, each checked.

    Args:
        where: what the rows are, for the error.

    Raises:
        UserError: as :func:`read_examples`.
    """
    return _unique([example(row, f"{where}: row {number}") for number, row in enumerate(rows, 1)], where)


def _unique(examples: list[Example], where: str) -> list[Example]:
    twice = [name for name, count in Counter(item.id for item in examples).items() if count > 1]
    if twice:
        raise UserError(f"{where}: {len(twice)} ids occur twice, the first is {twice[0]}; ids must be unique")
    return examples


def _renamed(row: Any, columns: Mapping[str, str], document: str | None) -> Any:
    if not isinstance(row, Mapping):
        return row
    renamed = {name: row[column] for name, column in columns.items() if column in row}
    return renamed if document is None else {**renamed, "document": row.get(document)}


def read_predictions(path: str | Path) -> dict[str, str]:
    """The answers of a predictions file in the official format: one JSON object, id -> text.

    Raises:
        UserError: no such file, or something else in it.
    """
    found = read_json(Path(path))
    if not isinstance(found, dict):
        raise UserError(f'{path}: expected one JSON object of ids and answers, {{"id": "text", ...}}')
    for name, text in found.items():
        if not isinstance(text, str):
            raise UserError(f"{path}: the answer of {name} is {text!r}, not a text")
    return found


def read_json(path: Path) -> Any:
    """The content of a JSON file; of a file of JSON lines, a list.

    Raises:
        UserError: unreadable, or neither.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as problem:
        raise UserError(f"{path}: cannot be read: {problem.strerror}") from None
    except UnreadableFile as problem:
        raise UserError(str(problem)) from None
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply") from None
    except ValueError as problem:
        whole = problem
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                # In a file of lines the broken line is the news; in one document, its own position.
                reason = f"line {number} is not JSON" if len(rows) > 1 else f"is not JSON: {whole}"
                raise UserError(f"{path}: {reason}") from None
    return rows


def example(row: Mapping[str, Any], where: str) -> Example:
    """A flat row, checked.

    Args:
        where: the row's place, for the error.

    Raises:
        UserError: a key is missing or of a wrong kind, or an answer does not stand where it says.
    """
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: expected an object with id, context, question and answers")
    for key in ("id", "context", "question", *(["document"] if "document" in row else [])):
        if not isinstance(row.get(key), str):
            raise UserError(f"{where}: {key} is {row[key]!r}, not a text" if key in row else f"{where}: has no {key}")
    texts, starts = _answers(row.get("answers"), where)
    for text, start in zip(texts, starts, strict=True):
        found = row["context"][start : start + len(text)] if start >= 0 else ""
        if found != text:
            raise UserError(f"{where} ({row['id']}): the context has {found!r} at {start}, the answer is {text!r}")
    return Example(row["id"], row["context"], row["question"], texts, starts, row.get("document", ""))


def join_documents(examples: Sequence[Example]) -> list[Example]:
    """The questions, each about its whole document: its contexts in their order, each once, an empty line between."""
    contexts: dict[str, dict[str, int]] = {}
    ends: dict[str, int] = {}
    for item in examples:
        known = contexts.setdefault(item.document, {})
        if item.context not in known:
            known[item.context] = ends.get(item.document, 0)
            ends[item.document] = known[item.context] + len(item.context) + len(BETWEEN)
    documents = {name: BETWEEN.join(known) for name, known in contexts.items()}
    return [
        replace(
            item,
            context=documents[item.document],
            answer_starts=tuple(start + contexts[item.document][item.context] for start in item.answer_starts),
        )
        for item in examples
    ]


def _answers(answers: Any, where: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Texts and starts of a row's answers: two lists, or a list of objects with a text and a start."""
    texts: Any
    starts: Any
    if isinstance(answers, Mapping):
        texts, starts = answers.get("text"), answers.get("answer_start")
    elif isinstance(answers, Sequence) and all(isinstance(item, Mapping) for item in answers):
        texts, starts = [item.get("text") for item in answers], [item.get("answer_start") for item in answers]
    else:
        raise UserError(f'{where}: answers should be {{"text": [...], "answer_start": [...]}}')
    if not (_all_are(texts, str) and _all_are(starts, int) and len(texts) == len(starts)):
        raise UserError(f"{where}: answers should have as many texts as whole numbers in answer_start")
    return tuple(texts), tuple(starts)


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, Sequence) and all(isinstance(value, kind) for value in values)


def _rows(content: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Each question as a flat row, with its place in the file."""
    if isinstance(content, Mapping):  # the published form, or JSON lines of which there is one
        content = content.get("data", [content])
    if not isinstance(content, list):
        raise UserError(f"{path}: expected SQuAD's data, or a list of rows with id, context, question and answers")
    for number, item in enumerate(content, 1):
        if isinstance(item, Mapping) and "paragraphs" in item:
            yield from _nested(item, f"article {number}", path)
        else:
            yield f"row {number}", item


def _nested(article: Mapping[str, Any], place: str, path: Path) -> Iterator[tuple[str, Any]]:
    for number, paragraph in enumerate(article["paragraphs"], 1):
        where = f"{place}, paragraph {number}"
        if not isinstance(paragraph, Mapping) or not isinstance(paragraph.get("qas"), list):
            raise UserError(f"{path}: {where}: expected an object with context and qas")
        for index, question in enumerate(paragraph["qas"], 1):
            row = dict(question) if isinstance(question, Mapping) else {}
            if row.get("is_impossible"):  # v2; what stands in plausible_answers is no answer
                row["answers"] = []
            yield (
                f"{where}, question {index}",
                {"title": article.get("title"), **row, "context": paragraph.get("context")},
            )


# -- scoring --------------------------------------------------------------------------------------------------------


def score(examples: Sequence[Example], predictions: Mapping[str, str]) -> dict[str, float]:
    """``exact_match`` and ``f1`` in percent, as the official script of v1.1 gives them, or that of v2 where a question
    has no answer: the mean over all questions of the best agreement with one of the references.

    A question that has no prediction counts as wrong, as in v1.1; the script of v2 leaves it out of the mean, so that
    a file with one right answer scores 100.

    Args:
        predictions: id -> text; ids that are no question's are ignored. "" for no answer.

    Raises:
        ValueError: there are no examples.
    """
    if not examples:
        raise ValueError("there are no questions to score")
    unanswerable = any(not item.answers for item in examples)
    exact = overlap = 0.0  # added up one by one in the data's order, as the official scripts do, to the last digit
    for item in examples:
        if item.id in predictions:
            agreed = agreement(predictions[item.id], item.answers, unanswerable)
            exact, overlap = exact + agreed[0], overlap + agreed[1]
    return {"exact_match": 100.0 * exact / len(examples), "f1": 100.0 * overlap / len(examples)}


def agreement(prediction: str, answers: Sequence[str], unanswerable: bool) -> tuple[float, float]:
    """Exact match and F1 of a prediction with that of a question's answers with which each is best, 0 to 1.

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
    """Lower case, without ASCII punctuation, without the words a, an and the, single spaces."""
    text = "".join(character for character in text.lower() if character not in PUNCTUATION)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _references(answers: Sequence[str]) -> Sequence[str]:
    """v2: the answers of which something is left after normalisation; where there is none, that there is no answer."""
    return [answer for answer in answers if normalize(answer)] or [""]


def guess(question: str, context: str) -> str:
    """An answer without a model, to compare one with: in the sentence that shares most words with the question, the
    longest run of capitalised words and numbers that the question does not hold; where there is none, the sentence."""
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
