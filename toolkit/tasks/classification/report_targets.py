"""Sections of a run's page for a model that gives several labels, or a number, from the predictions file alone."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from toolkit.pages.document import scrolled, table
from toolkit.pages.excerpts import excerpt
from toolkit.pages.markup import element
from toolkit.pages.plot import named_bins
from toolkit.run_folder.predictions import REMEDY, read_predictions
from toolkit.run_folder.read import reading
from toolkit.tasks.classification.calibration import THRESHOLD, described
from toolkit.tasks.classification.report_parts import accuracy_by_length, label_names_of, label_scores
from toolkit.tasks.metrics import scores_of_several

#: Number of listed errors.
ERRORS_SHOWN = 25


def several_sections(predictions: Path, calibration: Mapping[str, Any]) -> Iterator[Element]:
    """Yield how good each label is, and the share of texts with all labels right by text length.

    Raises:
        UserError: the file is missing or damaged.
    """
    names: list[str] = []
    true, given, tokens = [], [], []
    with reading(predictions, REMEDY):
        for row in read_predictions(predictions):
            names = names or label_names_of(row)
            labels, predicted = set(json.loads(row["labels"])), set(json.loads(row["predicted_labels"]))
            true.append([name in labels for name in names])
            given.append([name in predicted for name in names])
            tokens.append(int(row["tokens"]))
    of_data, of_model = np.asarray(true, dtype=np.int64), np.asarray(given, dtype=np.int64)  # (texts, labels)
    threshold = calibration.get("threshold", THRESHOLD)
    caption = f"Counted as scikit-learn does; a text has the labels whose probability is above {threshold:.2g}"
    if calibration:
        yield element("p", f"For them the {described(calibration)}.", class_="soft")
    yield from label_scores(names, scores_of_several(of_data, of_model), range(len(names)), caption)
    caption = "Texts whose labels are all right, by the number of tokens that the model read"
    yield from accuracy_by_length(tokens, (of_data == of_model).all(axis=1), "all right", caption)


def numbers_sections(predictions: Path) -> Iterator[Element]:
    """Yield the largest errors, and the mean error by text length.

    Raises:
        UserError: the file is missing or damaged.
    """
    errors, tokens = [], []
    largest: list[tuple[float, int, dict[str, str]]] = []
    with reading(predictions, REMEDY):
        for row in read_predictions(predictions):
            error = abs(float(row["predicted_value"]) - float(row["value"]))
            errors.append(error)
            tokens.append(int(row["tokens"]))
            heapq.heappush(largest, (error, -int(row["row"]), row))
            if len(largest) > ERRORS_SHOWN:
                heapq.heappop(largest)
    rows = [
        (str(-number), f"{float(row['predicted_value']):.4g}", f"{float(row['value']):.4g}", excerpt(row["text"]))
        for _, number, row in sorted(largest, key=lambda found: found[:2], reverse=True)
    ]
    yield element("h2", "The largest errors", id="errors")
    found = table(("row", "given", "value of the data", "text"), rows, "Some are errors of the data", "texts")
    yield scrolled(found, "errors")
    each = np.asarray(errors)
    lengths = [(name, f"{len(places):,}", f"{each[places].mean():.4g}") for name, places in named_bins(tokens).items()]
    yield element("h2", "Length and error")
    caption = "The mean absolute error, by the number of tokens that the model read"
    yield table(("tokens", "texts", "error"), lengths, caption, "numbers")
