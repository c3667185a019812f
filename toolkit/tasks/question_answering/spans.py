"""Turn start and end logits into answers: the best spans of a window, and of all windows of a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.tasks.question_answering.squad import Answer
from toolkit.tasks.question_answering.windows import NO_ANSWER, SEPARATOR, Windows
from toolkit.tasks.question_answering.words import whole_words

#: Maximum number of spans of a window, and of answers to a question.
N_BEST = 20


def best_spans(
    start: np.ndarray,
    end: np.ndarray,
    context_start: np.ndarray,
    context_end: np.ndarray,
    max_length: int,
    count: int = N_BEST,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the spans of each window with the highest ``start[i] + end[j]``, for i <= j < i + max_length.

    The result is exact and takes O(T log max_length) per window: a start can be among the best ``count`` spans only if
    its own best span is among the best ``count`` over all starts.

    Args:
        start: logit of each position to be the first position of the answer, (B, T).
        end: logit of each position to be the last position of the answer, (B, T).
        context_start: first position that an answer may have, (B,).
        context_end: position after the last position that an answer may have, (B,).
        max_length: maximum number of positions of a span.
        count: number of spans.

    Returns:
        First positions, last positions and scores, (B, count) each, best first. The scores of missing spans are -inf.
    """
    batch, length = start.shape
    position = np.arange(length)
    is_allowed = (position >= context_start[:, None]) & (position < context_end[:, None])
    start, end = (np.where(is_allowed, scores, -np.inf).astype(np.float64) for scores in (start, end))
    max_length = min(max_length, length)
    best_scores = start + _sliding_max(end, max_length)
    num_starts = min(count, length)
    starts = np.sort(np.argpartition(-best_scores, num_starts - 1, axis=1)[:, :num_starts], axis=1)
    ends = starts[:, :, None] + np.arange(max_length)  # (B, kept, longest)
    padded_end = np.pad(end, [(0, 0), (0, max_length)], constant_values=-np.inf)
    rows = np.arange(batch)[:, None]
    scores = np.take_along_axis(start, starts, 1)[:, :, None] + padded_end[rows[:, :, None], ends]
    scores, ends = scores.reshape(batch, -1), ends.reshape(batch, -1)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    padding = [(0, 0), (0, count - best.shape[1])]
    return (
        np.pad(starts[rows, best // max_length], padding),
        np.pad(ends[rows, best], padding),
        np.pad(scores[rows, best], padding, constant_values=-np.inf),
    )


def _sliding_max(scores: np.ndarray, width: int) -> np.ndarray:
    """Return the maximum over each position and the next ``width - 1`` positions, (B, T)."""
    padded_scores = np.pad(scores, [(0, 0), (0, width)], constant_values=-np.inf)
    length, window_size = scores.shape[1], 1
    while 2 * window_size <= width:  # padded[i] is now the maximum of `done` positions from i on
        padded_scores[:, : padded_scores.shape[1] - window_size] = np.maximum(
            padded_scores[:, : padded_scores.shape[1] - window_size], padded_scores[:, window_size:]
        )
        window_size *= 2
    return np.maximum(padded_scores[:, :length], padded_scores[:, width - window_size : width - window_size + length])


def answers(windows: Windows, span_outputs: Sequence[np.ndarray]) -> list[list[Answer]]:
    """Return each question's best answers over all its windows, best first, at least one.

    Args:
        windows: windows of the questions.
        span_outputs: results of every window, in order: first positions, last positions and scores of
            :func:`best_spans`, (W, N) each, and the score of no answer, (W,).
    """
    firsts, lasts, scores, null_scores = span_outputs
    bounds = np.searchsorted(windows.example_of, np.arange(len(windows.examples) + 1))
    # Window position + shift = index among the tokens of all contexts.
    shift = (windows.first_of - windows.offset_of)[:, None]
    is_finite = np.isfinite(scores)
    spans = windows.contexts.spans
    starts = spans[np.where(is_finite, firsts + shift, 0), 0] if len(spans) else firsts
    ends = spans[np.where(is_finite, lasts + shift, 0), 1] if len(spans) else lasts
    best = []
    for index, example in enumerate(windows.examples):
        window_slice = slice(bounds[index], bounds[index + 1])
        flat_outputs = [part[window_slice].ravel() for part in (starts, ends, scores)]
        candidates = _distinct_spans(
            example.context, flat_outputs[0], flat_outputs[1], flat_outputs[2], uses_whole_words=windows.whole_words
        )
        null_score = float(null_scores[window_slice].min())
        best.append(_rank_answers(example.context, candidates, null_score, windows.no_answer_threshold))
    return best


def _distinct_spans(
    context: str, candidate_starts: Any, candidate_ends: Any, candidate_scores: Any, *, uses_whole_words: bool
) -> list[tuple[float, int, int]]:
    """Return scores and character spans, best first: stripped of blanks, unique and not empty.

    Args:
        context: text of the context.
        candidate_starts: first character of each candidate, (candidates,).
        candidate_ends: character after the last character of each candidate, (candidates,).
        candidate_scores: scores of the candidates, (candidates,).
        uses_whole_words: whether spans are widened to whole words.
    """
    scores_by_span: dict[tuple[int, int], float] = {}
    for index in np.argsort(-candidate_scores, kind="stable"):
        if not np.isfinite(candidate_scores[index]) or len(scores_by_span) == N_BEST:
            break
        start, end = int(candidate_starts[index]), int(candidate_ends[index])
        text = context[start:end]
        start += len(text) - len(text.lstrip())
        if text.strip():
            span = (start, start + len(text.strip()))
            scores_by_span.setdefault(
                whole_words(context, *span) if uses_whole_words else span, float(candidate_scores[index])
            )
    return [(score, *span) for span, score in scores_by_span.items()]


def _rank_answers(
    context: str, candidates: list[tuple[float, int, int]], null_score: float, threshold: float | None
) -> list[Answer]:
    """Turn candidates into answers; "no answer" is one of them if a threshold is set or nothing else remains.

    Args:
        context: context of the question.
        candidates: score, start and end in characters of each span, best first.
        null_score: score of "no answer".
        threshold: amount that the score of "no answer" must have beyond the best span's; None if all questions have
            answers.
    """
    if threshold is not None or not candidates:
        # "No answer" comes first only if its score exceeds the best span's by more than the threshold.
        null_index = sum(score >= null_score - (threshold or 0.0) for score, _, _ in candidates)
        candidates = [*candidates[:null_index], (null_score, 0, 0), *candidates[null_index:]]
    scores = np.array([score for score, _, _ in candidates])
    weights = np.exp(scores - scores.max())
    probabilities = (weights / weights.sum()).tolist()
    return [
        Answer(context[start:end], start, end, score, probability)
        for (score, start, end), probability in zip(candidates, probabilities, strict=True)
    ]


def best_of_batch(output: Any, batch: Mapping[str, Any], dataset: Windows) -> tuple[Any, ...]:
    """Return each window's best spans, and its score of no answer.

    Args:
        output: output of the model, with start and end logits.
        batch: tensors of the batch, by name.
        dataset: windows of the questions.

    Returns:
        First positions, last positions and scores of the spans, (B, N) each, and the scores of no answer, (B,).
    """
    import paddle

    start, end = (scores.astype("float32").numpy() for scores in (output.start_logits, output.end_logits))
    context_start = (batch["input_ids"].numpy() == SEPARATOR).argmax(axis=1) + 1
    context_end = batch["attention_mask"].numpy().sum(axis=1)
    spans = best_spans(start, end, context_start, context_end, dataset.max_answer_length)
    null_scores = start[:, NO_ANSWER].astype(np.float64) + end[:, NO_ANSWER]
    return tuple(paddle.to_tensor(part, place=paddle.CPUPlace()) for part in (*spans, null_scores))
