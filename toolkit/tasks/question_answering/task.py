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

from toolkit.recipe.recipe import settled
from toolkit.tasks.interface import Description, LabeledRows, PreparedData
from toolkit.tasks.question_answering import scoring, squad
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import datasets
    from rich.console import Console

    from models.port.tokenization import Tokenizer
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
#: Characters of a context that a row of predictions shows around an answer.
PASSAGE = 480


def check(recipe: Recipe) -> None:
    """Refuse data that cannot hold answers, and a stride that leaves no room for new context in the next window."""
    data = recipe.data
    if data.dataset == "text":
        raise recipe.error("data.dataset", "plain text holds no questions; use json, as SQuAD's, or csv")
    if data.document is not None and data.dataset in CORPORA:
        raise recipe.error("data.document", f"{data.dataset} has no documents; remove it")
    if settled(data.stride) >= data.max_length - 1:
        message = f"windows of {data.max_length} tokens cannot overlap by {data.stride}; set at most a half"
        raise recipe.error("data.stride", message)


# -- data -----------------------------------------------------------------------------------------------------------


def load_splits(recipe: Recipe) -> datasets.DatasetDict:
    """Splits with the columns ``id``, ``context``, ``question`` and ``answers``; see :func:`.questions.load_splits`."""
    from toolkit.tasks.question_answering import questions

    return questions.load_splits(recipe, CORPORA)


def texts(rows: datasets.Dataset) -> Sequence[str]:
    """The questions of a split, and each context once."""
    found: dict[str, None] = {}
    for context, question in zip(rows["context"], rows["question"], strict=True):
        found[question] = found[context] = None
    return list(found)


def control_codes(rows: datasets.Dataset) -> Sequence[str]:
    """None: a question is asked as it stands."""
    return ()


# -- training and evaluation ----------------------------------------------------------------------------------------


def prepare(
    recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None
) -> PreparedData:
    """Cut the splits of :func:`load_splits` into windows (:class:`.windows.Windows`) of up to ``data.max_length``
    tokens, padded to ``length``.

    Raises:
        UserError: a question that leaves its context no room.
    """
    from toolkit.tasks.question_answering.preparation import make_windows, notes_of

    windows = {
        name: make_windows(recipe, tokenizer, [squad.example(row, name) for row in rows], name, length)
        for name, rows in splits.items()
    }
    sizes = ", ".join(f"{len(rows.examples)} {name}" for name, rows in windows.items())
    count = sum(len(rows) for rows in windows.values())
    return PreparedData(
        train=windows["train"],
        validation=windows["validation"],
        test=windows.get("test"),
        summary=f"{sizes} questions in {count} windows of {recipe.data.max_length} tokens",
        offsets=True,
        notes=lambda: [note for name, rows in windows.items() for note in notes_of(name, rows)],
    )


def num_loss_terms(batch: Mapping[str, Any]) -> int:
    """The number of windows: each has one start and one end position."""
    return len(batch["start_positions"])


def token_counts(dataset: Windows) -> np.ndarray:
    """Return each window's tokens: question, separator and part of the context."""
    return dataset.offset_of + dataset.size_of


def outputs(output: Any, batch: Mapping[str, Any], dataset: Windows) -> tuple[Any, ...]:
    """:func:`.spans.best_of_batch`."""
    from toolkit.tasks.question_answering.spans import best_of_batch

    return best_of_batch(output, batch, dataset)


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: Windows) -> dict[str, float]:
    """Return ``exact_match`` and ``f1`` in percent of whole questions: many windows, one answer.

    The answers themselves are left in ``dataset.answered``.
    """
    from toolkit.tasks.question_answering import spans

    dataset.answered = spans.answers(dataset, outputs)
    return scoring.score(dataset.examples, _first(dataset))


def _first(windows: Windows) -> dict[str, str]:
    """Return id -> best answer, as in a predictions file."""
    return {item.id: best[0].text for item, best in zip(windows.examples, windows.answered or (), strict=True)}


def predictions(
    run: Run, rows: datasets.Dataset, dataset: Windows, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Yield for each question: the best answer, the reference answers as a JSON list, exact match and F1 (0 to 1), the
    answer's score and probability, both starts in the context, its number of tokens, a passage that shows them.

    Starts are in characters of the context; the cell is empty without an answer.
    """
    from toolkit.tasks.question_answering import spans

    unanswerable = any(not item.answers for item in dataset.examples)
    sizes = dataset.contexts.sizes()[dataset.context_of]
    for item, best, size in zip(dataset.examples, spans.answers(dataset, outputs), sizes, strict=True):
        first = best[0]
        exact, overlap = scoring.agreement(first.text, item.answers, unanswerable)
        start, end = passage(item, first)
        yield {
            "id": item.id,
            "question": item.question,
            "prediction": first.text,
            "answers": json.dumps(item.answers, ensure_ascii=False),
            "exact_match": exact,
            "f1": overlap,
            "score": first.score,
            "probability": first.probability,
            "start": first.start if first.text else "",
            "answer_start": item.answer_starts[0] if item.answers else "",
            "context_tokens": int(size),
            "passage_start": start,
            "passage": item.context[start:end],
        }


def passage(item: Example, answer: Answer) -> tuple[int, int]:
    """The part of a context around the first reference answer, and around the model's too where that is near."""
    ours = (answer.start, answer.end) if answer.text else None
    theirs = (item.answer_starts[0], item.answer_starts[0] + len(item.answers[0])) if item.answers else None
    start, end = theirs or ours or (0, 0)
    if ours and max(end, ours[1]) - min(start, ours[0]) <= PASSAGE:
        start, end = min(start, ours[0]), max(end, ours[1])
    margin = max(PASSAGE - (end - start), 0) // 2
    return max(start - margin, 0), min(end + margin, len(item.context))


def report(folder: Path, predictions: Path, results: Mapping[str, Any]) -> Iterator[Element]:
    """Show scores by question word and by context length, and the worst answers."""
    from toolkit.tasks.question_answering.report import sections

    return sections(predictions)


def baselines(
    recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, prepared: PreparedData
) -> dict[str, dict[str, dict[str, float]]]:
    """Return the scores of :func:`.scoring.guess`, which answers without a model."""
    from toolkit.tasks.question_answering.preparation import baseline_of

    windows = {"validation": prepared.validation, "test": prepared.test}
    found = {split: baseline_of(rows) for split, rows in windows.items() if rows is not None}
    return {"longest name of the likeliest sentence": found}


def calibrate(recipe: Recipe, prepared: PreparedData, outputs: Mapping[str, tuple[np.ndarray, ...]]) -> dict[str, Any]:
    """None: answers are ranked, and have no probabilities."""
    return {}


def write_artifacts(run: Run, trainer: Any, prepared: PreparedData, console: Console) -> None:
    """Write the best model's answers on the test split, or where there is none on the validation split:
    ``predictions.json`` in SQuAD's official format, ``nbest.json`` with the next best ones."""
    from toolkit.files.whole import write_text

    split = "validation" if prepared.test is None else "test"
    windows = getattr(prepared, split)
    if split == "validation" or windows.answered is None:  # its answers are the last weights', maybe not the best
        trainer.measure(windows, split)
    ranked = {
        item.id: [
            {"text": answer.text, "start": answer.start, "probability": round(answer.probability, 6)} for answer in best
        ]
        for item, best in zip(windows.examples, windows.answered or (), strict=True)
    }
    for name, content in ((PREDICTIONS, _first(windows)), (NEXT_BEST, ranked)):
        write_text(run.folder / name, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
    console.print(f"answers on {split}: {run.folder / PREDICTIONS}", highlight=False, soft_wrap=True)


# -- predictions ----------------------------------------------------------------------------------------------------


def predict(run: Run, console: Console, question: str, context: str) -> Answer:
    """Print and return the answer to a question about a context, with its score and the sentence around it."""
    from toolkit.tasks.question_answering import answering

    return answering.predict(run, console, question, context)


def prediction_columns(run: Run) -> dict[str, type]:
    """``predicted_answer`` ("" for no answer), its ``score`` and ``probability``, and ``answer_start``, where in
    the context it begins, in characters."""
    return {"predicted_answer": str, "score": float, "probability": float, "answer_start": int}


def label_rows(run: Run, columns: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> LabeledRows:
    """The best answer to each question; see :meth:`toolkit.tasks.interface.Task.label_rows`."""
    from toolkit.tasks.question_answering import answering

    return answering.label_rows(run, columns, advance)
