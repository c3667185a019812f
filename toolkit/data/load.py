"""A recipe's data and tokenizer, whatever the task: loaded from wherever `datasets` can, split, limited and cached.

Which columns a split must have is decided by the task (:mod:`toolkit.tasks`). What a user can get wrong is reported at
the line of the recipe key that is to be changed.
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
from toolkit.data.built_in import built_in
from toolkit.data.folder_data import from_folder
from toolkit.data.hub_data import from_hub
from toolkit.data.hub_streaming import streamed
from toolkit.data.row_selection import filtered, split_by_column
from toolkit.data.source_names import check_source
from toolkit.data.sources import from_files, named_columns, read_file
from toolkit.data.splits import SPLITS, chosen
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.csv_rows import NO_HEADER_ADVICE, lacks_header
from toolkit.files.digest import digest_parts
from toolkit.files.nested_columns import append_nested_columns, list_innermost_columns
from toolkit.recipe.keys import FILE_KINDS
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import weights_folder

#: Characters on which a tokenizer is trained in about two seconds; SentencePiece shows no progress.
LONG_TRAINING = 4_000_000


def build_tokenizer(recipe: Recipe, texts: Iterable[str] = (), control_codes: Iterable[str] = ()) -> Tokenizer:
    """The recipe's tokenizer; one that is to be trained is trained on these texts, once, and cached. Raises UserError
    for a file that is missing or is no tokenizer, or texts that give fewer than ``vocab_size`` tokens."""
    choice = recipe.tokenizer
    module = families.part(recipe.model.name, "tokenizer")
    if choice.vocab_size is not None:
        codes = [sorted(set(control_codes))] if hasattr(module, "check_control_code") else []
        try:
            train = module.TRAINED[choice.kind]
            return _trained_once(train, module.load_tokenizer, list(texts), choice.vocab_size, *codes)
        except ValueError as problem:
            raise recipe.error("tokenizer.vocab_size", str(problem)) from None
    written = choice.path or recipe.model.weights or ""
    try:
        folder = weights_folder(recipe) if choice.kind == "checkpoint" else recipe.resolve(written)
        return module.of_kind(choice.kind, folder)
    except OSError as problem:
        reason = problem.strerror or " ".join(str(problem).split())
        raise recipe.error(
            "tokenizer.path" if choice.path else "model.weights", f"cannot read {written}: {reason}"
        ) from None
    except ValueError as problem:
        raise recipe.error("tokenizer.path" if choice.path else "tokenizer.kind", f"{written}: {problem}") from None


def load_stored(
    recipe: Recipe, corpora: Mapping[str, str], read_file: Callable[[Recipe, str, Path], Dataset] = read_file
) -> DatasetDict:
    """The splits as they are stored, empty ones refused.

    Args:
        corpora: name of a built-in data set -> the module that has its ``Options`` and ``load``.
        read_file: (recipe, split, path) -> rows, for a task whose files have a layout of their own.

    Raises:
        UserError: at the line of the key that is to be changed.
    """
    check_source(recipe, corpora)
    name = recipe.data.dataset
    folder = recipe.resolve(name)
    if name in corpora and recipe.data.splits is not None:
        raise recipe.error("data.splits", f"is for folders and hub data sets, not for {name}; remove it")
    if name not in corpora and recipe.data.options:
        raise recipe.error("data.options", f"is for dataset: {', '.join(corpora)}; remove it")
    if name in corpora:
        splits = built_in(recipe, corpora[name])
    elif recipe.data.streaming:
        splits = streamed(recipe)
    elif name in FILE_KINDS:
        splits = from_files(recipe, read_file)
    else:
        found = from_folder(recipe, folder) if folder.is_dir() else from_hub(recipe)
        by_name = {split: split for split in found} if recipe.data.split_column else chosen(recipe, found)
        splits = DatasetDict({split: found[name] for split, name in by_name.items()})
    for split, rows in splits.items():
        if not len(rows):
            raise recipe.error(_split_key(recipe, split), f"the {split} split is empty")
    columns = [*named_columns(recipe), *(recipe.data.filter or {})]
    nested = DatasetDict({split: append_nested_columns(rows, columns) for split, rows in splits.items()})
    selected = nested if recipe.data.streaming else filtered(recipe, nested)
    return split_by_column(recipe, selected)


def check_columns(recipe: Recipe, split: str, rows: Dataset, columns: Mapping[str, str]) -> None:
    """Check that a split has the columns that the recipe names: key of its data section -> column. Raises UserError at
    the key of a column that the split lacks."""
    for key, column in columns.items():
        if column not in rows.column_names:
            known = ", ".join(list_innermost_columns(rows.features))
            lacks = recipe.data.dataset in ("csv", "xlsx") and lacks_header(
                [rows.column_names, *zip(*rows[:1000].values(), strict=True)]
            )
            doubt = f"{NO_HEADER_ADVICE} data.columns" if lacks else ""
            raise recipe.error(f"data.{key}", f"no column {column} in the {split} split; it has {known}{doubt}")


def hold_out(
    recipe: Recipe,
    splits: DatasetDict,
    divide: Callable[[Dataset, Mapping[str, float], int], Mapping[str, Sequence[int] | np.ndarray]],
) -> DatasetDict:
    """Take ``validation``, and ``test`` where the recipe asks for it, out of ``train``.

    Args:
        divide: (training rows, split -> its share, seed) -> split, ``train`` among them -> the indices of its rows.
            Raises ``ValueError`` where there are too few rows.

    Raises:
        UserError: a share of a split that the data has itself, no share of a validation split that it lacks, or shares
            that cannot be taken.
    """
    fractions = {"validation": recipe.data.validation_fraction, "test": recipe.data.test_fraction}
    shares = {split: fraction for split, fraction in fractions.items() if fraction is not None}
    for split in shares:
        if split in splits:
            raise recipe.error(f"data.{split}_fraction", f"the data has a {split} split of its own; remove this")
    if "validation" not in {**splits, **shares}:
        message = "missing: the data has no validation split; set the share of train to hold out"
        raise recipe.error("data.validation_fraction", message)
    if sum(shares.values()) >= 1:
        raise recipe.error("data.test_fraction", "with data.validation_fraction it leaves nothing to train on")
    if not shares:
        return splits
    try:
        places = divide(splits["train"], shares, recipe.seed)
    except ValueError as problem:
        raise recipe.error(f"data.{next(iter(shares))}_fraction", str(problem)) from None
    parts = {**splits, **{split: splits["train"].select(chosen) for split, chosen in places.items()}}
    return DatasetDict({split: parts[split] for split in SPLITS if split in parts})


def limited(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """At most ``data.limit`` rows of each split, drawn by the recipe's seed: files are often sorted by label."""
    limited = DatasetDict()
    for position, (split, rows) in enumerate(splits.items()):
        limit = getattr(recipe.data.limit, split)
        chosen = np.random.default_rng([recipe.seed, 2, position]).permutation(len(rows))[:limit]
        limited[split] = rows if limit is None else rows.select(np.sort(chosen))
    return limited


def _trained_once(
    train: Callable[..., Any], load: Callable[[Path], Tokenizer], texts: list[str], vocab_size: int, *more: Any
) -> Tokenizer:
    """The tokenizer that ``train(texts, vocab_size, folder, *more)`` makes, from the cache if it was made before."""
    key = digest_parts(train.__name__, *texts, vocab_size, *map(str, more), CACHE_VERSION)

    def fill(unfinished: Path) -> None:
        if (characters := sum(map(len, texts))) > LONG_TRAINING:
            said = f"note: training a tokenizer of {vocab_size:,} pieces on {characters:,} characters, without a bar"
            print(said, file=sys.stderr, flush=True)
        train(texts, vocab_size, unfinished, *more)

    return load(get_or_create_entry("tokenizers", key, fill))


def _split_key(recipe: Recipe, split: str) -> str:
    if recipe.data.files is not None:
        return f"data.files.{split}"
    return f"data.splits.{split}" if split in (recipe.data.splits or {}) else "data.dataset"
