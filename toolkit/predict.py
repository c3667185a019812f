"""What a finished run says: its metrics on a split, and labels for texts."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit import runtime
from toolkit.checkpoint import write_text
from toolkit.errors import UserError
from toolkit.quiet import silence_startup
from toolkit.recipe import Recipe, load_recipe
from toolkit.train import MODEL_CLASSES, make_trainer

#: Characters of a text that the table of predictions shows.
SHOWN_CHARACTERS = 60


@dataclass(frozen=True)
class Run:
    """A finished run, loaded.

    Attributes:
        folder: the run folder.
        recipe: as it was run.
        task: the module of `toolkit.tasks`.
        tokenizer: saved with the model.
        model: the port with the best weights.
        label_names: in the order of their ids.
    """

    folder: Path
    recipe: Recipe
    task: Any
    tokenizer: Any
    model: Any
    label_names: list[str]


@dataclass(frozen=True)
class Prediction:
    """The most probable label of a text, its probability, and whether the text was cut to fit the model."""

    text: str
    label: str
    probability: float
    truncated: bool


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a finished run.

    Raises:
        UserError: the folder is no run, or the run has not finished.
    """
    if not (folder / "recipe.yaml").is_file():
        raise UserError(f"{folder}: holds no recipe.yaml, so it is not a run folder")
    if not (folder / "metrics.json").is_file():
        raise UserError(f"{folder}: the run has not finished; go on with: toolkit finetune {folder / 'recipe.yaml'}")
    return load_recipe(folder / "recipe.yaml")


def load_run(folder: Path) -> Run:
    """Load a run folder's best model, ready to evaluate.

    Raises:
        UserError: as :func:`read_recipe`.
    """
    recipe = read_recipe(folder)
    silence_startup()
    runtime.configure(recipe.runtime.device, recipe.runtime.threads)
    runtime.seed_everything(recipe.seed)
    from models import reformer
    from models.reformer.tokenizer import load_tokenizer

    task = importlib.import_module(f"toolkit.tasks.{recipe.task}")
    model = getattr(reformer, MODEL_CLASSES[task.HEAD]).from_pretrained(
        folder / "model", backward=recipe.model.backward, residual=recipe.model.residual
    )
    model.eval()
    names = [name for _, name in sorted((int(index), name) for index, name in model.config.id2label.items())]
    return Run(folder, recipe, task, load_tokenizer(folder / "model"), model, names)


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
    from toolkit.data import load_splits

    # Before PaddleNLP is imported, which puts a load_dataset of its own, one that trusts remote code, in the place of
    # that of `datasets`.
    splits = load_splits(read_recipe(folder))
    run = load_run(folder)
    prepared = run.task.prepare(run.recipe, run.tokenizer, splits)
    dataset = getattr(prepared, split)
    if dataset is None:
        raise UserError(f"{folder}: its data has no {split} split; toolkit evaluate {folder} --split validation")
    if prepared.label_names != run.label_names:
        raise UserError(f"{folder}: the labels of {run.recipe.data.dataset} have changed since the model was trained")
    metrics = make_trainer(run.recipe, folder, run.task, run.model, console).measure(dataset, split)
    console.print(f"{folder}: {split}, {len(dataset)} texts", highlight=False, soft_wrap=True)
    table = Table()
    for name in metrics:
        table.add_column(name, justify="right")
    table.add_row(*(f"{value:.4f}" for value in metrics.values()))
    console.print(table)
    path = folder / "evaluation.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    write_text(path, json.dumps({**known, split: {**metrics, "texts": len(dataset)}}, indent=1) + "\n")
    return metrics


def predict(folder: Path, texts: list[str], console: Console) -> list[Prediction]:
    """Print and return the most probable label of each text, with its probability.

    Args:
        folder: a finished run.
        texts: any strings; padded and cut as in training.
        console: where the table is printed.
    """
    run = load_run(folder)
    predictions = classify(run, texts)
    table = Table("label", "probability", "text")
    for prediction in predictions:
        shown = " ".join(prediction.text.split())
        shown = shown if len(shown) <= SHOWN_CHARACTERS else shown[: SHOWN_CHARACTERS - 1] + "…"
        table.add_row(Text(prediction.label), f"{prediction.probability:.3f}", Text(shown))
    console.print(table)
    cut = sum(prediction.truncated for prediction in predictions)
    if cut:
        console.print(
            f"note: {cut} of {len(texts)} texts are longer than {run.recipe.data.max_length} tokens and were cut"
        )
    return predictions


def classify(run: Run, texts: list[str]) -> list[Prediction]:
    """The most probable label of each text."""
    import paddle

    length, size = run.recipe.data.max_length, run.recipe.train.eval_batch_size
    found: list[Prediction] = []
    for start in range(0, len(texts), size):
        batch = texts[start : start + size]
        tokens = run.tokenizer(batch, max_length=length, padding="max_length")
        longer = [len(ids) > length for ids in run.tokenizer(batch)["input_ids"]]
        with paddle.no_grad():
            inputs = {name: paddle.to_tensor(np.asarray(value)) for name, value in tokens.items()}
            logits = run.model(**inputs).logits  # (B, labels)
            probabilities = paddle.nn.functional.softmax(logits.astype("float64"), axis=-1).numpy()
        for text, row, cut in zip(batch, probabilities, longer, strict=True):
            best = int(row.argmax())
            found.append(Prediction(text, run.label_names[best], float(row[best]), cut))
    return found
