"""Check a recipe's data, for `toolkit recipe check`.

A check does not build built-in data. Importing `datasets` takes longer than the rest of a check, so it is imported only
for the user's data.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.data.built_in import needs_only_option_checks
from toolkit.data.source_names import check_source
from toolkit.recipe.keys import FILE_KINDS
from toolkit.recipe.recipe import Recipe
from toolkit.tasks import task_of


def check_data(recipe: Recipe) -> list[str]:
    """Load and check the data if it is on this machine; return notes on the data and on checks that were skipped.

    Raises:
        UserError: the data is wrong or missing, or a file of the tokenizer is missing.
    """
    task = task_of(recipe)
    check_source(recipe, task.CORPORA)
    if recipe.tokenizer.path is not None:
        from toolkit.data.load import build_tokenizer

        build_tokenizer(recipe)
    name = recipe.data.dataset
    if name not in (*task.CORPORA, *FILE_KINDS) and not recipe.resolve(name).is_dir():
        return [f"data.dataset: {recipe.data.dataset} is a hub data set; it is fetched and checked when a run starts"]
    if name in task.CORPORA and needs_only_option_checks(recipe, task.CORPORA[name]):
        return []
    num_notes = len(recipe.findings.notes)
    train = task.load_splits(recipe)["train"]
    if recipe.tokenizer.vocab_size is not None:
        _check_vocab_size(recipe, task.texts(train), task.control_codes(train))
    return recipe.findings.notes[num_notes:]


def _check_vocab_size(recipe: Recipe, texts: Sequence[str], control_codes: Sequence[str]) -> None:
    """Train the tokenizer of a recipe and leave it in the cache for a run; skip this if there is much text.

    Raises:
        UserError: the text is too short for a vocabulary of this size.
    """
    from toolkit.data.load import LONG_TRAINING_CHARACTERS, build_tokenizer

    if sum(map(len, texts)) <= LONG_TRAINING_CHARACTERS:
        build_tokenizer(recipe, texts, control_codes)
