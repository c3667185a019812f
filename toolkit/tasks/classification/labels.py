"""Load labeled texts: check the columns of a classification data set, convert labels to ids and texts to tokens."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
from tqdm import tqdm

from models.port.tokenization import Tokenizer
from toolkit.data.load import check_columns, hold_out_splits, limit_rows, load_splits
from toolkit.data.rows import call_without_progress
from toolkit.data.sources import read_named_texts
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.digest import digest_parts, digest_rows
from toolkit.recipe.keys import SOURCE_KEYS
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.classification.label_names import ids_by_name, join_names, name_labels, note_similar, rename_labels
from toolkit.tasks.classification.pairs import join_columns
from toolkit.tasks.classification.windows import TEXT_OF, encode_texts

#: Feature of a JSON column of several types in `datasets`; earlier versions reject the column.
Json = getattr(datasets, "Json", ())

#: Name of the file of a split in the cache.
TOKENS_FILE = "tokens.arrow"


def labeled_splits(recipe: Recipe, corpora: Mapping[str, str]) -> DatasetDict:
    """Return ``train``, ``validation`` and, if it exists, ``test``, with columns ``text`` and ``label``.

    ``text`` is a str. ``label`` follows ``data.problem_type``: a ClassLabel with ids in the order of its names, a list
    of these, or a float32.

    Args:
        recipe: recipe of the run.
        corpora: built-in data sets of the task (:func:`toolkit.data.load.load_splits`).

    Raises:
        UserError: a file is missing or unreadable, a column is absent, a split is empty, or a label is missing or does
            not occur in training. The error names the line of the key to change.
    """
    stored_splits = _from_sources(recipe) if recipe.data.dataset == "text" else load_splits(recipe, corpora)
    _check_columns(recipe, stored_splits)
    splits = _reduce_to_targets(recipe, _check_texts(recipe, _drop_unlabeled(recipe, stored_splits)))
    return limit_rows(recipe, hold_out_splits(recipe, splits, _divide_rows))


def _from_sources(recipe: Recipe) -> DatasetDict:
    """Return the splits whose texts are files: the recipe lists the files of each label, and a file is one text."""
    (column,) = recipe.data.text_columns
    (target,) = recipe.data.label_columns
    splits = DatasetDict()
    for split_name, key in SOURCE_KEYS.items():
        if getattr(recipe.data, key) is not None:
            rows = list(read_named_texts(recipe, key))
            columns = {column: [text for _, text in rows], target: [label for label, _ in rows]}
            splits[split_name] = Dataset.from_dict(columns)
    return splits


def tokenize(
    rows: Dataset, tokenizer: Tokenizer, max_length: int, title: str = "texts", *, in_windows: bool = False
) -> Dataset:
    """Tokenize a split with ``text`` and ``label``, cached by the content of both, the tokenizer and the length.

    Args:
        rows: rows of the split.
        tokenizer: tokenizer of the model.
        max_length: maximum number of tokens of a row.
        title: name of the rows in the progress bar.
        in_windows: whether a longer text is read in windows, a row for each; otherwise it is cut.

    Returns:
        Columns ``input_ids`` (int32, at most max_length, not padded), ``labels`` (int64; or float32, a number or 0 and
        1 for each label), ``truncated`` (whether the text was cut) and ``text_of`` (int32, index of the text).
    """
    feature = rows.features["label"]
    label_feature = getattr(feature, "feature", None)  # for lists of labels
    target_feature = (
        Sequence(Value("float32")) if label_feature else feature if isinstance(feature, Value) else Value("int64")
    )
    key = digest_parts(digest_rows(rows), tokenizer.fingerprint(), max_length, in_windows, CACHE_VERSION)
    features = {"input_ids": Sequence(Value("int32")), "labels": target_feature, "truncated": Value("bool"),
                TEXT_OF: Value("int32")}  # fmt: skip

    def fill(folder: Path) -> None:
        from toolkit.tasks.classification.targets import multi_hot

        options = {"unit": " texts", "delay": 2, "leave": False, "disable": None}
        with tqdm(total=len(rows), desc=f"tokenizing {title}", **options) as bar:

            def encode(row_batch: dict[str, list], indices: list[int]) -> dict[str, list]:
                token_rows, text_indices, is_cut = encode_texts(
                    row_batch["text"], tokenizer, max_length, in_windows=in_windows
                )
                bar.update(len(indices))
                labels = (
                    list(multi_hot(row_batch["label"], len(label_feature.names)))
                    if label_feature
                    else row_batch["label"]
                )
                return {
                    "input_ids": token_rows,
                    "labels": [labels[text] for text in text_indices],
                    "truncated": [is_cut[text] for text in text_indices],
                    TEXT_OF: [indices[text] for text in text_indices],
                }

            call_without_progress(
                rows.map,
                encode,
                batched=True,
                with_indices=True,
                batch_size=256,
                remove_columns=rows.column_names,
                features=Features(features),
                cache_file_name=str(folder / TOKENS_FILE),
                new_fingerprint=key,
                load_from_cache_file=False,
            )

    return Dataset.from_file(str(get_or_create_entry("tokens", key, fill) / TOKENS_FILE))


def _check_columns(recipe: Recipe, splits: DatasetDict) -> None:
    """Check that every split has the columns of texts and labels."""
    for column in recipe.data.label_columns:
        if column in recipe.data.text_columns:
            raise recipe.error("data.label", f"{column} is the text column as well; name the column of the labels")
    for split_name, rows in splits.items():
        for key, columns in (("text", recipe.data.text_columns), ("label", recipe.data.label_columns)):
            for column in columns:
                check_columns(recipe, split_name, rows, {key: column})


def _check_texts(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Check that texts are strings; convert numbers among them to text, and drop missing texts if the recipe does."""
    text_splits = DatasetDict()
    for split_name, rows in splits.items():
        for text in recipe.data.text_columns:
            feature = rows.features[text]
            if isinstance(feature, Json):
                rows = _with_numbers_as_text(recipe, split_name, rows, text)
            elif getattr(feature, "dtype", None) not in ("string", "large_string"):
                problem = f"the column {text} of the {split_name} split holds {_describe_feature(feature)}, not text"
                raise recipe.error("data.text", problem)
            rows = _without_missing_texts(recipe, split_name, rows, text)
        text_splits[split_name] = rows
    return text_splits


def _with_numbers_as_text(recipe: Recipe, split_name: str, rows: Dataset, column: str) -> Dataset:
    """Convert the numbers in a column of several types to text.

    Raises:
        UserError: a row has a list or an object as its text.
    """
    values = rows.select_columns([column])[:][column]
    for number, value in enumerate(values, 1):
        if isinstance(value, list | dict):
            problem = f"row {number} of the {split_name} split has {value!r:.60} as its {column}, which is not text"
            raise recipe.error("data.text", f"{problem}; write it in quotes")
    numbers = [(row_number, value) for row_number, value in enumerate(values, 1) if not isinstance(value, str | None)]
    if numbers:
        row_number, value = numbers[0]
        example = f"row {row_number} ({json.dumps(value)})"
        recipe.findings.note(
            f"{len(numbers)} {split_name} rows have a number as their {column}, such as {example}; read as text"
        )
    texts = [value if isinstance(value, str | None) else json.dumps(value) for value in values]
    return call_without_progress(rows.remove_columns(column).add_column, column, texts, feature=Value("string"))


def _drop_unlabeled(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Drop the rows without a label.

    These are the rows that the hub's data sets mark by -1, and rows without a value if ``data.missing_labels`` drops
    them. Among named labels (ClassLabel) -1 always marks such a row. Otherwise it is an ordinary label, unless a test
    split has only -1 and training has none. A test split without any labels is dropped as well.

    Raises:
        UserError: a split other than test has no labels at all, or has rows without a label that the recipe does not
            drop.
    """
    labeled_splits = DatasetDict()
    for split_name, rows in splits.items():
        is_unlabeled = _find_unlabeled(recipe, rows)
        if split_name == "test" and not is_unlabeled.any():
            labels = _distinct_labels(recipe, rows)
            is_unlabeled |= (
                bool(labels) and labels <= {-1, "-1"} and not _distinct_labels(recipe, splits["train"]) & labels
            )
        if is_unlabeled.all() and split_name == "test":
            recipe.findings.note("the test split has no labels (-1, or none, throughout); it is not measured")
            continue
        labeled_splits[split_name] = (
            _keep_labeled(recipe, split_name, rows, is_unlabeled) if is_unlabeled.any() else rows
        )
    return labeled_splits


def _keep_labeled(recipe: Recipe, split_name: str, rows: Dataset, is_unlabeled: np.ndarray) -> Dataset:
    """Return the rows with a label, and note the number of other rows.

    Raises:
        UserError: the recipe does not drop the other rows, or no row has a label.
    """
    columns, first = recipe.data.label_columns, int(np.flatnonzero(is_unlabeled)[0]) + 1
    has_names = any(isinstance(rows.features[column], ClassLabel) for column in columns)
    if is_unlabeled.all() and has_names:
        problem = f"the {split_name} split has no labels (-1 throughout)"
        raise recipe.error("data.label", f"{problem}; set data.splits: {{{split_name}: NAME}}, or null for none")
    if is_unlabeled.all():
        raise recipe.error("data.label", f"no row of the {split_name} split has a {columns[0]}; name another column")
    if recipe.data.missing_labels == "refuse" and not has_names:
        missing_value = columns[0] if len(columns) == 1 else f"value in {', '.join(columns)}"
        problem = (
            f"{is_unlabeled.sum()} of {len(rows)} rows of the {split_name} split have no {missing_value}, "
            f"the first is row {first}"
        )
        raise recipe.error("data.label", f"{problem}; data.missing_labels: drop leaves them out")
    ending = " (-1) and are left out" if has_names else f" and are left out, the first is row {first}"
    recipe.findings.note(f"{is_unlabeled.sum()} of {len(rows)} {split_name} rows have no label{ending}")
    return rows.select(np.flatnonzero(~is_unlabeled))


def _find_unlabeled(recipe: Recipe, rows: Dataset) -> np.ndarray:
    """Return whether each row has no label, (rows,).

    A label is missing if its value is empty, blank or one of the words in ``data.missing_labels``, or -1 among named
    labels. With a label separator, a blank field means that the row has no labels, which is not missing.
    """
    missing_labels, blank_is_missing = recipe.data.missing_labels, recipe.data.label_separator is None
    missing_words = {*(missing_labels if isinstance(missing_labels, list) else ()), *([""] if blank_is_missing else ())}
    is_unlabeled = np.zeros(len(rows), dtype=bool)
    for column in recipe.data.label_columns:
        has_names = isinstance(rows.features[column], ClassLabel)
        for index, value in enumerate(rows.select_columns([column])[:][column]):
            if not isinstance(value, list | dict):
                is_unlabeled[index] |= (
                    (value is None and blank_is_missing)
                    or value != value  # NaN
                    or (has_names and value == -1)
                    or str(value).strip() in missing_words
                )
    return is_unlabeled


def _distinct_labels(recipe: Recipe, rows: Dataset) -> set[Any]:
    """Return the distinct values of the label columns."""
    columns = recipe.data.label_columns
    values = (value for column in columns for value in rows.select_columns([column])[:][column])
    return {value for value in values if not isinstance(value, list | dict)}


def _reduce_to_targets(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Reduce the splits to ``text`` and ``label``, the latter in the form of ``data.problem_type``."""
    if recipe.data.problem_type == "single_label":
        return _reduce_to_labels(recipe, splits)
    from toolkit.tasks.classification.targets import encode_label_lists, read_numbers_of_splits

    read_targets = read_numbers_of_splits if recipe.data.problem_type == "regression" else encode_label_lists
    columns: dict[str, tuple[list[Any], Any]] = read_targets(recipe, splits)
    labeled_splits = DatasetDict()
    for split_name, (values, feature) in columns.items():
        texts = join_columns(splits[split_name], recipe.data.text_columns)
        labeled_splits[split_name] = call_without_progress(texts.add_column, "label", values, feature=feature)
    return labeled_splits


def _reduce_to_labels(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Reduce the splits to ``text`` and ``label``, with labels as ids of one list of names."""
    values = {split_name: _label_values(recipe, split_name, rows) for split_name, rows in splits.items()}
    names = _label_names(recipe, splits["train"], values["train"])
    ids, unique_names = ids_by_name(names)
    note_similar(recipe, unique_names)
    train_labels = set(values["train"])
    trained_names = {value: name for value, name in names.items() if value in train_labels}
    labeled_splits = DatasetDict()
    for split_name, rows in splits.items():
        _check_known_labels(recipe, split_name, values[split_name], trained_names)
        texts = join_columns(rows, recipe.data.text_columns)
        labels = [ids[value] for value in values[split_name]]
        feature = ClassLabel(names=unique_names)
        labeled_splits[split_name] = call_without_progress(texts.add_column, "label", labels, feature=feature)
    return labeled_splits


def _label_names(recipe: Recipe, train: Dataset, values: list[Any]) -> dict[int | str, str]:
    """Return the name of each stored label (see ``data.label_names``), in the order of the ids.

    The order is the data's own if it has one, and sorted otherwise.

    Args:
        recipe: recipe of the run.
        train: rows of the training split.
        values: label of each row.
    """
    (column,) = recipe.data.label_columns
    feature = train.features[column]
    if len(set(values)) < 2:
        message = f"all {len(values)} rows of the train split have the same label; classification needs two or more"
        raise recipe.error("data.label", message)
    if isinstance(feature, ClassLabel):
        return rename_labels(recipe, dict(enumerate(feature.names)))
    return name_labels(recipe, set(values))


def _check_known_labels(recipe: Recipe, split_name: str, values: list[Any], known_names: dict[int | str, str]) -> None:
    """Check that all labels of a split also occur in the training split.

    Args:
        recipe: recipe of the run, for errors.
        split_name: name of the split.
        values: labels of the split's rows.
        known_names: name of each label of the training split.
    """
    unknown_labels = Counter(value for value in values if value not in known_names).most_common(1)
    if unknown_labels:
        value, count = unknown_labels[0]
        raise recipe.error(
            "data.label",
            f"{count} rows of the {split_name} split have the label {value!r}, which no row of the train split has; "
            f"known: {join_names(known_names.values())}",
        )


def _label_values(recipe: Recipe, split_name: str, rows: Dataset) -> list[Any]:
    """Return the labels of a split as integers or strings.

    Raises:
        UserError: a label is neither text nor a whole number.
    """
    (column,) = recipe.data.label_columns
    feature = rows.features[column]
    values = rows.select_columns([column])[:][column]
    if isinstance(feature, ClassLabel):
        return values
    if isinstance(feature, Json):
        problem = 'holds labels of several types, such as 1 and "1"; write all of them as text'
        raise recipe.error("data.label", f"the column {column} of the {split_name} split {problem}")
    if getattr(feature, "dtype", None) == "bool":
        return [str(value).lower() for value in values]
    if all(isinstance(value, (int, str)) for value in values):
        stripped_values = [value.strip() if isinstance(value, str) else value for value in values]
        if padded_values := [value for value, label in zip(values, stripped_values, strict=True) if value != label]:
            count, example = len(padded_values), padded_values[0]
            recipe.findings.note(
                f"{count} {split_name} rows have blanks around their {column}, such as {example!r}; they are removed"
            )
        return stripped_values
    if all(isinstance(value, float) and value.is_integer() for value in values):
        return [int(value) for value in values]
    invalid_label = next(value for value in values if not isinstance(value, (int, str)))
    problem_with_example = f"the column {column} of the {split_name} split holds {invalid_label!r}"
    numbers = "; to predict numbers, set data.problem_type: regression" if isinstance(invalid_label, float) else ""
    raise recipe.error("data.label", f"{problem_with_example}: a label is a word or a whole number{numbers}")


def _without_missing_texts(recipe: Recipe, split_name: str, rows: Dataset, column: str) -> Dataset:
    """Return the rows that have a text. With ``data.missing_texts: drop``, a blank text counts as missing.

    Raises:
        UserError: a text is missing and the recipe does not drop such rows, or all texts are missing.
    """
    drops_missing = recipe.data.missing_texts == "drop"
    values = rows.select_columns([column])[:][column]
    missing = [place for place, text in enumerate(values) if text is None or (drops_missing and not text.strip())]
    if not missing:
        return rows
    problem = (
        f"{len(missing)} of {len(rows)} rows of the {split_name} split have no {column}, "
        f"the first is row {missing[0] + 1}"
    )
    if not drops_missing:
        raise recipe.error("data.text", f"{problem}; data.missing_texts: drop leaves them out")
    if len(missing) == len(rows):
        raise recipe.error("data.text", f"no row of the {split_name} split has a {column}; name another column")
    recipe.findings.note(f"{problem}; they are left out")
    return rows.select(np.setdiff1d(np.arange(len(rows)), missing))


def _divide_rows(rows: Dataset, shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Draw the indices of ``train`` and of each split that is held out by the seed.

    If each text has one label, a split that is held out gets the same share of each label.
    """
    has_single_labels = isinstance(rows.features["label"], ClassLabel)
    labels = np.asarray(rows["label"][:]) if has_single_labels else np.zeros(len(rows), np.int64)
    random = np.random.default_rng([seed, 1])
    held_out: dict[str, list[int]] = {split_name: [] for split_name in shares}
    for label in np.unique(labels):
        indices = random.permutation(np.flatnonzero(labels == label))
        start = 0
        for split_name, fraction in shares.items():
            end = min(start + round(len(indices) * fraction), len(indices) - 1)
            held_out[split_name] += indices[start:end].tolist()
            start = end
    for split_name, split_indices in held_out.items():
        if not split_indices:
            raise ValueError(f"{shares[split_name]} of {len(labels)} rows is none; set a larger one")
    train = np.setdiff1d(np.arange(len(labels)), np.concatenate(list(held_out.values())))
    return {"train": train.tolist(), **{name: sorted(split_indices) for name, split_indices in held_out.items()}}


def _describe_feature(feature: Any) -> str:
    """Return the type of a data set's column in words."""
    if isinstance(feature, Json):
        return "values of several types"
    return f"{feature.dtype} values" if isinstance(feature, Value) else type(feature).__name__
