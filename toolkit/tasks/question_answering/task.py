"""Question answering: the span of a context that answers a question, in SQuAD's form, with v2's no answer.

A context is read in overlapping windows (:mod:`.windows`); the model's logits become answers in :mod:`.spans`, which
:mod:`.scoring` scores.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.recipe.recipe import require_setting
from toolkit.tasks.interface import Baseline, Description, LabeledRows, PreparedData
from toolkit.tasks.question_answering import scoring, squad
from toolkit.tasks.question_answering.answering import show_answers
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    import datasets
    from rich.console import Console

    from models.port.tokenization import Tokenizer
    from toolkit.pages.elements import Section
    from toolkit.recipe.recipe import Recipe
    from toolkit.tasks.interface import Run
    from toolkit.tasks.question_answering.squad import Answer
    from toolkit.tasks.question_answering.windows import Windows

HEAD = "question_answering"
LOWER_IS_BETTER = {"f1": False, "exact_match": False, "loss": True}
CORPORA = {"cldr_facts": "toolkit.tasks.corpora.cldr_facts"}
PREDICTS_FROM: tuple[str, ...] = ("question", "context")
ROW_COLUMNS: tuple[str, ...] = ("question", "context")
DESCRIPTION = Description(
    name="question answering",
    pipeline_tag="question-answering",
    metrics=("exact_match", "f1"),
    auto_class="AutoModelForQuestionAnswering",
    examples="windows",
    next_command='toolkit predict {run} --question "..." --context FILE',
)

#: Files in the run folder: the best answers in SQuAD's official format, and the n best of each question.
PREDICTIONS, NEXT_BEST = "predictions.json", "nbest.json"
#: Number of characters of a context that a row of predictions shows around an answer.
MAX_PASSAGE_CHARACTERS = 480


def check(recipe: Recipe) -> None:
    """Reject data that cannot contain answers, and a stride that leaves no tokens for new context in a window."""
    data = recipe.data
    if data.dataset == "text":
        raise recipe.error("data.dataset", "plain text holds no questions; use json, as SQuAD's, or csv")
    if data.document is not None and data.dataset in CORPORA:
        raise recipe.error("data.document", f"{data.dataset} has no documents; remove it")
    if require_setting(data.stride) >= data.max_length - 1:
        message = f"windows of {data.max_length} tokens cannot overlap by {data.stride}; set at most a half"
        raise recipe.error("data.stride", message)


# -- data -----------------------------------------------------------------------------------------------------------


def load_splits(recipe: Recipe) -> datasets.DatasetDict:
    """Return the splits of :func:`.questions.load_splits`, with the columns of SQuAD."""
    from toolkit.tasks.question_answering import questions

    return questions.load_splits(recipe, CORPORA)


def texts(rows: datasets.Dataset) -> Sequence[str]:
    """Return the questions of a split, and each context once.

    Args:
        rows: rows of the split.
    """
    distinct_texts: dict[str, None] = {}
    for context, question in zip(rows["context"], rows["question"], strict=True):
        distinct_texts[question] = distinct_texts[context] = None
    return list(distinct_texts)


def control_codes(rows: datasets.Dataset) -> Sequence[str]:
    """Return no control codes, because questions are asked without them.

    Args:
        rows: rows of the split.
    """
    return ()


# -- training and evaluation ----------------------------------------------------------------------------------------


def prepare(
    recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None
) -> PreparedData:
    """Cut the splits of :func:`load_splits` into windows of up to ``data.max_length`` tokens, padded to ``length``.

    See :class:`.windows.Windows`.

    Raises:
        UserError: a question leaves too few tokens for its context.
    """
    from toolkit.tasks.question_answering.preparation import make_windows, notes_of

    windows = {
        split_name: make_windows(
            recipe, tokenizer, [squad.parse_example(row, split_name) for row in rows], split_name, length
        )
        for split_name, rows in splits.items()
    }
    question_counts = ", ".join(f"{len(rows.examples)} {split_name}" for split_name, rows in windows.items())
    num_windows = sum(len(rows) for rows in windows.values())
    return PreparedData(
        train=windows["train"],
        validation=windows["validation"],
        test=windows.get("test"),
        summary=f"{question_counts} questions in {num_windows} windows of {recipe.data.max_length} tokens",
        offsets=True,
        notes=lambda: [note for split_name, rows in windows.items() for note in notes_of(split_name, rows)],
    )


def num_loss_terms(batch: Mapping[str, Any]) -> int:
    """Return the number of windows: each has one start and one end position.

    Args:
        batch: tensors of the batch, by name.
    """
    return len(batch["start_positions"])


def token_counts(dataset: Windows) -> np.ndarray:
    """Return the number of tokens of each window: question, separator and part of the context.

    Args:
        dataset: evaluated data set.
    """
    return dataset.offset_of + dataset.size_of


def outputs(output: Any, batch: Mapping[str, Any], dataset: Windows) -> tuple[Any, ...]:
    """Return the best spans of each window (:func:`.spans.best_of_batch`).

    Args:
        output: output of the model.
        batch: tensors of the batch, by name.
        dataset: evaluated data set.
    """
    from toolkit.tasks.question_answering.spans import best_of_batch

    return best_of_batch(output, batch, dataset)


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: Windows) -> dict[str, float]:
    """Return ``exact_match`` and ``f1`` in percent of whole questions, each with one answer from many windows.

    The answers themselves are stored in ``dataset.best_answers``.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    from toolkit.tasks.question_answering import spans

    dataset.best_answers = spans.answers(dataset, outputs)
    return scoring.score(dataset.examples, _best_texts(dataset))


def confidence_intervals(outputs: tuple[np.ndarray, ...], dataset: Windows) -> dict[str, list[float]]:
    """Return the interval of each metric of :func:`compute_metrics`, from resampled questions.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    from toolkit.tasks.question_answering import spans

    best_answers = spans.answers(dataset, outputs)
    predictions = {item.id: best[0].text for item, best in zip(dataset.examples, best_answers, strict=True)}
    return scoring.score_intervals(dataset.examples, predictions)


def _best_texts(windows: Windows) -> dict[str, str]:
    """Return the text of the best answer by id, as in a predictions file."""
    return {item.id: best[0].text for item, best in zip(windows.examples, windows.best_answers or (), strict=True)}


def predictions(
    run: Run, rows: datasets.Dataset, dataset: Windows, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Yield the row of each question in ``predictions-SPLIT.csv``.

    It has the best answer, the reference answers as a JSON list, exact match and F1 (0 to 1), the answer's score and
    probability, both starts in the context, its number of tokens, and a passage that shows them. Starts are in
    characters of the context; the cell is empty without an answer.

    Args:
        run: trained run.
        rows: rows of the split.
        dataset: evaluated data set.
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
    """
    from toolkit.tasks.question_answering import spans

    has_unanswerable = any(not item.answers for item in dataset.examples)
    sizes = dataset.contexts.sizes()[dataset.context_of]
    for item, best_answers, num_tokens in zip(dataset.examples, spans.answers(dataset, outputs), sizes, strict=True):
        best_answer = best_answers[0]
        exact, f1 = scoring.agreement(best_answer.text, item.answers, has_unanswerable=has_unanswerable)
        start, end = passage(item, best_answer)
        yield {
            "id": item.id,
            "question": item.question,
            "prediction": best_answer.text,
            "answers": json.dumps(item.answers, ensure_ascii=False),
            "exact_match": exact,
            "f1": f1,
            "score": best_answer.score,
            "probability": best_answer.probability,
            "start": best_answer.start if best_answer.text else "",
            "answer_start": item.answer_starts[0] if item.answers else "",
            "context_tokens": int(num_tokens),
            "passage_start": start,
            "passage": item.context[start:end],
        }


def passage(item: Example, answer: Answer) -> tuple[int, int]:
    """Return the span of a context around the first reference answer, and around the model's answer if it is near."""
    predicted_span = (answer.start, answer.end) if answer.text else None
    reference_span = (item.answer_starts[0], item.answer_starts[0] + len(item.answers[0])) if item.answers else None
    start, end = reference_span or predicted_span or (0, 0)
    if predicted_span and max(end, predicted_span[1]) - min(start, predicted_span[0]) <= MAX_PASSAGE_CHARACTERS:
        start, end = min(start, predicted_span[0]), max(end, predicted_span[1])
    margin = max(MAX_PASSAGE_CHARACTERS - (end - start), 0) // 2
    return max(start - margin, 0), min(end + margin, len(item.context))


def report(folder: Path, predictions_path: Path, results: Mapping[str, Any]) -> Iterator[Section]:
    """Show scores by question word and by context length, and the worst answers.

    Args:
        folder: run folder.
        predictions_path: path of the split's predictions file.
        results: content of ``metrics.json``.
    """
    from toolkit.tasks.question_answering.report import report_sections

    return report_sections(predictions_path)


def baselines(
    recipe: Recipe,
    tokenizer: Tokenizer,
    splits: datasets.DatasetDict,
    prepared_data: PreparedData,
    console: Console,
) -> dict[str, Baseline]:
    """Return the scores of :func:`.scoring.guess`, which answers without a model.

    Args:
        recipe: recipe of the run.
        tokenizer: tokenizer of the run.
        splits: rows of each split.
        prepared_data: model inputs of each split.
        console: console for progress.
    """
    from toolkit.tasks.question_answering.preparation import guess_answers, guess_scores

    windows = {"validation": prepared_data.validation, "test": prepared_data.test}
    scores_by_split = {split_name: guess_scores(rows) for split_name, rows in windows.items() if rows is not None}
    intervals = {
        split_name: scoring.score_intervals(rows.examples, guess_answers(rows))
        for split_name, rows in windows.items()
        if rows is not None and split_name == "test"
    }
    return {"longest name of the likeliest sentence": Baseline(scores_by_split, intervals)}


def calibrate(
    recipe: Recipe, prepared_data: PreparedData, outputs: Mapping[str, tuple[np.ndarray, ...]]
) -> dict[str, Any]:
    """Return no parameters, because answers are only ranked.

    Args:
        recipe: recipe of the run.
        prepared_data: model inputs of each split.
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
    """
    return {}


def write_artifacts(run: Run, trainer: Any, prepared_data: PreparedData, console: Console) -> None:
    """Write the best model's answers on the test split, or on the validation split without a test split.

    ``predictions.json`` has SQuAD's official format; ``nbest.json`` has several answers to each question.

    Args:
        run: trained run.
        trainer: trainer of the run, with the best weights.
        prepared_data: model inputs of each split.
        console: console for progress.
    """
    from toolkit.files.whole import write_text

    split_name = "validation" if prepared_data.test is None else "test"
    windows = getattr(prepared_data, split_name)
    if (
        split_name == "validation" or windows.best_answers is None
    ):  # recorded answers may belong to the last weights instead of the best
        trainer.measure(windows, split_name)
    answers_by_id = {
        item.id: [
            {"text": answer.text, "start": answer.start, "probability": round(answer.probability, 6)}
            for answer in best_answers
        ]
        for item, best_answers in zip(windows.examples, windows.best_answers or (), strict=True)
    }
    for name, content in ((PREDICTIONS, _best_texts(windows)), (NEXT_BEST, answers_by_id)):
        write_text(run.folder / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    console.print(f"answers on {split_name}: {run.folder / PREDICTIONS}; for example:", highlight=False, soft_wrap=True)
    show_answers(windows, console)


# -- predictions ----------------------------------------------------------------------------------------------------


def predict(run: Run, console: Console, question: str, context: str) -> Answer:
    """Print and return the answer to a question about a context, with its score and the sentence around it."""
    from toolkit.tasks.question_answering import answering

    return answering.predict(run, console, question, context)


def prediction_columns(run: Run) -> dict[str, type]:
    """Return the types of the columns, by name.

    They are ``predicted_answer`` ("" for no answer), its ``score`` and ``probability``, and ``answer_start``, its
    position in the context in characters.

    Args:
        run: trained run.
    """
    return {"predicted_answer": str, "score": float, "probability": float, "answer_start": int}


def label_rows(run: Run, column_texts: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> LabeledRows:
    """Predict the best answer to each question; see :meth:`toolkit.tasks.interface.Task.label_rows`.

    Args:
        run: trained run.
        column_texts: texts of each input column, by name.
        advance: function that is called with the number of rows that were finished.
    """
    from toolkit.tasks.question_answering import answering

    return answering.label_rows(run, column_texts, advance)
