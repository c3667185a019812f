"""Question answering: the span of a context that answers a question, in SQuAD's form, with v2's no answer.

A context is read in overlapping windows (:mod:`.windows`); the model's logits become answers in :mod:`.spans`, which
:mod:`.scoring` scores.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.tokenization import representable
from toolkit.batches import collate
from toolkit.errors import UserError
from toolkit.recipe import settled
from toolkit.tasks import Description, Labelled, Prepared
from toolkit.tasks.question_answering import scoring, squad
from toolkit.tasks.question_answering.squad import Example

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import datasets
    from rich.console import Console

    from models.tokenization import Tokenizer
    from toolkit.recipe import Recipe
    from toolkit.tasks import Run
    from toolkit.tasks.question_answering.spans import Answer
    from toolkit.tasks.question_answering.windows import Windows

HEADS = {"reformer": "question_answering"}
LOWER_IS_BETTER = {"f1": False, "exact_match": False, "loss": True}
CORPORA = {"cldr_facts": "toolkit.corpora.cldr_facts"}
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

COLUMNS = ("id", "context", "question", "answers")

#: Files in the run folder: the best answers in SQuAD's official format, and the n best of each question.
PREDICTIONS, NEXT_BEST = "predictions.json", "nbest.json"
#: Characters of a context that a row of predictions shows around an answer.
PASSAGE = 480


def check(recipe: Recipe) -> None:
    """Refuse data that cannot hold answers, and a stride that leaves no room for new context in the next window."""
    data = recipe.data
    if data.dataset in ("csv", "text"):
        raise recipe.error("data.dataset", f"{data.dataset} holds no answers with their places; use json, as SQuAD's")
    if data.document is not None and data.dataset in CORPORA:
        raise recipe.error("data.document", f"{data.dataset} has no documents; remove it")
    if settled(data.stride) >= data.max_length - 1:
        message = f"windows of {data.max_length} tokens cannot overlap by {data.stride}; set at most a half"
        raise recipe.error("data.stride", message)


# -- data -----------------------------------------------------------------------------------------------------------


def load_splits(recipe: Recipe) -> datasets.DatasetDict:
    """Splits with the columns ``id``, ``context``, ``question`` and ``answers``, whose places are right.

    A json file may be SQuAD's own nested form, or rows as the hub's data sets have them. What became of answers that do
    not stand where the data say is a note of the recipe.

    Raises:
        UserError: at the line of the key that is to be changed.
    """
    from datasets import DatasetDict

    from toolkit.data import hold_out, limited, load_stored

    stored = load_stored(recipe, CORPORA, _read_file)
    splits = DatasetDict({split: _checked(recipe, split, rows) for split, rows in stored.items()})
    return limited(recipe, hold_out(recipe, splits, _divide))


def _read_file(recipe: Recipe, split: str, path: Path) -> datasets.Dataset:
    """A SQuAD file, with the recipe's names for the columns of its rows; a file of another kind than json as it is."""
    if recipe.data.dataset != "json":
        from toolkit.sources import read_file

        return read_file(recipe, split, path)
    try:
        examples = squad.read_examples(path, _columns(recipe), recipe.data.document)
        examples = _placed(recipe, examples, str(path))
    except UserError as problem:
        raise recipe.error(f"data.files.{split}", str(problem)) from None
    return _dataset(squad.join_documents(examples) if recipe.data.document else examples)


def _placed(recipe: Recipe, examples: Sequence[Example], where: str) -> list[Example]:
    """The questions whose answers stand where they say; what became of the others is noted."""
    from toolkit.tasks.question_answering.placement import placed

    kept, note = placed(examples, settled(recipe.data.misplaced_answers), where)
    if note:
        recipe.note(note)
    return kept


def _checked(recipe: Recipe, split: str, rows: datasets.Dataset) -> datasets.Dataset:
    """The rows in SQuAD's columns, each row checked."""
    from toolkit.data import check_columns

    document = recipe.data.document
    columns = {**_columns(recipe), **({"document": document} if document else {})}
    if rows.features == squad_features() and recipe.data.dataset in ("json", *CORPORA):  # read or made here
        if recipe.data.files is not None:  # which may be several
            try:
                squad.check_ids(rows["id"], f"the {split} split")
            except UserError as problem:
                raise recipe.error(f"data.files.{split}", str(problem)) from None
        return rows
    check_columns(recipe, split, rows, columns)
    renamed = rows.select_columns(list(columns.values())).rename_columns({old: new for new, old in columns.items()})
    for key in squad.OTHER_KEYS:
        if key in rows.column_names and key not in renamed.column_names:
            renamed = renamed.add_column(key, rows[key])
    try:
        examples = _placed(recipe, squad.check_rows(renamed, f"the {split} split"), f"the {split} split")
    except UserError as problem:
        raise recipe.error("data.answers", str(problem)) from None
    return _dataset(squad.join_documents(examples) if document else examples)


def _columns(recipe: Recipe) -> dict[str, str]:
    """SQuAD's name of a column -> the data's."""
    return {name: getattr(recipe.data, name) for name in COLUMNS}


def squad_features() -> datasets.Features:
    """The columns of a split, and their types."""
    from datasets import Features, Sequence, Value

    answers = {"text": Sequence(Value("string")), "answer_start": Sequence(Value("int32"))}
    return Features({**{name: Value("string") for name in COLUMNS[:3]}, "answers": answers})


def _dataset(examples: Sequence[Example]) -> datasets.Dataset:
    from datasets import Dataset

    columns = {name: [representable(getattr(item, name)) for item in examples] for name in COLUMNS[:3]}
    answers = [
        {"text": [representable(text) for text in item.answers], "answer_start": list(item.answer_starts)}
        for item in examples
    ]
    return Dataset.from_dict({**columns, "answers": answers}, features=squad_features())


def _divide(rows: datasets.Dataset, shares: Mapping[str, float], seed: int) -> dict[str, np.ndarray]:
    """The indices of ``train`` and ``validation``: whole contexts, drawn by the seed, so that no validation question is
    about a context that was trained on."""
    fraction = shares["validation"]
    contexts = list(dict.fromkeys(rows["context"]))
    count = min(round(len(contexts) * fraction), len(contexts) - 1)
    if count < 1:
        raise ValueError(f"{fraction} of {len(contexts)} contexts is none; set a larger one")
    order = np.random.default_rng([seed, 1]).permutation(len(contexts))
    held_out = {contexts[index] for index in order[:count]}
    is_held_out = np.array([context in held_out for context in rows["context"]])
    return {"train": np.flatnonzero(~is_held_out), "validation": np.flatnonzero(is_held_out)}


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


def prepare(recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None) -> Prepared:
    """The windows of the splits of :func:`load_splits` (:class:`.windows.Windows`), of up to ``data.max_length`` tokens
    and padded to ``length``.

    Raises:
        UserError: a question that leaves its context no room.
    """
    windows = {
        name: _windows(recipe, tokenizer, [squad.example(row, name) for row in rows], name, length)
        for name, rows in splits.items()
    }
    sizes = ", ".join(f"{len(rows.examples)} {name}" for name, rows in windows.items())
    count = sum(len(rows) for rows in windows.values())
    baseline = {name: _baseline(rows) for name, rows in windows.items() if name != "train"}
    return Prepared(
        train=windows["train"],
        validation=windows["validation"],
        test=windows.get("test"),
        summary=f"{sizes} questions in {count} windows of {recipe.data.max_length} tokens",
        offsets=True,
        notes=[note for name, rows in windows.items() for note in _notes(name, rows)],
        baseline=baseline,
    )


def _windows(
    recipe: Recipe,
    tokenizer: Tokenizer,
    examples: Sequence[Example],
    name: str,
    length: int | None,
    cached: bool = True,
) -> Windows:
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


def _notes(name: str, windows: Windows) -> list[str]:
    """What the user should know about a split: questions without an answer, answers that are no span of tokens."""
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
    if windows.whole_words and (cut := _inside_words(windows.examples)):
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


def _inside_words(examples: Sequence[Example]) -> list[Example]:
    """The questions whose first answer begins or ends inside of a word."""
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


def _baseline(windows: Windows) -> dict[str, float]:
    """The scores of :func:`.scoring.guess`, which answers without a model."""
    found = {item.id: scoring.guess(item.question, item.context) for item in windows.examples}
    return scoring.score(windows.examples, found) if windows.examples else {}


def num_loss_terms(batch: Mapping[str, Any]) -> int:
    """The number of windows: each has one start and one end position."""
    return len(batch["start_positions"])


def outputs(output: Any, batch: Mapping[str, Any], dataset: Windows) -> tuple[Any, ...]:
    """The best spans of each window (first positions, last positions, scores: [B, N]), and no answer's score [B]."""
    import paddle

    from toolkit.tasks.question_answering.spans import best_spans
    from toolkit.tasks.question_answering.windows import NO_ANSWER, SEPARATOR

    start, end = (scores.astype("float32").numpy() for scores in (output.start_logits, output.end_logits))
    first = (batch["input_ids"].numpy() == SEPARATOR).argmax(axis=1) + 1
    past = batch["attention_mask"].numpy().sum(axis=1)
    spans = best_spans(start, end, first, past, dataset.max_answer_length)
    nothing = start[:, NO_ANSWER].astype(np.float64) + end[:, NO_ANSWER]
    return tuple(paddle.to_tensor(part, place=paddle.CPUPlace()) for part in (*spans, nothing))


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: Windows) -> dict[str, float]:
    """``exact_match`` and ``f1`` in percent of the whole questions: many windows, one answer.

    The answers themselves are left in ``dataset.answered``.
    """
    from toolkit.tasks.question_answering import spans

    dataset.answered = spans.answers(dataset, outputs)
    return scoring.score(dataset.examples, _first(dataset))


def _first(windows: Windows) -> dict[str, str]:
    """Id -> the best answer, as a predictions file has it."""
    return {item.id: best[0].text for item, best in zip(windows.examples, windows.answered or (), strict=True)}


def predictions(
    run: Run, rows: datasets.Dataset, dataset: Windows, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Of each question: the best answer, the reference answers as a JSON list, exact match and F1 (0 to 1), the
    answer's score and probability, both places in the context, how long that is, and a passage of it that shows them.

    Places are in characters of the context, an empty cell where there is none.
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
    """How good the answers are by the question's word and by the context's length, and the worst of them."""
    from toolkit.tasks.question_answering.report import sections

    return sections(predictions)


def write_artifacts(run: Run, trainer: Any, prepared: Prepared, console: Console) -> None:
    """Write the best model's answers on the test split, or where there is none on the validation split:
    ``predictions.json`` in SQuAD's official format, ``nbest.json`` with the next best ones."""
    from toolkit.checkpoint import write_text

    split = "validation" if prepared.test is None else "test"
    windows = getattr(prepared, split)
    if split == "validation" or windows.answered is None:  # what the last weights answered, which may not be the best
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
    return _answers(run, _windows(run.recipe, run.tokenizer, [asked], "", run.length))[0]


def _answers(run: Run, windows: Windows, advance: Callable[[int], None] = lambda count: None) -> list[list[Answer]]:
    """The best answers to each question, best first, which do not depend on the questions beside it.

    Args:
        advance: is told how many more questions are done.
    """
    import paddle

    from toolkit.tasks.question_answering import spans

    size = settled(run.recipe.train.eval_batch_size)
    found, done = [], 0
    for start in range(0, len(windows), size):
        past = min(start + size, len(windows))
        batch = collate([windows[index] for index in range(start, past)])
        paddle.seed(run.recipe.seed)  # or LSH would hash a window as its place among the others has it
        with paddle.no_grad():
            inputs = {name: paddle.to_tensor(batch[name]) for name in ("input_ids", "attention_mask")}
            found.append(outputs(run.model(**inputs), inputs, windows))
        complete = len(windows.examples) if past == len(windows) else int(windows.example_of[past])
        advance(complete - done)
        done = complete
    kept = [np.concatenate([part.numpy() for part in parts]) for parts in zip(*found, strict=True)]
    return spans.answers(windows, kept)


def sentence_around(context: str, start: int, end: int) -> tuple[int, int]:
    """Where the sentence, or the line, that holds ``context[start:end]`` begins and ends."""
    breaks = [match.end() for match in re.finditer(r"[.!?…。]['\"”’)\]]*\s+|\n+", context)]
    first = max((place for place in breaks if place <= start), default=0)
    last = min((place for place in breaks if place >= end), default=len(context))
    return first, first + len(context[first:last].rstrip())


# -- rows of a file -------------------------------------------------------------------------------------------------


def prediction_columns(run: Run) -> dict[str, type]:
    """``predicted_answer`` ("" for no answer), its ``score`` and ``probability``, and ``answer_start``, where in
    the context it begins, in characters."""
    return {"predicted_answer": str, "score": float, "probability": float, "answer_start": int}


def label_rows(run: Run, columns: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> Labelled:
    """The best answer to each question; see :meth:`toolkit.tasks.Task.label_rows`."""
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
        windows = _windows(run.recipe, run.tokenizer, examples, "", run.length, cached=False)
        for index, (one, *_) in zip(fitting, _answers(run, windows, advance), strict=True):
            best[index] = (one.text, one.score, one.probability, one.start if one.text else None)
    asked = set(fitting)
    what = "a question that leaves its context no room in the model, and no answer"
    left_out = [index for index in range(len(best)) if index not in asked]
    return Labelled([list(column) for column in zip(*best, strict=True)], {what: left_out})
