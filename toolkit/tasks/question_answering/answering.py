"""Answer questions with a finished run: a single question, or the questions in the rows of a file."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data.batches import collate, trim_padding
from toolkit.errors import UserError
from toolkit.recipe.recipe import require_setting
from toolkit.tasks.interface import LabeledRows
from toolkit.tasks.question_answering.preparation import make_windows
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.tasks.interface import Run
    from toolkit.tasks.question_answering.squad import Answer
    from toolkit.tasks.question_answering.windows import Windows


#: Number of questions that :func:`show_answers` prints.
SHOWN_QUESTIONS = 3


def predict(run: Run, console: Console, question: str, context: str) -> Answer:
    """Print and return the answer to a question about a context, with its score and the sentence around it."""
    from rich.text import Text

    best = answer_question(run, question, context)[0]
    if not best.text:
        console.print(f"no answer (probability {best.probability:.3f})", highlight=False)
        return best
    start, end = sentence_around(context, best.start, best.end)
    console.print(Text(best.text, style="bold"), soft_wrap=True)
    console.print(f"score {best.score:.3f}, probability {best.probability:.3f}", highlight=False)
    highlighted_sentence = Text(context[start:end])
    highlighted_sentence.stylize("bold", best.start - start, best.end - start)
    console.print(highlighted_sentence, soft_wrap=True)
    return best


def show_answers(windows: Windows, console: Console) -> None:
    """Print some questions of a split, spread evenly, with the model's answer marked in its sentence: [answer].

    An answer that differs from all reference answers is followed by the first of them.
    """
    from toolkit.tasks.question_answering.scoring import exact_match

    answers_by_question = list(zip(windows.examples, windows.best_answers or (), strict=True))
    for item, (answer, *_) in answers_by_question[:: max(1, -(-len(answers_by_question) // SHOWN_QUESTIONS))]:
        console.print(f"  {item.question}", highlight=False, markup=False, soft_wrap=True, style="bold")
        start, end = sentence_around(item.context, answer.start, answer.end)
        before, after = item.context[start : answer.start], item.context[answer.end : end]
        sentence = f"{before}[{answer.text}]{after}" if answer.text else "no answer"
        is_correct = any(exact_match(answer.text, reference) for reference in item.answers or ("",))
        remark = "" if is_correct else f"  (correct: {item.answers[0] if item.answers else 'no answer'})"
        console.print(f"    {sentence}{remark}", highlight=False, markup=False, soft_wrap=True)


def answer_question(run: Run, question: str, context: str) -> list[Answer]:
    """Return the best answers to a question, best first.

    Args:
        run: trained run.
        question: question to answer.
        context: text with the answer.
    """
    if not question.strip() or not context.strip():
        raise UserError("the question or the context is empty")
    example = Example("question", context, question, (), ())
    return answers_of(run, make_windows(run.recipe, run.tokenizer, [example], "", run.length))[0]


def answers_of(run: Run, windows: Windows, advance: Callable[[int], None] = lambda count: None) -> list[list[Answer]]:
    """Return the best answers to each question, best first. Other questions do not affect them.

    Args:
        run: finished run.
        windows: windows of the questions.
        advance: called with the number of questions answered since the last call.
    """
    import paddle

    from toolkit.tasks.question_answering import spans

    batch_size = require_setting(run.recipe.train.eval_batch_size)
    outputs, num_done = [], 0
    for start in range(0, len(windows), batch_size):
        stop = min(start + batch_size, len(windows))
        batch = trim_padding(collate([windows[index] for index in range(start, stop)]), run.model.config)
        paddle.seed(run.recipe.seed)  # otherwise the LSH hashes of a window would depend on the windows before it
        with paddle.no_grad():
            inputs = {name: paddle.to_tensor(batch[name]) for name in ("input_ids", "attention_mask")}
            outputs.append(spans.best_of_batch(run.model(**inputs), inputs, windows))
        num_complete = len(windows.examples) if stop == len(windows) else int(windows.example_of[stop])
        advance(num_complete - num_done)
        num_done = num_complete
    arrays = [np.concatenate([part.numpy() for part in parts]) for parts in zip(*outputs, strict=True)]
    return spans.answers(windows, arrays)


def sentence_around(context: str, start: int, end: int) -> tuple[int, int]:
    """Return the start and end of the sentence or line that contains ``context[start:end]``."""
    breaks = [match.end() for match in re.finditer(r"[.!?…。]['\"”’)\]]*\s+|\n+", context)]
    sentence_start = max((index for index in breaks if index <= start), default=0)
    sentence_end = min((index for index in breaks if index >= end), default=len(context))
    return sentence_start, sentence_start + len(context[sentence_start:sentence_end].rstrip())


def label_rows(run: Run, column_texts: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> LabeledRows:
    """Predict the best answer to each question; see :meth:`toolkit.tasks.interface.Task.label_rows`.

    Args:
        run: trained run.
        column_texts: texts of each input column, by name.
        advance: function that is called with the number of rows that were finished.
    """
    from toolkit.tasks.question_answering.windows import has_room

    data = run.recipe.data
    fitting_rows = [
        index
        for index, question in enumerate(column_texts["question"])
        if has_room(question, run.tokenizer, data.max_length, require_setting(data.stride))
    ]
    examples = [
        Example(str(index), column_texts["context"][index], column_texts["question"][index], (), ())
        for index in fitting_rows
    ]
    advance(len(column_texts["question"]) - len(fitting_rows))
    best_answers: list[tuple[Any, ...]] = [(None, None, None, None)] * len(column_texts["question"])
    if examples:
        windows = make_windows(run.recipe, run.tokenizer, examples, "", run.length, uses_cache=False)
        for index, (best_answer, *_) in zip(fitting_rows, answers_of(run, windows, advance), strict=True):
            best_answers[index] = (
                best_answer.text,
                best_answer.score,
                best_answer.probability,
                best_answer.start if best_answer.text else None,
            )
    answered_rows = set(fitting_rows)
    note = "a question that leaves its context no room in the model, and no answer"
    left_out = [index for index in range(len(best_answers)) if index not in answered_rows]
    return LabeledRows([list(column) for column in zip(*best_answers, strict=True)], {note: left_out})
