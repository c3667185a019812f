"""Draft the recipe of each task for inspected data: choose its values, and render the template of the task."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from models import families
from toolkit.commands.recipe_new import choose
from toolkit.commands.recipe_new.columns import (
    Columns,
    build_named_target,
    choose_columns,
    find_question_columns,
    spread_indices,
)
from toolkit.commands.recipe_new.entities import find_entity_columns, read_tagged_texts
from toolkit.commands.recipe_new.folders import format_files
from toolkit.commands.recipe_new.look import DataFiles, read_split_rows
from toolkit.commands.recipe_new.pretrain import UnlabeledTexts
from toolkit.commands.recipe_new.target import Target, build_separated_target
from toolkit.commands.recipe_new.write import align_comments, format_scalar
from toolkit.errors import UserError
from toolkit.files.nested_columns import flatten_columns, list_innermost_columns
from toolkit.pages.elements import render_page
from toolkit.recipe.keys import PROBLEM_METRICS
from toolkit.tasks.classification.pairs import SEPARATOR as PAIR_SEPARATOR
from toolkit.tasks.question_answering.squad import OTHER_KEYS
from toolkit.tasks.token_classification.tags import entities

#: Formats a path for the recipe.
PathWriter = Callable[[Path], str]
#: Numbers to predict beyond this are noted in the recipe, because they are not scaled in training.
LARGE_NUMBER = 100
#: ``data.problem_type`` -> noun for the values of the column.
LABEL_NOUNS = {"single_label": "labels", "multi_label": "labels", "regression": "numbers"}
#: A label is noted as rare if another is over this many times as frequent.
UNEVEN_FACTOR = 10
#: Passes over texts with entities.
TAG_PASSES = 12


@dataclass
class Draft:
    """Draft of a recipe.

    Attributes:
        body: text of the recipe after its first comment.
        assumed: assumptions about the data, one line each.
        seconds: estimated duration of the training on two cores.
        pretrained: text of a recipe that starts from a pretrained model; empty without pretraining.
        pretraining: text of the recipe that trains this model; empty without pretraining.
    """

    body: str
    assumed: list[str] = field(default_factory=list)
    seconds: float = 0.0
    pretrained: str = ""
    pretraining: str = ""


@dataclass(frozen=True)
class TableOptions:
    """Options of the command line about a table.

    Attributes:
        texts, labels: column names; empty to find them.
        problem: value of ``data.problem_type``; None to detect it.
        missing: ``drop`` for rows without a label, ``keep`` for words such as nan; None to reject them.
    """

    texts: Sequence[str] = ()
    labels: Sequence[str] = ()
    problem: str | None = None
    missing: str | None = None


def draft_classification(
    data_files: DataFiles,
    source_name: str,
    write: PathWriter,
    table_options: TableOptions,
    texts_alone: UnlabeledTexts | None = None,
) -> Draft:
    """Draft a recipe that trains a small, randomly initialized model to predict labels or a number.

    Args:
        data_files: facts about the files.
        source_name: name of the data for messages.
        write: function that formats a path for the recipe.
        table_options: options of the user about columns and labels.
        texts_alone: unlabeled texts for pretraining; None without pretraining.

    Raises:
        UserError: columns of texts or labels are missing, or rows lack a label.
    """
    assert data_files.rows is not None
    rows = flatten_columns(data_files.rows)
    if data_files.separates_labels and not table_options.labels:
        columns = Columns(["text"], build_separated_target(rows, "label", " "), [])
    else:
        columns = choose_columns(source_name, rows, table_options.texts, table_options.labels, table_options.problem)
    missing = [] if data_files.classes else _missing_texts(rows, columns.texts)
    drops_texts = bool(missing) or (not data_files.classes and _others_lack_texts(data_files, columns.texts))
    row_indices = np.setdiff1d(np.arange(len(rows)), missing)
    if missing:
        rows = rows.select(row_indices)
        if data_files.separates_labels and not table_options.labels:
            columns = replace(columns, target=build_separated_target(rows, "label", " "))
        else:
            remaining_target = build_named_target(source_name, rows, columns.target.columns, columns.target.problem)
            columns = replace(columns, target=remaining_target)
    _drop_unlabeled_splits(data_files, columns.target)
    target, dropped_labels = drop_missing_labels(source_name, row_indices, columns.target, table_options.missing)
    if table_options.missing == "drop" and len(data_files.files) > 1:
        dropped_labels = dropped_labels or "drop"  # other splits may lack some
    texts = [
        PAIR_SEPARATOR.join(row) for row in zip(*(_sample_texts(rows, name) for name in columns.texts), strict=True)
    ]
    name = _find_drafted_family("sequence_classification")
    tokens = choose.choose_tokens(
        texts, len(rows), _find_tokenizer_trainer(name), texts_alone.corpus if texts_alone else None
    )
    is_long = len(columns.texts) == 1 and choose.upper_length(tokens.lengths) > choose.MAX_WHOLE_TOKENS
    length = choose.WINDOW_TOKENS if is_long else choose.choose_length(tokens.lengths)
    cut_share = float(np.mean(tokens.lengths > length))
    windows = choose.count_windows(tokens.lengths, length) if is_long else 1.0
    one_each = target.problem == "single_label"
    counts = list(target.counts.values()) if one_each else [len(rows)]
    share = None if data_files.has("validation") else choose.choose_held_out_share(counts)
    num_kept = round(len(rows) * (1 - (share or 0)) * windows)
    max_epochs = min(20, choose.choose_epochs(len(target.counts), num_kept, length))
    steps = choose.choose_steps(num_kept, length, choose.LABEL_BUDGET, max_epochs)
    values = {
        "texts": columns.texts, "target": target, "dropped_labels": dropped_labels, "drops_texts": drops_texts,
        "is_long": is_long, "cut_share": cut_share, "share": share, "steps": steps,
        "metrics": PROBLEM_METRICS[target.problem],
    }  # fmt: skip
    model = _Sizes(name, "sequence_classification", length, round(len(rows) * windows), tokens.pieces)
    unused = f"; not used: {', '.join(columns.others)}" if columns.others else ""
    script = choose.describe_script(texts)
    num_folders = len(data_files.files)
    assumptions = [
        f"{len(rows):,} texts ({script}): each of the {num_folders} folders is a label, each file in them a text"
        if data_files.classes
        else f"{len(rows):,} rows; texts in the column{'s' * (len(columns.texts) > 1)} {' and '.join(columns.texts)} "
        f"({script}), {LABEL_NOUNS[target.problem]} in {', '.join(target.columns)}{unused}",
        *columns.guesses,
        *_describe_target(target),
        _describe_lengths(tokens, length, cut_share, "read in windows" if is_long else "cut"),
        *_describe_validation(data_files, share),
    ]
    return _build_draft("classification", model, data_files, write, values, assumptions, texts_alone)


def _drop_unlabeled_splits(data_files: DataFiles, target: Target) -> None:
    """Leave out the files of other splits without labels, such as the test file of a competition.

    Args:
        data_files: facts about the files.
        target: columns of the labels, and the facts about them.
    """
    for split_name, note in ({} if data_files.classes else data_files.split_notes()).items():
        if lacking := set(target.columns) - set(
            list_innermost_columns(read_split_rows(data_files, split_name).features)
        ):
            file, *_ = data_files.files.pop(split_name)
            data_files.notes.remove(note)
            data_files.notes.append(f"{file.name} is not used: it has no column {min(lacking)}")


def drop_missing_labels(
    source_name: str, row_indices: np.ndarray, target: Target, missing: str | None
) -> tuple[Target, list[str] | str | None]:
    """Return the target without the rows that the user leaves out, and ``data.missing_labels``.

    Args:
        source_name: name of the data for messages.
        row_indices: index in the file of each row of the target; rows without a text are left out.
        target: columns of the labels, and the facts about them.
        missing: word of the user for a missing label, or the treatment of such rows; None without the option.

    Raises:
        UserError: rows have no label, or a word that may mean a missing label, and no option decides about them.
    """
    label = target.columns[0]
    if target.absent and missing != "drop":
        raise UserError(
            f"{source_name}: {len(target.absent):,} of {len(row_indices):,} rows have no {label}, the first is row "
            f"{row_indices[target.absent[0]] + 1:,}; --missing-labels drop leaves them out"
        )
    words = dict(target.words)
    if words and missing is None:
        word, places = next(iter(words.items()))
        raise UserError(
            f"{source_name}: {len(places):,} of {len(row_indices):,} rows have {word} as their {label}, "
            f"the first is row {row_indices[places[0]] + 1:,}: "
            f"--missing-labels drop leaves them out, keep takes {word} for a label"
        )
    if words and missing == "keep" and target.problem == "regression":
        raise UserError(f"{source_name}: {next(iter(words))} is no number; --missing-labels drop leaves these rows out")
    if missing != "drop":
        return target, None
    counts = {name: number for name, number in target.counts.items() if name not in words}
    return replace(target, counts=counts), list(words) or ("drop" if target.absent else None)


def _missing_texts(rows: Dataset, texts: Sequence[str]) -> list[int]:
    """Return the rows that lack one of the texts, or have a blank one."""
    cells = zip(*(rows.select_columns([name])[:][name] for name in texts), strict=True)
    return [place for place, row in enumerate(cells) if any(text is None or not str(text).strip() for text in row)]


def _others_lack_texts(data_files: DataFiles, texts: Sequence[str]) -> bool:
    """Return whether a file of another split has a row without one of the texts."""
    for split_name in [split_name for split_name in data_files.files if split_name != "train"]:
        rows = flatten_columns(read_split_rows(data_files, split_name))
        if set(texts) <= set(rows.column_names) and _missing_texts(rows, texts):
            return True
    return False


def draft_question_answering(
    data_files: DataFiles, source_name: str, write: PathWriter, texts_alone: UnlabeledTexts | None = None
) -> Draft:
    """Draft a recipe that trains a small, randomly initialized model to find answers in texts.

    Args:
        data_files: facts about the files.
        source_name: name of the data for messages.
        write: function that formats a path for the recipe.
        texts_alone: unlabeled texts for pretraining; None without pretraining.

    Raises:
        UserError: the data has only one text.
    """
    columns_by_role = None
    if data_files.questions:
        pairs = [(item.question, item.context) for item in data_files.questions]
    else:
        columns_by_role = find_question_columns(data_files.rows)
        assert data_files.rows is not None and columns_by_role is not None
        text_columns = (columns_by_role["question"], columns_by_role["context"])
        pairs = list(zip(*(data_files.rows.select_columns([name])[:][name] for name in text_columns), strict=True))
    sampled_pairs = [pairs[place] for place in spread_indices(len(pairs))]
    name = _find_drafted_family("question_answering")
    texts = [f"{question} {context}" for question, context in sampled_pairs]
    tokens = choose.choose_tokens(
        texts, len(pairs), _find_tokenizer_trainer(name), texts_alone.corpus if texts_alone else None
    )
    length = choose.choose_length(tokens.lengths, max_length=512, min_length=128)
    windows = float(np.ceil(tokens.lengths / (length * 3 / 4)).clip(1).mean()) * len(pairs)
    contexts = len({context for _, context in pairs})
    if contexts == 1 and not data_files.has("validation"):
        raise UserError(f"{source_name}: all questions are about one text; to hold some out, two or more are needed")
    share = None if data_files.has("validation") else choose.choose_held_out_share([contexts])
    steps = choose.choose_steps(round(windows), length, max_epochs=10)
    values = {"columns": columns_by_role or {}, "share": share, "steps": steps}
    model = _Sizes(name, "question_answering", length, len(pairs), tokens.pieces)
    others = (
        [name for name in data_files.rows.column_names if name not in (columns_by_role or {}).values()]
        if data_files.rows
        else []
    )
    others = [name for name in others if name not in ("id", *OTHER_KEYS)]
    columns = f"; columns {', '.join((columns_by_role or {}).values())}" if columns_by_role else ""
    unused = f"; not used: {', '.join(others)}" if others else ""
    blank = (
        sum(value == "" for value in data_files.rows[columns_by_role["answers"]])
        if data_files.rows and columns_by_role
        else 0
    )
    script = choose.describe_script([context for _, context in sampled_pairs])
    assumptions = [
        f"{len(pairs):,} questions about {contexts:,} texts ({script}){columns}{unused}",
        _describe_lengths(tokens, length, 0.0),
        *_describe_validation(data_files, share),
        *([f"{blank:,} questions have no answer"] if blank else []),
        "new weights learn to answer from tens of thousands of questions; with fewer, expect little",
    ]
    return _build_draft("question_answering", model, data_files, write, values, assumptions, texts_alone)


def draft_token_classification(
    data_files: DataFiles, write: PathWriter, texts_alone: UnlabeledTexts | None = None
) -> Draft:
    """Draft a recipe that trains a small, randomly initialized model to find entities.

    Args:
        data_files: facts about the files.
        write: function that formats a path for the recipe.
        texts_alone: unlabeled texts for pretraining; None without pretraining.
    """
    columns = find_entity_columns(data_files)
    assert data_files.rows is not None and columns is not None
    table = flatten_columns(data_files.rows)
    rows = read_tagged_texts(table, *columns)
    texts = [rows[place].text for place in spread_indices(len(rows))]
    name = _find_drafted_family("token_classification")
    tokens = choose.choose_tokens(
        texts, len(rows), _find_tokenizer_trainer(name), texts_alone.corpus if texts_alone else None
    )
    length = choose.choose_length(tokens.lengths, max_length=128, min_length=64)
    windows = round(float(np.ceil(tokens.lengths / (length * 3 / 4)).clip(1).mean()) * len(rows))
    share = None if data_files.has("validation") else choose.choose_held_out_share([len(rows)])
    steps = choose.choose_steps(windows, length, max_epochs=TAG_PASSES)
    values = {"columns": columns, "share": share, "steps": steps}
    counts = Counter(kind for one in rows for _, _, kind in entities(one.tags))
    listed_kinds = ", ".join(f"{kind} {count:,}" for kind, count in counts.most_common(8)) + ", ..." * (len(counts) > 8)
    others = [column for column in table.column_names if column not in columns]
    unused = f"; not used: {', '.join(others)}" if others else ""
    kinds = f"{counts.total():,} entities of {len(counts)} type{'s' * (len(counts) > 1)} ({listed_kinds})"
    assumptions = [
        f"{len(rows):,} texts ({choose.describe_script(texts)}) with {kinds}; columns {' and '.join(columns)}{unused}",
        _describe_lengths(tokens, length, 0.0),
        *_describe_validation(data_files, share),
    ]
    model = _Sizes(name, "token_classification", length, len(rows), tokens.pieces)
    return _build_draft("token_classification", model, data_files, write, values, assumptions, texts_alone)


def draft_language_modeling(data_files: DataFiles, source_name: str, write: PathWriter) -> Draft:
    """Draft a recipe that trains a small, randomly initialized model to continue texts.

    Args:
        data_files: facts about the files.
        source_name: name of the data for messages.
        write: function that formats a path for the recipe.
    """
    sizes = {code: sum(path.stat().st_size for path in files) for code, files in data_files.files.items()}
    size = sum(sizes.values())
    encoding = data_files.encoding or "utf-8"
    texts = [text for files in data_files.files.values() for text in choose.read_beginnings(files, encoding)]
    steps = choose.choose_steps(max(1, size // 4 // 128), 128, budget=choose.TEXT_BUDGET, max_epochs=12)
    sources = {
        code: [write(path) for path in files] if len(files) > 1 else write(files[0])
        for code, files in data_files.files.items()
    }
    name = _find_drafted_family("causal_lm")
    vocab_size = choose.choose_word_pieces(
        size, texts, partial(_find_tokenizer_trainer(name, "bpe"), control_codes=list(data_files.files))
    )
    sizes_in_words = {code: _format_bytes(size) for code, size in sizes.items()}
    values = {"sources": sources, "sizes": sizes_in_words, "share": None, "steps": steps}
    model = _Sizes(name, "causal_lm", 128, 0, vocab_size)
    body = _render_recipe("language_modeling", model, data_files, write, values)
    assumptions = [
        f"{_format_bytes(size)} of text ({choose.describe_script(texts)}), under the control "
        f"code{'s' * (len(sizes) > 1)} {', '.join(sizes)}",
        f"{vocab_size:,} word pieces; a tenth of the text to validate on, a tenth to test on",
    ]
    return Draft(body, assumptions, steps.seconds * choose.TOKEN_BUDGET / choose.TEXT_BUDGET)


# -- parts ----------------------------------------------------------------------------------------------------------


def _find_drafted_family(head: str) -> str:
    """The family that is proposed for a head."""
    return next(name for name in families.FAMILIES if head in families.family(name).drafted_heads)


def _find_tokenizer_trainer(name: str, kind: str = "sentencepiece") -> Callable[..., Any]:
    """What trains a family's tokenizer of a kind."""
    return families.part(name, "tokenizer").TRAINERS[kind]


@dataclass(frozen=True)
class _Sizes:
    """Facts that determine the sizes of a model.

    Attributes:
        family: name of the model family.
        head: head of the model, such as ``sequence_classification``.
        length: length of a text in tokens.
        rows: number of texts.
        pieces: number of word pieces; None for a byte tokenizer.
    """

    family: str
    head: str
    length: int
    rows: int
    pieces: int | None

    def config(self) -> list[tuple[str, Any, str]]:
        """Return the lines of the recipe about the model's configuration."""
        return families.part(self.family, "draft").config_lines(self.head, self.length, self.rows)


def _build_draft(
    task: str,
    sizes: _Sizes,
    data_files: DataFiles,
    write: PathWriter,
    values: dict[str, Any],
    assumptions: list[str],
    texts_alone: UnlabeledTexts | None,
) -> Draft:
    """Render a recipe; with unlabeled texts, also draft the recipes for and after pretraining.

    Args:
        task: name of the task.
        sizes: sizes of the model.
        data_files: facts about the files.
        write: function that formats a path for the recipe.
        values: values of the task's template.
        assumptions: notes on choices that the user should check.
        texts_alone: unlabeled texts for pretraining; None without pretraining.
    """
    seconds = values["steps"].seconds
    if texts_alone is None:
        return Draft(_render_recipe(task, sizes, data_files, write, values), assumptions, seconds)
    # Few labeled texts may not give the pieces, and to be checked they need none.
    draft = Draft(_render_recipe(task, replace(sizes, pieces=None), data_files, write, values), assumptions, seconds)
    dropout = [line for line in sizes.config() if line[0].endswith("_prob")]
    changed_values = {**values, "weights": texts_alone.weights, "config": dropout}
    draft.pretrained = _render_recipe(task, sizes, data_files, write, changed_values)
    blocks = _count_blocks(texts_alone, sizes)
    steps = choose.choose_steps(blocks, sizes.length, choose.PRETRAIN_BUDGET, choose.PRETRAIN_PASSES)
    has_validation = texts_alone.data_files.has("validation")
    share = None if has_validation else choose.choose_held_out_share([texts_alone.documents])
    pretraining_values = {"column": texts_alone.column, "share": share, "steps": steps}
    model = replace(sizes, rows=max(blocks, choose.MANY_ROWS))
    draft.pretraining = _render_recipe(
        "masked_language_modeling", model, texts_alone.data_files, write, pretraining_values
    )
    draft.seconds += steps.seconds
    assumptions.append(
        f"pretrains on {_format_bytes(texts_alone.size)} of text, about {blocks:,} blocks of {sizes.length} tokens; so "
        "small a model may gain nothing by it: compare it with one from new weights"
    )
    return draft


def _render_recipe(
    task: str, sizes: _Sizes, data_files: DataFiles, write: PathWriter, values: Mapping[str, Any]
) -> str:
    """Return the text of a recipe from the template of its task, ``TASK.yaml.jinja``.

    Args:
        task: name of the task.
        sizes: sizes of the model.
        data_files: facts about the files.
        write: function that formats a path for the recipe.
        values: values of the task's template; ``weights`` and ``config`` replace new weights and their configuration.
    """
    family = families.family(sizes.family)
    common_values = {
        "task": task, "data_files": data_files, "scalar": format_scalar, "family": sizes.family,
        "files": lambda paths: format_scalar(format_files(paths, write)), "family_title": family.title,
        "config_class": family.config_class, "weights": None, "config": sizes.config(), "pieces": sizes.pieces,
        "length": sizes.length,
    }  # fmt: skip
    recipe = render_page(f"commands/recipe_new/{task}.yaml.jinja", **{**common_values, **values})
    return align_comments(recipe)


def _count_blocks(unlabeled_texts: UnlabeledTexts, sizes: _Sizes) -> int:
    """Return the approximate number of blocks of the unlabeled texts, at four bytes for each SentencePiece piece.

    Args:
        unlabeled_texts: facts about the texts.
        sizes: sizes of the model, with the length of a block.
    """
    tokens = unlabeled_texts.size / (4 if sizes.pieces else 1)
    return max(unlabeled_texts.documents, round(tokens / sizes.length))


def _sample_texts(rows: Any, column: str) -> list[str]:
    """Return the texts of a column at rows that are spread over the whole table."""
    values = rows.select(spread_indices(len(rows))).select_columns([column])[:][column]
    return [str(value or "") for value in values]


def _format_bytes(size: int) -> str:
    """Return a size in bytes as text in kB or MB."""
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _describe_target(target: Target) -> list[str]:
    """What is known of the labels, or of the numbers.

    Args:
        target: columns of the labels, and the facts about them.
    """
    if target.problem == "regression":
        return [_describe_numbers(target)]
    if target.problem == "single_label":
        return [_describe_labels(target.counts, sum(target.counts.values()))]
    none = f"{target.none:,} texts have none of them" if target.none else ""
    return [_describe_labels(target.counts, target.rows, ", of which a text may have several"), *filter(None, [none])]


def _describe_labels(label_counts: dict[str, int], rows: int, several: str = "") -> str:
    """Return the number of labels and their frequencies in words.

    Args:
        label_counts: number of rows of each label.
        rows: number of all rows.
        several: words after the number of labels if a text may have several of them.
    """
    many, (least, few) = max(label_counts.values()), min(label_counts.items(), key=lambda item: item[1])
    if len(label_counts) <= 6:
        frequencies = ", ".join(f"{name} {count / rows:.0%}" for name, count in label_counts.items())
    else:
        frequencies = f"{few:,} to {many:,} rows each"
    uneven = f"; {least} is rare: watch macro_f1, or set train.save_best to it" if many > UNEVEN_FACTOR * few else ""
    return f"{len(label_counts):,} labels{several}: {frequencies}{uneven}"


def _describe_numbers(target: Target) -> str:
    """Return the range and the mean of a regression's numbers in words, with advice to scale large numbers.

    Args:
        target: columns of the labels, and the facts about them.
    """
    values = np.repeat([float(value) for value in target.counts], list(target.counts.values()))
    large = float(np.abs(values).max())
    unit = f"; new weights learn small numbers: divide them by {10 ** (len(str(int(large))) - 1):,}, say"
    description = f"numbers from {values.min():g} to {values.max():g}, {values.mean():.4g} on average"
    return description + unit if large > LARGE_NUMBER else description


def _describe_lengths(token_lengths: choose.TokenLengths, length: int, longer: float, treatment: str = "cut") -> str:
    """Return the median and maximum length of the texts in words, and the chosen maximum length.

    Args:
        token_lengths: kind of tokens, and their number in each text.
        length: chosen maximum length in tokens.
        longer: share of the texts that are longer.
        treatment: treatment of longer texts, such as ``cut``.
    """
    kind = "bytes" if token_lengths.pieces is None else f"tokens (of {token_lengths.pieces:,} SentencePiece pieces)"
    middle, most = np.median(token_lengths.lengths), token_lengths.lengths.max()
    longer_note = f"; {longer:.0%} are longer and are {treatment}" if longer >= 0.005 else ""
    return f"texts of {middle:,.0f} {kind}, the longest {most:,}: max_length {length:,}{longer_note}"


def _describe_validation(data_files: DataFiles, share: float | None) -> list[str]:
    """Return notes on held-out rows and on a missing test split.

    Args:
        data_files: facts about the files.
        share: share of the rows that are held out for validation; None if none are.
    """
    held_out_note = (
        [] if share is None else [f"{share:.1%} of the rows are held out to validate on".replace(".0%", "%")]
    )
    kind, key = ("folder", "test_sources") if data_files.classes else ("file", "files.test")
    return [
        *held_out_note,
        *([] if data_files.has("test") else [f"no test {kind}, so no final figure: add data.{key}"]),
    ]
