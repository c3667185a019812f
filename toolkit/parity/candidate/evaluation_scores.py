"""Scores of a batch as the run's evaluations compute them, with less work than a plain forward.

The evaluations skip outputs of the last layer that the head does not read, and padding that does not change the scores
of a text.
"""

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
from toolkit.parity.exchange.results import Place
from toolkit.parity.measure.evaluation import NARROW, NO_PADDING, WHOLE, name_in_run

if TYPE_CHECKING:
    from toolkit.parity.candidate.step import Measure, Step


def evaluate(step: Step, batch: Mapping[str, paddle.Tensor], output: Any, measure: Measure) -> None:
    """Measure the scores of a batch again, first without unread outputs and then also without padding.

    Args:
        step: the port's step, with its model in evaluation mode.
        batch: the evaluated batch by name.
        output: the model's output for the batch, with nothing omitted.
        measure: called with the name and value of each tensor.
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
    """Inside the ``with`` block the model skips outputs that its head does not read, if it can skip any."""
    if not step.is_narrowed:
        yield
        return
    step.model.leaves_out_unread = True
    try:
        yield
    finally:
        step.model.leaves_out_unread = False


def _scores(step: Step, batch: Mapping[str, paddle.Tensor], rows: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the scores of a batch by name.

    Args:
        step: the port's step.
        batch: some rows of the evaluated batch, or prefixes of their texts.
        rows: indices of these rows in the evaluated batch.
    """
    recorded_draws = step.draws_of_rows(WHOLE, rows, batch["input_ids"].shape[1])
    with paddle.no_grad(), step.replay_draws(lambda *_: None, WHOLE, recorded_draws=recorded_draws):
        return scores_of(step.compute(batch))


def _without_padding(
    step: Step, batch: Mapping[str, paddle.Tensor], scores: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return the scores of a batch by name, with the scores of short texts computed with less padding.

    The short texts are evaluated as a separate batch, whose padding is cut as in an evaluation
    (:func:`toolkit.data.batches.trim_padding`).

    Args:
        step: the port's step.
        batch: the evaluated batch by name.
        scores: scores of the batch with all padding, by name.
    """
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
    """Return the indices of the texts of a batch that an evaluation of the single text gives less padding."""
    whole = batch["input_ids"].shape[1]
    alone = [{name: batch[name][row : row + 1] for name in PADDING_ARRAYS} for row in range(len(batch["input_ids"]))]
    return [row for row, one in enumerate(alone) if trim_padding(one, config)["input_ids"].shape[1] < whole]


def write_rows(scores: np.ndarray, target_rows: np.ndarray, rows: Sequence[int], is_read: np.ndarray) -> None:
    """Write the scores of some texts into the scores of the whole batch.

    Scores of tokens are written only where ``is_read`` is True.

    Args:
        scores: scores of the texts, (rows, L) for each text or (rows, length, ...) for each token.
        target_rows: scores of the batch, which are changed: (B, L) or (B, T, ...).
        rows: indices of the texts in the batch.
        is_read: mask of the tokens that are not padding, bool (rows, length).
    """
    if scores.shape[:2] != is_read.shape:
        target_rows[rows] = scores
        return
    for row, row_scores, mask in zip(rows, scores, is_read, strict=True):
        target_rows[row, : len(row_scores)][mask] = row_scores[mask]


def place_of_padding(config: Any) -> Place:
    """Return the source location of the function that decides how much padding an evaluation omits.

    Args:
        config: configuration of the model.
    """
    return place_of_code("lengths.equivalent_length", part(config.model_type, "lengths").equivalent_length)
