"""Questions about contexts: check a data set's columns, and convert any layout to SQuAD's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models.port.tokenization import representable
from toolkit.errors import UserError
from toolkit.recipe.recipe import settled
from toolkit.tasks.question_answering import squad
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    import datasets

    from toolkit.recipe.recipe import Recipe

COLUMNS = ("id", "context", "question", "answers")


def load_splits(recipe: Recipe, corpora: Mapping[str, str]) -> datasets.DatasetDict:
    """Return splits with the columns ``id``, ``context``, ``question`` and ``answers``, all answers in place.

    A json file may have SQuAD's own nested form, or rows like the hub's data sets. A note of the recipe tells what
    became of answers that are not where the data say.

    Args:
        corpora: the task's built-in data sets (:func:`toolkit.data.load.load_stored`).

    Raises:
        UserError: at the line of the key to change.
    """
    from datasets import DatasetDict

    from toolkit.data.load import hold_out, limited, load_stored

    stored = load_stored(recipe, corpora, _read_file)
    splits = DatasetDict({split: _checked(recipe, split, rows, corpora) for split, rows in stored.items()})
    return limited(recipe, hold_out(recipe, splits, _divide))


def _read_file(recipe: Recipe, split: str, path: Path) -> datasets.Dataset:
    """Read a SQuAD file, using the recipe's column names for its rows, or a file other than json as it is."""
    if recipe.data.dataset != "json":
        from toolkit.data.sources import read_file

        return read_file(recipe, split, path)
    try:
        examples = squad.read_examples(path, _columns(recipe), recipe.data.document)
        examples = _placed(recipe, examples, str(path))
    except UserError as problem:
        raise recipe.error(f"data.files.{split}", str(problem)) from None
    return _dataset(squad.join_documents(examples) if recipe.data.document else examples)


def _placed(recipe: Recipe, examples: Sequence[Example], where: str) -> list[Example]:
    """Return the questions whose answers are in place; note what became of the others."""
    from toolkit.tasks.question_answering.placement import placed

    kept, note = placed(examples, settled(recipe.data.misplaced_answers), where)
    if note:
        recipe.found.note(note)
    return kept


def _checked(recipe: Recipe, split: str, rows: datasets.Dataset, corpora: Mapping[str, str]) -> datasets.Dataset:
    """The rows in SQuAD's columns, each row checked."""
    from toolkit.data.load import check_columns
    from toolkit.data.rows import quietly

    document = recipe.data.document
    named = {name: column for name, column in _columns(recipe).items() if not _left_out(rows, name, column)}
    columns = {**named, **({"document": document} if document else {})}
    if rows.features == squad_features() and recipe.data.dataset in ("json", *corpora):  # read or made here
        if recipe.data.files is not None:  # which may be several
            try:
                squad.check_ids(rows["id"], f"the {split} split")
            except UserError as problem:
                raise recipe.error(f"data.files.{split}", str(problem)) from None
        return rows
    check_columns(recipe, split, rows, columns)
    renamed = rows.select_columns(list(columns.values())).rename_columns({old: new for new, old in columns.items()})
    for key in squad.OTHER_KEYS:
        if key in rows.column_names and key not in renamed.column_names:
            renamed = quietly(renamed.add_column, key, rows[key])
    try:
        examples = _placed(recipe, squad.check_rows(renamed, f"the {split} split"), f"the {split} split")
    except UserError as problem:
        raise recipe.error("data.answers", str(problem)) from None
    return _dataset(squad.join_documents(examples) if document else examples)


def _left_out(rows: datasets.Dataset, name: str, column: str) -> bool:
    """Whether rows may lack a column of SQuAD's name: they are numbered, or have one ``answer`` each."""
    instead = name == "id" or (name == "answers" and "answer" in rows.column_names)
    return instead and column == name and column not in rows.column_names


def _columns(recipe: Recipe) -> dict[str, str]:
    """SQuAD's name of a column -> the data's."""
    return {name: getattr(recipe.data, name) for name in COLUMNS}


def squad_features() -> datasets.Features:
    """The columns of a split, and their types."""
    from datasets import Features, Sequence, Value

    answers = {"text": Sequence(Value("string")), "answer_start": Sequence(Value("int32"))}
    return Features({**{name: Value("string") for name in COLUMNS[:3]}, "answers": answers})


def _dataset(examples: Sequence[Example]) -> datasets.Dataset:
    from datasets import Dataset

    columns = {name: [representable(getattr(item, name)) for item in examples] for name in COLUMNS[:3]}
    answers = [
        {"text": [representable(text) for text in item.answers], "answer_start": list(item.answer_starts)}
        for item in examples
    ]
    return Dataset.from_dict({**columns, "answers": answers}, features=squad_features())


def _divide(rows: datasets.Dataset, shares: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Draw the indices of ``train`` and ``validation`` by the seed, whole contexts at a time, so that no validation
    question is about a context of training."""
    fraction = shares["validation"]
    contexts = list(dict.fromkeys(rows["context"]))
    count = min(round(len(contexts) * fraction), len(contexts) - 1)
    if count < 1:
        raise ValueError(f"{fraction} of {len(contexts)} contexts is none; set a larger one")
    order = np.random.default_rng([seed, 1]).permutation(len(contexts))
    held_out = {contexts[index] for index in order[:count]}
    is_held_out = np.array([context in held_out for context in rows["context"]])
    return {"train": np.flatnonzero(~is_held_out), "validation": np.flatnonzero(is_held_out)}
