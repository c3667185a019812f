"""A classifier's sections of a run's page, from the predictions file alone: confused labels, how good each label is,
the most confident mistakes, and accuracy by text length."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from toolkit.pages.document import name, scrolled, table
from toolkit.pages.excerpts import excerpt
from toolkit.pages.markup import element
from toolkit.pages.plot import share
from toolkit.run_folder.predictions import REMEDY, read_predictions
from toolkit.run_folder.read import reading
from toolkit.tasks.classification.calibration import BINS, bins, described, expected_calibration_error
from toolkit.tasks.classification.label_names import PROBABILITY_OF
from toolkit.tasks.classification.report_parts import accuracy_by_length, label_names_of, label_scores
from toolkit.tasks.classification.report_targets import numbers_sections, several_sections
from toolkit.tasks.metrics import confusion, scores_of_classes

#: Most labels of a confusion matrix; beyond that, it has those with the most mistakes.
MATRIX_LABELS = 30
#: Number of listed label pairs, and of mistakes.
PAIRS_SHOWN, MISTAKES_SHOWN = 20, 25
#: How to read the matrix.
MEANING = (
    "A row is a label of the data, a column the label that the model gave. The stronger the colour, the larger the "
    "share of the row: blue where the model is right, orange where it is wrong."
)
#: Shades of a cell.
SHADES = 8
#: Most characters of a label in a column's head.
HEAD_CHARACTERS = 24


@dataclass
class LabelOutcome:
    """Results on a split.

    Attributes:
        names: the labels, in the order of their ids.
        label, predicted: the id of each text's label, and of the one that was predicted.
        tokens: how many the model read of each text.
        probability: that of each text's predicted label.
        mistakes: probability, row and the rest of the most confident mistakes, surest first.
        surest: label and whether it was given -> probability, row and the rest of its most confident text.
    """

    names: list[str]
    label: list[int] = field(default_factory=list)
    predicted: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    probability: list[float] = field(default_factory=list)
    mistakes: list[tuple[float, int, dict[str, str]]] = field(default_factory=list)
    surest: dict[tuple[str, bool], tuple[float, int, dict[str, str]]] = field(default_factory=dict)


def sections(predictions: Path, calibration: Mapping[str, Any]) -> Iterator[Element]:
    """The sections, in order.

    Args:
        calibration: of ``metrics.json``, see :mod:`.calibration`.

    Raises:
        UserError: the file is missing or damaged.
    """
    with reading(predictions, REMEDY):
        columns = next(iter(read_predictions(predictions)), {})
    if "predicted_value" in columns:
        yield from numbers_sections(predictions)
        return
    if "predicted_labels" in columns:
        yield from several_sections(predictions, calibration)
        return
    found = read_outcome(predictions)
    label, predicted = np.asarray(found.label), np.asarray(found.predicted)
    matrix = confusion(label, predicted, len(found.names))
    yield from _matrix(found.names, matrix)
    yield from _per_label(found.names, label, predicted)
    yield from _calibration(np.asarray(found.probability), label == predicted, calibration)
    yield from _mistakes(found)
    yield from _side_by_side(found)
    yield from accuracy_by_length(
        found.tokens, label == predicted, "accuracy", "Texts by the number of tokens that the model read"
    )


def read_outcome(predictions: Path) -> LabelOutcome:
    """Read the predictions file, keeping only the texts that are shown."""
    outcome: LabelOutcome | None = None
    ids: dict[str, int] = {}
    surest: list[tuple[float, int, dict[str, str]]] = []
    with reading(predictions, REMEDY):
        for row in read_predictions(predictions):
            if outcome is None:
                names = label_names_of(row)
                outcome, ids = LabelOutcome(names), {label: index for index, label in enumerate(names)}
            outcome.label.append(ids[row["label"]])
            outcome.predicted.append(ids[row["predicted_label"]])
            outcome.tokens.append(int(row["tokens"]))
            probability = float(row["probability"])
            outcome.probability.append(probability)
            right = row["label"] == row["predicted_label"]
            kept = {column: row[column] for column in ("text", "label", "predicted_label")}
            kept["given"] = row[f"{PROBABILITY_OF}{row['label']}"]
            text, key = (probability, -int(row["row"]), kept), (row["label"], right)
            outcome.surest[key] = max(text, outcome.surest.get(key, text), key=lambda one: one[:2])
            if not right:
                heapq.heappush(surest, text)
                if len(surest) > MISTAKES_SHOWN:
                    heapq.heappop(surest)
        if outcome is None:
            raise ValueError("it has no rows")
    outcome.mistakes = sorted(surest, key=lambda mistake: mistake[:2], reverse=True)
    return outcome


def _calibration(probability: np.ndarray, right: np.ndarray, calibration: Mapping[str, Any]) -> Iterator[Element]:
    """Show whether the probabilities can be believed."""
    places = bins(probability)
    rows = [
        (
            f"{one / BINS:.1f} to {(one + 1) / BINS:.1f}",
            f"{chosen.sum():,}",
            share(float(probability[chosen].mean()), f"{probability[chosen].mean():.3f}"),
            share(float(right[chosen].mean()), f"{right[chosen].mean():.3f}"),
        )
        for one in range(BINS)
        if (chosen := places == one).any()
    ]
    error = expected_calibration_error(probability, right)
    yield element("h2", "How sure the model is", id="calibration")
    said = (
        f"The mean probability is {probability.mean():.3f}, the accuracy {right.mean():.3f}. Their distance within the "
        f"bins below, the expected calibration error, is {error:.3f}; at 0 each probability can be believed."
    )
    said += f" For them the {described(calibration)}." if calibration else ""
    yield element("p", said, class_="soft")
    titles = ("probability", "texts", "mean probability", "accuracy")
    yield scrolled(table(titles, rows, "Texts by the probability of their predicted label"), "calibration")


def _matrix(names: Sequence[str], matrix: np.ndarray) -> Iterator[Element]:
    yield element("h2", "Which labels are confused", id="confusion")
    off = matrix - np.diag(np.diag(matrix))
    if not off.any():
        yield element("p", "No text has been given a wrong label.")
    chosen, caption = np.arange(len(names)), f"Confusion matrix of {len(names)} labels"
    if len(names) > MATRIX_LABELS:
        faults = off.sum(axis=0) + off.sum(axis=1)
        chosen = np.sort(np.argsort(-faults, kind="stable")[:MATRIX_LABELS])
        caption = f"The {MATRIX_LABELS} labels of {len(names)} with the most mistakes"
    yield element("p", MEANING, class_="soft")
    yield scrolled(_grid(names, matrix, chosen, caption), "confusion")
    if len(names) > 2 and off.any():
        yield _pairs(names, off)


def _pairs(names: Sequence[str], off: np.ndarray) -> Element:
    """The pairs of labels that are confused most often."""
    order = np.argsort(-off, axis=None, kind="stable")[:PAIRS_SHOWN]
    pairs = [divmod(int(place), len(names)) for place in order if off.flat[place]]
    most = int(off.max())
    rows = [(name(names[i]), name(names[j]), share(int(off[i, j]), f"{off[i, j]:,}", most)) for i, j in pairs]
    return table(("label", "taken for", "texts"), rows, "The pairs of labels that are confused most often")


def _grid(names: Sequence[str], matrix: np.ndarray, chosen: np.ndarray, caption: str) -> Element:
    others = len(chosen) < len(names)
    heads = [element("th", element("span", _short(names[j]), title=names[j]), scope="col") for j in chosen]
    heads += [element("th", element("span", "others"), scope="col")] if others else []
    rows = []
    for i in chosen:
        total = int(matrix[i].sum())
        cells = [_cell(int(matrix[i, j]), total, names[i], names[j], bool(i == j)) for j in chosen]
        if others:
            cells.append(_cell(total - int(matrix[i, chosen].sum()), total, names[i], "another label", False))
        rows.append(element("tr", element("th", _short(names[i]), scope="row", title=names[i]), *cells))
    corner = element("th", "label \\ given", scope="col")
    return element(
        "table",
        element("caption", caption),
        element("thead", element("tr", corner, *heads)),
        element("tbody", *rows),
        class_="matrix upright" if len(chosen) > 6 else "matrix",
    )


def _cell(count: int, total: int, label: str, given: str, right: bool) -> Element:
    if not count:
        return element("td", "·" if total else "", class_="none")
    shade = max(1, round(SHADES * count / total))
    title = f"{label} taken for {given}: {count:,} of {total:,}"
    return element("td", f"{count:,}", class_=f"{'right' if right else 'wrong'} shade{shade}", title=title)


def _per_label(names: Sequence[str], label: np.ndarray, predicted: np.ndarray) -> Iterator[Element]:
    scores = scores_of_classes(confusion(label, predicted, len(names)))
    _, _, f1, support, given = scores
    occurring = [index for index in range(len(names)) if support[index] or given[index]]
    many = len(names) > MATRIX_LABELS
    order = sorted(occurring, key=lambda index: f1[index]) if many else occurring
    caption = "Counted as scikit-learn does" + ("; the label with the lowest F1 first" if many else "")
    if absent := len(names) - len(occurring):
        caption += f"; {absent} labels occur in this split neither as a label nor as a prediction"
    yield from label_scores(names, scores, order, caption)


def _mistakes(found: LabelOutcome) -> Iterator[Element]:
    if not found.mistakes:
        return
    rows = [
        (str(-row), f"{probability:.3f}", name(kept["predicted_label"]), name(kept["label"]),
         f"{float(kept['given']):.3f}", excerpt(kept["text"]))
        for probability, row, kept in found.mistakes
    ]  # fmt: skip
    yield element("h2", "The most confident mistakes", id="mistakes")
    titles = ("row", "probability", "given", "label of the data", "its probability", "text")
    caption = "Texts whose label in the data is not what the model is surest of; some are errors of the data"
    yield scrolled(table(titles, rows, caption, "texts"), "mistakes")


def _side_by_side(found: LabelOutcome) -> Iterator[Element]:
    """Show for each label a text that was given it beside one that was not, the most confident mistakes first."""
    both = [label for label in found.names if {(label, True), (label, False)} <= found.surest.keys()]
    both.sort(key=lambda label: found.surest[label, False][:2], reverse=True)
    rows = []
    for label in both[:MISTAKES_SHOWN]:
        right, wrong = found.surest[label, True], found.surest[label, False]
        taken = element("span", name(wrong[2]["predicted_label"]), f" {wrong[0]:.3f}")
        rows.append((name(label), f"{right[0]:.3f}", excerpt(right[2]["text"]), taken, excerpt(wrong[2]["text"])))
    if rows:
        yield element("h2", "Right beside wrong", id="beside")
        titles = ("label", "right at", "text", "taken for", "text")
        caption = "Of each label the text that was given it most confidently, and the surest one that was not"
        yield scrolled(table(titles, rows, caption, "beside"), "beside")


def _short(text: str) -> str:
    return text if len(text) <= HEAD_CHARACTERS else text[: HEAD_CHARACTERS - 1] + "…"
