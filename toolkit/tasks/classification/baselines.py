"""Measure simple methods on a run's own splits, in seconds: a constant prediction, and TF-IDF with a linear model.

The constant is the most common label or the mean. TF-IDF is of words and characters. The methods read whole texts, even
if the model's texts are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.recipe.recipe import settled
from toolkit.tasks import metrics
from toolkit.tasks.classification.pairs import SEPARATOR

if TYPE_CHECKING:
    from datasets import Dataset, DatasetDict

    from toolkit.recipe.recipe import Recipe

#: Function that maps texts to logits (N, L), or to numbers (N, 1).
Scorer = Callable[[Sequence[str]], np.ndarray]
CONSTANT_METHODS = {"single_label": "most common label", "multi_label": "most common labels", "regression": "mean"}
TFIDF = "TF-IDF with a linear model"
#: Maximum number of characters of training texts for TF-IDF: 20 s on one core. Longer data are sampled evenly.
MAX_CHARACTERS = 20_000_000
#: Rows whose texts are in memory at once.
ROWS_AT_ONCE = 4096
#: Maximum number of word features and of character features: the most frequent are kept.
MAX_FEATURES = 50_000


def measure_baselines(recipe: Recipe, splits: DatasetDict) -> dict[str, dict[str, dict[str, float]]]:
    """Return the metrics of each simple method: method -> split -> metric -> value.

    Args:
        recipe: recipe of the run.
        splits: splits of :func:`.labels.labelled_splits`.
    """
    problem, has_pairs = settled(recipe.data.problem_type), len(recipe.data.text_columns) > 1
    train = _sample_rows(splits["train"], MAX_CHARACTERS)
    targets = {name: _targets(rows, problem) for name, rows in {**splits, "train": train}.items()}
    scorers = {CONSTANT_METHODS[problem]: _constant_scorer(targets["train"], problem)}
    if (tfidf := _fit_tfidf(train["text"], targets["train"], problem, has_pairs)) is not None:
        scorers[TFIDF] = tfidf
    evaluated_splits = {name: rows for name, rows in splits.items() if name != "train"}
    return {
        method: {
            name: metrics.text_metrics(_score_rows(rows, score_texts), targets[name])
            for name, rows in evaluated_splits.items()
        }
        for method, score_texts in scorers.items()
    }


def _score_rows(rows: Dataset, score_texts: Scorer) -> np.ndarray:
    starts = range(0, len(rows), ROWS_AT_ONCE)
    return np.concatenate([score_texts(rows[start : start + ROWS_AT_ONCE]["text"]) for start in starts])


def _sample_rows(rows: Dataset, max_characters: int) -> Dataset:
    import pyarrow.compute as pc

    batches = rows.select_columns(["text"]).with_format("arrow").iter(ROWS_AT_ONCE)  # all texts may not fit the memory
    num_characters = sum(pc.sum(pc.utf8_length(batch["text"])).as_py() for batch in batches)
    if num_characters <= max_characters:
        return rows
    num_rows = max(2, len(rows) * max_characters // num_characters)
    return rows.select(np.linspace(0, len(rows) - 1, num_rows).astype(int).tolist())


def _targets(rows: Dataset, problem: str) -> np.ndarray:
    """Return the labels in the form that evaluation uses.

    They are int64 (N,), float32 (N,) in regression, or float32 (N, L) of 0 and 1 with several labels per text.
    """
    labels = rows["label"][:]
    if problem == "multi_label":
        from toolkit.tasks.classification.targets import multi_hot

        return np.stack(list(multi_hot(labels, len(rows.features["label"].feature.names))))
    return np.asarray(labels, np.float32 if problem == "regression" else np.int64)


def _constant_scorer(targets: np.ndarray, problem: str) -> Scorer:
    if problem == "single_label":
        logits = np.bincount(targets).astype(float)[None]
    elif problem == "multi_label":
        logits = targets.mean(axis=0, keepdims=True) - 0.5
    else:
        logits = targets.mean(keepdims=True)[None]
    return lambda texts: np.repeat(logits, len(texts), axis=0)


def _fit_tfidf(texts: Sequence[str], targets: np.ndarray, problem: str, has_pairs: bool) -> Scorer | None:
    """Fit a linear model to TF-IDF features; return its scorer, or None if there is nothing to fit.

    That is the case for texts without a word, and for a single label, as in a run that is limited to a few rows. With
    several labels per text, a label that all training texts or none of them have gets a constant score.

    Args:
        texts: training texts.
        targets: result of :func:`_targets`.
        problem: ``data.problem_type``.
        has_pairs: whether a text is a pair joined by :data:`.pairs.SEPARATOR`.
    """
    from sklearn.linear_model import Ridge
    from sklearn.svm import LinearSVC

    if (problem == "single_label" and len(set(targets.tolist())) < 2) or not any(map(str.strip, texts)):
        return None
    features = Features(has_pairs)
    train_features = features.fit(texts)
    if problem == "regression":
        ridge = Ridge(solver="lsqr").fit(train_features, targets)
        return lambda new_texts: ridge.predict(features.transform(new_texts))[:, None]
    if problem == "multi_label":
        learnable_labels = [label for label in range(targets.shape[1]) if 0 < targets[:, label].mean() < 1]
        models = {label: LinearSVC(random_state=0).fit(train_features, targets[:, label]) for label in learnable_labels}
        constant_scores = np.where(targets.mean(axis=0) < 1, -1.0, 1.0)

        def score_labels(new_texts: Sequence[str]) -> np.ndarray:
            new_features = features.transform(new_texts)
            scores = np.repeat(constant_scores[None], len(new_texts), axis=0)
            for label, model in models.items():
                scores[:, label] = model.decision_function(new_features)
            return scores

        return score_labels
    model = LinearSVC(random_state=0).fit(train_features, targets)

    def score_classes(new_texts: Sequence[str]) -> np.ndarray:
        predictions = model.predict(features.transform(new_texts))
        return np.eye(targets.max() + 1)[predictions]

    return score_classes


class Features:
    """TF-IDF features of words, of word pairs, and of 2 to 5 characters within words.

    Text pairs have the features of each text, their elementwise product, and their cosine.

    Args:
        has_pairs: whether a text is a pair joined by :data:`.pairs.SEPARATOR`.
    """

    def __init__(self, has_pairs: bool) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import FeatureUnion

        options: dict[str, Any] = {"sublinear_tf": True, "max_features": MAX_FEATURES, "dtype": np.float32}
        words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+|[^\w\s]", **options)
        characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **options)
        self.union = FeatureUnion([("words", words), ("characters", characters)])
        self.has_pairs = has_pairs

    def fit(self, texts: Sequence[str]) -> Any:
        """Learn the vocabulary of texts; return their features as a sparse matrix, (N, features)."""
        self.union.fit([part for text in texts for part in self._parts(text)])
        return self.transform(texts)

    def transform(self, texts: Sequence[str]) -> Any:
        """Return the features of texts as a sparse matrix, (N, features)."""
        part_features = [self.union.transform(list(column)) for column in zip(*map(self._parts, texts), strict=True)]
        if not self.has_pairs:
            return part_features[0]
        from scipy.sparse import csr_matrix, hstack

        shared_features = part_features[0].multiply(part_features[1])
        cosine = csr_matrix(shared_features.sum(axis=1))  # the rows of TF-IDF have norm 1
        return hstack([*part_features, shared_features, cosine], format="csr")

    def _parts(self, text: str) -> tuple[str, ...]:
        if not self.has_pairs:
            return (text,)
        first, _, second = text.partition(SEPARATOR)
        return first, second
