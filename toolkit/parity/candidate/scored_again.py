"""Scores of a batch as the run's evaluations compute them: without outputs of the last layer that the head does not
read, and without padding that does not change a text's scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle

from models.families import part
from toolkit.data.batches import PADDING_ARRAYS, trim_padding
from toolkit.parity.candidate.places import place_of_code
from toolkit.parity.candidate.scores import scores_of
from toolkit.parity.job.results import Place
from toolkit.parity.measure.evaluation import NARROW, NO_PADDING, WHOLE, name_in_run

if TYPE_CHECKING:
    from toolkit.parity.candidate.step import Measure, Step


def evaluate(step: Step, batch: Mapping[str, paddle.Tensor], output: Any, measure: Measure) -> None:
    """Measure the scores of a batch again, once for each thing that the run's evaluations leave out, cumulatively.

    Args:
        step: in evaluation mode.
        batch: the evaluated batch.
        output: the model's output for the batch, with nothing left out.
    """
    scores = scores_of(output)
    with _as_in_a_run(step):
        if step.is_narrowed:
            scores = _scores(step, batch, range(len(batch["input_ids"])))
            for name, value in scores.items():
                measure(name_in_run(NARROW, name), value)
        if step.reads_without_padding:
            for name, value in _without_padding(step, batch, scores).items():
                measure(name_in_run(NO_PADDING, name), value)


@contextlib.contextmanager
def _as_in_a_run(step: Step) -> Iterator[None]:
    """Inside the ``with`` block the model skips outputs that its head does not read, if it ever does."""
    if not step.is_narrowed:
        yield
        return
    step.model.leaves_out_unread = True
    try:
        yield
    finally:
        step.model.leaves_out_unread = False


def _scores(step: Step, batch: Mapping[str, paddle.Tensor], rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Compute the scores of a batch of some rows of the evaluated batch, or of prefixes of their texts."""
    recorded_draws = step.recorded_of(WHOLE, rows, batch["input_ids"].shape[1])
    with paddle.no_grad(), step.replay_draws(lambda *_: None, WHOLE, recorded_draws=recorded_draws):
        return scores_of(step.compute(batch))


def _without_padding(
    step: Step, batch: Mapping[str, paddle.Tensor], scores: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return ``scores`` with those read of short texts replaced, from a batch of these alone that is cut as an
    evaluation's is (:func:`toolkit.data.batches.trim_padding`)."""
    all_scores = {name: value.copy() for name, value in scores.items()}
    if not (rows := rows_with_padding_to_spare(batch, step.model.config)):
        return all_scores
    short_batch = trim_padding({name: value[rows] for name, value in batch.items()}, step.model.config)
    is_read = short_batch["attention_mask"].numpy() != 0  # (rows, length)
    short_scores = _scores(step, short_batch, rows)
    for name, value in all_scores.items():
        write_rows(short_scores[name], value, rows, is_read)
    return all_scores


def rows_with_padding_to_spare(batch: Mapping[str, paddle.Tensor], config: Any) -> list[int]:
    """Return the rows of a batch whose texts are short enough to be evaluated with less padding when alone."""
    whole = batch["input_ids"].shape[1]
    alone = [{name: batch[name][row : row + 1] for name in PADDING_ARRAYS} for row in range(len(batch["input_ids"]))]
    return [row for row, one in enumerate(alone) if trim_padding(one, config)["input_ids"].shape[1] < whole]


def write_rows(scores: np.ndarray, target: np.ndarray, rows: Sequence[int], is_read: np.ndarray) -> None:
    """Write the scores of some rows into ``target``: per text, (rows, L) into (B, L), or per token in ``is_read``,
    (rows, length, ...) into (B, T, ...)."""
    if scores.shape[:2] != is_read.shape:
        target[rows] = scores
        return
    for row, row_scores, mask in zip(rows, scores, is_read, strict=True):
        target[row, : len(row_scores)][mask] = row_scores[mask]


def place_of_padding(config: Any) -> Place:
    """Return the place of the function that decides how much padding an evaluation leaves out."""
    return place_of_code("lengths.equivalent_length", part(config.model_type, "lengths").equivalent_length)
