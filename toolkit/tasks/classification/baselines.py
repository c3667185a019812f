"""Measure simple methods on a run's own splits, in seconds: a constant prediction, and TF-IDF with a linear model.

The constant is the most common label or the mean. The methods read whole texts, even if the model's texts are cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from toolkit.recipe.recipe import require_setting
from toolkit.tasks import metrics
from toolkit.tasks.classification.calibration import calibrate_outputs
from toolkit.tasks.classification.linear_model import LinearModel
from toolkit.tasks.interface import Baseline
from toolkit.tasks.intervals import bootstrap_intervals
from toolkit.terminal.progress import ProgressBar

if TYPE_CHECKING:
    from datasets import Dataset
    from rich.console import Console

    from toolkit.recipe.recipe import Recipe

CONSTANT_METHODS = {"single_label": "most common label", "multi_label": "most common labels", "regression": "mean"}
TFIDF = "TF-IDF with a linear model"
#: Maximum number of characters of training texts for TF-IDF. Longer data are sampled evenly.
MAX_CHARACTERS = 20_000_000
#: Rows whose texts are in memory at once.
ROWS_AT_ONCE = 4096


def measure_baselines(recipe: Recipe, splits: Mapping[str, Dataset], console: Console) -> dict[str, Baseline]:
    """Return the results of each simple method, by the method's name.

    Args:
        recipe: recipe of the run.
        splits: splits of :func:`.labels.labeled_splits`.
        console: console for the progress.
    """
    problem, has_pairs = require_setting(recipe.data.problem_type), len(recipe.data.text_columns) > 1
    train = _sample_rows(splits["train"], MAX_CHARACTERS)
    targets = {name: targets_of(rows, problem) for name, rows in {**splits, "train": train}.items()}
    evaluated_splits = {name: rows for name, rows in splits.items() if name != "train"}
    constant_scores = {
        name: np.repeat(_constant_score(targets["train"], problem), len(rows), axis=0)
        for name, rows in evaluated_splits.items()
    }
    baselines = {CONSTANT_METHODS[problem]: _measure(constant_scores, targets)}
    num_labels = _num_labels(train)
    with ProgressBar(console, TFIDF, num_labels + 1) as bar:
        num_done = 0

        def advance(count: int) -> None:
            nonlocal num_done
            num_done += count
            bar.update(num_done)

        model = LinearModel.fit(train["text"][:], targets["train"], problem, num_labels, advance, has_pairs=has_pairs)
    if model is not None:
        scores = {name: score_rows(rows, model) for name, rows in evaluated_splits.items()}
        calibration = calibrate_outputs({name: (scores[name], targets[name]) for name in scores}, problem)
        baselines[TFIDF] = replace(_measure(scores, targets), save=replace(model, calibration=calibration).save)
    return baselines


def _measure(scores: Mapping[str, np.ndarray], targets: Mapping[str, np.ndarray]) -> Baseline:
    """Return the metrics of scores, and the confidence intervals of the test split."""
    return Baseline(
        {name: metrics.text_metrics(scores[name], targets[name]) for name in scores},
        {name: text_intervals(scores[name], targets[name]) for name in scores if name == "test"},
    )


def text_intervals(logits: np.ndarray, labels: np.ndarray) -> dict[str, list[float]]:
    """Return the confidence interval of each metric of :func:`toolkit.tasks.metrics.text_metrics`.

    Args:
        logits: scores of the labels, (N, L).
        labels: correct labels, (N,), or (N, L) if texts have several.
    """
    return bootstrap_intervals(lambda rows: metrics.text_metrics(logits[rows], labels[rows]), len(labels))


def score_rows(rows: Dataset, linear_model: LinearModel) -> np.ndarray:
    """Return the scores of the texts of a split, with the texts of only some rows in memory at once."""
    starts = range(0, len(rows), ROWS_AT_ONCE)
    return np.concatenate([linear_model.score(rows[start : start + ROWS_AT_ONCE]["text"]) for start in starts])


def _num_labels(rows: Dataset) -> int:
    """Return the number of labels; 1 in regression.

    Args:
        rows: rows of a split.
    """
    label = rows.features["label"]
    return len(getattr(getattr(label, "feature", label), "names", [""]))


def _sample_rows(rows: Dataset, max_characters: int) -> Dataset:
    """Return all rows, or evenly spaced rows with about ``max_characters`` characters if there are more."""
    import pyarrow.compute as pc

    batches = rows.select_columns(["text"]).with_format("arrow").iter(ROWS_AT_ONCE)  # all texts may not fit the memory
    num_characters = sum(pc.sum(pc.utf8_length(batch["text"])).as_py() for batch in batches)
    if num_characters <= max_characters:
        return rows
    num_rows = max(2, len(rows) * max_characters // num_characters)
    return rows.select(np.linspace(0, len(rows) - 1, num_rows).astype(int).tolist())


def targets_of(rows: Dataset, problem: str) -> np.ndarray:
    """Return the labels in the form that evaluation uses.

    They are int64 (N,), float32 (N,) in regression, or float32 (N, L) of 0 and 1 with several labels per text.

    Args:
        rows: rows of a split.
        problem: problem type: ``single_label``, ``multi_label`` or ``regression``.
    """
    labels = rows["label"][:]
    if problem == "multi_label":
        from toolkit.tasks.classification.targets import multi_hot

        return np.stack(list(multi_hot(labels, len(rows.features["label"].feature.names))))
    return np.asarray(labels, np.float32 if problem == "regression" else np.int64)


def _constant_score(targets: np.ndarray, problem: str) -> np.ndarray:
    """Return the same score for every text, (1, L).

    Args:
        targets: labels as :func:`targets_of` returns them.
        problem: problem type: ``single_label``, ``multi_label`` or ``regression``.
    """
    if problem == "single_label":
        return np.bincount(targets).astype(float)[None]
    if problem == "multi_label":
        return targets.mean(axis=0, keepdims=True) - 0.5
    return targets.mean(keepdims=True)[None]
