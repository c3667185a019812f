"""Tasks that a model can be fine-tuned for: a package each, named as the recipe's ``task:``; metrics and corpora.

The module ``task`` of each package implements the protocol :class:`.interface.Task` (start reading there), and
:func:`task_of` returns it. No other module depends on the kind of task. The package may import `data` and the packages
below it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from toolkit.tasks.interface import Task

if TYPE_CHECKING:  # mypy checks here that each module has the protocol's members
    from toolkit.recipe.recipe import Recipe
    from toolkit.tasks.classification import task as classification
    from toolkit.tasks.language_modeling import task as language_modeling
    from toolkit.tasks.masked_language_modeling import task as masked_language_modeling
    from toolkit.tasks.question_answering import task as question_answering
    from toolkit.tasks.token_classification import task as token_classification

    TASKS: tuple[Task, ...] = (
        classification,
        language_modeling,
        masked_language_modeling,
        question_answering,
        token_classification,
    )


def task_of(recipe: Recipe) -> Task:
    """Return the recipe's task."""
    return cast(Task, importlib.import_module(f"toolkit.tasks.{recipe.task}.task"))
