"""From start and end logits to answers: the best spans of a window, and of all windows of a question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.tasks.question_answering.squad import Answer
from toolkit.tasks.question_answering.windows import NO_ANSWER, SEPARATOR, Windows
from toolkit.tasks.question_answering.words import whole_words

#: Number of spans kept per window, and of answers per question.
N_BEST = 20


def best_spans(
    start: np.ndarray, end: np.ndarray, first: np.ndarray, past: np.ndarray, longest: int, count: int = N_BEST
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The best spans of each window: those with the highest ``start[i] + end[j]``, i <= j < i + longest.

    Exact, in O(T log longest) per window: a start can be among the best ``count`` spans only if its own best span is
    among the best ``count`` of all starts.

    Args:
        start, end: (B, T), the logit of each position to be the first, or the last, of the answer.
        first, past: (B,), the positions that an answer may take: ``first <= i < past``.
        longest: the most positions of a span.
        count: how many.

    Returns:
        First positions, last positions and scores, (B, count) each, best first; where there are fewer, -inf.
    """
    batch, length = start.shape
    position = np.arange(length)
    allowed = (position >= first[:, None]) & (position < past[:, None])
    start, end = (np.where(allowed, scores, -np.inf).astype(np.float64) for scores in (start, end))
    longest = min(longest, length)
    highest = start + _sliding_max(end, longest)
    kept = min(count, length)
    starts = np.sort(np.argpartition(-highest, kept - 1, axis=1)[:, :kept], axis=1)
    ends = starts[:, :, None] + np.arange(longest)  # (B, kept, longest)
    padded = np.pad(end, [(0, 0), (0, longest)], constant_values=-np.inf)
    rows = np.arange(batch)[:, None]
    scores = np.take_along_axis(start, starts, 1)[:, :, None] + padded[rows[:, :, None], ends]
    scores, ends = scores.reshape(batch, -1), ends.reshape(batch, -1)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    missing = [(0, 0), (0, count - best.shape[1])]
    return (
        np.pad(starts[rows, best // longest], missing),
        np.pad(ends[rows, best], missing),
        np.pad(scores[rows, best], missing, constant_values=-np.inf),
    )


def _sliding_max(scores: np.ndarray, width: int) -> np.ndarray:
    """(B, T): the maximum of each position and the width - 1 after it."""
    padded = np.pad(scores, [(0, 0), (0, width)], constant_values=-np.inf)
    length, done = scores.shape[1], 1
    while 2 * done <= width:  # padded[i] is now the maximum of `done` positions from i on
        padded[:, : padded.shape[1] - done] = np.maximum(padded[:, : padded.shape[1] - done], padded[:, done:])
        done *= 2
    return np.maximum(padded[:, :length], padded[:, width - done : width - done + length])


def answers(windows: Windows, found: Sequence[np.ndarray]) -> list[list[Answer]]:
    """Return each question's best answers over all its windows, best first, at least one.

    Args:
        windows: the questions.
        found: of every window, in order: first positions, last positions, scores (W, N) as :func:`best_spans` gives
            them, and the score of no answer (W,).
    """
    firsts, lasts, scores, nothing = found
    bounds = np.searchsorted(windows.example_of, np.arange(len(windows.examples) + 1))
    # Window position + shift = token of all contexts'.
    shift = (windows.first_of - windows.offset_of)[:, None]
    real = np.isfinite(scores)
    spans = windows.contexts.spans
    starts = spans[np.where(real, firsts + shift, 0), 0] if len(spans) else firsts
    ends = spans[np.where(real, lasts + shift, 0), 1] if len(spans) else lasts
    best = []
    for index, example in enumerate(windows.examples):
        of = slice(bounds[index], bounds[index + 1])
        flat = [part[of].ravel() for part in (starts, ends, scores)]
        candidates = _distinct(example.context, flat[0], flat[1], flat[2], windows.whole_words)
        null = float(nothing[of].min())
        best.append(_ranked(example.context, candidates, null, windows.no_answer_threshold))
    return best


def _distinct(context: str, starts: Any, ends: Any, scores: Any, widen: bool) -> list[tuple[float, int, int]]:
    """Return scores and character spans, best first, stripped of blanks, unique, none empty.

    Args:
        widen: to whole words.
    """
    seen: dict[tuple[int, int], float] = {}
    for place in np.argsort(-scores, kind="stable"):
        if not np.isfinite(scores[place]) or len(seen) == N_BEST:
            break
        start, end = int(starts[place]), int(ends[place])
        text = context[start:end]
        start += len(text) - len(text.lstrip())
        if text.strip():
            span = (start, start + len(text.strip()))
            seen.setdefault(whole_words(context, *span) if widen else span, float(scores[place]))
    return [(score, *span) for span, score in seen.items()]


def _ranked(
    context: str, candidates: list[tuple[float, int, int]], null: float, threshold: float | None
) -> list[Answer]:
    """Turn candidates into answers, with "no answer" among them if a threshold is set or there are no others."""
    if threshold is not None or not candidates:
        # It comes first only where it scores by more than the threshold above the best span.
        place = sum(score >= null - (threshold or 0.0) for score, _, _ in candidates)
        candidates = [*candidates[:place], (null, 0, 0), *candidates[place:]]
    scores = np.array([score for score, _, _ in candidates])
    weights = np.exp(scores - scores.max())
    shares = (weights / weights.sum()).tolist()
    return [
        Answer(context[start:end], start, end, score, share)
        for (score, start, end), share in zip(candidates, shares, strict=True)
    ]


def best_of_batch(output: Any, batch: Mapping[str, Any], dataset: Windows) -> tuple[Any, ...]:
    """Return each window's best spans (first positions, last positions, scores: [B, N]), no answer's score [B]."""
    import paddle

    start, end = (scores.astype("float32").numpy() for scores in (output.start_logits, output.end_logits))
    first = (batch["input_ids"].numpy() == SEPARATOR).argmax(axis=1) + 1
    past = batch["attention_mask"].numpy().sum(axis=1)
    spans = best_spans(start, end, first, past, dataset.max_answer_length)
    nothing = start[:, NO_ANSWER].astype(np.float64) + end[:, NO_ANSWER]
    return tuple(paddle.to_tensor(part, place=paddle.CPUPlace()) for part in (*spans, nothing))
