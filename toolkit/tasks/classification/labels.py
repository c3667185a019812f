"""Labelled texts: check a classification data set's columns, turn labels into ids and texts into tokens."""

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
from toolkit.data.load import check_columns, hold_out, limited, load_stored
from toolkit.data.rows import quietly
from toolkit.data.sources import named_texts
from toolkit.files.cache import CACHE_VERSION, kept
from toolkit.files.digest import digest, digest_of_rows
from toolkit.recipe.keys import SOURCE_KEYS
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.classification.label_names import ids_by_name, listed, named, note_similar, renamed
from toolkit.tasks.classification.pairs import joined_columns
from toolkit.tasks.classification.windows import TEXT_OF, read_as

#: Feature that `datasets` gives a JSON column of several types; earlier versions refuse the column.
Json = getattr(datasets, "Json", ())

#: The file of a split in the cache.
TOKENS = "tokens.arrow"


def labelled_splits(recipe: Recipe, corpora: Mapping[str, str]) -> DatasetDict:
    """Return ``train``, ``validation`` and, if there is one, ``test``, with columns ``text`` (str) and ``label`` (by
    ``data.problem_type`` a ClassLabel, with ids in the order of its names; a list of these; or a float32).

    Args:
        corpora: the task's built-in data sets (:func:`toolkit.data.load.load_stored`).

    Raises:
        UserError: a file that is missing or unreadable, a column that is absent, an empty split, labels that are
            missing or that training does not have; at the line of the key to change.
    """
    stored = _from_sources(recipe) if recipe.data.dataset == "text" else load_stored(recipe, corpora)
    _check_columns(recipe, stored)
    splits = _with_targets(recipe, _with_text(recipe, _labelled(recipe, stored)))
    return limited(recipe, hold_out(recipe, splits, _divide))


def _from_sources(recipe: Recipe) -> DatasetDict:
    """Read each file under a label as one text; the recipe names the two columns."""
    (column,) = recipe.data.text_columns
    (target,) = recipe.data.label_columns
    splits = DatasetDict()
    for split, key in SOURCE_KEYS.items():
        if getattr(recipe.data, key) is not None:
            rows = list(named_texts(recipe, key))
            columns = {column: [text for _, text in rows], target: [label for label, _ in rows]}
            splits[split] = Dataset.from_dict(columns)
    return splits


def tokenize(
    split: Dataset, tokenizer: Tokenizer, max_length: int, name: str = "texts", whole: bool = False
) -> Dataset:
    """Tokenize a split with ``text`` and ``label``, cached by the content of both, the tokenizer and the length.

    Args:
        whole: read a longer text in windows, a row for each, in place of cutting it.

    Returns:
        Columns ``input_ids`` (int32, at most max_length, not padded), ``labels`` (int64; or float32, a number or 0 and
        1 for each label), ``truncated`` (whether the text is longer and cut) and ``text_of`` (int32, the text).
    """
    kind = split.features["label"]
    several = getattr(kind, "feature", None)  # for lists of labels
    target = Sequence(Value("float32")) if several else kind if isinstance(kind, Value) else Value("int64")
    key = digest(digest_of_rows(split), tokenizer.fingerprint(), max_length, whole, CACHE_VERSION)
    features = {"input_ids": Sequence(Value("int32")), "labels": target, "truncated": Value("bool"),
                TEXT_OF: Value("int32")}  # fmt: skip

    def fill(folder: Path) -> None:
        from toolkit.tasks.classification.targets import multi_hot

        with tqdm(total=len(split), desc=f"tokenizing {name}", unit=" texts", delay=2, leave=False) as bar:

            def encode(batch: dict[str, list], places: list[int]) -> dict[str, list]:
                rows, text_of, cut = read_as(batch["text"], tokenizer, max_length, whole)
                bar.update(len(places))
                labels = list(multi_hot(batch["label"], len(several.names))) if several else batch["label"]
                return {
                    "input_ids": rows,
                    "labels": [labels[text] for text in text_of],
                    "truncated": [cut[text] for text in text_of],
                    TEXT_OF: [places[text] for text in text_of],
                }

            quietly(
                split.map,
                encode,
                batched=True,
                with_indices=True,
                batch_size=256,
                remove_columns=split.column_names,
                features=Features(features),
                cache_file_name=str(folder / TOKENS),
                new_fingerprint=key,
                load_from_cache_file=False,
            )

    return Dataset.from_file(str(kept("tokens", key, fill) / TOKENS))


def _check_columns(recipe: Recipe, splits: DatasetDict) -> None:
    """Check that every split has the columns of texts and labels."""
    for column in recipe.data.label_columns:
        if column in recipe.data.text_columns:
            raise recipe.error("data.label", f"{column} is the text column as well; name the column of the labels")
    for split, rows in splits.items():
        for key, columns in (("text", recipe.data.text_columns), ("label", recipe.data.label_columns)):
            for column in columns:
                check_columns(recipe, split, rows, {key: column})


def _with_text(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Check that texts are strings; write numbers among them as text, and drop missing texts where the recipe does."""
    text_splits = DatasetDict()
    for split, rows in splits.items():
        for text in recipe.data.text_columns:
            kind = rows.features[text]
            if isinstance(kind, Json):
                rows = _with_numbers_as_text(recipe, split, rows, text)
            elif getattr(kind, "dtype", None) not in ("string", "large_string"):
                wrong = f"the column {text} of the {split} split holds {_named(kind)}, not text"
                raise recipe.error("data.text", wrong)
            rows = _without_missing_texts(recipe, split, rows, text)
        text_splits[split] = rows
    return text_splits


def _with_numbers_as_text(recipe: Recipe, split: str, rows: Dataset, column: str) -> Dataset:
    """Return the rows with the numbers of a column of several types written as text.

    Raises:
        UserError: a row has a list or an object for its text.
    """
    values = rows.select_columns([column])[:][column]
    for number, value in enumerate(values, 1):
        if isinstance(value, list | dict):
            wrong = f"row {number} of the {split} split has {value!r:.60} as its {column}, which is not text"
            raise recipe.error("data.text", f"{wrong}; write it in quotes")
    numbers = [(place, value) for place, value in enumerate(values, 1) if not isinstance(value, str | None)]
    if numbers:
        place, value = numbers[0]
        example = f"row {place} ({json.dumps(value)})"
        recipe.found.note(
            f"{len(numbers)} {split} rows have a number as their {column}, such as {example}; read as text"
        )
    texts = [value if isinstance(value, str | None) else json.dumps(value) for value in values]
    return quietly(rows.remove_columns(column).add_column, column, texts, feature=Value("string"))


def _labelled(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Drop the rows without a label: those that the hub's data sets mark by -1, and where ``data.missing_labels`` says
    so those with none.

    Among named labels (ClassLabel) -1 always marks such a row. Among others it is an ordinary label, unless a test
    split has only -1 and training has none. A test split whose labels are all missing is not measured either.

    Raises:
        UserError: a split other than test has no labels at all, or rows without, which the recipe does not drop.
    """
    kept = DatasetDict()
    for split, rows in splits.items():
        absent = _absent(recipe, rows)
        if split == "test" and not absent.any():
            known = _known(recipe, rows)
            absent |= bool(known) and known <= {-1, "-1"} and not _known(recipe, splits["train"]) & known
        if absent.all() and split == "test":
            recipe.found.note("the test split has no labels (-1, or none, throughout); it is not measured")
            continue
        kept[split] = _present(recipe, split, rows, absent) if absent.any() else rows
    return kept


def _present(recipe: Recipe, split: str, rows: Dataset, absent: np.ndarray) -> Dataset:
    """Return the rows with a label, and note the others.

    Raises:
        UserError: the recipe does not drop the others, or there is nothing but them.
    """
    columns, first = recipe.data.label_columns, int(np.flatnonzero(absent)[0]) + 1
    marked = any(isinstance(rows.features[column], ClassLabel) for column in columns)
    if absent.all() and marked:
        wrong = f"the {split} split has no labels (-1 throughout)"
        raise recipe.error("data.label", f"{wrong}; set data.splits: {{{split}: NAME}}, or null for none")
    if absent.all():
        raise recipe.error("data.label", f"no row of the {split} split has a {columns[0]}; name another column")
    if recipe.data.missing_labels == "refuse" and not marked:
        what = columns[0] if len(columns) == 1 else f"value in {', '.join(columns)}"
        wrong = f"{absent.sum()} of {len(rows)} rows of the {split} split have no {what}, the first is row {first}"
        raise recipe.error("data.label", f"{wrong}; data.missing_labels: drop leaves them out")
    how = " (-1) and are left out" if marked else f" and are left out, the first is row {first}"
    recipe.found.note(f"{absent.sum()} of {len(rows)} {split} rows have no label{how}")
    return rows.select(np.flatnonzero(~absent))


def _absent(recipe: Recipe, rows: Dataset) -> np.ndarray:
    """Tell which rows have no label: none is stored, or -1 where labels have names, or nothing but blanks, or a word
    that stands for it. Where labels are separated, an empty field is none of them."""
    stated, blank = recipe.data.missing_labels, recipe.data.label_separator is None
    words = {*(stated if isinstance(stated, list) else ()), *([""] if blank else ())}
    absent = np.zeros(len(rows), dtype=bool)
    for column in recipe.data.label_columns:
        named = isinstance(rows.features[column], ClassLabel)
        for place, value in enumerate(rows.select_columns([column])[:][column]):
            if not isinstance(value, list | dict):
                absent[place] |= (
                    (value is None and blank)
                    or value != value  # NaN
                    or (named and value == -1)
                    or str(value).strip() in words
                )
    return absent


def _known(recipe: Recipe, rows: Dataset) -> set[Any]:
    columns = recipe.data.label_columns
    values = (value for column in columns for value in rows.select_columns([column])[:][column])
    return {value for value in values if not isinstance(value, list | dict)}


def _with_targets(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Reduce the splits to ``text`` and ``label``, the latter as ``data.problem_type`` says."""
    if recipe.data.problem_type == "single_label":
        return _with_labels(recipe, splits)
    from toolkit.tasks.classification.targets import with_label_lists, with_numbers

    find = with_numbers if recipe.data.problem_type == "regression" else with_label_lists
    columns: dict[str, tuple[list[Any], Any]] = find(recipe, splits)
    labelled = DatasetDict()
    for split, (values, feature) in columns.items():
        texts = joined_columns(splits[split], recipe.data.text_columns)
        labelled[split] = quietly(texts.add_column, "label", values, feature=feature)
    return labelled


def _with_labels(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Reduce the splits to ``text`` and ``label``, labels as ids of one list of names."""
    values = {split: _label_values(recipe, split, rows) for split, rows in splits.items()}
    names = _label_names(recipe, splits["train"], values["train"])
    ids, unique = ids_by_name(names)
    note_similar(recipe, unique)
    seen = set(values["train"])
    trained = {value: name for value, name in names.items() if value in seen}
    labelled = DatasetDict()
    for split, rows in splits.items():
        _refuse_unknown(recipe, split, values[split], trained)
        texts = joined_columns(rows, recipe.data.text_columns)
        labels = [ids[value] for value in values[split]]
        label = ClassLabel(names=unique)
        labelled[split] = quietly(texts.add_column, "label", labels, feature=label)
    return labelled


def _label_names(recipe: Recipe, train: Dataset, values: list[Any]) -> dict[int | str, str]:
    """Return stored label -> its name (see ``data.label_names``), in the order of the ids: the data's own order if it
    has one, else sorted."""
    (column,) = recipe.data.label_columns
    kind = train.features[column]
    if len(set(values)) < 2:
        message = f"all {len(values)} rows of the train split have the same label; classification needs two or more"
        raise recipe.error("data.label", message)
    if isinstance(kind, ClassLabel):
        return renamed(recipe, dict(enumerate(kind.names)))
    return named(recipe, set(values))


def _refuse_unknown(recipe: Recipe, split: str, values: list[Any], known: dict[int | str, str]) -> None:
    strange = Counter(value for value in values if value not in known).most_common(1)
    if strange:
        value, count = strange[0]
        raise recipe.error(
            "data.label",
            f"{count} rows of the {split} split have the label {value!r}, which no row of the train split has; "
            f"known: {listed(known.values())}",
        )


def _label_values(recipe: Recipe, split: str, rows: Dataset) -> list[Any]:
    """The labels of a split as integers or strings.

    Raises:
        UserError: a label is neither text nor a whole number.
    """
    (column,) = recipe.data.label_columns
    kind = rows.features[column]
    values = rows.select_columns([column])[:][column]
    if isinstance(kind, ClassLabel):
        return values
    if isinstance(kind, Json):
        wrong = 'holds labels of several types, such as 1 and "1"; write all of them as text'
        raise recipe.error("data.label", f"the column {column} of the {split} split {wrong}")
    if getattr(kind, "dtype", None) == "bool":
        return [str(value).lower() for value in values]
    if all(isinstance(value, (int, str)) for value in values):
        stripped_values = [value.strip() if isinstance(value, str) else value for value in values]
        if padded_values := [value for value, label in zip(values, stripped_values, strict=True) if value != label]:
            count, example = len(padded_values), padded_values[0]
            recipe.found.note(
                f"{count} {split} rows have blanks around their {column}, such as {example!r}; they are removed"
            )
        return stripped_values
    if all(isinstance(value, float) and value.is_integer() for value in values):
        return [int(value) for value in values]
    invalid_label = next(value for value in values if not isinstance(value, (int, str)))
    held = f"the column {column} of the {split} split holds {invalid_label!r}"
    numbers = "; to predict numbers, set data.problem_type: regression" if isinstance(invalid_label, float) else ""
    raise recipe.error("data.label", f"{held}: a label is a word or a whole number{numbers}")


def _without_missing_texts(recipe: Recipe, split: str, rows: Dataset, column: str) -> Dataset:
    """Return the rows that have a text. With ``data.missing_texts: drop``, a blank text counts as missing.

    Raises:
        UserError: a text is missing and the recipe does not drop such rows, or all texts are missing.
    """
    drops = recipe.data.missing_texts == "drop"
    values = rows.select_columns([column])[:][column]
    missing = [place for place, text in enumerate(values) if text is None or (drops and not text.strip())]
    if not missing:
        return rows
    count = (
        f"{len(missing)} of {len(rows)} rows of the {split} split have no {column}, the first is row {missing[0] + 1}"
    )
    if not drops:
        raise recipe.error("data.text", f"{count}; data.missing_texts: drop leaves them out")
    if len(missing) == len(rows):
        raise recipe.error("data.text", f"no row of the {split} split has a {column}; name another column")
    recipe.found.note(f"{count}; they are left out")
    return rows.select(np.setdiff1d(np.arange(len(rows)), missing))


def _divide(rows: Dataset, shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Draw the indices of ``train`` and ``validation`` by the seed: the same share of each label if texts have one."""
    fraction = shares["validation"]
    one_each = isinstance(rows.features["label"], ClassLabel)
    labels = np.asarray(rows["label"][:]) if one_each else np.zeros(len(rows), np.int64)
    random = np.random.default_rng([seed, 1])
    held_out: list[int] = []
    for label in np.unique(labels):
        places = random.permutation(np.flatnonzero(labels == label))
        held_out += places[: min(round(len(places) * fraction), len(places) - 1)].tolist()
    if not held_out:
        raise ValueError(f"{fraction} of {len(labels)} rows is none; set a larger one")
    return {"train": np.setdiff1d(np.arange(len(labels)), held_out).tolist(), "validation": sorted(held_out)}


def _named(kind: Any) -> str:
    if isinstance(kind, Json):
        return "values of several types"
    return f"{kind.dtype} values" if isinstance(kind, Value) else type(kind).__name__
