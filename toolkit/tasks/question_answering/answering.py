"""Answers of a finished run: to one question, and to those in the rows of a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.batches import collate, without_padding
from toolkit.errors import UserError
from toolkit.recipe.recipe import settled
from toolkit.tasks.interface import LabeledRows
from toolkit.tasks.question_answering.preparation import make_windows
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.tasks.interface import Run
    from toolkit.tasks.question_answering.squad import Answer
    from toolkit.tasks.question_answering.windows import Windows


def predict(run: Run, console: Console, question: str, context: str) -> Answer:
    """Print and return the answer to a question about a context, with its score and the sentence around it."""
    from rich.text import Text

    best = answer(run, question, context)[0]
    if not best.text:
        console.print(f"no answer (probability {best.probability:.3f})", highlight=False)
        return best
    start, end = sentence_around(context, best.start, best.end)
    console.print(Text(best.text, style="bold"), soft_wrap=True)
    console.print(f"score {best.score:.3f}, probability {best.probability:.3f}", highlight=False)
    shown = Text(context[start:end])
    shown.stylize("bold", best.start - start, best.end - start)
    console.print(shown, soft_wrap=True)
    return best


def answer(run: Run, question: str, context: str) -> list[Answer]:
    """The best answers to a question, best first."""
    if not question.strip() or not context.strip():
        raise UserError("the question or the context is empty")
    asked = Example("question", context, question, (), ())
    return answers_of(run, make_windows(run.recipe, run.tokenizer, [asked], "", run.length))[0]


def answers_of(run: Run, windows: Windows, advance: Callable[[int], None] = lambda count: None) -> list[list[Answer]]:
    """Return the best answers to each question, best first. Other questions do not affect them.

    Args:
        advance: called with the number newly done.
    """
    import paddle

    from toolkit.tasks.question_answering import spans

    size = settled(run.recipe.train.eval_batch_size)
    found, done = [], 0
    for start in range(0, len(windows), size):
        past = min(start + size, len(windows))
        batch = without_padding(collate([windows[index] for index in range(start, past)]), run.model.config)
        paddle.seed(run.recipe.seed)  # or a window's LSH hashes would depend on its place among others
        with paddle.no_grad():
            inputs = {name: paddle.to_tensor(batch[name]) for name in ("input_ids", "attention_mask")}
            found.append(spans.best_of_batch(run.model(**inputs), inputs, windows))
        complete = len(windows.examples) if past == len(windows) else int(windows.example_of[past])
        advance(complete - done)
        done = complete
    kept = [np.concatenate([part.numpy() for part in parts]) for parts in zip(*found, strict=True)]
    return spans.answers(windows, kept)


def sentence_around(context: str, start: int, end: int) -> tuple[int, int]:
    """Return the start and end of the sentence or line that holds ``context[start:end]``."""
    breaks = [match.end() for match in re.finditer(r"[.!?…。]['\"”’)\]]*\s+|\n+", context)]
    first = max((place for place in breaks if place <= start), default=0)
    last = min((place for place in breaks if place >= end), default=len(context))
    return first, first + len(context[first:last].rstrip())


def label_rows(run: Run, columns: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> LabeledRows:
    """The best answer to each question; see :meth:`toolkit.tasks.interface.Task.label_rows`."""
    from toolkit.tasks.question_answering.windows import has_room

    data = run.recipe.data
    fitting = [
        index
        for index, question in enumerate(columns["question"])
        if has_room(question, run.tokenizer, data.max_length, settled(data.stride))
    ]
    examples = [Example(str(index), columns["context"][index], columns["question"][index], (), ()) for index in fitting]
    advance(len(columns["question"]) - len(fitting))
    best: list[tuple[Any, ...]] = [(None, None, None, None)] * len(columns["question"])
    if examples:
        windows = make_windows(run.recipe, run.tokenizer, examples, "", run.length, cached=False)
        for index, (one, *_) in zip(fitting, answers_of(run, windows, advance), strict=True):
            best[index] = (one.text, one.score, one.probability, one.start if one.text else None)
    asked = set(fitting)
    what = "a question that leaves its context no room in the model, and no answer"
    left_out = [index for index in range(len(best)) if index not in asked]
    return LabeledRows([list(column) for column in zip(*best, strict=True)], {what: left_out})
