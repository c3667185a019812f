"""Find the columns of a table that hold the texts and the labels."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import datasets
import numpy as np

from toolkit.commands.recipe_new.target import (
    NUMBER_NAMES,
    Target,
    find_indicator_target,
    find_non_indicator,
    find_target,
)
from toolkit.errors import UserError
from toolkit.files.written_values import parse_value
from toolkit.recipe.yaml_source import suggest

#: Common names of label columns, the least ambiguous names first.
FIRST_NAMES = re.compile(r"label|labels|gold_label|class|target|y|标签", re.IGNORECASE)
LABEL_NAMES = re.compile(
    r"label|labels|gold_label|category|categories|class|target|sentiment|intent|topic|rating|overall|stars?|score|polarity"
    r"|genre|genres|emotion|emotions|language|lang|spam|y|tag|tags|type|kategorie|klasse|étiquette|etiqueta|clase|类别|标签",
    re.IGNORECASE,
)
TEXT_NAMES = re.compile(
    r"(text|sentence|review|content|comment|message|tweet|question|document|description|utterance)s?|body"
    r"|review[ _]?(text|body)|文本|内容",
    re.IGNORECASE,
)
#: Common names of titles; they are read together with the texts below them, unless these are long, in characters.
TITLE_NAMES = re.compile(r"((review|article|news|post|product)[ _.-]?)?(title|headline|heading|subject)", re.IGNORECASE)
LONG_BODY = 1500
#: A column of texts is a guess if this factor times the score of the next column is at least as high.
UNSURE_FACTOR = 3
#: Common names of two columns whose texts are compared: two words, or one with 1 and 2, or a and b.
PAIR_NAMES = (
    ("premise", "hypothesis"), ("query", "passage"), ("query", "document"), ("question", "sentence"),
    ("question", "passage"), ("question", "context"), ("text", "text_pair"), ("claim", "evidence"),
)  # fmt: skip
#: Suffixes of a pair of columns with equal names, such as ``text1`` and ``text2``.
NUMBERED_SUFFIXES = (("1", "2"), ("_a", "_b"), (" a", " b"))
SAYS_NOTHING = re.compile(r"(column|col|field|unnamed|f|v|x|c)?[ _:.-]*", re.IGNORECASE)
#: Common names of the columns of questions, by SQuAD's; the first that fits is taken.
QUESTION_NAMES = {
    "question": ("question", "questions", "query", "frage", "问题"),
    "context": ("context", "contexts", "passage", "paragraph", "article", "document", "story", "text", "上下文"),
    "answers": ("answers", "answer", "answer_text", "answers_text", "gold_answer", "antwort", "答案", "text"),
}
#: Value of a column that only identifies rows.
IDENTIFIER = re.compile(r"https?://\S+|[0-9a-f]{8}-[0-9a-f-]{20,}|[0-9a-fA-F]{16,}|[\d\W]*")
#: A column with more distinct values holds labels only if its name or the user indicates it.
MAX_LABELS = 1000
#: Rows that are sampled to distinguish texts from identifiers.
SAMPLE_ROWS = 2000


@dataclass(frozen=True)
class Columns:
    """Columns of a table for classification.

    Attributes:
        texts: name of the text column, or of two columns that are read together.
        target: labels or numbers to be predicted.
        others: names of the columns that are not used.
        guesses: notes about uncertain choices, each with the option that changes it.
    """

    texts: list[str]
    target: Target
    others: list[str]
    guesses: list[str] = field(default_factory=list)


def choose_columns(
    source_name: str,
    rows: datasets.Dataset,
    texts: Sequence[str],
    label_columns: Sequence[str],
    problem: str | None = None,
) -> Columns:
    """Choose the columns of the texts and labels of a table.

    Args:
        source_name: name of the data file, for error messages.
        rows: rows of the table.
        texts: text columns that the user named; empty to find them.
        label_columns: label columns that the user named; empty to find them.
        problem: value of ``data.problem_type``; None to detect it.

    Raises:
        UserError: a column is missing or not found, or has no labels that can be learned.
    """
    names = rows.column_names
    for name in (*texts, *label_columns):
        if name not in names:
            raise UserError(f"{source_name}: has no column {name}{suggest(name, names)}; it has {', '.join(names)}")
    if both := next((name for name in texts if name in label_columns), None):
        raise UserError(f"{source_name}: {both} cannot be both the text and the label; name two columns")
    if len(texts) > 2:
        raise UserError(f"{source_name}: --text names {len(texts)} columns; name one, or two that are read together")
    sample = rows.select(spread_indices(len(rows)))
    guesses: list[str] = []
    chosen_texts, compares = list(texts), len(texts) > 1
    if not texts:
        chosen_texts, compares, guesses = find_text_columns(source_name, sample, label_columns)
    if label_columns:
        target = build_named_target(source_name, rows, label_columns, problem)
    else:
        target, others = _find_label(source_name, rows, chosen_texts, problem, compares=compares)
        if others:
            doubt = f"{', '.join(others[:4])} could be predicted as well"
            guesses.append(f"that {target.columns[0]} holds the labels is a guess: {doubt}; --label NAME chooses")
    _check_labels(source_name, len(rows), target, problem)
    used = (*chosen_texts, *target.columns)
    return Columns(chosen_texts, target, [name for name in names if name not in used], guesses)


def find_question_columns(rows: datasets.Dataset | None) -> dict[str, str] | None:
    """Find the columns of questions, contexts and answers; None unless most answers are in their contexts."""
    columns_by_role = find_question_names(rows)
    if rows is None or columns_by_role is None:
        return None
    sample = rows.select(spread_indices(len(rows)))
    questions, contexts, answers = (sample.select_columns([name])[:][name] for name in columns_by_role.values())
    if not all(isinstance(value, str) for value in (*questions, *contexts)):
        return None
    texts = [parse_value(answer) if isinstance(answer, str) else answer for answer in answers]
    if not all(isinstance(text, str | list | dict | None) for text in texts):
        return None
    within = [
        text.lower() in context.lower()
        for text, context in zip(texts, contexts, strict=True)
        if isinstance(text, str) and text.strip()
    ]
    return columns_by_role if not within or np.mean(within) > 0.5 else None


def find_question_names(rows: datasets.Dataset | None) -> dict[str, str] | None:
    """Return the columns with common names of questions, contexts and answers, by role; None if one is missing."""
    plain = {name.strip().lower(): name for name in rows.column_names} if rows is not None else {}
    columns_by_role = {
        key: next((plain[name] for name in names if name in plain), "") for key, names in QUESTION_NAMES.items()
    }
    is_complete = all(columns_by_role.values()) and len(set(columns_by_role.values())) == len(columns_by_role)
    return columns_by_role if is_complete else None


def spread_indices(count: int) -> list[int]:
    """At most :data:`SAMPLE_ROWS` row numbers, evenly spaced."""
    return np.linspace(0, count - 1, min(SAMPLE_ROWS, count)).astype(int).tolist()


def find_text_columns(
    source_name: str, sample: datasets.Dataset, label_columns: Sequence[str]
) -> tuple[list[str], bool, list[str]]:
    """Find the column of the texts, or two columns whose texts belong together.

    Args:
        source_name: name of the data for messages.
        sample: some rows of the data.
        label_columns: columns of the labels, which hold no texts.

    Returns:
        The columns; whether they are two texts to compare; and a note if another column would do as well.

    Raises:
        UserError: no column holds texts.
    """
    texts_by_column = {
        name: values
        for name in sample.column_names
        if name not in label_columns and (values := _texts_in(sample, name))
    }
    if not texts_by_column:
        raise UserError(f"{source_name}: has no column of texts; it has {', '.join(sample.column_names)}")
    distinct = {name: len(set(values)) for name, values in texts_by_column.items()}
    # Few values that occur again and again are labels or templates, however long they are.
    scores = {
        name: float(np.mean([len(value) for value in values]))
        * (2 if TEXT_NAMES.fullmatch(name.strip()) else 1)
        * distinct[name]
        / max(distinct.values())
        for name, values in texts_by_column.items()
    }
    if pair := _find_pair(scores):
        return pair, True, []
    ranked_columns = sorted(scores, key=lambda name: scores[name], reverse=True)
    if titled_columns := _find_titled_texts(ranked_columns, texts_by_column, len(sample)):
        return titled_columns, False, []
    if len(ranked_columns) > 1 and scores[ranked_columns[1]] * UNSURE_FACTOR >= scores[ranked_columns[0]]:
        doubt = f"{ranked_columns[1]} would do as well; --text {shlex.quote(ranked_columns[1])} reads that"
        return ranked_columns[:1], False, [f"that {ranked_columns[0]} holds the texts is a guess: {doubt}"]
    return ranked_columns[:1], False, []


def _texts_in(sample: datasets.Dataset, name: str) -> list[str]:
    """Return the texts of a column that has one in most rows; none of a column of other values or identifiers.

    Numbers among texts are read as texts.
    """
    values = sample.select_columns([name])[:][name]
    texts = [value for value in values if isinstance(value, str) and value.strip()]
    numbers = [str(value) for value in values if isinstance(value, int | float)]
    if not texts or 2 * len(texts + numbers) <= len(values):
        return []
    is_identifier = np.mean([bool(IDENTIFIER.fullmatch(value.strip())) for value in texts]) >= 0.5
    return [] if is_identifier else texts + numbers


def _find_titled_texts(
    ranked_columns: Sequence[str], texts_by_column: Mapping[str, list[str]], rows: int
) -> list[str] | None:
    """Return the columns of titles and of the texts that they stand above; None if there are none.

    Args:
        ranked_columns: candidate columns, the likeliest first.
        texts_by_column: name -> the column's texts.
        rows: number of rows; a title or text must not be missing in any.
    """
    titles = [
        name
        for name in ranked_columns
        if TITLE_NAMES.fullmatch(name.strip()) and 2 * len(set(texts_by_column[name])) >= rows
    ]
    bodies = [
        name
        for name in ranked_columns
        if name not in titles and (TEXT_NAMES.fullmatch(name.strip()) or name == ranked_columns[0])
    ]
    if not titles or not bodies or len(texts_by_column[titles[0]]) < rows or len(texts_by_column[bodies[0]]) < rows:
        return None
    is_long = np.mean([len(text) for text in texts_by_column[bodies[0]]]) > LONG_BODY
    return None if is_long else [titles[0], bodies[0]]


def _find_pair(lengths: dict[str, float]) -> list[str] | None:
    """Find two columns of texts that belong together, among columns of this mean length.

    Args:
        lengths: mean length of the texts of each column, weighted by its name and its share of distinct texts.
    """
    plain = {name.strip().lower(): name for name in lengths}
    for first, second in PAIR_NAMES:
        if first in plain and second in plain:
            return [plain[first], plain[second]]
    candidate_pairs: dict[tuple[bool, float], list[str]] = {}
    for first in plain:
        for one, two in NUMBERED_SUFFIXES:
            second, rest = first.replace(one, two), first.replace(one, "")
            if one in first and second in plain and not SAYS_NOTHING.fullmatch(rest):
                two_names = [plain[first], plain[second]]
                candidate_pairs[bool(TEXT_NAMES.fullmatch(rest)), sum(lengths[name] for name in two_names)] = two_names
    return candidate_pairs[max(candidate_pairs)] if candidate_pairs else None


def build_named_target(
    source_name: str, rows: datasets.Dataset, label_columns: Sequence[str], problem: str | None
) -> Target:
    """Return the target of the columns that the user named: labels or numbers, with the facts about them.

    Args:
        source_name: name of the data for messages.
        rows: rows of the data.
        label_columns: columns of the labels.
        problem: problem type that the user chose; None if the user left the choice to the program.
    """
    if len(label_columns) > 1:
        if (non_indicator := find_non_indicator(rows, label_columns)) is not None:
            raise UserError(
                f"{source_name}: several columns of labels hold 0 and 1 each, and {non_indicator} does not; "
                "name one column"
            )
        if (
            problem not in (None, "multi_label")
            or (indicator_target := find_indicator_target(rows, label_columns)) is None
        ):
            raise UserError(
                f"{source_name}: several columns of labels are for --problem-type multi_label; name one column"
            )
        return indicator_target
    target = find_target(rows, label_columns[0], problem, is_named=True)
    if target is None:
        what = {
            "regression": "numbers", "multi_label": "several labels a text, with a separator between them",
        }.get(problem or "", "words, whole numbers, or lists of them")  # fmt: skip
        raise UserError(f"{source_name}: the column {label_columns[0]} does not hold {what}; name another with --label")
    return target


def _find_label(
    source_name: str, rows: datasets.Dataset, texts: Sequence[str], problem: str | None, *, compares: bool
) -> tuple[Target, list[str]]:
    """Return the target of the likeliest label column, and the names of equally likely columns.

    Args:
        source_name: name of the data file, for error messages.
        rows: rows of the table.
        texts: names of the text columns.
        problem: value of ``data.problem_type``; None to detect it.
        compares: whether two texts are compared.
    """
    candidates: dict[int, tuple[float, int, Target]] = {}
    single, reasons = [], []
    others = [name for name in rows.column_names if name not in texts]
    for place, name in enumerate(others):
        target = find_target(rows, name, problem)
        if target is None:
            reasons.append(f"{name} holds neither words nor numbers")
            continue
        number = len(target.counts)
        if number == 1:
            single.append(name)
        elif (rank := _rank_label(target, name, len(rows), compares=compares)) is not None:
            candidates[place] = (rank, number, target)
        else:
            every = number == len(rows) - len(target.absent)
            reason = f"every value of {name} is another" if every else f"{name} has {number:,} values"
            reasons.append(reason if target.odd is None else _describe_odd_number(name, target.odd))
    best = min(candidates.values(), key=lambda item: item[:2], default=None)
    if problem in (None, "multi_label") and (several := find_indicator_target(rows, others)):
        inside = [
            target for rank, _, target in candidates.values() if rank < 1 and target.columns[0] in several.columns
        ]
        outside = [
            target for rank, _, target in candidates.values() if rank < 2 and target.columns[0] not in several.columns
        ]
        if not inside and not outside:
            return several, []
    if best is not None:
        as_likely = [other for rank, _, other in candidates.values() if rank == best[0] and other is not best[2]]
        return best[2], [name for other in as_likely for name in other.columns]
    if single:
        raise UserError(
            f"{source_name}: all {len(rows)} rows have the same {single[0]}; there is nothing to tell apart"
        )
    if (question_roles := find_question_names(rows)) and texts[0] in (
        question_roles["question"],
        question_roles["context"],
    ):
        reasons.append(
            f"few answers in {question_roles['answers']} are in their {question_roles['context']}, "
            "where one could be found"
        )
    reason = "; ".join(reasons) or "there is no other column"
    raise UserError(
        f"{source_name}: has no column of labels beside the texts in {texts[0]}: {reason}; name one with --label"
    )


def _describe_odd_number(name: str, value: str) -> str:
    """Return the reason why a column is not a column of numbers: its value that is not a number."""
    return f"{name} holds {value!r}, which is no number (1234.5 is one)"


def _rank_label(target: Target, name: str, rows: int, *, compares: bool) -> float | None:
    """Return a rank of a column as the label, 0 for the likeliest; None if it identifies rows.

    Args:
        target: target that the column would have.
        name: name of the column.
        rows: number of rows of the table.
        compares: whether two texts are compared; then a column of scores is likely.
    """
    plain, number = name.strip().replace("_id", ""), len(target.counts)
    is_named = bool(LABEL_NAMES.fullmatch(plain))
    amount = target.problem == "regression"
    if amount:
        is_named = is_named or bool(NUMBER_NAMES.fullmatch(plain))
    elif number > min(MAX_LABELS, rows // 2) and not (is_named and number < rows):
        return None
    if len(target.absent) > (rows // 2 if is_named else 0):
        return 4
    if target.problem == "multi_label" and not is_named and all(label.isdecimal() for label in target.counts):
        return 3  # lists of whole numbers may be anything
    if FIRST_NAMES.fullmatch(plain) or (amount and compares and NUMBER_NAMES.fullmatch(plain)):
        return 0
    return 1 if is_named else 3 if amount else 2


def _check_labels(source_name: str, rows: int, target: Target, problem: str | None) -> None:
    """Reject labels that a classifier cannot learn: a single label, a different label in each row, or odd numbers.

    Args:
        source_name: name of the data for messages.
        rows: number of rows.
        target: columns of the labels, and the facts about them.
        problem: problem type that the user chose; None if the user left the choice to the program.
    """
    label = target.columns[0]
    if len(target.counts) < 2:
        raise UserError(
            f"{source_name}: all {rows} rows have the same {label}; classification needs two labels or more "
            "(another column: --label NAME)"
        )
    if target.odd is not None and problem is None and "," in target.odd:
        remedy = "mend the column, or say what it holds with --problem-type single_label or multi_label"
        raise UserError(f"{source_name}: {_describe_odd_number(label, target.odd)}; {remedy}")
    if target.problem == "single_label" and len(target.counts) == rows - len(target.absent):
        if target.odd is not None:
            raise UserError(
                f"{source_name}: {_describe_odd_number(label, target.odd)}; "
                "mend the column, or name another with --label"
            )
        raise UserError(f"{source_name}: each of the {rows} rows has another {label}, so it is no label; set --label")
