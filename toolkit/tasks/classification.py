"""Text classification: one label per text, from the head that reads the first position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import datasets
import numpy as np

from models.reformer.tokenizer import Tokenizer, pad
from toolkit import metrics
from toolkit.data import tokenize
from toolkit.recipe import Recipe

#: The head that the port puts on the model, by the name the gate and the weights know it under.
HEAD = "sequence_classification"


@dataclass(frozen=True)
class Prepared:
    """Examples ready for the model.

    An example is ``input_ids`` [T] and ``attention_mask`` [T], padded on the right to T = ``data.max_length``, and
    ``labels`` (a scalar), all int64.

    Attributes:
        train, validation, test: test is None where the data has none.
        label_names: a label's id is its place in this list.
        truncated: split -> how many of its texts were longer than T and were cut.
    """

    train: datasets.Dataset
    validation: datasets.Dataset
    test: datasets.Dataset | None
    label_names: list[str]
    truncated: dict[str, int] = field(default_factory=dict)


def prepare(recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict) -> Prepared:
    """Tokenize the splits of :func:`toolkit.data.load_splits`; tokens are kept unpadded and padded when read."""
    names = splits["train"].features["label"].names
    tokens = {name: tokenize(rows, tokenizer, recipe.data.max_length, name) for name, rows in splits.items()}
    truncated = {name: int(np.sum(rows["truncated"][:])) for name, rows in tokens.items()}
    padded = {name: _padded(rows, recipe.data.max_length, tokenizer.pad_token_id) for name, rows in tokens.items()}
    return Prepared(padded["train"], padded["validation"], padded.get("test"), list(names), truncated)


def collate(rows: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """A batch of examples: ``input_ids`` [B, T], ``attention_mask`` [B, T], ``labels`` [B], int64."""
    return {key: np.stack([np.asarray(row[key], dtype=np.int64) for row in rows]) for key in rows[0]}


def compute_metrics(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """``accuracy`` and ``macro_f1`` of logits [N, L] against labels [N]."""
    return metrics.classification(logits, labels)


def _padded(rows: datasets.Dataset, length: int, pad_token_id: int) -> datasets.Dataset:
    """The rows as padded int64 arrays, made when they are read: stored, padding would often be most of the file."""

    def transform(batch: dict[str, list]) -> dict[str, np.ndarray]:
        arrays = pad(batch["input_ids"], length, pad_token_id) if "input_ids" in batch else {}
        return {**arrays, "labels": np.asarray(batch["labels"], dtype=np.int64)}

    return rows.select_columns(["input_ids", "labels"]).with_transform(transform)
