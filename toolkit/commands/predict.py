"""`toolkit evaluate` and `toolkit predict`: measure and use the best model of a finished run."""

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
from toolkit.finetune.results import BASELINE, metrics_table
from toolkit.machine import runtime
from toolkit.machine.disk import find_write_obstacle
from toolkit.machine.model_memory import WEIGHT_BYTES, explain_too_large
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe, require_setting
from toolkit.recipe.revisions import recorded_commits
from toolkit.run_folder.checkpoint import first_not_finite
from toolkit.run_folder.folder import amending, resume_hint
from toolkit.run_folder.read import read_calibration, read_json, reading
from toolkit.run_folder.tracking import complaint_of_finished
from toolkit.tasks import task_of
from toolkit.tasks.interface import Run
from toolkit.terminal.quiet import silence_startup

#: Advice in messages about a model that cannot be loaded.
MODEL_REMEDY = "restore the run's model folder from a copy, or train again"
#: Meaning of a note that the rows of a split have changed since the run.
CHANGED_DATA = "these figures are of other data than the run's, and some rows may have been trained on"


def read_recipe(folder: Path) -> Recipe:
    """Return the recipe of a finished run.

    Raises:
        UserError: the folder is not a run folder, or the run has not finished.
    """
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder}: holds no recipe.yaml, so it is not a run folder")
    if not (folder / "metrics.json").is_file():
        raise UserError(f"{folder}: the run has not finished; {resume_hint(folder)}")
    return load_recipe(folder / "recipe.yaml")


def load_run(folder: Path) -> Run:
    """Load a finished run with its best model in evaluation mode.

    Raises:
        UserError: the folder is not a finished run, or its model is missing or damaged.
    """
    recipe = read_recipe(folder)
    silence_startup()
    runtime.configure_paddle(recipe.runtime.device, recipe.runtime.threads)
    runtime.seed_everything(recipe.seed)
    model = load_model(recipe, folder / "model")
    labels = sorted((int(index), name) for index, name in model.config.id2label.items())
    label_names = [name for _, name in labels] if model.head.endswith("_classification") else None
    tokenizer = load_tokenizer(recipe, folder / "model")
    if tokenizer.vocab_size > model.config.vocab_size:
        num_ids, num_embeddings = tokenizer.vocab_size, model.config.vocab_size
        raise UserError(
            f"{folder / 'model'}: its tokenizer has {num_ids} ids, its model {num_embeddings}; {MODEL_REMEDY}"
        )
    with reading(folder / "model" / "config.json", MODEL_REMEDY):
        length = length_of(recipe, model.config)
    calibration = read_calibration(folder, MODEL_REMEDY)
    return Run(folder, recipe, task_of(recipe), tokenizer, model, label_names, length, calibration)


def load_model(recipe: Recipe, folder: Path) -> Any:
    """Load a model in evaluation mode.

    Args:
        recipe: recipe of the run.
        folder: the run's ``model/``.

    Raises:
        UserError: a file of the model is missing, damaged, or belongs to another model.
    """
    from models.port.base import CONSTANTS
    from toolkit.finetune.model_config import model_class, port_settings

    port_class, settings = model_class(recipe), port_settings(recipe)
    with reading(folder / "config.json", MODEL_REMEDY):
        config = port_class.config_class.from_pretrained(folder, **settings)
        length = length_of(recipe, config)
    resolved_config = families.part(recipe.model.name, "schema").resolve(config.to_hf())
    texts = 0 if runtime.current_device() == "gpu" else 1
    if problem := explain_too_large(recipe.model.name, resolved_config, port_class.head, length, texts, WEIGHT_BYTES):
        raise UserError(f"{folder / 'config.json'}: {problem}; if these sizes are wrong, {MODEL_REMEDY}")
    tensors = str(folder / "model.safetensors")
    if (constants := folder / CONSTANTS).exists():
        with reading(constants, MODEL_REMEDY):
            load_file(constants)
        tensors += f" or {CONSTANTS}"
    with reading(tensors, MODEL_REMEDY):
        model = port_class.from_pretrained(folder, **settings)
    if model.new_weights or (parameter_name := first_not_finite(model)):
        damage = f"lacks {model.new_weights[0]}" if model.new_weights else f"{parameter_name} is not finite"
        raise UserError(f"{folder / 'model.safetensors'}: is damaged ({damage}); {MODEL_REMEDY}")
    model.eval()
    return model


def load_tokenizer(recipe: Recipe, folder: Path) -> Any:
    """Load the tokenizer in a run's ``model/``.

    Raises:
        UserError: a file of the tokenizer is missing or damaged.
    """
    for name in ("tokenizer_config.json", "tokenizer.json", "vocab.json"):
        if (folder / name).exists():
            read_json(folder / name, MODEL_REMEDY)
    vocabulary_files = [name for name in ("spiece.model", "merges.txt") if (folder / name).exists()]
    with reading(folder / vocabulary_files[0] if vocabulary_files else folder, MODEL_REMEDY):
        return families.part(recipe.model.name, "tokenizer").load_tokenizer(folder)


def load_measurable_run(folder: Path, recipe: Recipe) -> tuple[Run, Any, Any]:
    """Load a finished run, its splits, and the examples that its task prepares from them.

    Raises:
        UserError: the labels of the data have changed since the model was trained.
    """
    recipe.findings.commits.update(recorded_commits(folder))
    # The data is loaded before PaddleNLP is imported: PaddleNLP replaces load_dataset of `datasets` with a function
    # that trusts remote code.
    splits = task_of(recipe).load_splits(recipe)
    run = load_run(folder)
    prepared_data = run.task.prepare(run.recipe, run.tokenizer, splits, run.length)
    if prepared_data.label_names != run.label_names:
        raise UserError(f"{folder}: the labels of {recipe.data.dataset} have changed since the model was trained")
    return run, splits, prepared_data


def load_baseline(folder: Path) -> Run:
    """Load the baseline that a finished run has kept, instead of its model.

    Raises:
        UserError: the folder is not a finished run, or the run has no baseline, or it is damaged.
    """
    from toolkit.tasks.classification.linear_model import LinearModel

    recipe = read_recipe(folder)
    if not (folder / BASELINE).is_dir():
        reason = "a run of classification keeps it if it is at least as good as the model"
        raise UserError(f"{folder}: has no folder {BASELINE}; {reason}; leave out --baseline")
    baseline = LinearModel.load(folder / BASELINE)
    config_path = folder / "model" / "config.json"
    with reading(config_path, MODEL_REMEDY):
        labels = read_json(config_path, MODEL_REMEDY)["id2label"]
        label_names = [labels[index] for index in sorted(labels, key=int)]
        if len(label_names) != len(baseline.biases):
            raise ValueError(f"it has {len(label_names)} labels, and {folder / BASELINE} has {len(baseline.biases)}")
    length, calibration = recipe.data.max_length, baseline.calibration
    return Run(folder, recipe, task_of(recipe), None, None, label_names, length, calibration, baseline)


def evaluate_baseline(folder: Path, console: Console, split_name: str = "test") -> dict[str, float]:
    """Measure a run's kept baseline on a split; print and return its metrics.

    Args:
        folder: folder of a finished run.
        console: console for the table of metrics and notes.
        split_name: name of the split, ``test`` or ``validation``.

    Raises:
        UserError: the run, its baseline or the split is missing.
    """
    from toolkit.tasks.classification.baselines import score_rows, targets_of, text_intervals
    from toolkit.tasks.metrics import text_metrics

    run = load_baseline(folder)
    run.recipe.findings.commits.update(recorded_commits(folder))
    splits = run.task.load_splits(run.recipe)
    if split_name not in splits:
        raise UserError(f"{folder}: its data has no {split_name} split; toolkit evaluate {folder} --split validation")
    rows = splits[split_name]
    scores, targets = score_rows(rows, run.baseline), targets_of(rows, require_setting(run.recipe.data.problem_type))
    metrics = text_metrics(scores, targets)
    console.print(f"{folder / BASELINE}: {split_name}, {len(rows)} texts", highlight=False, soft_wrap=True)
    console.print(metrics_table({split_name: metrics}, {split_name: text_intervals(scores, targets)}))
    if split_change := describe_changed_split(folder, split_name, rows):
        console.print(f"note: {split_change}; {CHANGED_DATA}", highlight=False, soft_wrap=True)
    return metrics


def evaluate(folder: Path, console: Console, split_name: str = "test") -> dict[str, float]:
    """Measure a run's best model on a split, as training did.

    Add the metrics to ``evaluation.json`` if the folder is writable. If the rows of the split have changed since the
    run, print a note and set ``data_changed`` in the file.

    Args:
        folder: folder of a finished run.
        console: console for the table of metrics and notes.
        split_name: name of the split, ``test`` or ``validation``.

    Returns:
        Metric -> value: ``loss`` and the metrics of the task.

    Raises:
        UserError: the run or the split is missing, or the labels of the data have changed since training.
    """
    recipe = read_recipe(folder)
    path = folder / "evaluation.json"
    measurements = read_json(path, "remove it: it is written again") if path.exists() else {}
    run, splits, prepared_data = load_measurable_run(folder, recipe)
    dataset = getattr(prepared_data, split_name)
    if dataset is None:
        raise UserError(f"{folder}: its data has no {split_name} split; toolkit evaluate {folder} --split validation")
    trainer = make_trainer(run.recipe, folder, run.task, run.model, console)
    metrics = trainer.measure(dataset, split_name)
    intervals = trainer.intervals(metrics, require_setting(trainer.outputs), dataset)
    unit = run.task.DESCRIPTION.unit(recipe)
    console.print(f"{folder}: {split_name}, {len(dataset)} {unit}", highlight=False, soft_wrap=True)
    console.print(metrics_table({split_name: metrics}, {split_name: intervals}))
    if split_change := describe_changed_split(folder, split_name, splits[split_name]):
        console.print(f"note: {split_change}; {CHANGED_DATA}", highlight=False, soft_wrap=True)
    if (complaint := complaint_of_finished(folder)) is not None:
        console.print(f"note: {complaint}", highlight=False, soft_wrap=True)
    if obstacle := find_write_obstacle(folder):
        console.print(f"note: {path} is left as it is: {folder} {obstacle}", highlight=False, soft_wrap=True)
        return metrics
    with amending(folder):
        measurements = read_json(path, "remove it: it is written again") if path.exists() else {}
        measurement = {
            **metrics,
            "intervals": intervals,
            unit: len(dataset),
            **({"data_changed": True} if split_change else {}),
        }
        write_text(path, dumps({**measurements, split_name: measurement}, indent=1) + "\n")
    return metrics


def predict(folder: Path, console: Console, *, baseline: bool = False, **inputs: Any) -> Any:
    """Print and return the predictions of a run's best model.

    Args:
        folder: folder of a finished run.
        console: console to print to.
        baseline: whether the kept baseline predicts instead of the model.
        **inputs: inputs of the task, by the names in its ``PREDICTS_FROM``; for example ``texts``.

    Raises:
        UserError: the folder is not a finished run, or its task needs other inputs.
    """
    recipe = read_recipe(folder)
    task = task_of(recipe)
    kind, command = task.DESCRIPTION.name, task.DESCRIPTION.command(folder, recipe)
    if missing_inputs := [name for name in task.PREDICTS_FROM if not inputs.get(name)]:
        raise UserError(f"{folder}: is a run of {kind} and needs {', '.join(missing_inputs)}: {command}")
    if extra_inputs := [name for name, value in inputs.items() if value and name not in task.PREDICTS_FROM]:
        raise UserError(f"{folder}: is a run of {kind}, which takes no {', '.join(extra_inputs)}: {command}")
    run = load_baseline(folder) if baseline else load_run(folder)
    return task.predict(run, console, **{name: inputs[name] for name in task.PREDICTS_FROM})
