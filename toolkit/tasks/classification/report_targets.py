"""Write the sections of a run's page for a model with several labels per text, or with numbers.

The sections are computed from the predictions file only.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.pages.bins import named_bins
from toolkit.pages.elements import Section, excerpt, table
from toolkit.run_folder.predictions import REMEDY, read_predictions
from toolkit.run_folder.read import reading
from toolkit.tasks.classification.calibration import THRESHOLD, describe_calibration
from toolkit.tasks.classification.report_parts import accuracy_by_length, label_names_of, label_scores
from toolkit.tasks.metrics import scores_of_several

#: Number of errors in the list.
ERRORS_SHOWN = 25


def several_sections(predictions_path: Path, calibration: Mapping[str, Any]) -> Iterator[Section]:
    """Yield the scores of each label, and the share of texts with all labels correct by text length.

    Args:
        predictions_path: path of the split's predictions file.
        calibration: key ``calibration`` of ``metrics.json``; empty without one.

    Raises:
        UserError: the file is missing or damaged.
    """
    names: list[str] = []
    true_rows, predicted_rows, tokens = [], [], []
    with reading(predictions_path, REMEDY):
        for row in read_predictions(predictions_path):
            names = names or label_names_of(row)
            labels, predicted_names = set(json.loads(row["labels"])), set(json.loads(row["predicted_labels"]))
            true_rows.append([name in labels for name in names])
            predicted_rows.append([name in predicted_names for name in names])
            tokens.append(int(row["tokens"]))
    true_labels, predicted_labels = (
        np.asarray(true_rows, dtype=np.int64),
        np.asarray(predicted_rows, dtype=np.int64),
    )  # (texts, labels)
    threshold = calibration.get("threshold", THRESHOLD)
    caption = f"Counted as scikit-learn does; a text has the labels whose probability is above {threshold:.2g}"
    caption += f". For them the {describe_calibration(calibration)}" if calibration else ""
    yield label_scores(names, scores_of_several(true_labels, predicted_labels), range(len(names)), caption)
    caption = "Texts whose labels are all right, by the number of tokens that the model read"
    yield accuracy_by_length(tokens, (true_labels == predicted_labels).all(axis=1), "all right", caption)


def numbers_sections(predictions_path: Path) -> Iterator[Section]:
    """Yield the largest errors, and the mean error by text length.

    Args:
        predictions_path: path of the split's predictions file.

    Raises:
        UserError: the file is missing or damaged.
    """
    errors, tokens = [], []
    largest: list[tuple[float, int, dict[str, str]]] = []
    with reading(predictions_path, REMEDY):
        for row in read_predictions(predictions_path):
            error = abs(float(row["predicted_value"]) - float(row["value"]))
            errors.append(error)
            tokens.append(int(row["tokens"]))
            heapq.heappush(largest, (error, -int(row["row"]), row))
            if len(largest) > ERRORS_SHOWN:
                heapq.heappop(largest)
    rows = [
        (str(-number), f"{float(row['predicted_value']):.4g}", f"{float(row['value']):.4g}", excerpt(row["text"]))
        for _, number, row in sorted(largest, key=lambda error_table: error_table[:2], reverse=True)
    ]
    titles = ("row", "given", "value of the data", "text")
    error_table = table(titles, rows, "Some are errors of the data", "texts cards", total=len(errors))
    yield Section("The largest errors", [error_table])
    all_errors = np.asarray(errors)
    lengths = [
        (name, f"{len(places):,}", f"{all_errors[places].mean():.4g}") for name, places in named_bins(tokens).items()
    ]
    caption = "The mean absolute error, by the number of tokens that the model read"
    yield Section("Length and error", [table(("tokens", "texts", "error"), lengths, caption, "numbers")])
