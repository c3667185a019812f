"""Write a classifier's sections of a run's page, from the predictions file only.

They show the confused labels, the scores of each label, the most confident mistakes, and accuracy by text length.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from toolkit.pages.elements import Section, excerpt, name, render_macro, share, table
from toolkit.run_folder.predictions import REMEDY, read_predictions
from toolkit.run_folder.read import reading
from toolkit.tasks.classification.calibration import BINS, bins_of, describe_calibration, expected_calibration_error
from toolkit.tasks.classification.label_names import PROBABILITY_OF
from toolkit.tasks.classification.report_parts import accuracy_by_length, label_names_of, label_scores
from toolkit.tasks.classification.report_targets import numbers_sections, several_sections
from toolkit.tasks.metrics import confusion, scores_of_classes

#: Maximum number of labels in a confusion matrix. With more labels, it has the labels with the most mistakes.
MATRIX_LABELS = 30
#: Maximum number of labels in the whole matrix, which opens on a click.
MAX_MATRIX_LABELS = 120
#: Number of label pairs and of mistakes in the lists, and maximum number of each on the page.
PAIRS_SHOWN, MISTAKES_SHOWN, MAX_ROWS = 20, 25, 200
#: How to read the matrix.
MATRIX_EXPLANATION = (
    "A row is a label of the data, a column the label that the model gave. The stronger the color, the larger the "
    "share of the row: blue where the model is right, orange where it is wrong."
)
#: Number of shades of a cell.
NUM_SHADES = 8
#: Maximum number of characters of a label in the head of a column.
MAX_HEAD_CHARACTERS = 24


@dataclass
class LabelOutcome:
    """Predictions of a split, as the sections need them.

    Attributes:
        names: names of the labels, in the order of their ids.
        label_ids, predicted_ids: id of each text's label, and id of its predicted label.
        tokens: number of tokens that the model read of each text.
        probability: probability of each text's predicted label.
        mistakes: probability, negative row and shown columns of the most confident mistakes, in descending order.
        surest: probability, negative row and shown columns of the most confident text, by its label and whether the
            prediction is correct.
    """

    names: list[str]
    label_ids: list[int] = field(default_factory=list)
    predicted_ids: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probability: list[float] = field(default_factory=list)
    mistakes: list[tuple[float, int, dict[str, str]]] = field(default_factory=list)
    surest: dict[tuple[str, bool], tuple[float, int, dict[str, str]]] = field(default_factory=dict)


def report_sections(predictions_path: Path, calibration: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the sections, in order.

    Args:
        predictions_path: file with the predictions.
        calibration: calibration in ``metrics.json``, see :mod:`.calibration`.

    Raises:
        UserError: the file is missing or damaged.
    """
    with reading(predictions_path, REMEDY):
        columns = next(iter(read_predictions(predictions_path)), {})
    if "predicted_value" in columns:
        yield from numbers_sections(predictions_path)
        return
    if "predicted_labels" in columns:
        yield from several_sections(predictions_path, calibration)
        return
    outcome = read_outcome(predictions_path)
    labels, predicted_labels = np.asarray(outcome.label_ids), np.asarray(outcome.predicted_ids)
    matrix = confusion(labels, predicted_labels, len(outcome.names))
    yield from _matrix(outcome.names, matrix)
    yield from _per_label(outcome.names, labels, predicted_labels)
    yield from _calibration(np.asarray(outcome.probability), labels == predicted_labels, calibration)
    yield from _mistakes(outcome, int((labels != predicted_labels).sum()))
    yield from _side_by_side(outcome)
    yield accuracy_by_length(
        outcome.tokens, labels == predicted_labels, "accuracy", "Texts by the number of tokens that the model read"
    )


def read_outcome(predictions_path: Path) -> LabelOutcome:
    """Read the labels, predictions and probabilities of all texts from the predictions file.

    Only the texts that the page shows are kept: the mistakes, and the example of each label, that the model was surest
    of.

    Args:
        predictions_path: path of the split's predictions file.
    """
    outcome: LabelOutcome | None = None
    ids: dict[str, int] = {}
    surest: list[tuple[float, int, dict[str, str]]] = []
    with reading(predictions_path, REMEDY):
        for row in read_predictions(predictions_path):
            if outcome is None:
                names = label_names_of(row)
                outcome, ids = LabelOutcome(names), {label: index for index, label in enumerate(names)}
            outcome.label_ids.append(ids[row["label"]])
            outcome.predicted_ids.append(ids[row["predicted_label"]])
            outcome.tokens.append(int(row["tokens"]))
            probability = float(row["probability"])
            outcome.probability.append(probability)
            is_correct = row["label"] == row["predicted_label"]
            shown_columns = {column: row[column] for column in ("text", "label", "predicted_label")}
            shown_columns["given"] = row[f"{PROBABILITY_OF}{row['label']}"]
            text, key = (probability, -int(row["row"]), shown_columns), (row["label"], is_correct)
            outcome.surest[key] = max(text, outcome.surest.get(key, text), key=lambda candidate: candidate[:2])
            if not is_correct:
                heapq.heappush(surest, text)
                if len(surest) > MAX_ROWS:
                    heapq.heappop(surest)
        if outcome is None:
            raise ValueError("it has no rows")
    outcome.mistakes = sorted(surest, key=lambda mistake: mistake[:2], reverse=True)
    return outcome


def _calibration(probability: np.ndarray, is_correct: np.ndarray, calibration: Mapping[str, Any]) -> Iterator[Section]:
    """Show how close the probabilities are to the accuracy.

    Args:
        probability: probability of the predicted label of each text, (N,).
        is_correct: whether the predicted label is correct, bool (N,).
        calibration: key ``calibration`` of ``metrics.json``; empty without one.
    """
    bin_indices = bins_of(probability)
    rows = [
        (
            f"{index / BINS:.1f} to {(index + 1) / BINS:.1f}",
            f"{in_bin.sum():,}",
            share(float(probability[in_bin].mean()), f"{probability[in_bin].mean():.3f}"),
            share(float(is_correct[in_bin].mean()), f"{is_correct[in_bin].mean():.3f}"),
        )
        for index in range(BINS)
        if (in_bin := bin_indices == index).any()
    ]
    error = expected_calibration_error(probability, is_correct)
    figures = f"The mean probability is {probability.mean():.3f}, the accuracy {is_correct.mean():.3f}"
    explanation = (
        f"{figures}. Their distance within the bins below, the expected calibration error, is {error:.3f}; at 0 each "
        "probability can be believed."
    )
    explanation += f" For them the {describe_calibration(calibration)}." if calibration else ""
    titles = ("probability", "texts", "mean probability", "accuracy")
    bins = table(titles, rows, "Texts by the probability of their predicted label")
    yield Section("How sure the model is", [explanation, bins], f"{figures}: calibration error {error:.3f}")


def _matrix(names: Sequence[str], matrix: np.ndarray) -> Iterator[Section]:
    """Yield the section with the confusion matrix and the most frequently confused pairs of labels.

    Args:
        names: names of the labels, in the order of the ids.
        matrix: number of texts, by label (rows) and predicted label (columns).
    """
    mistakes = matrix - np.diag(np.diag(matrix))
    all_labels = np.arange(len(names))
    parts: list[Markup | str] = [] if mistakes.any() else ["No text has been given a wrong label."]
    parts.append(MATRIX_EXPLANATION)
    if len(names) <= MATRIX_LABELS:
        parts.append(_grid(names, matrix, all_labels, f"Confusion matrix of {len(names)} labels"))
    else:
        mistakes_by_label = mistakes.sum(axis=0) + mistakes.sum(axis=1)
        shown_labels = np.sort(np.argsort(-mistakes_by_label, kind="stable")[:MATRIX_LABELS])
        caption = f"The {MATRIX_LABELS} labels of {len(names)} with the most mistakes"
        parts.append(_grid(names, matrix, shown_labels, caption))
        if len(names) <= MAX_MATRIX_LABELS:
            summary = f"The matrix of all {len(names)} labels"
            parts.append(render_macro("pages/elements.html", "unfolded", summary, _grid(names, matrix, all_labels, "")))
    highlight = ""
    if mistakes.any():
        i, j = divmod(int(mistakes.argmax()), len(names))
        highlight = (
            f"Most often confused: {names[i]} is taken for {names[j]}, {mistakes[i, j]:,} of {matrix[i].sum():,}"
        )
        parts += [_confused_pairs(names, mistakes)] if len(names) > 2 else []
    yield Section("Which labels are confused", parts, highlight)


def _confused_pairs(names: Sequence[str], mistakes: np.ndarray) -> Markup:
    """Return the table of the label pairs that are confused most often.

    Args:
        names: names of the labels, in the order of the ids.
        mistakes: number of texts by label (rows) and predicted label (columns), with a diagonal of 0.
    """
    order = np.argsort(-mistakes, axis=None, kind="stable")[:MAX_ROWS]
    pairs = [divmod(int(index), len(names)) for index in order if mistakes.flat[index]]
    max_count = int(mistakes.max())
    rows = [
        (name(names[i]), name(names[j]), share(int(mistakes[i, j]), f"{mistakes[i, j]:,}", max_count)) for i, j in pairs
    ]
    caption = "The pairs of labels that are confused most often"
    return table(("label", "taken for", "texts"), rows, caption, "", PAIRS_SHOWN, int(np.count_nonzero(mistakes)))


def _grid(names: Sequence[str], matrix: np.ndarray, shown_labels: np.ndarray, caption: str) -> Markup:
    """Return the confusion matrix of some labels; if there are more labels, the last column counts them together.

    Args:
        names: names of the labels, in the order of the ids.
        matrix: number of texts by label (rows) and predicted label (columns).
        shown_labels: ids of the labels to show.
        caption: caption of the table.
    """
    totals = matrix.sum(axis=1)
    columns = [matrix[:, j] for j in shown_labels]
    heads = [(names[j], _shorten(names[j])) for j in shown_labels]
    if len(shown_labels) < len(names):
        columns.append(totals - matrix[:, shown_labels].sum(axis=1))
        heads.append(("another label", "others"))
    rows = [
        (
            (names[i], _shorten(names[i])),
            int(totals[i]),
            [
                (int(column[i]), max(1, round(NUM_SHADES * column[i] / totals[i])) if column[i] else 0)
                for column in columns
            ],
        )
        for i in shown_labels
    ]
    return render_macro("tasks/classification/matrix.html", "matrix", caption, heads, rows)


def _per_label(names: Sequence[str], labels: np.ndarray, predicted_labels: np.ndarray) -> Iterator[Section]:
    """Yield the section with precision, recall and F1 of each label.

    Args:
        names: names of the labels, in the order of the ids.
        labels: correct labels, (N,).
        predicted_labels: predicted labels, (N,).
    """
    scores = scores_of_classes(confusion(labels, predicted_labels, len(names)))
    _, _, f1, support, num_predicted = scores
    occurring_labels = [index for index in range(len(names)) if support[index] or num_predicted[index]]
    is_long = len(names) > MATRIX_LABELS
    order = sorted(occurring_labels, key=lambda index: f1[index]) if is_long else occurring_labels
    caption = "Counted as scikit-learn does" + ("; the label with the lowest F1 first" if is_long else "")
    if num_absent := len(names) - len(occurring_labels):
        caption += f"; {num_absent} labels occur in this split neither as a label nor as a prediction"
    yield label_scores(names, scores, order, caption)


def _mistakes(outcome: LabelOutcome, num_mistakes: int) -> Iterator[Section]:
    """Yield the section with the mistakes that the model was surest of.

    Args:
        outcome: labels, predictions and the mistakes to show.
        num_mistakes: number of all mistakes.
    """
    if not outcome.mistakes:
        return
    rows = [
        (str(-row), f"{probability:.3f}", name(shown_columns["predicted_label"]), name(shown_columns["label"]),
         f"{float(shown_columns['given']):.3f}", excerpt(shown_columns["text"]))
        for probability, row, shown_columns in outcome.mistakes
    ]  # fmt: skip
    titles = ("row", "probability", "given", "label of the data", "its probability", "text")
    caption = "Texts whose label in the data is not what the model is surest of; some are errors of the data"
    mistakes = table(titles, rows, caption, "texts cards", MISTAKES_SHOWN, num_mistakes)
    yield Section("The most confident mistakes", [mistakes])


def _side_by_side(outcome: LabelOutcome) -> Iterator[Section]:
    """Show for each label a correctly predicted text next to a wrongly predicted text.

    Labels with the most confident mistakes come first.
    """
    labels = [label for label in outcome.names if {(label, True), (label, False)} <= outcome.surest.keys()]
    labels.sort(key=lambda label: outcome.surest[label, False][:2], reverse=True)
    rows = []
    for label in labels[:MAX_ROWS]:
        right, wrong = outcome.surest[label, True], outcome.surest[label, False]
        wrong_label = name(wrong[2]["predicted_label"]) + f" {wrong[0]:.3f}"
        rows.append((name(label), f"{right[0]:.3f}", excerpt(right[2]["text"]), wrong_label, excerpt(wrong[2]["text"])))
    if rows:
        titles = ("label", "right at", "right text", "taken for", "wrong text")
        caption = (
            "Of each label the text that was given it most confidently, and the surest one that was not. "
            f"{len(labels)} of {len(outcome.names)} labels have both"
        )
        yield Section("Right beside wrong", [table(titles, rows, caption, "beside cards", MISTAKES_SHOWN)])


def _shorten(text: str) -> str:
    """Return a label's name, shortened to fit the head of a column."""
    return text if len(text) <= MAX_HEAD_CHARACTERS else text[: MAX_HEAD_CHARACTERS - 1] + "…"
