"""The windows of a split's questions, what the user should know about them, and how a guess without a model scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from toolkit.recipe.recipe import settled
from toolkit.tasks.question_answering import scoring, squad
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    from models.port.tokenization import Tokenizer
    from toolkit.recipe.recipe import Recipe
    from toolkit.tasks.question_answering.windows import Windows


def make_windows(
    recipe: Recipe,
    tokenizer: Tokenizer,
    examples: Sequence[Example],
    name: str,
    length: int | None,
    cached: bool = True,
) -> Windows:
    """Make the windows of some questions, cut and padded as the recipe says.

    Args:
        name: of their split; "" for questions to a finished run.
        length: that windows are padded to; None for ``data.max_length``.
        cached: whether their tokens are kept.

    Raises:
        UserError: a question leaves its context no room.
    """
    from toolkit.tasks.question_answering.windows import QuestionTooLong, Windows

    data = recipe.data
    try:
        return Windows(
            examples,
            tokenizer,
            data.max_length,
            settled(data.stride),
            settled(data.max_answer_length),
            data.no_answer_threshold,
            settled(data.whole_words),
            name,
            length,
            cached,
        )
    except QuestionTooLong as problem:
        raise recipe.error("data.max_length", str(problem)) from None


def notes_of(name: str, windows: Windows) -> list[str]:
    """List what the user should know, such as questions without an answer or answers that are no token span."""
    unanswerable = sum(not item.answers for item in windows.examples)
    notes = []
    if unanswerable and windows.no_answer_threshold is None:
        notes.append(
            f"{unanswerable} {name} questions have no answer; set data.no_answer_threshold (0.0) so that none is given"
        )
    if inexact := windows.inexact():
        example, covered = inexact[0]
        notes.append(
            f"{len(inexact)} {name} answers begin or end inside a token, such as {example.answers[0]!r} in {covered!r}"
        )
    if windows.whole_words and (cut := inside_words(windows.examples)):
        item = cut[0]
        notes.append(
            f"{len(cut)} {name} answers begin or end inside a word, such as {squad.shown(item.answers[0])} "
            f"({item.id}), and are found with the whole word; data.whole_words: false looks for parts of words"
        )
    tokens = np.array([windows.answer_tokens(index) for index in range(len(windows.examples))])
    lengths = tokens[:, 1] - tokens[:, 0] + 1
    if (longer := int((lengths > windows.max_answer_length).sum())) > 0:
        notes.append(
            f"{longer} {name} answers are longer than data.max_answer_length and cannot be found; "
            f"the longest has {lengths.max()} tokens"
        )
    return notes


def inside_words(examples: Sequence[Example]) -> list[Example]:
    """Return the questions whose first answer begins or ends in a word."""
    from toolkit.tasks.question_answering.words import whole_words

    found = []
    for item in examples:
        if item.answers and item.answers[0].strip():
            text = item.answers[0]
            start = item.answer_starts[0] + len(text) - len(text.lstrip())
            span = (start, start + len(text.strip()))
            if whole_words(item.context, *span) != span:
                found.append(item)
    return found


def baseline_of(windows: Windows) -> dict[str, float]:
    """The scores of :func:`.scoring.guess`, which answers without a model."""
    found = {item.id: scoring.guess(item.question, item.context) for item in windows.examples}
    return scoring.score(windows.examples, found) if windows.examples else {}
