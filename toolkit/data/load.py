"""Load a recipe's data and tokenizer for any task: read, split, limit and cache.

The task decides which columns a split must have (:mod:`toolkit.tasks`). Errors of the user are reported at the line of
the recipe key that must be changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict

from models import families
from models.port.tokenization import Tokenizer
from toolkit.data.built_in import load_built_in
from toolkit.data.folder_data import load_folder
from toolkit.data.hub_data import load_hub_data
from toolkit.data.hub_streaming import load_streamed_rows
from toolkit.data.row_selection import filter_rows, split_by_column
from toolkit.data.source_names import check_source
from toolkit.data.sources import list_named_columns, load_files, read_file
from toolkit.data.splits import SPLITS, choose_splits
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.csv_rows import NO_HEADER_ADVICE, lacks_header
from toolkit.files.digest import digest_parts
from toolkit.files.nested_columns import append_nested_columns, list_innermost_columns
from toolkit.recipe.keys import FILE_KINDS
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import weights_folder

#: Number of characters beyond which training a tokenizer takes over two seconds; SentencePiece shows no progress.
LONG_TRAINING_CHARACTERS = 4_000_000


def build_tokenizer(recipe: Recipe, texts: Iterable[str] = (), control_codes: Iterable[str] = ()) -> Tokenizer:
    """Return the recipe's tokenizer; a tokenizer to be trained is trained once and then cached.

    Args:
        recipe: recipe with the tokenizer section.
        texts: texts on which the tokenizer is trained, if the recipe sets ``tokenizer.vocab_size``.
        control_codes: control codes of the data, which become tokens.

    Raises:
        UserError: a file is missing or not a tokenizer, or the texts yield fewer than ``vocab_size`` tokens.
    """
    choice = recipe.tokenizer
    tokenizer_module = families.part(recipe.model.name, "tokenizer")
    if choice.vocab_size is not None:
        codes = [sorted(set(control_codes))] if hasattr(tokenizer_module, "check_control_code") else []
        try:
            train = tokenizer_module.TRAINERS[choice.kind]
            return _train_tokenizer_once(train, tokenizer_module.load_tokenizer, list(texts), choice.vocab_size, *codes)
        except ValueError as error:
            raise recipe.error("tokenizer.vocab_size", str(error)) from None
    source = choice.path or recipe.model.weights or ""
    try:
        folder = weights_folder(recipe) if choice.kind == "checkpoint" else recipe.resolve(source)
        return tokenizer_module.load_tokenizer_of_kind(choice.kind, folder)
    except OSError as error:
        reason = error.strerror or " ".join(str(error).split())
        raise recipe.error(
            "tokenizer.path" if choice.path else "model.weights", f"cannot read {source}: {reason}"
        ) from None
    except ValueError as error:
        raise recipe.error("tokenizer.path" if choice.path else "tokenizer.kind", f"{source}: {error}") from None


def load_splits(
    recipe: Recipe, corpora: Mapping[str, str], read_file: Callable[[Recipe, str, Path], Dataset] = read_file
) -> DatasetDict:
    """Return the splits of the recipe's data with the selected rows; a split without rows is an error.

    Args:
        recipe: recipe with the data section.
        corpora: name of a built-in data set -> name of the module with its ``Options`` and ``load``.
        read_file: function from recipe, split name and path to rows, for a task with a special file layout.

    Raises:
        UserError: the data is not valid; the message names the line of the key that must be changed.
    """
    check_source(recipe, corpora)
    name = recipe.data.dataset
    folder = recipe.resolve(name)
    if name in corpora and recipe.data.splits is not None:
        raise recipe.error("data.splits", f"is for folders and hub data sets, not for {name}; remove it")
    if name not in corpora and recipe.data.options:
        raise recipe.error("data.options", f"is for dataset: {', '.join(corpora)}; remove it")
    if name in corpora:
        splits = load_built_in(recipe, corpora[name])
    elif recipe.data.streaming:
        splits = load_streamed_rows(recipe)
    elif name in FILE_KINDS:
        splits = load_files(recipe, read_file)
    else:
        all_splits = load_folder(recipe, folder) if folder.is_dir() else load_hub_data(recipe)
        by_name = (
            {split_name: split_name for split_name in all_splits}
            if recipe.data.split_column
            else choose_splits(recipe, all_splits)
        )
        splits = DatasetDict({split_name: all_splits[name] for split_name, name in by_name.items()})
    for split_name, rows in splits.items():
        if not len(rows):
            raise recipe.error(_split_key(recipe, split_name), f"the {split_name} split is empty")
    columns = [*list_named_columns(recipe), *(recipe.data.filter or {})]
    flattened_splits = DatasetDict(
        {split_name: append_nested_columns(rows, columns) for split_name, rows in splits.items()}
    )
    selected_splits = flattened_splits if recipe.data.streaming else filter_rows(recipe, flattened_splits)
    return split_by_column(recipe, selected_splits)


def check_columns(recipe: Recipe, split_name: str, rows: Dataset, columns: Mapping[str, str]) -> None:
    """Check that a split has the columns that the recipe names.

    Args:
        recipe: recipe with the data section.
        split_name: name of the split.
        rows: rows of the split.
        columns: key of the data section -> column name.

    Raises:
        UserError: the split lacks a column; the message names the line of its key.
    """
    for key, column in columns.items():
        if column not in rows.column_names:
            known_columns = ", ".join(list_innermost_columns(rows.features))
            has_no_header = recipe.data.dataset in ("csv", "xlsx") and lacks_header(
                [rows.column_names, *zip(*rows[:1000].values(), strict=True)]
            )
            header_advice = f"{NO_HEADER_ADVICE} data.columns" if has_no_header else ""
            raise recipe.error(
                f"data.{key}", f"no column {column} in the {split_name} split; it has {known_columns}{header_advice}"
            )


def hold_out_splits(
    recipe: Recipe,
    splits: DatasetDict,
    divide: Callable[[Dataset, Mapping[str, float], int], Mapping[str, Sequence[int] | np.ndarray]],
) -> DatasetDict:
    """Return the splits with the shares for ``validation`` and ``test`` taken out of ``train``.

    Args:
        recipe: recipe with the shares.
        splits: splits of the data.
        divide: function from training rows, split name -> share, and seed to split name -> row indices, including
            ``train``. It raises ``ValueError`` if the rows are too few.

    Raises:
        UserError: a share is set for an existing split, the share of a missing validation split is not set, or the
            rows are too few for the shares.
    """
    fractions = {"validation": recipe.data.validation_fraction, "test": recipe.data.test_fraction}
    shares = {split_name: fraction for split_name, fraction in fractions.items() if fraction is not None}
    for split_name in shares:
        if split_name in splits:
            raise recipe.error(
                f"data.{split_name}_fraction", f"the data has a {split_name} split of its own; remove this"
            )
    if "validation" not in {**splits, **shares}:
        message = "missing: the data has no validation split; set the share of train to hold out"
        raise recipe.error("data.validation_fraction", message)
    if sum(shares.values()) >= 1:
        raise recipe.error("data.test_fraction", "with data.validation_fraction it leaves nothing to train on")
    if not shares:
        return splits
    try:
        indices_by_split = divide(splits["train"], shares, recipe.seed)
    except ValueError as error:
        raise recipe.error(f"data.{next(iter(shares))}_fraction", str(error)) from None
    parts = {
        **splits,
        **{split_name: splits["train"].select(row_indices) for split_name, row_indices in indices_by_split.items()},
    }
    return DatasetDict({split_name: parts[split_name] for split_name in SPLITS if split_name in parts})


def limit_rows(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Return at most ``data.limit`` rows of each split, drawn with the recipe's seed because files may be sorted."""
    limited_splits = DatasetDict()
    for position, (split_name, rows) in enumerate(splits.items()):
        limit = getattr(recipe.data.limit, split_name)
        row_indices = np.random.default_rng([recipe.seed, 2, position]).permutation(len(rows))[:limit]
        limited_splits[split_name] = rows if limit is None else rows.select(np.sort(row_indices))
    return limited_splits


def _train_tokenizer_once(
    train: Callable[..., Any],
    load: Callable[[Path], Tokenizer],
    texts: Sequence[str],
    vocab_size: int,
    *extra_arguments: Any,
) -> Tokenizer:
    """Return the tokenizer that ``train`` writes for these texts, from the cache if it was trained before.

    Args:
        train: function that trains a tokenizer and writes its files.
        load: function that loads a tokenizer from its folder.
        texts: texts to train on.
        vocab_size: size of the vocabulary.
        *extra_arguments: further arguments of ``train``.
    """
    key = digest_parts(train.__name__, *texts, vocab_size, *map(str, extra_arguments), CACHE_VERSION)

    def write_tokenizer(unfinished_folder: Path) -> None:
        if (num_characters := sum(map(len, texts))) > LONG_TRAINING_CHARACTERS:
            message = (
                f"note: training a tokenizer of {vocab_size:,} pieces on {num_characters:,} characters, without a bar"
            )
            print(message, file=sys.stderr, flush=True)
        train(texts, vocab_size, unfinished_folder, *extra_arguments)

    return load(get_or_create_entry("tokenizers", key, write_tokenizer))


def _split_key(recipe: Recipe, split_name: str) -> str:
    """Return the recipe's key that names the data of a split, for messages."""
    if recipe.data.files is not None:
        return f"data.files.{split_name}"
    return f"data.splits.{split_name}" if split_name in (recipe.data.splits or {}) else "data.dataset"
