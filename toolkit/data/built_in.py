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

#: Distributions whose version affects the rows of built-in data or their storage.
CORPUS_DISTRIBUTIONS = ("babel", "numpy", "datasets")
#: Keys of the data section that never make built-in data invalid.
HARMLESS_KEYS = {
    "dataset", "options", "max_length", "limit", "stride", "max_answer_length", "no_answer_threshold",
    "misplaced_answers", "whole_words", "missing_labels", "missing_texts", "long_texts",
}  # fmt: skip
#: Smallest and largest share of the rows that can always be held out of built-in data.
MIN_SHARE, MAX_SHARE = 0.05, 0.3


def load_built_in(recipe: Recipe, module: str) -> DatasetDict:
    """Return the splits of a built-in data set, cached by its options and by the versions that affect it.

    Args:
        recipe: recipe that names the data set.
        module: name of the module with the data set's ``Options`` and ``load``.

    Raises:
        UserError: an option is unknown or invalid; the message names its line.
    """
    from toolkit.data.rows import load_stored_rows, write_rows

    corpus_module = importlib.import_module(module)
    options = _validate_options(recipe, corpus_module)
    key = digest_parts("built-in", module, options.model_dump_json(), *_list_origins(), CACHE_VERSION)

    def write_splits(unfinished_folder: Path) -> None:
        for split_name, rows in _call_corpus(recipe, corpus_module, lambda: corpus_module.load(options)).items():
            (unfinished_folder / split_name).mkdir()
            write_rows(rows.features, [rows.data.table], unfinished_folder / split_name / "rows.arrow")

    stored_splits = load_stored_rows(get_or_create_entry("rows", key, write_splits))
    return type(stored_splits)(
        {split_name: stored_splits[split_name] for split_name in SPLITS if split_name in stored_splits}
    )


def needs_only_option_checks(recipe: Recipe, module: str) -> bool:
    """Check the options of built-in data, and return whether all other keys of the data section are certainly valid.

    Args:
        recipe: recipe that names the data set.
        module: name of the module with the data set's ``Options`` and ``check``.

    Raises:
        UserError: an option is unknown or invalid; the message names its line.
    """
    corpus_module, data = importlib.import_module(module), recipe.data
    options = _validate_options(recipe, corpus_module)
    _call_corpus(recipe, corpus_module, lambda: corpus_module.check(options))
    if recipe.train.class_weights is not None:
        return False
    settings = {
        key: value for key in data.model_fields_set - HARMLESS_KEYS if (value := getattr(data, key)) is not None
    }
    shares = {key: settings.pop(key) for key in ("validation_fraction", "test_fraction") if key in settings}
    if bool(shares) == corpus_module.HAS_SPLITS or not all(
        MIN_SHARE <= share <= MAX_SHARE for share in shares.values()
    ):
        return False
    has_usual_splits = corpus_module.HAS_SPLITS or (data.options.keys() <= {"chapters"} and len(options.chapters) > 1)
    return has_usual_splits and all(value == corpus_module.COLUMNS.get(key, type(data).model_fields[key].default)
                         for key, value in settings.items())  # fmt: skip


def _validate_options(recipe: Recipe, corpus_module: ModuleType) -> Any:
    """Return the options of ``data.options`` for a built-in corpus, or raise an error that names the wrong option."""
    try:
        return corpus_module.Options.model_validate(recipe.data.options)
    except pydantic.ValidationError as error:
        first_problem = error.errors()[0]
        known_options = ", ".join(corpus_module.Options.model_fields)
        message = (
            f"unknown option; known: {known_options}"
            if first_problem["type"] == "extra_forbidden"
            else first_problem["msg"]
        )
        raise recipe.error(("data", "options", *map(str, first_problem["loc"])), message) from None


def _call_corpus(recipe: Recipe, corpus_module: ModuleType, call: Any) -> Any:
    """Return the result of ``call()``; report its ``ValueError`` at the line of ``CHECKED_OPTION``."""
    try:
        return call()
    except ValueError as error:
        raise recipe.error(f"data.options.{corpus_module.CHECKED_OPTION}", str(error)) from None


def _list_origins() -> list[str]:
    """Return the versions of Python and distributions, and digests of the sources, that affect the rows."""
    versions = [platform.python_version(), *(distribution_version(name) or "" for name in CORPUS_DISTRIBUTIONS)]
    package_folder = Path(__file__).parents[1]
    return [*versions, *(file_sha256(file) for file in sorted(package_folder.glob("tasks/**/*.py")))]
