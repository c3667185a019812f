"""Texts and labels, from wherever `datasets` can load them, and their tokens, computed once.

What comes out does not depend on where it came from. A task with labels has the columns ``text`` and ``label`` (a
ClassLabel) in every split. What a user can get wrong is reported at the line of the recipe that caused it.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import datasets
import numpy as np
import pydantic
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value
from tqdm import tqdm

from models import families
from toolkit.recipe import FILE_KINDS, Recipe
from toolkit.runtime import cache_folder

SPLITS = ("train", "validation", "test")

#: Reading a file this large takes longer than about two seconds, and then a progress bar is shown.
LARGE_FILE = 100 * 2**20

#: Part of every cache key: raise it when what is stored changes.
CACHE_VERSION = 1


def labelled_splits(recipe: Recipe, corpora: Mapping[str, str]) -> DatasetDict:
    """The recipe's data: ``train``, ``validation`` and, where there is one, ``test``, with columns ``text`` (str) and
    ``label`` (ClassLabel, ids in the order of its names).

    Args:
        corpora: the task's built-in data sets (:func:`load_stored`).

    Raises:
        UserError: a file that is missing or unreadable, a column that is absent, an empty split, labels that are
            missing or that training does not have; at the line of the key that is to be changed.
    """
    splits = _with_labels(recipe, _with_text(recipe, load_stored(recipe, corpora)))
    if "validation" not in splits:
        splits = _hold_out(recipe, splits)
    elif recipe.data.validation_fraction is not None:
        raise recipe.error("data.validation_fraction", "the data has a validation split of its own; leave this away")
    return limited(recipe, splits)


def check_data(recipe: Recipe) -> list[str]:
    """Load and check the data if it is on this machine.

    Returns:
        What could not be checked, as notes to show.

    Raises:
        UserError: as the task's ``load_splits``; also for a tokenizer's file that is missing.
    """
    task = task_of(recipe)
    if recipe.tokenizer.path is not None:
        build_tokenizer(recipe)
    if not _is_local(recipe, task.CORPORA):
        return [f"data.dataset: {recipe.data.dataset} is a hub data set; it is fetched and checked when a run starts"]
    task.load_splits(recipe)
    return []


def task_of(recipe: Recipe) -> ModuleType:
    """The module of the recipe's task; :mod:`toolkit.tasks` says what is in it."""
    return importlib.import_module(f"toolkit.tasks.{recipe.task}")


def build_tokenizer(recipe: Recipe, texts: Iterable[str] = (), control_codes: Iterable[str] = ()) -> Any:
    """The recipe's tokenizer; one that is to be trained is trained on these texts, once, and cached.

    Args:
        texts: of the training split.
        control_codes: words that a trained CTRL vocabulary must hold whole.

    Raises:
        UserError: a model file that is missing or is none, texts that do not give that many pieces.
    """
    from models.hub import resolve_folder

    choice = recipe.tokenizer
    tokenizer = families.part(recipe.model.name, "tokenizer")
    key = "kind" if choice.path is None and choice.vocab_size is None else "path" if choice.path else "vocab_size"
    try:
        if choice.kind == "bytes":
            return tokenizer.ByteTokenizer()
        if choice.kind == "checkpoint":
            return tokenizer.load_tokenizer(resolve_folder(recipe.resolve(recipe.model.weights)))
        if choice.path is not None:
            path = recipe.resolve(choice.path)
            return (tokenizer.load_tokenizer if choice.kind == "bpe" else tokenizer.ReformerTokenizer.from_file)(path)
        if choice.kind == "bpe":
            codes = sorted(set(control_codes))
            return _trained_once(tokenizer.train_bpe, list(texts), choice.vocab_size, codes)
        return _trained_once(tokenizer.train_sentencepiece, list(texts), choice.vocab_size)
    except OSError as problem:
        reason = problem.strerror or " ".join(str(problem).split())
        raise recipe.error(f"tokenizer.{key}", f"cannot read {choice.path or recipe.model.weights}: {reason}") from None
    except ValueError as problem:
        raise recipe.error(f"tokenizer.{key}", f"{choice.path or ''}: {problem}".removeprefix(": ")) from None


def tokenize(split: Dataset, tokenizer: Any, max_length: int, name: str = "texts") -> Dataset:
    """The tokens of a split with ``text`` and ``label``, cached by the content of both, the tokenizer and the length.

    Returns:
        Columns ``input_ids`` (int32, at most max_length, not padded), ``labels`` and ``truncated`` (whether the text is
        longer).
    """
    key = _digest(_contents(split), tokenizer.fingerprint(), max_length, CACHE_VERSION)
    folder = cache_folder() / "tokens"
    folder.mkdir(parents=True, exist_ok=True)
    features = {"input_ids": Sequence(Value("int32")), "labels": Value("int64"), "truncated": Value("bool")}
    with tqdm(total=len(split), desc=f"tokenizing {name}", unit=" texts", delay=2, leave=False) as bar:

        def encode(batch: dict[str, list]) -> dict[str, list]:
            rows = tokenizer(batch["text"])["input_ids"]
            bar.update(len(rows))
            return {
                "input_ids": [row[:max_length] for row in rows],
                "labels": batch["label"],
                "truncated": [len(row) > max_length for row in rows],
            }

        return quietly(
            split.map,
            encode,
            batched=True,
            batch_size=256,
            remove_columns=split.column_names,
            features=Features(features),
            cache_file_name=str(folder / f"{key}.arrow"),
            new_fingerprint=key,
            load_from_cache_file=True,
        )


def quietly(call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call into `datasets` without its progress bars, which it shows for work of milliseconds too."""
    shown = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        return call(*arguments, **named)
    finally:
        if not shown:
            datasets.enable_progress_bars()


def load_stored(
    recipe: Recipe, corpora: Mapping[str, str], read_file: Callable[[Recipe, str, Path], Dataset] | None = None
) -> DatasetDict:
    """The splits as they are stored, empty ones refused.

    Args:
        corpora: name of a built-in data set -> the module that has its ``Options`` and ``load``.
        read_file: (recipe, split, path) -> rows, for a task whose files have a layout of their own.

    Raises:
        UserError: at the line of the key that is to be changed.
    """
    name = recipe.data.dataset
    if name not in corpora and recipe.data.options:
        raise recipe.error("data.options", f"is for dataset: {', '.join(corpora)}; leave it away")
    if name in corpora:
        splits = _built_in(recipe, importlib.import_module(corpora[name]))
    elif name in FILE_KINDS:
        splits = _from_files(recipe, read_file or _read_file)
    else:
        splits = _from_hub(recipe)
    for split, rows in splits.items():
        if not len(rows):
            raise recipe.error(_split_key(recipe, split), f"the {split} split is empty")
    return splits


def _is_local(recipe: Recipe, corpora: Mapping[str, str]) -> bool:
    return recipe.data.dataset in (*corpora, *FILE_KINDS) or recipe.resolve(recipe.data.dataset).is_dir()


def _built_in(recipe: Recipe, corpus: ModuleType) -> DatasetDict:
    """A built-in data set; a ``ValueError`` of its ``load`` is about one option, which its ``key`` may name."""
    try:
        options = corpus.Options.model_validate(recipe.data.options)
    except pydantic.ValidationError as problems:
        problem = problems.errors()[0]
        known = ", ".join(corpus.Options.model_fields)
        message = f"unknown option; known: {known}" if problem["type"] == "extra_forbidden" else problem["msg"]
        raise recipe.error(("data", "options", *map(str, problem["loc"])), message) from None
    try:
        return corpus.load(options)
    except ValueError as problem:
        raise recipe.error(f"data.options.{corpus.CHECKED_OPTION}", str(problem)) from None


def _from_files(recipe: Recipe, read_file: Callable[[Recipe, str, Path], Dataset]) -> DatasetDict:
    """A file per split; each is read on its own, so that an error is at its line."""
    splits = DatasetDict()
    for split in SPLITS:
        written = getattr(recipe.data.files, split)
        if written is None:
            continue
        path = recipe.resolve(written)
        if not path.is_file():
            raise recipe.error(f"data.files.{split}", f"{written}: no such file{_looked_in(recipe, written)}")
        splits[split] = read_file(recipe, split, path)
    return splits


def _read_file(recipe: Recipe, split: str, path: Path) -> Dataset:
    kind = recipe.data.dataset
    # An empty csv field is an empty text, and the word NA is a label like any other.
    options = {"keep_default_na": False} if kind == "csv" else {}
    if not path.stat().st_size:
        raise recipe.error(f"data.files.{split}", f"{path} is empty")

    def load() -> Dataset:
        cache = str(cache_folder() / "datasets")
        return datasets.load_dataset(kind, data_files={split: str(path)}, split=split, cache_dir=cache, **options)

    try:
        return load() if path.stat().st_size > LARGE_FILE else quietly(load)
    except (datasets.exceptions.DatasetGenerationError, ValueError, OSError) as problem:
        reason = " ".join(str(problem.__cause__ or problem).split())
        raise recipe.error(f"data.files.{split}", f"cannot read {path} as {kind}: {reason[:300]}") from None


def _from_hub(recipe: Recipe) -> DatasetDict:
    """A hub data set, or a folder of data files: its train, validation and test splits."""
    name = recipe.data.dataset
    folder = recipe.resolve(name)
    try:
        found = datasets.load_dataset(str(folder) if folder.is_dir() else name, recipe.data.config_name)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as problem:
        reason = " ".join(str(problem).split())
        key = "config_name" if "config" in reason.lower() and "name" in reason.lower() else "dataset"
        raise recipe.error(f"data.{key}", f"cannot load {name}: {reason[:300]}") from None
    splits = DatasetDict({split: found[split] for split in SPLITS if split in found})
    if "train" not in splits:
        raise recipe.error("data.dataset", f"{name} has no train split; it has {', '.join(found)}")
    return splits


def _with_text(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Check that every split has the two columns, and that its texts are texts."""
    text, label = recipe.data.text, recipe.data.label
    if text == label:
        raise recipe.error("data.label", f"{label} is the text column as well; name the column of the labels")
    for split, rows in splits.items():
        for key, column in (("text", text), ("label", label)):
            if column not in rows.column_names:
                columns = ", ".join(rows.column_names)
                raise recipe.error(f"data.{key}", f"no column {column} in the {split} split; it has {columns}")
        kind = rows.features[text]
        if getattr(kind, "dtype", None) not in ("string", "large_string"):
            raise recipe.error("data.text", f"the column {text} of the {split} split holds {_named(kind)}, not text")
        _refuse_missing(recipe, "data.text", split, rows, text)
    return splits


def _with_labels(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """The splits with columns ``text`` and ``label``, labels as ids of one list of names."""
    values = {split: _label_values(recipe, split, rows) for split, rows in splits.items()}
    names = _label_names(recipe, splits["train"], values["train"])
    ids = {value: index for index, value in enumerate(names)}
    seen = set(values["train"])
    trained = {value: name for value, name in names.items() if value in seen}
    labelled = DatasetDict()
    for split, rows in splits.items():
        _refuse_unknown(recipe, split, values[split], trained)
        texts = rows.select_columns([recipe.data.text]).rename_columns({recipe.data.text: "text"})
        labels = [ids[value] for value in values[split]]
        label = ClassLabel(names=list(names.values()))
        labelled[split] = quietly(texts.add_column("label", labels).cast_column, "label", label)
    return labelled


def _label_names(recipe: Recipe, train: Dataset, values: list[int] | list[str]) -> dict[int | str, str]:
    """Label as it is stored -> its name, in the order of the ids: the data's own order if it has one, else sorted."""
    kind = train.features[recipe.data.label]
    if len(set(values)) < 2:
        message = f"all {len(values)} rows of the train split have the same label: there is nothing to tell apart"
        raise recipe.error("data.label", message)
    if isinstance(kind, ClassLabel):
        return dict(enumerate(kind.names))
    return {value: str(value) for value in sorted(set(values))}


def _refuse_unknown(recipe: Recipe, split: str, values: list[int] | list[str], known: dict[int | str, str]) -> None:
    strange = Counter(value for value in values if value not in known).most_common(1)
    if strange:
        value, count = strange[0]
        raise recipe.error(
            "data.label",
            f"{count} rows of the {split} split have the label {value!r}, which no row of the train split has; "
            f"known: {_listed(known.values())}",
        )


def _label_values(recipe: Recipe, split: str, rows: Dataset) -> list[int] | list[str]:
    """The labels of a split as integers or strings.

    Raises:
        UserError: a label is missing (None; -1 of a ClassLabel), or is neither text nor a whole number.
    """
    column = recipe.data.label
    kind = rows.features[column]
    _refuse_missing(recipe, "data.label", split, rows, column)
    values = rows.select_columns([column])[:][column]
    if isinstance(kind, ClassLabel):
        if min(values) < 0:
            raise recipe.error("data.label", f"row {values.index(-1) + 1} of the {split} split has no label (-1)")
        return values
    if "" in values:
        raise recipe.error("data.label", f"row {values.index('') + 1} of the {split} split has an empty {column}")
    if getattr(kind, "dtype", None) == "bool":
        return [str(value).lower() for value in values]
    if all(isinstance(value, (int, str)) for value in values):
        return values
    if all(isinstance(value, float) and value.is_integer() for value in values):
        return [int(value) for value in values]
    found = next(value for value in values if not isinstance(value, (int, str)))
    held = f"the column {column} of the {split} split holds {found!r}"
    raise recipe.error("data.label", f"{held}: a label is a word or a whole number")


def _refuse_missing(recipe: Recipe, key: str, split: str, rows: Dataset, column: str) -> None:
    chunks = rows.with_format("arrow").select_columns([column])[:][column]
    if chunks.null_count:
        first = chunks.is_null().to_pylist().index(True) + 1
        raise recipe.error(
            key, f"{chunks.null_count} rows of the {split} split have no {column}, the first is row {first}"
        )


def _hold_out(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """Take the validation split out of the training split: the same share of each label, by the recipe's seed."""
    fraction = recipe.data.validation_fraction
    if fraction is None:
        raise recipe.error(
            "data.validation_fraction", "missing: the data has no validation split; set the share of train to hold out"
        )
    labels = np.asarray(splits["train"]["label"][:])
    random = np.random.default_rng([recipe.seed, 1])
    held_out: list[int] = []
    for label in np.unique(labels):
        rows = random.permutation(np.flatnonzero(labels == label))
        held_out += rows[: min(round(len(rows) * fraction), len(rows) - 1)].tolist()
    if not held_out:
        raise recipe.error("data.validation_fraction", f"{fraction} of {len(labels)} rows is none; set a larger one")
    kept = np.setdiff1d(np.arange(len(labels)), held_out)
    parts = {"train": splits["train"].select(kept), "validation": splits["train"].select(sorted(held_out))}
    return DatasetDict({**parts, **{split: rows for split, rows in splits.items() if split == "test"}})


def limited(recipe: Recipe, splits: DatasetDict) -> DatasetDict:
    """At most ``data.limit`` rows of each split, drawn by the recipe's seed: files are often sorted by label."""
    limited = DatasetDict()
    for position, (split, rows) in enumerate(splits.items()):
        limit = getattr(recipe.data.limit, split)
        chosen = np.random.default_rng([recipe.seed, 2, position]).permutation(len(rows))[:limit]
        limited[split] = rows if limit is None else rows.select(np.sort(chosen))
    return limited


def _trained_once(train: Callable[..., Any], texts: list[str], vocab_size: int, *more: Any) -> Any:
    """The tokenizer that ``train`` makes of these texts, from the cache if they were seen before."""
    load_tokenizer = importlib.import_module(train.__module__).load_tokenizer
    key = _digest(train.__name__, *texts, vocab_size, *map(str, more), CACHE_VERSION)
    folder = cache_folder() / "tokenizers" / key
    if folder.is_dir():
        return load_tokenizer(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = tempfile.mkdtemp(dir=folder.parent, prefix=".unfinished-")
    try:
        train(texts, vocab_size, unfinished, *more)
        os.replace(unfinished, folder)
    except OSError:
        if not folder.is_dir():  # else another run has just made the same one
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return load_tokenizer(folder)


def _contents(split: Dataset) -> str:
    """A SHA-256 of the texts and labels of a split, in their order."""
    digest = hashlib.sha256()
    for batch in split.select_columns(["text", "label"]).iter(1000):
        for text, label in zip(batch["text"], batch["label"], strict=True):
            written = text.encode("utf-8", "surrogatepass")
            digest.update(f"{len(written)}/{label}/".encode() + written)
    return digest.hexdigest()


def _digest(*parts: str | int) -> str:
    digest = hashlib.sha256()
    for part in parts:
        written = str(part).encode("utf-8", "surrogatepass")
        digest.update(f"{len(written)}/".encode() + written)
    return digest.hexdigest()[:32]


def _split_key(recipe: Recipe, split: str) -> str:
    return f"data.files.{split}" if recipe.data.files is not None else "data.dataset"


def _looked_in(recipe: Recipe, written: str) -> str:
    """Where a relative path was looked for."""
    return "" if Path(written).is_absolute() else f" here ({Path.cwd()}) or beside the recipe ({recipe.path.parent})"


def _listed(names: Iterable[str], most: int = 12) -> str:
    names = list(names)
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _named(kind: Any) -> str:
    return f"{kind.dtype} values" if isinstance(kind, Value) else type(kind).__name__
