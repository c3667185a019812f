"""The scores of a batch as the run's evaluations compute them: without the padding that changes nothing of a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

from models.families import part
from toolkit.batches import PADDED, without_padding
from toolkit.parity.candidate.places import place_of_code
from toolkit.parity.candidate.scores import scores_of
from toolkit.parity.job.results import Place
from toolkit.parity.measure.evaluation import UNPADDED, WHOLE, named

if TYPE_CHECKING:
    from toolkit.parity.candidate.step import Measure, Step


def evaluate(step: Step, given: Mapping[str, paddle.Tensor], whole: Any, measure: Measure) -> None:
    """Hand on the scores of a batch again, those that are read of its short texts from a batch of these alone that is
    cut as an evaluation's is (:func:`toolkit.batches.without_padding`).

    Args:
        step: in evaluation mode.
        given: the batch that is evaluated.
        whole: the model's output for it with all of its padding.
    """
    scores = scores_of(whole)
    if rows := rows_with_padding_to_spare(given, step.model.config):
        batch = without_padding({name: value[rows] for name, value in given.items()}, step.model.config)
        read = batch["attention_mask"].numpy() != 0  # (rows, length)
        recorded = step.recorded_of(WHOLE, rows, read.shape[1])
        with paddle.no_grad(), step.given_draws(recorded, lambda *_: None):
            found = scores_of(step.compute(batch))
        for name, value in scores.items():
            put_in_place(found[name], value, rows, read)
    for name, value in scores.items():
        measure(named(UNPADDED, name), value)


def rows_with_padding_to_spare(batch: Mapping[str, paddle.Tensor], config: Any) -> list[int]:
    """The rows of a batch whose texts are so short that by themselves they are evaluated with less padding."""
    whole = batch["input_ids"].shape[1]
    alone = [{name: batch[name][row : row + 1] for name in PADDED} for row in range(len(batch["input_ids"]))]
    return [row for row, one in enumerate(alone) if without_padding(one, config)["input_ids"].shape[1] < whole]


def put_in_place(found: np.ndarray, into: np.ndarray, rows: Sequence[int], read: np.ndarray) -> None:
    """Write the scores of some rows into the batch's: those of whole texts, (rows, L) into (B, L), or of the tokens of
    them that ``read`` says, (rows, length) into (B, T)."""
    if found.shape != read.shape:
        into[rows] = found
        return
    for row, scores, kept in zip(rows, found, read, strict=True):
        into[row, : len(scores)][kept] = scores[kept]


def place_of_padding(config: Any) -> Place:
    """Where is decided how much padding an evaluation leaves out."""
    return place_of_code("lengths.read_alike", part(config.model_type, "lengths").read_alike)
