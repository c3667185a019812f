"""The texts for the comparison of an exported model with the port."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from models.port.tokenization import pad
from toolkit.commands.export.graph import INPUTS
from toolkit.data.batches import collate
from toolkit.errors import UserError
from toolkit.recipe.recipe import Recipe
from toolkit.tasks import task_of
from toolkit.tasks.interface import Run

#: Number of texts to compare, and the batch size. The last batch is smaller, so that two batch sizes are tested.
NUM_TEXTS, BATCH_SIZE = 14, 4
#: Texts if the data are unavailable, with various scripts, control characters and lengths.
FIXED_TEXTS = (
    "The quick brown fox jumps over the lazy dog.",
    "a",
    "Straße, naïve, Ελλάδα, Москва, 日本語, العربية 🙂",
    "1234567890 !\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~",
    "In the beginning was the word, and the word was with the tokenizer. " * 8,
    "line\nline\ttab " * 40,
)


def load_rows(recipe: Recipe) -> Any:
    """Load the splits of a run; None if its data are unavailable.

    Call this before PaddleNLP is imported, because PaddleNLP replaces ``load_dataset``.
    """
    try:
        return task_of(recipe).load_splits(recipe)
    except UserError:
        return None


def make_batches(run: Run, splits: Any) -> tuple[list[dict[str, np.ndarray]], str]:
    """Return the inputs of each batch, int64 arrays (B, T) by name, and a description of their source.

    ``splits`` is the result of :func:`load_rows`.
    """
    if splits is None:
        rows = [run.tokenizer.encode(text)[: run.recipe.data.max_length] for text in FIXED_TEXTS]
        padded_rows = pad(rows, run.length, run.tokenizer.pad_token_id)
        return _split_batch(
            {name: padded_rows[name] for name in INPUTS}
        ), "fixed texts, since the run's data is unavailable"
    prepared_data = run.task.prepare(run.recipe, run.tokenizer, splits, run.length)
    name = "validation" if prepared_data.test is None else "test"
    examples = getattr(prepared_data, name)
    batch = collate([examples[index] for index in range(min(NUM_TEXTS, len(examples)))])
    return _split_batch({name: batch[name] for name in INPUTS}), f"{name} split"


def _split_batch(batch: Mapping[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    """Return a large batch as batches of at most :data:`BATCH_SIZE` examples.

    Args:
        batch: tensors of the batch, by name.
    """
    count = len(batch[INPUTS[0]])
    return [
        {name: rows[start : start + BATCH_SIZE] for name, rows in batch.items()}
        for start in range(0, count, BATCH_SIZE)
    ]
