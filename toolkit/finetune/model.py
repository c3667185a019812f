"""The model and the trainer of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from models import collector, families
from toolkit.finetune.assembly import AssembledRun
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.read import reading

if TYPE_CHECKING:
    from toolkit.tasks.interface import PreparedData, Task
    from toolkit.training.trainer import Finetuner


def load_model(recipe: Recipe, job: AssembledRun) -> Any:
    """The port with the job's first weights, its class weights, and the constants that the gate compared it with."""
    from safetensors.numpy import load_file

    from models.port.adapter import add_adapter
    from toolkit.finetune.model_config import model_class
    from toolkit.parity import CONSTANTS

    model = model_class(recipe)(job.config)
    if job.lora is not None:
        add_adapter(model, job.lora)
    families.part(recipe.model.name, "weights").load(model, job.first_weights)
    model.class_weights = job.prepared_data.class_weights
    model.label_smoothing = recipe.train.label_smoothing or 0.0
    if job.unreached_rows is not None:
        model.unreached_rows = job.unreached_rows
    if (constants := recipe.output_dir / "parity" / CONSTANTS).is_file():
        with reading(constants, "remove it, and run the same command again"):
            model.hold_constants(load_file(constants))
    return model


def save_model(recipe: Recipe, job: AssembledRun, model: Any, folder: Path) -> None:
    """Write a model and its tokenizer into a folder, as transformers reads them."""
    model.save_pretrained(folder)
    job.tokenizer.save(folder, recipe.data.max_length)


def make_trainer(
    recipe: Recipe,
    folder: Path,
    task: Task,
    model: Any,
    console: Console,
    prepared_data: PreparedData | None = None,
    num_initial_processes: int | None = None,
) -> Finetuner:
    """Return the trainer of a run; without `prepared_data` it can only measure.

    Args:
        recipe: recipe of the run.
        folder: run folder.
        task: task of the recipe.
        model: port to train.
        console: console for progress and metrics.
        prepared_data: examples of all splits.
        num_initial_processes: number of processes at the start of the run; None for the current number.
    """
    with collector.pause_garbage_collection():
        from toolkit.training.trainer import Finetuner

    return Finetuner(
        model,
        recipe,
        folder,
        task,
        console,
        prepared_data.train if prepared_data else None,
        prepared_data.validation if prepared_data else None,
        num_initial_processes=num_initial_processes,
    )
