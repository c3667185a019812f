"""Prepare the windows of a split's questions, notes about them for the user, and the scores of a baseline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from toolkit.recipe.recipe import require_setting
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
    split_name: str,
    length: int | None,
    *,
    uses_cache: bool = True,
) -> Windows:
    """Make the windows of some questions, cut and padded according to the recipe.

    Args:
        recipe: recipe of the run.
        tokenizer: tokenizer of the model.
        examples: questions.
        split_name: name of their split; "" for questions to a finished run.
        length: number of tokens to which windows are padded; None for ``data.max_length``.
        uses_cache: whether the tokens are read from and written to the cache.

    Raises:
        UserError: a question leaves too few tokens for its context.
    """
    from toolkit.tasks.question_answering.windows import QuestionTooLongError, Windows

    data = recipe.data
    try:
        return Windows(
            examples,
            tokenizer,
            data.max_length,
            require_setting(data.stride),
            require_setting(data.max_answer_length),
            data.no_answer_threshold,
            split_name,
            length,
            whole_words=require_setting(data.whole_words),
            uses_cache=uses_cache,
        )
    except QuestionTooLongError as error:
        raise recipe.error("data.max_length", str(error)) from None


def notes_of(split_name: str, windows: Windows) -> list[str]:
    """Return notes for the user, such as about questions without an answer or answers that start inside a token."""
    unanswerable = sum(not item.answers for item in windows.examples)
    notes = []
    if unanswerable and windows.no_answer_threshold is None:
        notes.append(
            f"{unanswerable} {split_name} questions have no answer; "
            "set data.no_answer_threshold (0.0) so that none is given"
        )
    if inexact := windows.inexact():
        example, covered_text = inexact[0]
        notes.append(
            f"{len(inexact)} {split_name} answers begin or end inside a token, "
            f"such as {example.answers[0]!r} in {covered_text!r}"
        )
    if windows.whole_words and (cut_examples := examples_inside_words(windows.examples)):
        item = cut_examples[0]
        notes.append(
            f"{len(cut_examples)} {split_name} answers begin or end inside a word, "
            f"such as {squad.format_value(item.answers[0])} ({item.id}), and are found with the whole word; "
            "data.whole_words: false looks for parts of words"
        )
    answer_spans = np.array([windows.answer_tokens(index) for index in range(len(windows.examples))])
    lengths = answer_spans[:, 1] - answer_spans[:, 0] + 1
    if (num_longer := int((lengths > windows.max_answer_length).sum())) > 0:
        notes.append(
            f"{num_longer} {split_name} answers are longer than data.max_answer_length and cannot be found; "
            f"the longest has {lengths.max()} tokens"
        )
    return notes


def examples_inside_words(examples: Sequence[Example]) -> list[Example]:
    """Return the questions whose first answer starts or ends inside a word.

    Args:
        examples: questions with their contexts and answers.
    """
    from toolkit.tasks.question_answering.words import whole_words

    examples_with_parts = []
    for item in examples:
        if item.answers and item.answers[0].strip():
            text = item.answers[0]
            start = item.answer_starts[0] + len(text) - len(text.lstrip())
            span = (start, start + len(text.strip()))
            if whole_words(item.context, *span) != span:
                examples_with_parts.append(item)
    return examples_with_parts


def guess_scores(windows: Windows) -> dict[str, float]:
    """Return the scores of :func:`.scoring.guess`, which answers without a model."""
    return scoring.score(windows.examples, guess_answers(windows)) if windows.examples else {}


def guess_answers(windows: Windows) -> dict[str, str]:
    """Return the answer of :func:`.scoring.guess` to each question, by the question's id."""
    return {item.id: scoring.guess(item.question, item.context) for item in windows.examples}
