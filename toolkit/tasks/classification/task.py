"""Text classification: one label per text, several, or a number (``data.problem_type``).

Reformer's head reads the first position, CTRL's the last. A text longer than the model is cut, or read in windows."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data import batches
from toolkit.data.batches import without_padding
from toolkit.recipe.keys import SOURCE_KEYS
from toolkit.recipe.recipe import settled
from toolkit.tasks import metrics
from toolkit.tasks.classification.calibration import THRESHOLD, probabilities
from toolkit.tasks.classification.label_names import PROBABILITY_OF
from toolkit.tasks.classification.windows import TEXT_OF, by_text, mean_of_texts, read_as, texts_of
from toolkit.tasks.interface import Description, Labelled, Prepared
from toolkit.terminal.escape import visible

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

    import datasets
    from rich.console import Console

    from models.port.tokenization import Tokenizer
    from toolkit.recipe.recipe import Recipe
    from toolkit.tasks.interface import Run

HEAD = "sequence_classification"

LOWER_IS_BETTER = {
    **dict.fromkeys(("accuracy", "macro_f1", "micro_f1", "subset_accuracy", "pearson", "spearman"), False),
    **dict.fromkeys(("mse", "mae", "loss"), True),
}
CORPORA = {"cldr_languages": "toolkit.tasks.corpora.cldr_languages"}
PREDICTS_FROM: tuple[str, ...] = ("texts",)
ROW_COLUMNS: tuple[str, ...] = ("text",)
DESCRIPTION = Description(
    name="text classification",
    pipeline_tag="text-classification",
    metrics=("accuracy", "f1"),
    auto_class="AutoModelForSequenceClassification",
    examples="texts",
    next_command='toolkit predict {run} --text "..."',
    of_pairs=' --text-pair "..."',
)

#: Characters of a text that the table of predictions shows.
SHOWN_CHARACTERS = 60
#: Rows of a split that are read at once.
ROWS_AT_ONCE = 256
#: Problem type -> column of the table of predictions.
TITLES = {"multi_label": "labels", "regression": "value"}


def check(recipe: Recipe) -> None:
    """Refuse data that cannot hold labels."""
    from toolkit.tasks.classification.class_weights import check_class_weights
    from toolkit.tasks.classification.label_lists import check_label_lists

    data = recipe.data
    if data.dataset == "text" and (data.files is not None or not data.sources):
        right = "name the files of each label in data.sources: {good: good/*.txt, ...}, or use json or csv"
        raise recipe.error("data.dataset", f"plain text has no labels; {right}")
    if data.dataset == "text" and data.problem_type != "single_label":
        raise recipe.error("data.problem_type", "in plain text files each text has one label; use json or parquet")
    if data.problem_type == "regression" and data.label_names is not None:
        raise recipe.error("data.label_names", "the labels of regression are numbers; remove it")
    check_label_lists(recipe)
    check_class_weights(recipe)
    if recipe.train.label_smoothing and data.problem_type != "single_label":
        message = f"is for data.problem_type single_label, not for {data.problem_type}; remove it"
        raise recipe.error("train.label_smoothing", message)
    if data.long_texts == "windows" and len(data.text_columns) > 1:
        raise recipe.error("data.long_texts", "windows would read two texts apart; set cut")
    if data.dataset == "text" and len(data.text_columns) > 1:
        raise recipe.error("data.text", "plain text has no columns; remove it, or use json or csv")
    for key in SOURCE_KEYS.values():
        if data.dataset != "text" and getattr(data, key) is not None:
            raise recipe.error(f"data.{key}", f"is for dataset: text, not for {data.dataset}; remove it")


def load_splits(recipe: Recipe) -> datasets.DatasetDict:
    """Splits with the columns ``text`` and ``label``; see :func:`.labels.labelled_splits`."""
    from toolkit.tasks.classification.class_weights import class_weights_of, described
    from toolkit.tasks.classification.labels import labelled_splits

    splits = labelled_splits(recipe, CORPORA)
    weights = class_weights_of(recipe, splits["train"])
    if weights is not None:
        recipe.found.note(described(splits["train"], weights))
    return splits


def texts(rows: datasets.Dataset) -> Sequence[str]:
    """The texts of a split."""
    return rows["text"]


def control_codes(rows: datasets.Dataset) -> Sequence[str]:
    """None: a text is classified as it stands."""
    return ()


def prepare(recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None) -> Prepared:
    """Tokenize the splits of :func:`load_splits`; tokens are kept unpadded and padded when read.

    An example is a text, or with ``data.long_texts: windows`` one of its windows (:mod:`.windows`). It has
    ``input_ids`` [T] and ``attention_mask`` [T], int64, of at most ``data.max_length`` tokens and padded on the right
    to T = ``length``. Its ``labels`` are an int64 scalar; with several labels per text, float32 [L] of 0 and
    1; in regression, a float32.
    """
    from toolkit.tasks.classification.class_weights import class_weights_of
    from toolkit.tasks.classification.labels import tokenize

    kind = splits["train"].features["label"]
    kind = getattr(kind, "feature", kind)  # of lists of labels
    names = list(getattr(kind, "names", recipe.data.label_columns))
    whole = recipe.data.long_texts == "windows"
    tokens = {name: tokenize(rows, tokenizer, recipe.data.max_length, name, whole) for name, rows in splits.items()}
    truncated = {name: int(np.sum(rows["truncated"][:])) for name, rows in tokens.items()}
    windows = f" in {sum(map(len, tokens.values()))} windows of {recipe.data.max_length} tokens" if whole else ""
    padded = {
        name: _padded(rows, length or recipe.data.max_length, tokenizer.pad_token_id) for name, rows in tokens.items()
    }
    sizes = {name: len(rows) for name, rows in splits.items()}
    return Prepared(
        train=padded["train"],
        validation=padded["validation"],
        test=padded.get("test"),
        summary=f"{', '.join(f'{count} {name}' for name, count in sizes.items())} texts{windows}, "
        + (f"{len(names)} labels" if hasattr(kind, "names") else f"a number each ({names[0]})"),
        label_names=names,
        notes=lambda: [
            f"{count} of {sizes[name]} {name} texts are longer than the model and are cut"
            for name, count in truncated.items()
            if count
        ],
        truncated=truncated,
        class_weights=class_weights_of(recipe, splits["train"]),
    )


def num_loss_terms(batch: Mapping[str, Any]) -> int:
    """The number of labels in a batch that the loss does not ignore."""
    return int((batch["labels"] != batches.IGNORED_LABEL).sum())


def token_counts(dataset: datasets.Dataset) -> np.ndarray:
    """Return the lengths of the stored texts."""
    import pyarrow.compute as pc

    return pc.list_value_length(dataset.with_format("arrow")[:]["input_ids"]).to_numpy()


def outputs(output: Any, batch: Mapping[str, Any], dataset: Any) -> tuple[Any, ...]:
    """Return logits [B, L] and labels: [B], or [B, L] if texts have several."""
    return output.logits, batch["labels"]


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, float]:
    """See :func:`toolkit.tasks.metrics.of_texts`."""
    return metrics.of_texts(*by_text(outputs, dataset))


def predictions(
    run: Run, rows: datasets.Dataset, dataset: datasets.Dataset, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Yield for each text: its number from 1, the whole text, the number of tokens read, its label, the most probable
    label, the probability of that, and of every label.

    With several labels per text, these are ``labels`` and ``predicted_labels`` (JSON lists), and the probability of
    each; in regression, ``value`` and ``predicted_value``.
    """
    names, problem = settled(run.label_names), settled(run.recipe.data.problem_type)
    logits, _ = by_text(outputs, dataset)
    tokens = np.bincount(texts_of(dataset), token_counts(dataset)).astype(int).tolist()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        texts = rows[start : start + ROWS_AT_ONCE]
        shares = _shares(run, logits[start : start + ROWS_AT_ONCE])
        for index, share in enumerate(shares):
            about = {"row": start + index + 1, "text": texts["text"][index], "tokens": tokens[start + index]}
            yield {
                **about,
                **_as_stored(problem, names, texts["label"][index]),
                **dict(zip(_columns(problem, names), _predicted(run, share), strict=True)),
            }


def _as_stored(problem: str, names: Sequence[str], label: Any) -> dict[str, Any]:
    """Return a text's target columns."""
    if problem == "regression":
        return {"value": label}
    if problem == "multi_label":
        return {"labels": written_list(names[index] for index in label)}
    return {"label": names[label]}


def _columns(problem: str, names: Sequence[str]) -> dict[str, type]:
    """Return the columns of a text's prediction, and their types."""
    if problem == "regression":
        return {"predicted_value": float}
    each = {f"{PROBABILITY_OF}{name}": float for name in names}
    if problem == "multi_label":
        return {"predicted_labels": str, **each}
    return {"predicted_label": str, "probability": float, **each}


def _predicted(run: Run, share: np.ndarray) -> list[Any]:
    """The values of :func:`_columns`.

    Args:
        share: (labels,) of :func:`_shares`.
    """
    problem, names = settled(run.recipe.data.problem_type), settled(run.label_names)
    if problem == "regression":
        return share.tolist()
    if problem == "multi_label":
        return [
            written_list(name for name, value in zip(names, share, strict=True) if value > _threshold(run)),
            *share.tolist(),
        ]
    best = int(share.argmax())
    return [names[best], float(share[best]), *share.tolist()]


def written_list(names: Iterable[str]) -> str:
    """Write several labels into one field: a JSON list, since names may hold commas."""
    return json.dumps(list(names), ensure_ascii=False)


def _threshold(run: Run) -> float:
    """The probability above which a text is given a label, where it may have several."""
    return run.calibration.get("threshold", THRESHOLD)


def _shares(run: Run, logits: np.ndarray) -> np.ndarray:
    """Return the probabilities (rows, labels) of logits, at the run's temperature."""
    return probabilities(logits, settled(run.recipe.data.problem_type), run.calibration.get("temperature", 1.0))


def report(folder: Path, predictions: Path, results: Mapping[str, Any]) -> Iterator[Element]:
    """Show confused labels, how good each label is, the most confident mistakes, and accuracy by length."""
    from toolkit.tasks.classification.report import sections

    return sections(predictions, results.get("calibration", {}))


def calibrate(recipe: Recipe, prepared: Prepared, outputs: Mapping[str, tuple[np.ndarray, ...]]) -> dict[str, Any]:
    """See :func:`.calibration.calibrated`."""
    from toolkit.tasks.classification.calibration import calibrated

    texts = {split: by_text(kept, getattr(prepared, split)) for split, kept in outputs.items()}
    return calibrated(texts, settled(recipe.data.problem_type))


def baselines(
    recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, prepared: Prepared
) -> dict[str, dict[str, dict[str, float]]]:
    """See :func:`.baselines.measured`."""
    from toolkit.tasks.classification.baselines import measured

    return measured(recipe, splits)


def write_artifacts(run: Run, trainer: Any, prepared: Prepared, console: Console) -> None:
    """Nothing beside the model and its metrics."""


def _padded(rows: datasets.Dataset, length: int, pad_token_id: int) -> datasets.Dataset:
    """Pad the rows to int64 arrays when they are read: if stored, padding would often be most of the file."""
    from models.port.tokenization import pad

    whole = np.int64 if getattr(rows.features["labels"], "dtype", None) == "int64" else np.float32

    def transform(batch: dict[str, list]) -> dict[str, np.ndarray]:
        arrays = pad(batch["input_ids"], length, pad_token_id) if "input_ids" in batch else {}
        return {**arrays, "labels": np.asarray(batch["labels"], dtype=whole)}

    return rows.select_columns(["input_ids", "labels", TEXT_OF]).with_transform(transform)


# -- predictions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """The most probable label of a text, its probability, that of each label in the order of their ids, and whether the
    text was cut to fit the model.

    With several labels per text, ``label`` is a JSON list of those whose probability is above the run's threshold, and
    ``probability`` the lowest of theirs (NaN if there is none). In regression, ``label`` is the number as text,
    ``probability`` NaN, and ``probabilities`` holds the number.
    """

    text: str
    label: str
    probability: float
    probabilities: tuple[float, ...]
    truncated: bool


def predict(run: Run, console: Console, texts: Sequence[str | tuple[str, str]]) -> list[Prediction]:
    """Print and return the most probable label of each text, with its probability.

    Args:
        run: a finished run.
        console: where the table is printed.
        texts: any strings, or pairs of them for a run that reads two texts; padded, and cut or read whole, as in
            training.

    Raises:
        UserError: pairs for a run that reads one text, or the other way round.
    """
    from rich.table import Table
    from rich.text import Text

    from toolkit.tasks.classification.pairs import given_texts

    predictions = classify(run, given_texts(run.recipe, texts))
    problem = settled(run.recipe.data.problem_type)
    single = problem == "single_label"
    table = Table(*(("label", "probability") if single else (TITLES[problem],)), "text")
    for prediction in predictions:
        shown = " ".join(prediction.text.split())
        shown = shown if len(shown) <= SHOWN_CHARACTERS else shown[: SHOWN_CHARACTERS - 1] + "…"
        probability = [f"{prediction.probability:.3f}"] if single else []
        table.add_row(Text(visible(prediction.label)), *probability, Text(visible(shown)))
    console.print(table)
    cut = sum(prediction.truncated for prediction in predictions)
    if cut:
        console.print(
            f"note: {cut} of {len(texts)} texts are longer than {run.recipe.data.max_length} tokens and were cut"
        )
    return predictions


def classify(run: Run, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None) -> list[Prediction]:
    """Return the most probable label of each text. Other texts affect it only through the rounding of sums.

    Args:
        run: a finished run.
        texts: any strings; padded, and cut or read whole, as in training.
        advance: called with a number of texts, each time that so many more are read.
    """
    data, size = run.recipe.data, settled(run.recipe.train.eval_batch_size)
    rows, text_of, cut = read_as(texts, run.tokenizer, data.max_length, data.long_texts == "windows")
    logits = np.zeros((len(rows), len(settled(run.label_names))))
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # batches of like lengths: less padding
    for start in range(0, len(rows), size):
        batch = order[start : start + size]
        logits[batch] = _logits(run, [rows[index] for index in batch])
        advance((start + len(batch)) * len(texts) // len(rows) - start * len(texts) // len(rows))
    found = []
    for text, share, was_cut in zip(texts, _shares(run, mean_of_texts(logits, text_of)), cut, strict=True):
        label, probability = _best(run, share)
        found.append(Prediction(text, label, probability, tuple(share.tolist()), was_cut))
    return found


def _best(run: Run, share: np.ndarray) -> tuple[str, float]:
    """The label and the probability of a :class:`Prediction`."""
    problem = settled(run.recipe.data.problem_type)
    values = _predicted(run, share)
    if problem == "regression":
        return f"{values[0]:.6g}", math.nan
    given = share[share > _threshold(run)]
    return values[0], values[1] if problem == "single_label" else float(given.min()) if len(given) else math.nan


def _logits(run: Run, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return (B, labels) float64 for a batch of token ids."""
    import paddle

    from models.port.tokenization import pad

    tokens = without_padding(pad(rows, run.length, run.tokenizer.pad_token_id), run.model.config)
    paddle.seed(run.recipe.seed)  # or a text's LSH hashes would depend on its place among others
    with paddle.no_grad():
        logits = run.model(**{name: paddle.to_tensor(value) for name, value in tokens.items()}).logits
    return logits.astype("float64").numpy()


# -- rows of a file -------------------------------------------------------------------------------------------------


def prediction_columns(run: Run) -> dict[str, type]:
    """Return ``predicted_label``, its ``probability``, and ``probability_LABEL`` for each label; for several labels
    per text ``predicted_labels`` (a JSON list) instead of the first two; for regression only ``predicted_value``."""
    return _columns(settled(run.recipe.data.problem_type), settled(run.label_names))


def label_rows(run: Run, columns: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> Labelled:
    """The label of each text; see :meth:`toolkit.tasks.interface.Task.label_rows`."""
    from toolkit.tasks.classification.pairs import joined

    texts = columns["text"]
    if "text_pair" in columns:
        texts = [joined(*pair) for pair in zip(texts, columns["text_pair"], strict=True)]
    found = classify(run, texts, advance)
    values = [_predicted(run, np.asarray(one.probabilities)) for one in found]
    cut = [index for index, one in enumerate(found) if one.truncated]
    what = f"a text longer than {run.recipe.data.max_length} tokens, which was cut"
    return Labelled([list(column) for column in zip(*values, strict=True)], {what: cut})
