"""Load questions about contexts: check a data set's columns, and convert any layout to SQuAD's form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from models.port.tokenization import replace_surrogates
from toolkit.errors import UserError
from toolkit.recipe.recipe import require_setting
from toolkit.tasks.question_answering import squad
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    import datasets

    from toolkit.recipe.recipe import Recipe

COLUMNS = ("id", "context", "question", "answers")


def load_splits(recipe: Recipe, corpora: Mapping[str, str]) -> datasets.DatasetDict:
    """Return splits with the columns ``id``, ``context``, ``question`` and ``answers``, with all answers in place.

    A json file may have SQuAD's own nested form, or rows like the hub's data sets. A note of the recipe reports the
    answers that were not at their position.

    Args:
        recipe: recipe of the run.
        corpora: built-in data sets of the task (:func:`toolkit.data.load.load_splits`).

    Raises:
        UserError: the data is wrong; the error names the line of the key to change.
    """
    from datasets import DatasetDict

    from toolkit.data.load import hold_out_splits, limit_rows, load_splits

    stored_splits = load_splits(recipe, corpora, _read_file)
    splits = DatasetDict(
        {split_name: _check_split(recipe, split_name, rows, corpora) for split_name, rows in stored_splits.items()}
    )
    return limit_rows(recipe, hold_out_splits(recipe, splits, _divide_contexts))


def _read_file(recipe: Recipe, split_name: str, path: Path) -> datasets.Dataset:
    """Read a SQuAD file with the recipe's column names, or a file of another format unchanged."""
    if recipe.data.dataset != "json":
        from toolkit.data.sources import read_file

        return read_file(recipe, split_name, path)
    try:
        examples = squad.read_examples(path, _data_columns(recipe), recipe.data.document)
        examples = _place_answers(recipe, examples, str(path))
    except UserError as error:
        raise recipe.error(f"data.files.{split_name}", str(error)) from None
    return _to_dataset(squad.join_documents(examples) if recipe.data.document else examples)


def _place_answers(recipe: Recipe, examples: Sequence[Example], source: str) -> list[Example]:
    """Return the questions whose answers are at their position; add a note about the others to the recipe.

    Args:
        recipe: recipe of the run.
        examples: questions with their contexts and answers.
        source: name of the data, for the note.
    """
    from toolkit.tasks.question_answering.placement import place_answers

    placed_examples, note = place_answers(examples, require_setting(recipe.data.misplaced_answers), source)
    if note:
        recipe.findings.note(note)
    return placed_examples


def _check_split(
    recipe: Recipe, split_name: str, rows: datasets.Dataset, corpora: Mapping[str, str]
) -> datasets.Dataset:
    """Return the rows in SQuAD's columns, each row checked."""
    from toolkit.data.load import check_columns
    from toolkit.data.rows import call_without_progress

    document = recipe.data.document
    data_columns = {
        name: column for name, column in _data_columns(recipe).items() if not _may_lack_column(rows, name, column)
    }
    columns = {**data_columns, **({"document": document} if document else {})}
    if rows.features == squad_features() and recipe.data.dataset in ("json", *corpora):  # already in SQuAD's form
        if recipe.data.files is not None:  # ids may repeat between several files
            try:
                squad.check_ids(rows["id"], f"the {split_name} split")
            except UserError as error:
                raise recipe.error(f"data.files.{split_name}", str(error)) from None
        return rows
    check_columns(recipe, split_name, rows, columns)
    squad_rows = rows.select_columns(list(columns.values())).rename_columns({old: new for new, old in columns.items()})
    for key in squad.OTHER_KEYS:
        if key in rows.column_names and key not in squad_rows.column_names:
            squad_rows = call_without_progress(squad_rows.add_column, key, rows[key])
    try:
        examples = _place_answers(
            recipe, squad.check_rows(squad_rows, f"the {split_name} split"), f"the {split_name} split"
        )
    except UserError as error:
        raise recipe.error("data.answers", str(error)) from None
    return _to_dataset(squad.join_documents(examples) if document else examples)


def _may_lack_column(rows: datasets.Dataset, name: str, column: str) -> bool:
    """Return whether rows may lack a column: ids can be numbered, and an ``answer`` column replaces ``answers``."""
    has_substitute = name == "id" or (name == "answers" and "answer" in rows.column_names)
    return has_substitute and column == name and column not in rows.column_names


def _data_columns(recipe: Recipe) -> dict[str, str]:
    """Return the data's name of each of SQuAD's columns."""
    return {name: getattr(recipe.data, name) for name in COLUMNS}


def squad_features() -> datasets.Features:
    """Return the columns of a split and their types."""
    from datasets import Features, Sequence, Value

    answers = {"text": Sequence(Value("string")), "answer_start": Sequence(Value("int32"))}
    return Features({**{name: Value("string") for name in COLUMNS[:3]}, "answers": answers})


def _to_dataset(examples: Sequence[Example]) -> datasets.Dataset:
    """Return examples as a data set with the columns of SQuAD."""
    from datasets import Dataset

    columns = {name: [replace_surrogates(getattr(item, name)) for item in examples] for name in COLUMNS[:3]}
    answers = [
        {"text": [replace_surrogates(text) for text in item.answers], "answer_start": list(item.answer_starts)}
        for item in examples
    ]
    return Dataset.from_dict({**columns, "answers": answers}, features=squad_features())


def _divide_contexts(rows: datasets.Dataset, shares: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """Draw the indices of ``train`` and ``validation`` by the seed, whole contexts at a time.

    So no validation question is about a context of training.

    Args:
        rows: rows of the data.
        shares: share of the contexts for each split.
        seed: seed of the random division.
    """
    fraction = shares["validation"]
    contexts = list(dict.fromkeys(rows["context"]))
    count = min(round(len(contexts) * fraction), len(contexts) - 1)
    if count < 1:
        raise ValueError(f"{fraction} of {len(contexts)} contexts is none; set a larger one")
    order = np.random.default_rng([seed, 1]).permutation(len(contexts))
    held_out = {contexts[index] for index in order[:count]}
    is_held_out = np.array([context in held_out for context in rows["context"]])
    return {"train": np.flatnonzero(~is_held_out), "validation": np.flatnonzero(is_held_out)}
