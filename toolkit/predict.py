"""What `toolkit evaluate` and `toolkit predict` do with a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from models import families
from toolkit import runtime
from toolkit.checkpoint import write_text
from toolkit.errors import UserError
from toolkit.quiet import silence_startup
from toolkit.recipe import Recipe, load_recipe
from toolkit.tasks import Run, task_of
from toolkit.train import make_trainer, metrics_table


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a finished run.

    Raises:
        UserError: the folder is no run, or the run has not finished.
    """
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder}: holds no recipe.yaml, so it is not a run folder")
    if not (folder / "metrics.json").is_file():
        raise UserError(f"{folder}: the run has not finished; resume it: toolkit finetune {folder / 'recipe.yaml'}")
    return load_recipe(folder / "recipe.yaml")


def load_run(folder: Path) -> Run:
    """Load a run folder's best model, ready to evaluate.

    Raises:
        UserError: as :func:`read_recipe`; also for a model that is missing or damaged.
    """
    recipe = read_recipe(folder)
    silence_startup()
    runtime.configure(recipe.runtime.device, recipe.runtime.threads)
    runtime.seed_everything(recipe.seed)
    from toolkit.model_config import model_class, port_settings

    family = families.part(recipe.model.name, "tokenizer")
    try:
        model = model_class(recipe).from_pretrained(folder / "model", **port_settings(recipe))
        tokenizer = family.load_tokenizer(folder / "model")
    except (OSError, ValueError) as problem:
        raise UserError(f"{folder}: its model cannot be read: {' '.join(str(problem).split())}") from None
    model.eval()
    labels = sorted((int(index), name) for index, name in model.config.id2label.items())
    names = [name for _, name in labels] if model.head == "sequence_classification" else None
    return Run(folder, recipe, task_of(recipe), tokenizer, model, names)


def evaluate(folder: Path, console: Console, split: str = "test") -> dict[str, float]:
    """Measure a run's best model on a split of its data, as training did; add the numbers to `evaluation.json`.

    Args:
        folder: a finished run.
        console: where the table is printed.
        split: ``test`` or ``validation``.

    Returns:
        ``loss`` and the task's metrics.

    Raises:
        UserError: the run or the split is not there, or the data's labels are no longer those of the model.
    """
    # Before PaddleNLP is imported, which puts a load_dataset of its own, one that trusts remote code, in the place of
    # that of `datasets`.
    recipe = read_recipe(folder)
    splits = task_of(recipe).load_splits(recipe)
    run = load_run(folder)
    prepared = run.task.prepare(run.recipe, run.tokenizer, splits)
    dataset = getattr(prepared, split)
    if dataset is None:
        raise UserError(f"{folder}: its data has no {split} split; toolkit evaluate {folder} --split validation")
    if prepared.label_names != run.label_names:
        raise UserError(f"{folder}: the labels of {run.recipe.data.dataset} have changed since the model was trained")
    metrics = make_trainer(run.recipe, folder, run.task, run.model, console).measure(dataset, split)
    unit = run.task.DESCRIPTION.examples
    console.print(f"{folder}: {split}, {len(dataset)} {unit}", highlight=False, soft_wrap=True)
    console.print(metrics_table({split: metrics}))
    path = folder / "evaluation.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_text(path, json.dumps({**known, split: {**metrics, unit: len(dataset)}}, indent=1) + "\n")
    return metrics


def predict(folder: Path, console: Console, **given: Any) -> Any:
    """Print and return the predictions of a run's best model.

    Args:
        folder: a finished run.
        console: where it is printed.
        given: the inputs that its task needs (``PREDICTS_FROM``), for example ``texts``.

    Raises:
        UserError: the folder is no finished run, or its task predicts from something else.
    """
    task = task_of(read_recipe(folder))
    kind, command = task.DESCRIPTION.name, task.DESCRIPTION.command(folder)
    if missing := [name for name in task.PREDICTS_FROM if not given.get(name)]:
        raise UserError(f"{folder}: is a run of {kind} and needs {', '.join(missing)}: {command}")
    if extra := [name for name, value in given.items() if value and name not in task.PREDICTS_FROM]:
        raise UserError(f"{folder}: is a run of {kind}, which takes no {', '.join(extra)}: {command}")
    return task.predict(load_run(folder), console, **{name: given[name] for name in task.PREDICTS_FROM})
