"""Read SQuAD files in all layouts in which they are published.

Rajpurkar et al. 2016 (v1.1), 2018 (v2, with questions that have no answer). A file is *nested*, as published (articles,
paragraphs, questions), or *flat*, as the hub's data sets are: a JSON list or JSON lines of rows with ``id``,
``context``, ``question`` and ``answers`` (``text`` and ``answer_start``, lists of equal length). Others publish
variants of both layouts; unambiguous variants are read. :mod:`.placement` checks the positions of the answers, and
:mod:`.scoring` scores predictions.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.files.plain import UnreadableFileError, read_text
from toolkit.errors import UserError
from toolkit.files.written_values import parse_value

#: Separator of a document's paragraphs.
PARAGRAPH_SEPARATOR = "\n\n"

#: The keys of a question, by SQuAD's names.
SQUAD_COLUMNS = {name: name for name in ("id", "context", "question", "answers")}

#: Further keys of a question, with these names even if the others are renamed.
OTHER_KEYS = ("is_impossible", "answer", "answer_start")

#: Keys of a paragraph or an article that its questions do not take over.
OWN_KEYS = {"paragraphs", "qas", "id", "question", "answers", *OTHER_KEYS}

#: Start of an answer whose position the data do not contain. No data set uses this number.
UNKNOWN_START = -(2**31)
#: Whole number in a csv file; pandas appends .0 if a value of the column is missing.
WHOLE_NUMBER = re.compile(r"-?[0-9]+(\.0+)?")
#: Values of a cell of is_impossible in a csv file.
BOOLEAN_CELLS = {"true": True, "1": True, "false": False, "0": False, "": None}

#: Maximum number of characters of a value in a message.
MAX_SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Answer:
    """A span of a context.

    Attributes:
        text: ``context[start:end]``; "" for no answer.
        start, end: positions in the context, in characters.
        score: sum of the scores of the two positions.
        probability: probability among the best answers to the question (softmax of their scores).
    """

    text: str
    start: int
    end: int
    score: float
    probability: float


@dataclass(frozen=True)
class Example:
    """A question about a context.

    Attributes:
        id: key of the question in a predictions file.
        context: text that contains the answers.
        question: text of the question.
        answers: reference answers; several if several people were asked, empty if the question has no answer.
        answer_starts: start of each answer in the context, in characters: ``context[start:start + len(answer)]``.
        document: document that the context is a part of, such as an article's title; "" if it is unknown.
    """

    id: str
    context: str
    question: str
    answers: tuple[str, ...]
    answer_starts: tuple[int, ...]
    document: str = ""


def read_examples(
    path: str | Path, columns: Mapping[str, str] = SQUAD_COLUMNS, document: str | None = None
) -> list[Example]:
    """Read the questions of a SQuAD file, nested or flat, in its order, with the answer positions of the file.

    Args:
        path: file to read.
        columns: key of the file for each of SQuAD's keys, if its rows have other names.
        document: key with the document that a context is a part of; ``title`` in SQuAD's own files.

    Raises:
        UserError: the file is missing or not JSON, a question is incomplete, or an id occurs twice. The error names the
            location in the file.
    """
    path = Path(path)
    rows = [
        (f"{path}: {location}", _rename_keys(row, columns, document))
        for location, row in _flat_rows(read_json(path), path)
    ]
    examples = [parse_example(row, location) for location, row in _with_ids(rows)]
    if not examples:
        raise UserError(f"{path}: holds no questions")
    check_ids([item.id for item in examples], str(path))
    return examples


def check_rows(rows: Iterable[Mapping[str, Any]], location: str) -> list[Example]:
    """Check flat rows, and convert them to questions.

    Args:
        rows: rows with SQuAD's keys.
        location: name of the rows in an error.

    Raises:
        UserError: a row is incomplete, or an id occurs twice.
    """
    located_rows = [(f"{location}: row {number}", row) for number, row in enumerate(rows, 1)]
    examples = [parse_example(row, row_location) for row_location, row in _with_ids(located_rows)]
    check_ids([item.id for item in examples], location)
    return examples


def _with_ids(rows: Sequence[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Number the questions if none of them has an id."""
    if any(not isinstance(row, Mapping) or "id" in row for _, row in rows):
        return rows
    return [(location, {**row, "id": number}) for number, (location, row) in enumerate(rows, 1)]


def check_ids(ids: Sequence[str], location: str) -> None:
    """Check that all ids are unique, because a predictions file could not distinguish questions with the same id.

    Raises:
        UserError: an id is repeated; the error names the first, and the number of repeated ids.
    """
    repeated_ids = {name: count for name, count in Counter(ids).items() if count > 1}
    if repeated_ids:
        first_id, count = next(iter(repeated_ids.items()))
        raise UserError(
            f"{location}: {len(repeated_ids):,} ids are not unique, the first is {format_value(first_id)}, "
            f"of {count:,} questions; a predictions file could not tell them apart"
        )


def format_value(value: Any) -> str:
    """Format a value for a message, cut to a maximum length."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[: MAX_SHOWN_CHARACTERS - 3]}..."


def _rename_keys(row: Any, columns: Mapping[str, str], document: str | None) -> Any:
    """Return a row with SQuAD's keys instead of the user's columns; a row that is not a mapping stays as it is.

    Args:
        row: row of the data.
        columns: the user's column, by SQuAD's key.
        document: key of the row's document; None for data without documents.
    """
    if not isinstance(row, Mapping):
        return row
    squad_row = {key: row[key] for key in OTHER_KEYS if key in row}
    squad_row |= {name: row[column] for name, column in columns.items() if column in row}
    return squad_row if document is None else {**squad_row, "document": row.get(document)}


def read_predictions(path: str | Path) -> dict[str, str]:
    """Read the answers of a predictions file in the official format: one JSON object, id -> text.

    Raises:
        UserError: the file is missing, or has another format.
    """
    answers_by_id = read_json(Path(path))
    if not isinstance(answers_by_id, dict):
        raise UserError(f'{path}: expected one JSON object of ids and answers, {{"id": "text", ...}}')
    for name, text in answers_by_id.items():
        if not isinstance(text, str):
            raise UserError(f"{path}: the answer of {name} is {text!r}, not a text")
    return answers_by_id


def read_json(path: Path) -> Any:
    """Return the content of a JSON file, or a list for a file of JSON lines.

    Raises:
        UserError: the file cannot be read, or is neither.
    """
    try:
        text = read_text(path)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnreadableFileError as error:
        raise UserError(str(error)) from None
    try:
        return json.loads(text)
    except RecursionError:
        raise UserError(f"{path}: is nested too deeply") from None
    except ValueError as error:
        document_error = error
    rows = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except (ValueError, RecursionError):
                # For a file of lines, name the broken line; for one document, the error's own position.
                reason = f"line {number} is not JSON" if len(rows) > 1 else f"is not JSON: {document_error}"
                raise UserError(f"{path}: {reason}") from None
    return rows


def parse_example(row: Mapping[str, Any], location: str) -> Example:
    """Check a flat row and return its question. Ids and document names that are whole numbers become texts.

    Args:
        row: row with SQuAD's keys.
        location: location of the row, for an error.

    Raises:
        UserError: a key is missing or has a wrong type.
    """
    if not isinstance(row, Mapping):
        raise UserError(f"{location}: expected an object with id, context, question and answers")
    question_id = row.get("id")
    location = f"{location} ({format_value(question_id)})" if _is_name(question_id) else location
    for key in ("id", "context", "question", *(["document"] if "document" in row else [])):
        value = row.get(key)
        if not (_is_name(value) if key in ("id", "document") else isinstance(value, str)):
            raise UserError(
                f"{location}: {key} is {format_value(value)}, not a text" if key in row else f"{location}: has no {key}"
            )
    texts, starts = _parse_answers(row, location)
    return Example(str(question_id), row["context"], row["question"], texts, starts, str(row.get("document", "")))


def _is_name(value: Any) -> bool:
    """Return whether a value can be an id or a title: a text or an integer."""
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def join_documents(examples: Sequence[Example]) -> list[Example]:
    """Replace the context of each question by its whole document: all contexts in order, with an empty line between.

    Args:
        examples: questions with their contexts and answers.
    """
    contexts: dict[str, dict[str, int]] = {}
    ends: dict[str, int] = {}
    for item in examples:
        offsets = contexts.setdefault(item.document, {})
        if item.context not in offsets:
            offsets[item.context] = ends.get(item.document, 0)
            ends[item.document] = offsets[item.context] + len(item.context) + len(PARAGRAPH_SEPARATOR)
    documents = {name: PARAGRAPH_SEPARATOR.join(offsets) for name, offsets in contexts.items()}
    return [
        replace(
            item,
            context=documents[item.document],
            answer_starts=tuple(start + contexts[item.document][item.context] for start in item.answer_starts),
        )
        for item in examples
    ]


def _parse_answers(row: Mapping[str, Any], location: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Return the texts and starts of a row's answers.

    They are two lists, a list of objects with a text and a start, a list of texts, or a single answer; a cell of csv
    may contain any of these. An answer without a start gets :data:`UNKNOWN_START`. The result is empty if the question
    is marked as impossible (v2's ``plausible_answers`` do not count), or if all texts are empty.
    """
    is_impossible = row.get("is_impossible")
    is_impossible = (
        BOOLEAN_CELLS.get(is_impossible.lower(), is_impossible) if isinstance(is_impossible, str) else is_impossible
    )
    if is_impossible not in (None, True, False):
        raise UserError(f"{location}: is_impossible is {format_value(is_impossible)}, not true or false")
    if is_impossible:
        return (), ()
    key = "answer" if row.get("answers") is None and "answer" in row else "answers"
    raw_answers = row.get(key)
    if raw_answers is None:
        raise UserError(f"{location}: has no answers; a question without has is_impossible: true, or answers: []")
    raw_answers = _parse_cell(raw_answers)
    texts, starts = raw_answers, row.get("answer_start")
    if isinstance(raw_answers, Mapping):
        texts, starts = raw_answers.get("text"), raw_answers.get("answer_start")
    elif isinstance(raw_answers, Sequence) and not isinstance(raw_answers, str) and _all_are(raw_answers, Mapping):
        texts, starts = (
            [item.get("text") for item in raw_answers],
            [item.get("answer_start", UNKNOWN_START) for item in raw_answers],
        )
    elif not isinstance(raw_answers, str) and not _all_are(raw_answers, str):
        raise UserError(f'{location}: {key} should be {{"text": [...], "answer_start": [...]}}')
    texts = [texts] if isinstance(texts, str) else texts
    starts = _parse_starts(starts, len(texts) if isinstance(texts, Sequence) else 0)
    are_whole_numbers = _all_are(starts, int) and not any(isinstance(start, bool) for start in starts)
    if not (_all_are(texts, str) and are_whole_numbers and len(texts) == len(starts)):
        raise UserError(f"{location}: {key} should have as many texts as whole numbers in answer_start")
    return (tuple(texts), tuple(starts)) if any(text.strip() for text in texts) else ((), ())


def _parse_cell(cell: Any) -> Any:
    """Return the list or object in a cell of csv, or the text itself."""
    value = parse_value(cell) if isinstance(cell, str) else cell
    return (
        value if isinstance(value, Mapping) or (value and (_all_are(value, str) or _all_are(value, Mapping))) else cell
    )


def _parse_starts(raw_starts: Any, count: int) -> Any:
    """Return the starts of ``count`` answers, from whole numbers, a single number or text; UNKNOWN_START if missing."""
    raw_starts = parse_value(raw_starts) if isinstance(raw_starts, str) else raw_starts
    if raw_starts is None or raw_starts == "":
        return [UNKNOWN_START] * count
    starts = [raw_starts] if isinstance(raw_starts, int | float | str) else raw_starts
    return [_as_whole_number(start) for start in starts] if isinstance(starts, Sequence) else starts


def _as_whole_number(value: Any) -> Any:
    """Return the whole number that a number or a text represents, or the unchanged value."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(float(value)) if isinstance(value, str) and WHOLE_NUMBER.fullmatch(value.strip()) else value


def _all_are(values: Any, kind: type) -> bool:
    """Return whether a value is a sequence whose elements all have this type."""
    return isinstance(values, Sequence) and all(isinstance(value, kind) for value in values)


def _flat_rows(content: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield each question as a flat row, with its location in the file."""
    if isinstance(content, Mapping):  # the published form, or a single JSON line
        content = content.get("data", [content])
    if not isinstance(content, list):
        raise UserError(f"{path}: expected SQuAD's data, or a list of rows with id, context, question and answers")
    for number, item in enumerate(content, 1):
        if isinstance(item, Mapping) and "paragraphs" in item:
            yield from _rows_of_article(item, f"article {number}", path)
        elif isinstance(item, Mapping) and "qas" in item:
            yield from _rows_of_paragraph(item, {}, f"paragraph {number}", path)
        else:
            yield f"row {number}", item


def _rows_of_article(article: Mapping[str, Any], location: str, path: Path) -> Iterator[tuple[str, Any]]:
    """Yield the location and the row of each question of an article in SQuAD's nested form.

    Args:
        article: article with the key ``paragraphs``.
        location: location of the article in the file, for errors.
        path: path of the file.
    """
    if not isinstance(article["paragraphs"], list):
        raise UserError(f"{path}: {location}: paragraphs is {format_value(article['paragraphs'])}, not a list")
    shared_keys = {key: value for key, value in article.items() if key not in OWN_KEYS and key != "context"}
    for number, paragraph in enumerate(article["paragraphs"], 1):
        yield from _rows_of_paragraph(paragraph, shared_keys, f"{location}, paragraph {number}", path)


def _rows_of_paragraph(
    paragraph: Any, shared_keys: Mapping[str, Any], location: str, path: Path
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the questions of a paragraph, each with the keys of the paragraph and of its article (``shared_keys``)."""
    if not isinstance(paragraph, Mapping) or not isinstance(paragraph.get("qas"), list):
        raise UserError(f"{path}: {location}: expected an object with context and qas, a list")
    shared_keys = {**shared_keys, **{key: value for key, value in paragraph.items() if key not in OWN_KEYS}}
    context = {"context": shared_keys["context"]} if "context" in shared_keys else {}
    for number, question in enumerate(paragraph["qas"], 1):
        question_location = f"{location}, question {number}"
        if not isinstance(question, Mapping):
            raise UserError(f"{path}: {question_location}: expected an object with id, question and answers")
        yield question_location, {**shared_keys, **question, **context}
