"""Text classification: one label per text, several, or a number (``data.problem_type``).

Reformer's head reads the first position, CTRL's the last. A text longer than the model is cut, or read in windows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.data import batches
from toolkit.data.batches import trim_padding
from toolkit.recipe.keys import SOURCE_KEYS
from toolkit.recipe.recipe import require_setting
from toolkit.tasks import metrics
from toolkit.tasks.classification.calibration import THRESHOLD, probabilities
from toolkit.tasks.classification.label_names import PROBABILITY_OF
from toolkit.tasks.classification.windows import TEXT_OF, encode_texts, mean_of_texts, outputs_of_texts, texts_of
from toolkit.tasks.interface import Description, LabeledRows, PreparedData
from toolkit.terminal.escape import visible

if TYPE_CHECKING:
    import datasets
    from rich.console import Console

    from models.port.tokenization import Tokenizer
    from toolkit.pages.elements import Section
    from toolkit.recipe.recipe import Recipe
    from toolkit.tasks.interface import Baseline, Run

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

#: Maximum number of characters of a text in the table of predictions.
MAX_SHOWN_CHARACTERS = 60
#: Number of rows of a split that are read at once.
ROWS_AT_ONCE = 256
#: Title of the column with the prediction, by the problem type.
LABEL_TITLES = {"multi_label": "labels", "regression": "value"}


def check(recipe: Recipe) -> None:
    """Reject a recipe whose data cannot have labels, or whose keys do not fit the problem type."""
    from toolkit.tasks.classification.class_weights import check_class_weights
    from toolkit.tasks.classification.label_lists import check_label_lists

    data = recipe.data
    if data.dataset == "text" and (data.files is not None or not data.sources):
        remedy = "name the files of each label in data.sources: {good: good/*.txt, ...}, or use json or csv"
        raise recipe.error("data.dataset", f"plain text has no labels; {remedy}")
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
    """Return the splits with the columns ``text`` and ``label``; see :func:`.labels.labeled_splits`."""
    from toolkit.tasks.classification.class_weights import class_weights_of, describe_class_weights
    from toolkit.tasks.classification.labels import labeled_splits

    splits = labeled_splits(recipe, CORPORA)
    weights = class_weights_of(recipe, splits["train"])
    if weights is not None:
        recipe.findings.note(describe_class_weights(splits["train"], weights))
    return splits


def texts(rows: datasets.Dataset) -> Sequence[str]:
    """Return the texts of a split.

    Args:
        rows: rows of the split.
    """
    return rows["text"]


def control_codes(rows: datasets.Dataset) -> Sequence[str]:
    """Return no control codes, because a text is classified without them.

    Args:
        rows: rows of the split.
    """
    return ()


def prepare(
    recipe: Recipe, tokenizer: Tokenizer, splits: datasets.DatasetDict, length: int | None = None
) -> PreparedData:
    """Tokenize the splits of :func:`load_splits`; tokens are stored unpadded and padded when read.

    An example is a text, or with ``data.long_texts: windows`` one of its windows (:mod:`.windows`). It has
    ``input_ids`` (T,) and ``attention_mask`` (T,), int64, of at most ``data.max_length`` tokens and padded on the right
    to T = ``length``. Its ``labels`` are an int64 scalar; with several labels per text, float32 (L,) of 0 and 1; in
    regression, a float32.

    Args:
        recipe: recipe of the run.
        tokenizer: tokenizer of the run.
        splits: rows of each split.
        length: length of the padded rows, in tokens.
    """
    from toolkit.tasks.classification.class_weights import class_weights_of
    from toolkit.tasks.classification.labels import tokenize

    feature = splits["train"].features["label"]
    feature = getattr(feature, "feature", feature)  # the element of lists of labels
    label_names = list(getattr(feature, "names", recipe.data.label_columns))
    in_windows = recipe.data.long_texts == "windows"
    tokens = {
        split_name: tokenize(rows, tokenizer, recipe.data.max_length, split_name, in_windows=in_windows)
        for split_name, rows in splits.items()
    }
    num_truncated = {split_name: int(np.sum(rows["truncated"][:])) for split_name, rows in tokens.items()}
    windows_note = (
        f" in {sum(map(len, tokens.values()))} windows of {recipe.data.max_length} tokens" if in_windows else ""
    )
    padded_splits = {
        split_name: _pad_when_read(rows, length or recipe.data.max_length, tokenizer.pad_token_id)
        for split_name, rows in tokens.items()
    }
    num_rows = {split_name: len(rows) for split_name, rows in splits.items()}
    return PreparedData(
        train=padded_splits["train"],
        validation=padded_splits["validation"],
        test=padded_splits.get("test"),
        summary=f"{', '.join(f'{count} {split_name}' for split_name, count in num_rows.items())} texts{windows_note}, "
        + (f"{len(label_names)} labels" if hasattr(feature, "names") else f"a number each ({label_names[0]})"),
        label_names=label_names,
        notes=lambda: [
            f"{count} of {num_rows[split_name]} {split_name} texts are longer than the model and are cut"
            for split_name, count in num_truncated.items()
            if count
        ],
        num_truncated=num_truncated,
        class_weights=class_weights_of(recipe, splits["train"]),
    )


def num_loss_terms(batch: Mapping[str, Any]) -> int:
    """Return the number of labels in a batch that the loss does not ignore.

    Args:
        batch: tensors of the batch, by name.
    """
    return int((batch["labels"] != batches.IGNORED_LABEL).sum())


def token_counts(dataset: datasets.Dataset) -> np.ndarray:
    """Return the number of stored tokens of each example, (N,).

    Args:
        dataset: evaluated data set.
    """
    import pyarrow.compute as pc

    return pc.list_value_length(dataset.with_format("arrow")[:]["input_ids"]).to_numpy()


def outputs(output: Any, batch: Mapping[str, Any], dataset: Any) -> tuple[Any, ...]:
    """Return the logits (B, L) and the labels, (B,), or (B, L) if texts have several.

    Args:
        output: output of the model.
        batch: tensors of the batch, by name.
        dataset: evaluated data set.
    """
    return output.logits, batch["labels"]


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, float]:
    """Return the metrics of :func:`toolkit.tasks.metrics.text_metrics`, computed for whole texts.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    return metrics.text_metrics(*outputs_of_texts(outputs, dataset))


def confidence_intervals(outputs: tuple[np.ndarray, ...], dataset: Any) -> dict[str, list[float]]:
    """Return the interval of each metric of :func:`compute_metrics`, from resampled texts.

    Args:
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
        dataset: evaluated data set.
    """
    from toolkit.tasks.classification.baselines import text_intervals

    return text_intervals(*outputs_of_texts(outputs, dataset))


def predictions(
    run: Run, rows: datasets.Dataset, dataset: datasets.Dataset, outputs: tuple[np.ndarray, ...]
) -> Iterator[dict[str, Any]]:
    """Yield the row of each text in ``predictions-SPLIT.csv``.

    With one label per text it has the row's number from 1, the whole text, the number of tokens read, the label, the
    most probable label, its probability, and the probability of every label. With several labels per text, it has
    ``labels`` and ``predicted_labels`` (JSON lists) and the probability of each label; in regression, ``value`` and
    ``predicted_value``.

    Args:
        run: trained run.
        rows: rows of the split.
        dataset: evaluated data set.
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
    """
    names, problem = require_setting(run.label_names), require_setting(run.recipe.data.problem_type)
    logits, _ = outputs_of_texts(outputs, dataset)
    tokens = np.bincount(texts_of(dataset), token_counts(dataset)).astype(int).tolist()
    for start in range(0, len(rows), ROWS_AT_ONCE):
        texts = rows[start : start + ROWS_AT_ONCE]
        probabilities_of_texts = _run_probabilities(run, logits[start : start + ROWS_AT_ONCE])
        for index, text_probabilities in enumerate(probabilities_of_texts):
            text_columns = {"row": start + index + 1, "text": texts["text"][index], "tokens": tokens[start + index]}
            yield {
                **text_columns,
                **_target_columns(problem, names, texts["label"][index]),
                **dict(
                    zip(_prediction_columns(problem, names), _prediction_values(run, text_probabilities), strict=True)
                ),
            }


def _target_columns(problem: str, names: Sequence[str], label: Any) -> dict[str, Any]:
    """Return the target columns of a text.

    Args:
        problem: problem type: ``single_label``, ``multi_label`` or ``regression``.
        names: names of the labels, in the order of the ids.
        label: label id; list of label ids for ``multi_label``; number for ``regression``.
    """
    if problem == "regression":
        return {"value": label}
    if problem == "multi_label":
        return {"labels": labels_as_json(names[index] for index in label)}
    return {"label": names[label]}


def _prediction_columns(problem: str, names: Sequence[str]) -> dict[str, type]:
    """Return the type of each column of a text's prediction.

    Args:
        problem: problem type: ``single_label``, ``multi_label`` or ``regression``.
        names: names of the labels, in the order of the ids.
    """
    if problem == "regression":
        return {"predicted_value": float}
    probability_columns = {f"{PROBABILITY_OF}{name}": float for name in names}
    if problem == "multi_label":
        return {"predicted_labels": str, **probability_columns}
    return {"predicted_label": str, "probability": float, **probability_columns}


def _prediction_values(run: Run, label_probabilities: np.ndarray) -> list[Any]:
    """Return the values of :func:`_prediction_columns`.

    Args:
        run: finished run.
        label_probabilities: probability of each label, (labels,), from :func:`_run_probabilities`.
    """
    problem, names = require_setting(run.recipe.data.problem_type), require_setting(run.label_names)
    if problem == "regression":
        return label_probabilities.tolist()
    if problem == "multi_label":
        return [
            labels_as_json(
                name for name, value in zip(names, label_probabilities, strict=True) if value > _threshold(run)
            ),
            *label_probabilities.tolist(),
        ]
    best_index = int(label_probabilities.argmax())
    return [names[best_index], float(label_probabilities[best_index]), *label_probabilities.tolist()]


def labels_as_json(names: Iterable[str]) -> str:
    """Write several labels into one field as a JSON list, since names may contain commas.

    Args:
        names: names of the labels, in the order of the ids.
    """
    return json.dumps(list(names), ensure_ascii=False)


def _threshold(run: Run) -> float:
    """Return the probability above which a label is predicted, for texts with several labels.

    Args:
        run: trained run.
    """
    return run.calibration.get("threshold", THRESHOLD)


def _run_probabilities(run: Run, logits: np.ndarray) -> np.ndarray:
    """Return the probabilities of logits, (rows, labels), with the run's temperature."""
    return probabilities(logits, require_setting(run.recipe.data.problem_type), run.calibration.get("temperature", 1.0))


def report(folder: Path, predictions_path: Path, results: Mapping[str, Any]) -> Iterator[Section]:
    """Show confused labels, the scores of each label, the most confident mistakes, and accuracy by length.

    Args:
        folder: run folder.
        predictions_path: path of the split's predictions file.
        results: content of ``metrics.json``.
    """
    from toolkit.tasks.classification.report import report_sections

    return report_sections(predictions_path, results.get("calibration", {}))


def calibrate(
    recipe: Recipe, prepared_data: PreparedData, outputs: Mapping[str, tuple[np.ndarray, ...]]
) -> dict[str, Any]:
    """Fit the temperature and the threshold; see :func:`.calibration.calibrate_outputs`.

    Args:
        recipe: recipe of the run.
        prepared_data: model inputs of each split.
        outputs: arrays of all batches as :func:`outputs` returns them, joined.
    """
    from toolkit.tasks.classification.calibration import calibrate_outputs

    text_outputs = {
        split_name: outputs_of_texts(split_outputs, getattr(prepared_data, split_name))
        for split_name, split_outputs in outputs.items()
    }
    return calibrate_outputs(text_outputs, require_setting(recipe.data.problem_type))


def baselines(
    recipe: Recipe,
    tokenizer: Tokenizer,
    splits: datasets.DatasetDict,
    prepared_data: PreparedData,
    console: Console,
) -> dict[str, Baseline]:
    """Measure the simple methods of :func:`.baselines.measure_baselines`.

    Args:
        recipe: recipe of the run.
        tokenizer: tokenizer of the run.
        splits: rows of each split.
        prepared_data: model inputs of each split.
        console: console for progress.
    """
    from toolkit.tasks.classification.baselines import measure_baselines

    return measure_baselines(recipe, splits, console)


def write_artifacts(run: Run, trainer: Any, prepared_data: PreparedData, console: Console) -> None:
    """Write no files: a classifier has none except the model and its metrics.

    Args:
        run: trained run.
        trainer: trainer of the run, with the best weights.
        prepared_data: model inputs of each split.
        console: console for progress.
    """


def _pad_when_read(rows: datasets.Dataset, length: int, pad_token_id: int) -> datasets.Dataset:
    """Pad the rows to int64 arrays when they are read; stored padding would often be most of the file.

    Args:
        rows: rows with token ids and labels.
        length: length of the padded rows, in tokens.
        pad_token_id: id of the padding token.
    """
    from models.port.tokenization import pad

    label_dtype = np.int64 if getattr(rows.features["labels"], "dtype", None) == "int64" else np.float32

    def transform(row_batch: dict[str, list]) -> dict[str, np.ndarray]:
        arrays = pad(row_batch["input_ids"], length, pad_token_id) if "input_ids" in row_batch else {}
        return {**arrays, "labels": np.asarray(row_batch["labels"], dtype=label_dtype)}

    return rows.select_columns(["input_ids", "labels", TEXT_OF]).with_transform(transform)


# -- predictions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prediction:
    """The prediction for a text.

    Attributes:
        text: text that the model read.
        label: the most probable label; with several labels per text, a JSON list of the labels whose probability is
            above the run's threshold; in regression, the number as text.
        probability: probability of the label; the lowest one of several labels, or NaN without a label; NaN in
            regression.
        probabilities: probability of each label, in the order of their ids; in regression, the number.
        is_truncated: whether the text was cut to fit the model.
    """

    text: str
    label: str
    probability: float
    probabilities: tuple[float, ...]
    is_truncated: bool


def predict(run: Run, console: Console, texts: Sequence[str | tuple[str, str]]) -> list[Prediction]:
    """Print and return the most probable label of each text, with its probability.

    Args:
        run: finished run.
        console: console for the table.
        texts: any strings, or pairs of strings for a run that reads two texts. They are padded, and cut or read in
            windows, as in training.

    Raises:
        UserError: pairs for a run that reads one text, or single texts for a run that reads pairs.
    """
    from rich.table import Table
    from rich.text import Text

    from toolkit.tasks.classification.pairs import model_texts

    predictions = classify(run, model_texts(run.recipe, texts))
    problem = require_setting(run.recipe.data.problem_type)
    has_single_label = problem == "single_label"
    table = Table(*(("label", "probability") if has_single_label else (LABEL_TITLES[problem],)), "text")
    for prediction in predictions:
        excerpt = " ".join(prediction.text.split())
        excerpt = excerpt if len(excerpt) <= MAX_SHOWN_CHARACTERS else excerpt[: MAX_SHOWN_CHARACTERS - 1] + "…"
        probability = [f"{prediction.probability:.3f}"] if has_single_label else []
        table.add_row(Text(visible(prediction.label)), *probability, Text(visible(excerpt)))
    console.print(table)
    num_truncated = sum(prediction.is_truncated for prediction in predictions)
    if num_truncated:
        console.print(
            f"note: {num_truncated} of {len(texts)} texts are longer than {run.recipe.data.max_length} tokens "
            "and were cut"
        )
    return predictions


def classify(run: Run, texts: Sequence[str], advance: Callable[[int], None] = lambda count: None) -> list[Prediction]:
    """Return the prediction of each text. Other texts affect it only through the rounding of sums.

    Args:
        run: finished run.
        texts: any strings. They are padded, and cut or read in windows, as in training.
        advance: called with the number of texts that were read since the last call.
    """
    if run.baseline is None:
        logits, truncated_flags = _model_logits(run, texts, advance)
    else:
        logits, truncated_flags = run.baseline.score(texts), [False] * len(texts)
        advance(len(texts))
    predictions = []
    for text, label_probabilities, is_truncated in zip(
        texts, _run_probabilities(run, logits), truncated_flags, strict=True
    ):
        label, probability = _best_label(run, label_probabilities)
        predictions.append(Prediction(text, label, probability, tuple(label_probabilities.tolist()), is_truncated))
    return predictions


def _model_logits(run: Run, texts: Sequence[str], advance: Callable[[int], None]) -> tuple[np.ndarray, Sequence[bool]]:
    """Return the logits of the run's model for each text, (N, labels), and whether each text was cut."""
    data, batch_size = run.recipe.data, require_setting(run.recipe.train.eval_batch_size)
    rows, text_indices, truncated_flags = encode_texts(
        texts, run.tokenizer, data.max_length, in_windows=data.long_texts == "windows"
    )
    logits = np.zeros((len(rows), len(require_setting(run.label_names))))
    order = sorted(range(len(rows)), key=lambda index: len(rows[index]))  # similar lengths need less padding
    for start in range(0, len(rows), batch_size):
        batch = order[start : start + batch_size]
        logits[batch] = _logits(run, [rows[index] for index in batch])
        advance((start + len(batch)) * len(texts) // len(rows) - start * len(texts) // len(rows))
    return mean_of_texts(logits, text_indices), truncated_flags


def _best_label(run: Run, label_probabilities: np.ndarray) -> tuple[str, float]:
    """Return the label and the probability of a :class:`Prediction`."""
    problem = require_setting(run.recipe.data.problem_type)
    prediction_values = _prediction_values(run, label_probabilities)
    if problem == "regression":
        return f"{prediction_values[0]:.6g}", math.nan
    predicted_probabilities = label_probabilities[label_probabilities > _threshold(run)]
    return prediction_values[0], prediction_values[1] if problem == "single_label" else float(
        predicted_probabilities.min()
    ) if len(predicted_probabilities) else math.nan


def _logits(run: Run, rows: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the logits of a batch of token ids, (B, labels) float64.

    Args:
        run: trained run.
        rows: token ids of each text.
    """
    import paddle

    from models.port.tokenization import pad

    tokens = trim_padding(pad(rows, run.length, run.tokenizer.pad_token_id), run.model.config)
    paddle.seed(run.recipe.seed)  # otherwise the LSH hashes of a text would depend on the texts before it
    with paddle.no_grad():
        logits = run.model(**{name: paddle.to_tensor(value) for name, value in tokens.items()}).logits
    return logits.astype("float64").numpy()


# -- rows of a file -------------------------------------------------------------------------------------------------


def prediction_columns(run: Run) -> dict[str, type]:
    """Return the types of the prediction columns, by name.

    With one label per text these are ``predicted_label``, its ``probability``, and ``probability_LABEL`` for each
    label. With several, ``predicted_labels`` (a JSON list) replaces the first two. In regression there is only
    ``predicted_value``.

    Args:
        run: trained run.
    """
    return _prediction_columns(require_setting(run.recipe.data.problem_type), require_setting(run.label_names))


def label_rows(run: Run, column_texts: Mapping[str, Sequence[str]], advance: Callable[[int], None]) -> LabeledRows:
    """Predict the label of each text; see :meth:`toolkit.tasks.interface.Task.label_rows`.

    Args:
        run: trained run.
        column_texts: texts of each input column, by name.
        advance: function that is called with the number of rows that were finished.
    """
    from toolkit.tasks.classification.pairs import join_pair

    texts = column_texts["text"]
    if "text_pair" in column_texts:
        texts = [join_pair(*pair) for pair in zip(texts, column_texts["text_pair"], strict=True)]
    predictions = classify(run, texts, advance)
    values = [_prediction_values(run, np.asarray(prediction.probabilities)) for prediction in predictions]
    truncated_rows = [index for index, prediction in enumerate(predictions) if prediction.is_truncated]
    note = f"a text longer than {run.recipe.data.max_length} tokens, which was cut"
    return LabeledRows([list(column) for column in zip(*values, strict=True)], {note: truncated_rows})
