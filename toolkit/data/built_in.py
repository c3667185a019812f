"""Built-in data (:mod:`toolkit.tasks.corpora`): its options, checks of them, and its cached rows."""

from __future__ import annotations

import importlib
import platform
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pydantic

from toolkit.data.splits import SPLITS
from toolkit.files.cache import CACHE_VERSION, get_or_create_entry
from toolkit.files.digest import digest_parts, file_sha256
from toolkit.machine.runtime import distribution_version
from toolkit.recipe.recipe import Recipe

if TYPE_CHECKING:
    from datasets import DatasetDict

#: Distributions that built-in data is made with or kept by.
MADE_WITH = ("babel", "numpy", "datasets")
#: Keys of the data section that cannot make built-in data wrong.
HARMLESS = {
    "dataset", "options", "max_length", "limit", "stride", "max_answer_length", "no_answer_threshold",
    "misplaced_answers", "whole_words", "missing_labels", "missing_texts", "long_texts",
}  # fmt: skip
#: Shares of the rows that can always be held out of built-in data.
LEAST_SHARE, MOST_SHARE = 0.05, 0.3


def built_in(recipe: Recipe, module: str) -> DatasetDict:
    """Rows of a built-in data set, cached by its options and by what it is made with. Its ``Options`` and ``load`` are
    in ``module``. Raises UserError at the line of an option that is unknown or cannot be used."""
    from toolkit.data.rows import stored, write_rows

    corpus = importlib.import_module(module)
    options = _options(recipe, corpus)
    key = digest_parts("built-in", module, options.model_dump_json(), *_made_with(), CACHE_VERSION)

    def fill(unfinished: Path) -> None:
        for split, rows in _usable(recipe, corpus, lambda: corpus.load(options)).items():
            (unfinished / split).mkdir()
            write_rows(rows.features, [rows.data.table], unfinished / split / "rows.arrow")

    found = stored(get_or_create_entry("rows", key, fill))
    return type(found)({split: found[split] for split in SPLITS if split in found})


def nothing_but_options(recipe: Recipe, module: str) -> bool:
    """Check the options; return whether nothing else in the data section can be wrong with built-in data. Raises as
    :func:`built_in`."""
    corpus, data = importlib.import_module(module), recipe.data
    options = _options(recipe, corpus)
    _usable(recipe, corpus, lambda: corpus.check(options))
    if recipe.train.class_weights is not None:
        return False
    given = {key: value for key in data.model_fields_set - HARMLESS if (value := getattr(data, key)) is not None}
    shares = {key: given.pop(key) for key in ("validation_fraction", "test_fraction") if key in given}
    if bool(shares) == corpus.HAS_SPLITS or not all(LEAST_SHARE <= share <= MOST_SHARE for share in shares.values()):
        return False
    usual = corpus.HAS_SPLITS or (data.options.keys() <= {"chapters"} and len(options.chapters) > 1)
    return usual and all(value == corpus.COLUMNS.get(key, type(data).model_fields[key].default)
                         for key, value in given.items())  # fmt: skip


def _options(recipe: Recipe, corpus: ModuleType) -> Any:
    try:
        return corpus.Options.model_validate(recipe.data.options)
    except pydantic.ValidationError as problems:
        problem = problems.errors()[0]
        known = ", ".join(corpus.Options.model_fields)
        message = f"unknown option; known: {known}" if problem["type"] == "extra_forbidden" else problem["msg"]
        raise recipe.error(("data", "options", *map(str, problem["loc"])), message) from None


def _usable(recipe: Recipe, corpus: ModuleType, call: Any) -> Any:
    """Return ``call()``; report its ``ValueError`` at the option that ``CHECKED_OPTION`` names."""
    try:
        return call()
    except ValueError as problem:
        raise recipe.error(f"data.options.{corpus.CHECKED_OPTION}", str(problem)) from None


def _made_with() -> list[str]:
    """Versions and sources that decide what the rows are."""
    found = [platform.python_version(), *(distribution_version(name) or "" for name in MADE_WITH)]
    here = Path(__file__).parents[1]
    return [*found, *(file_sha256(file) for file in sorted(here.glob("tasks/**/*.py")))]
