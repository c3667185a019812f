"""Check a recipe's data, for `toolkit recipe check`.

Built-in data is not built for a check. `datasets` takes longer to import than all else in a check, so it is imported
only for the user's own data.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.data.built_in import nothing_but_options
from toolkit.data.source_names import check_source
from toolkit.recipe.keys import FILE_KINDS
from toolkit.recipe.recipe import Recipe
from toolkit.tasks import task_of


def check_data(recipe: Recipe) -> list[str]:
    """Load and check the data if it is on this machine; return notes on what could not be checked, and on what the data
    are. Raises as the task's ``load_splits``; also if a tokenizer's file is missing."""
    task = task_of(recipe)
    check_source(recipe, task.CORPORA)
    if recipe.tokenizer.path is not None:
        from toolkit.data.load import build_tokenizer

        build_tokenizer(recipe)
    name = recipe.data.dataset
    if name not in (*task.CORPORA, *FILE_KINDS) and not recipe.resolve(name).is_dir():
        return [f"data.dataset: {recipe.data.dataset} is a hub data set; it is fetched and checked when a run starts"]
    if name in task.CORPORA and nothing_but_options(recipe, task.CORPORA[name]):
        return []
    known = len(recipe.found.notes)
    train = task.load_splits(recipe)["train"]
    if recipe.tokenizer.vocab_size is not None:
        _check_pieces(recipe, task.texts(train), task.control_codes(train))
    return recipe.found.notes[known:]


def _check_pieces(recipe: Recipe, texts: Sequence[str], control_codes: Sequence[str]) -> None:
    """Train the tokenizer of a recipe with little text, where a run finds it in the cache. Raises UserError if the text
    does not give as many pieces."""
    from toolkit.data.load import LONG_TRAINING, build_tokenizer

    if sum(map(len, texts)) <= LONG_TRAINING:
        build_tokenizer(recipe, texts, control_codes)
