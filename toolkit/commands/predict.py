"""`toolkit evaluate` and `toolkit predict`, for a finished run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from safetensors.numpy import load_file

from models import families
from toolkit.errors import UserError
from toolkit.files.strict_json import dumps
from toolkit.files.whole import write_text
from toolkit.finetune.identity import describe_changed_split
from toolkit.finetune.model import make_trainer
from toolkit.finetune.model_config import length_of
from toolkit.finetune.results import metrics_table
from toolkit.machine import runtime
from toolkit.machine.disk import check_writable
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import recorded_commits
from toolkit.run_folder.checkpoint import first_not_finite
from toolkit.run_folder.folder import amending, goes_on
from toolkit.run_folder.read import read_json, reading
from toolkit.run_folder.tracking import complaint_of_finished
from toolkit.tasks import task_of
from toolkit.tasks.interface import Run
from toolkit.terminal.quiet import silence_startup

#: Remedy for a model that cannot be loaded.
MEND = "restore the run's model folder from a copy, or train again"


def read_recipe(folder: Path) -> Recipe:
    """Return the recipe of a finished run. Raises UserError if the folder is no run, or the run has not finished."""
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder}: holds no recipe.yaml, so it is not a run folder")
    if not (folder / "metrics.json").is_file():
        raise UserError(f"{folder}: the run has not finished; {goes_on(folder)}")
    return load_recipe(folder / "recipe.yaml")


def load_run(folder: Path) -> Run:
    """Load a run folder's best model, ready to evaluate. Raises as :func:`read_recipe`; also if the model is missing or
    damaged."""
    recipe = read_recipe(folder)
    silence_startup()
    runtime.configure(recipe.runtime.device, recipe.runtime.threads)
    runtime.seed_everything(recipe.seed)
    model = load_model(recipe, folder / "model")
    labels = sorted((int(index), name) for index, name in model.config.id2label.items())
    names = [name for _, name in labels] if model.head.endswith("_classification") else None
    tokenizer = load_tokenizer(recipe, folder / "model")
    if tokenizer.vocab_size > model.config.vocab_size:
        found, room = tokenizer.vocab_size, model.config.vocab_size
        raise UserError(f"{folder / 'model'}: its tokenizer has {found} ids, its model {room}; {MEND}")
    with reading(folder / "model" / "config.json", MEND):
        length = length_of(recipe, model.config)
    calibration = read_json(folder / "metrics.json", MEND).get("calibration", {})
    return Run(folder, recipe, task_of(recipe), tokenizer, model, names, length, calibration)


def load_model(recipe: Recipe, folder: Path) -> Any:
    """Load the model in a run's ``model/``, ready to evaluate. Raises UserError if a file of it is missing, damaged, or
    of another model."""
    from models.port.base import CONSTANTS
    from toolkit.finetune.model_config import model_class, port_settings

    kind, settings = model_class(recipe), port_settings(recipe)
    with reading(folder / "config.json", MEND):
        kind.config_class.from_pretrained(folder, **settings)
    tensors = str(folder / "model.safetensors")
    if (constants := folder / CONSTANTS).exists():
        with reading(constants, MEND):
            load_file(constants)
        tensors += f" or {CONSTANTS}"
    with reading(tensors, MEND):
        model = kind.from_pretrained(folder, **settings)
    if model.new_weights or (name := first_not_finite(model)):
        wrong = f"lacks {model.new_weights[0]}" if model.new_weights else f"{name} is not finite"
        raise UserError(f"{folder / 'model.safetensors'}: is damaged ({wrong}); {MEND}")
    model.eval()
    return model


def load_tokenizer(recipe: Recipe, folder: Path) -> Any:
    """Load the tokenizer in a run's ``model/``. Raises UserError if a file of it is missing or damaged."""
    for name in ("tokenizer_config.json", "tokenizer.json", "vocab.json"):
        if (folder / name).exists():
            read_json(folder / name, MEND)
    names = [name for name in ("spiece.model", "merges.txt") if (folder / name).exists()]
    with reading(folder / names[0] if names else folder, MEND):
        return families.part(recipe.model.name, "tokenizer").load_tokenizer(folder)


def measurable(folder: Path, recipe: Recipe) -> tuple[Run, Any, Any]:
    """Load a finished run with its splits and what its task prepares of them. Raises UserError if the data's labels are
    no longer those of the model."""
    recipe.found.commits.update(recorded_commits(folder))
    # The data is loaded before PaddleNLP is imported, which replaces the load_dataset of `datasets` by its own, one
    # that trusts remote code.
    splits = task_of(recipe).load_splits(recipe)
    run = load_run(folder)
    prepared_data = run.task.prepare(run.recipe, run.tokenizer, splits, run.length)
    if prepared_data.label_names != run.label_names:
        raise UserError(f"{folder}: the labels of {recipe.data.dataset} have changed since the model was trained")
    return run, splits, prepared_data


def evaluate(folder: Path, console: Console, split: str = "test") -> dict[str, float]:
    """Measure a run's best model on a split, as training did. Add the numbers to `evaluation.json` if it is writable.

    If the split's rows are no longer those of the run, a note says so, and so does ``data_changed`` in the file.

    Args:
        split: ``test`` or ``validation``.

    Returns:
        ``loss`` and the task's metrics.

    Raises:
        UserError: the run or the split is missing, or the data's labels are no longer those of the model.
    """
    recipe = read_recipe(folder)
    path = folder / "evaluation.json"
    known = read_json(path, "remove it: it is written again") if path.exists() else {}
    run, splits, prepared_data = measurable(folder, recipe)
    dataset = getattr(prepared_data, split)
    if dataset is None:
        raise UserError(f"{folder}: its data has no {split} split; toolkit evaluate {folder} --split validation")
    metrics = make_trainer(run.recipe, folder, run.task, run.model, console).measure(dataset, split)
    unit = run.task.DESCRIPTION.unit(recipe)
    console.print(f"{folder}: {split}, {len(dataset)} {unit}", highlight=False, soft_wrap=True)
    console.print(metrics_table({split: metrics}))
    if split_change := describe_changed_split(folder, split, splits[split]):
        meaning = "these figures are of other data than the run's, and some rows may have been trained on"
        console.print(f"note: {split_change}; {meaning}", highlight=False, soft_wrap=True)
    if (wrong := complaint_of_finished(folder)) is not None:
        console.print(f"note: {wrong}", highlight=False, soft_wrap=True)
    if refused := check_writable(folder):
        console.print(f"note: {path} is left as it is: {folder} {refused}", highlight=False, soft_wrap=True)
        return metrics
    with amending(folder):
        known = read_json(path, "remove it: it is written again") if path.exists() else {}
        measurement = {**metrics, unit: len(dataset), **({"data_changed": True} if split_change else {})}
        write_text(path, dumps({**known, split: measurement}, indent=1) + "\n")
    return metrics


def predict(folder: Path, console: Console, **given: Any) -> Any:
    """Print and return the predictions of a run's best model for the inputs that its task needs (``PREDICTS_FROM``),
    for example ``texts``. Raises UserError if the folder is no finished run, or its task needs other inputs."""
    recipe = read_recipe(folder)
    task = task_of(recipe)
    kind, command = task.DESCRIPTION.name, task.DESCRIPTION.command(folder, recipe)
    if missing := [name for name in task.PREDICTS_FROM if not given.get(name)]:
        raise UserError(f"{folder}: is a run of {kind} and needs {', '.join(missing)}: {command}")
    if extra := [name for name, value in given.items() if value and name not in task.PREDICTS_FROM]:
        raise UserError(f"{folder}: is a run of {kind}, which takes no {', '.join(extra)}: {command}")
    return task.predict(load_run(folder), console, **{name: given[name] for name in task.PREDICTS_FROM})
