"""The texts on which an exported model is compared with the port."""

from __future__ import annotations

from typing import Any

import numpy as np

from models.port.tokenization import pad
from toolkit.commands.export.graph import INPUTS
from toolkit.data.batches import collate
from toolkit.errors import UserError
from toolkit.recipe.recipe import Recipe
from toolkit.tasks import task_of
from toolkit.tasks.interface import Run

#: Number of texts compared, and batch size; the last batch has another size.
TEXTS, AT_ONCE = 14, 4
#: Texts in place of missing data: various scripts, control characters and lengths.
FIXED = (
    "The quick brown fox jumps over the lazy dog.",
    "a",
    "Straße, naïve, Ελλάδα, Москва, 日本語, العربية 🙂",
    "1234567890 !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "In the beginning was the word, and the word was with the tokenizer. " * 8,
    "line\nline\ttab " * 40,
)


def load_rows(recipe: Recipe) -> Any:
    """Load the run's data; None if unavailable. Call before importing PaddleNLP, which changes ``load_dataset``."""
    try:
        return task_of(recipe).load_splits(recipe)
    except UserError:
        return None


def batches(run: Run, splits: Any) -> tuple[list[dict[str, np.ndarray]], str]:
    """Return the inputs, int64 [B, T] each, and their source."""
    if splits is None:
        rows = [run.tokenizer.encode(text)[: run.recipe.data.max_length] for text in FIXED]
        padded = pad(rows, run.length, run.tokenizer.pad_token_id)
        return _cut({name: padded[name] for name in INPUTS}), "fixed texts, since the run's data is unavailable"
    prepared = run.task.prepare(run.recipe, run.tokenizer, splits, run.length)
    name = "validation" if prepared.test is None else "test"
    examples = getattr(prepared, name)
    batch = collate([examples[index] for index in range(min(TEXTS, len(examples)))])
    return _cut({name: batch[name] for name in INPUTS}), f"{name} split"


def _cut(batch: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    count = len(batch[INPUTS[0]])
    return [{name: rows[start : start + AT_ONCE] for name, rows in batch.items()} for start in range(0, count, AT_ONCE)]
