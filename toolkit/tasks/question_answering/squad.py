"""SQuAD: reading its files in every layout they come in.

Rajpurkar et al. 2016 (v1.1), 2018 (v2, with questions that have no answer). A file is *nested*, as published
(articles, paragraphs, questions), or *flat*, as the hub's data sets are: a JSON list or JSON lines of rows with
``id``, ``context``, ``question`` and ``answers`` (``text`` and ``answer_start``, lists of equal length). Others
publish variants of both; unambiguous ones are read. :mod:`.placement` checks that answers are where a file says,
:mod:`.scoring` how good they are.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from models.files.plain import UnreadableFile, read_text
from toolkit.errors import UserError
from toolkit.files.written_values import value_of

#: Separates a document's paragraphs.
BETWEEN = "\n\n"

#: The keys of a question, by SQuAD's names.
SQUAD_COLUMNS = {name: name for name in ("id", "context", "question", "answers")}

#: Further keys of a question, with these names even if the others are renamed.
OTHER_KEYS = ("is_impossible", "answer", "answer_start")

#: Keys of a paragraph or an article that its questions do not take over.
OWN_KEYS = {"paragraphs", "qas", "id", "question", "answers", *OTHER_KEYS}

#: The start of an answer whose place the data do not say: none that data would give.
NOWHERE = -(2**31)
#: A whole number as csv holds it; pandas writes one with .0 if others are missing.
WHOLE = re.compile(r"-?[0-9]+(\.0+)?")
#: What a cell of csv may say of is_impossible.
TRUTHS = {"true": True, "1": True, "false": False, "0": False, "": None}

#: Characters of a value that a message shows.
SHOWN = 60


@dataclass(frozen=True)
class Answer:
    """A span of a context.

    Attributes:
        text: ``context[start:end]``; "" for no answer.
        score: the sum of the two positions' scores.
        probability: of this one among the question's best (softmax of their scores).
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


def read_examples(
    path: str | Path, columns: Mapping[str, str] = SQUAD_COLUMNS, document: str | None = None
) -> list[Example]:
    """Read the questions of a SQuAD file, nested or flat, in its order, with the answer places it gives.

    Args:
        columns: SQuAD's key -> the file's, where its rows have other names.
        document: the key that says which document a context is a part of; ``title`` in SQuAD's own files.

    Raises:
        UserError: no such file, not JSON, a question that lacks something, or an id that occurs twice; with the place
            in the file.
    """
    path = Path(path)
    rows = [(f"{path}: {where}", _renamed(row, columns, document)) for where, row in _rows(read_json(path), path)]
    examples = [example(row, where) for where, row in _with_ids(rows)]
    if not examples:
        raise UserError(f"{path}: holds no questions")
    check_ids([item.id for item in examples], str(path))
    return examples


def check_rows(rows: Iterable[Mapping[str, Any]], where: str) -> list[Example]:
    """Check flat rows, and return questions.

    Args:
        where: what the rows are, for the error.

    Raises:
        UserError: as :func:`read_examples`.
    """
    placed = [(f"{where}: row {number}", row) for number, row in enumerate(rows, 1)]
    examples = [example(row, place) for place, row in _with_ids(placed)]
    check_ids([item.id for item in examples], where)
    return examples


def _with_ids(rows: Sequence[tuple[str, Any]]) -> Iterable[tuple[str, Any]]:
    """Number the questions if none of them has an id."""
    if any(not isinstance(row, Mapping) or "id" in row for _, row in rows):
        return rows
    return [(place, {**row, "id": number}) for number, (place, row) in enumerate(rows, 1)]


def check_ids(ids: Sequence[str], where: str) -> None:
    """Refuse ids that are not all unique: a predictions file could not tell the two questions apart.

    Raises:
        UserError: with the first, and how many there are.
    """
    twice = {name: count for name, count in Counter(ids).items() if count > 1}
    if twice:
        first, count = next(iter(twice.items()))
        raise UserError(
            f"{where}: {len(twice):,} ids are not unique, the first is {shown(first)}, of {count:,} questions; a "
            "predictions file could not tell them apart"
        )


def shown(value: Any) -> str:
    """Format a value for a message; cut a long one."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."


def _renamed(row: Any, columns: Mapping[str, str], document: str | None) -> Any:
    if not isinstance(row, Mapping):
        return row
    renamed = {key: row[key] for key in OTHER_KEYS if key in row}
    renamed |= {name: row[column] for name, column in columns.items() if column in row}
    return renamed if document is None else {**renamed, "document": row.get(document)}


def read_predictions(path: str | Path) -> dict[str, str]:
    """The answers of a predictions file in the official format: one JSON object, id -> text.

    Raises:
        UserError: no such file, or another content.
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
                # For a file of lines, name the broken line; for one document, the error's own position.
                reason = f"line {number} is not JSON" if len(rows) > 1 else f"is not JSON: {whole}"
                raise UserError(f"{path}: {reason}") from None
    return rows


def example(row: Mapping[str, Any], where: str) -> Example:
    """Check a flat row and return its question. Ids and document names may be whole numbers; they become texts.

    Args:
        where: the row's place, for the error.

    Raises:
        UserError: a key is missing or of a wrong kind.
    """
    if not isinstance(row, Mapping):
        raise UserError(f"{where}: expected an object with id, context, question and answers")
    name = row.get("id")
    where = f"{where} ({shown(name)})" if _is_name(name) else where
    for key in ("id", "context", "question", *(["document"] if "document" in row else [])):
        value = row.get(key)
        if not (_is_name(value) if key in ("id", "document") else isinstance(value, str)):
            raise UserError(f"{where}: {key} is {shown(value)}, not a text" if key in row else f"{where}: has no {key}")
    texts, starts = _answers(row, where)
    return Example(str(name), row["context"], row["question"], texts, starts, str(row.get("document", "")))


def _is_name(value: Any) -> bool:
    return isinstance(value, (str, int)) and not isinstance(value, bool)


def join_documents(examples: Sequence[Example]) -> list[Example]:
    """Give each question its whole document as context: the contexts in order, each once, an empty line between."""
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


def _answers(row: Mapping[str, Any], where: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Texts and starts of a row's answers: two lists, a list of objects with a text and a start, a list of texts, or
    one answer alone; a cell of csv may hold any of these. An answer without a start begins :data:`NOWHERE`.

    There are none if the question is marked as impossible (v2's ``plausible_answers`` are no answers), or if all texts
    are empty.
    """
    impossible = row.get("is_impossible")
    impossible = TRUTHS.get(impossible.lower(), impossible) if isinstance(impossible, str) else impossible
    if impossible not in (None, True, False):
        raise UserError(f"{where}: is_impossible is {shown(impossible)}, not true or false")
    if impossible:
        return (), ()
    key = "answer" if row.get("answers") is None and "answer" in row else "answers"
    given = row.get(key)
    if given is None:
        raise UserError(f"{where}: has no answers; a question without has is_impossible: true, or answers: []")
    given = _opened(given)
    texts, starts = given, row.get("answer_start")
    if isinstance(given, Mapping):
        texts, starts = given.get("text"), given.get("answer_start")
    elif isinstance(given, Sequence) and not isinstance(given, str) and _all_are(given, Mapping):
        texts, starts = [item.get("text") for item in given], [item.get("answer_start", NOWHERE) for item in given]
    elif not isinstance(given, str) and not _all_are(given, str):
        raise UserError(f'{where}: {key} should be {{"text": [...], "answer_start": [...]}}')
    texts = [texts] if isinstance(texts, str) else texts
    starts = _starts(starts, len(texts) if isinstance(texts, Sequence) else 0)
    whole = _all_are(starts, int) and not any(isinstance(start, bool) for start in starts)
    if not (_all_are(texts, str) and whole and len(texts) == len(starts)):
        raise UserError(f"{where}: {key} should have as many texts as whole numbers in answer_start")
    return (tuple(texts), tuple(starts)) if any(text.strip() for text in texts) else ((), ())


def _opened(given: Any) -> Any:
    """The list or object that a cell of csv holds, or the text itself."""
    found = value_of(given) if isinstance(given, str) else given
    return (
        found if isinstance(found, Mapping) or (found and (_all_are(found, str) or _all_are(found, Mapping))) else given
    )


def _starts(given: Any, count: int) -> Any:
    """The starts of ``count`` answers: whole numbers, or one alone, as csv writes them too; else NOWHERE."""
    given = value_of(given) if isinstance(given, str) else given
    if given is None or given == "":
        return [NOWHERE] * count
    starts = [given] if isinstance(given, int | float | str) else given
    return [_whole(start) for start in starts] if isinstance(starts, Sequence) else starts


def _whole(value: Any) -> Any:
    """The whole number that a number or a text is, else the value itself."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return int(float(value)) if isinstance(value, str) and WHOLE.fullmatch(value.strip()) else value


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, Sequence) and all(isinstance(value, kind) for value in values)


def _rows(content: Any, path: Path) -> Iterator[tuple[str, Any]]:
    """Each question as a flat row, with its place in the file."""
    if isinstance(content, Mapping):  # the published form, or a single JSON line
        content = content.get("data", [content])
    if not isinstance(content, list):
        raise UserError(f"{path}: expected SQuAD's data, or a list of rows with id, context, question and answers")
    for number, item in enumerate(content, 1):
        if isinstance(item, Mapping) and "paragraphs" in item:
            yield from _of_article(item, f"article {number}", path)
        elif isinstance(item, Mapping) and "qas" in item:
            yield from _of_paragraph(item, {}, f"paragraph {number}", path)
        else:
            yield f"row {number}", item


def _of_article(article: Mapping[str, Any], place: str, path: Path) -> Iterator[tuple[str, Any]]:
    if not isinstance(article["paragraphs"], list):
        raise UserError(f"{path}: {place}: paragraphs is {shown(article['paragraphs'])}, not a list")
    about = {key: value for key, value in article.items() if key not in OWN_KEYS and key != "context"}
    for number, paragraph in enumerate(article["paragraphs"], 1):
        yield from _of_paragraph(paragraph, about, f"{place}, paragraph {number}", path)


def _of_paragraph(
    paragraph: Any, about: Mapping[str, Any], place: str, path: Path
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a paragraph's questions; each takes over its keys and those of its article (``about``)."""
    if not isinstance(paragraph, Mapping) or not isinstance(paragraph.get("qas"), list):
        raise UserError(f"{path}: {place}: expected an object with context and qas, a list")
    about = {**about, **{key: value for key, value in paragraph.items() if key not in OWN_KEYS}}
    context = {"context": about["context"]} if "context" in about else {}
    for number, question in enumerate(paragraph["qas"], 1):
        where = f"{place}, question {number}"
        if not isinstance(question, Mapping):
            raise UserError(f"{path}: {where}: expected an object with id, question and answers")
        yield where, {**about, **question, **context}
