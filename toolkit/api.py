"""The commands as Python functions: ``from toolkit.api import finetune, predict``.

The functions raise a :class:`toolkit.errors.ToolkitError` with the same message that the command prints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from toolkit.terminal.console import LiteralConsole


def finetune(
    recipe: str | Path, changes: Mapping[str, Any] | None = None, *, skip_parity: str | None = None, quiet: bool = False
) -> Path:
    """Run a recipe, or resume its interrupted run, as ``toolkit finetune`` does; return the run folder.

    Args:
        recipe: file of the recipe.
        changes: key -> value for this run, such as ``{"train.batch_size": 8}``.
        skip_parity: reason for skipping the gate, or None to run it.
        quiet: whether to print nothing.
    """
    from toolkit.finetune.finetune import finetune as run_recipe
    from toolkit.recipe.load import load_recipe

    overrides = [f"{key}={json.dumps(value)}" for key, value in (changes or {}).items()]
    return run_recipe(load_recipe(Path(recipe), overrides), skip_parity, LiteralConsole(quiet=quiet))


def predict(
    run: str | Path,
    texts: Sequence[str | tuple[str, str]] = (),
    *,
    question: str | None = None,
    context: str | None = None,
    baseline: bool = False,
) -> Any:
    """Return the predictions of a finished run, as ``toolkit predict`` prints them.

    Args:
        run: run folder.
        texts: texts to classify or to find entities in; pairs of texts if the run reads two.
        question: question to answer.
        context: text that contains the answer.
        baseline: whether the kept baseline predicts instead of the model.

    Returns:
        For each text a :class:`toolkit.tasks.classification.task.Prediction`, or its entities; for a question a
            :class:`toolkit.tasks.question_answering.squad.Answer`.
    """
    from toolkit.commands.predict import predict as predict_with_run

    inputs = {"texts": list(texts), "question": question, "context": context}
    return predict_with_run(Path(run), LiteralConsole(quiet=True), baseline=baseline, **inputs)
