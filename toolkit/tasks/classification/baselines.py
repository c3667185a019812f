"""What simple methods reach on a run's own splits, in seconds: the most common label (or the mean), and TF-IDF of words
and characters with a linear model. They read whole texts, also where the model's are cut."""

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

#: (texts) -> logits [N, L], or numbers [N, 1].
Scorer = Callable[[Sequence[str]], np.ndarray]
COMMON = {"single_label": "most common label", "multi_label": "most common labels", "regression": "mean"}
TFIDF = "TF-IDF with a linear model"
#: Characters of training texts that TF-IDF learns from: 20 s on one core. Of more, rows evenly spaced.
MOST_CHARACTERS = 20_000_000
#: Rows whose texts are in memory at once.
ROWS_AT_ONCE = 4096
#: Features of either kind, the most frequent.
MOST_FEATURES = 50_000


def measured(recipe: Recipe, splits: DatasetDict) -> dict[str, dict[str, dict[str, float]]]:
    """Return method -> split -> metric -> value.

    Args:
        splits: of :func:`.labels.labelled_splits`.
    """
    problem, two = settled(recipe.data.problem_type), len(recipe.data.text_columns) > 1
    train = _of_at_most(splits["train"], MOST_CHARACTERS)
    targets = {name: _targets(rows, problem) for name, rows in {**splits, "train": train}.items()}
    scorers = {COMMON[problem]: _common(targets["train"], problem)}
    if (tfidf := _tfidf(train["text"], targets["train"], problem, two)) is not None:
        scorers[TFIDF] = tfidf
    others = {name: rows for name, rows in splits.items() if name != "train"}
    return {
        method: {name: metrics.of_texts(_scored(rows, scores), targets[name]) for name, rows in others.items()}
        for method, scores in scorers.items()
    }


def _scored(rows: Dataset, scores: Scorer) -> np.ndarray:
    starts = range(0, len(rows), ROWS_AT_ONCE)
    return np.concatenate([scores(rows[start : start + ROWS_AT_ONCE]["text"]) for start in starts])


def _of_at_most(rows: Dataset, characters: int) -> Dataset:
    import pyarrow.compute as pc

    batches = rows.select_columns(["text"]).with_format("arrow").iter(ROWS_AT_ONCE)  # all texts may not fit the memory
    total = sum(pc.sum(pc.utf8_length(batch["text"])).as_py() for batch in batches)
    if total <= characters:
        return rows
    count = max(2, len(rows) * characters // total)
    return rows.select(np.linspace(0, len(rows) - 1, count).astype(int).tolist())


def _targets(rows: Dataset, problem: str) -> np.ndarray:
    """Return the labels as evaluation has them: int64 [N], float32 [N] of numbers, or float32 [N, L] of 0 and 1."""
    labels = rows["label"][:]
    if problem == "multi_label":
        from toolkit.tasks.classification.targets import multi_hot

        return np.stack(list(multi_hot(labels, len(rows.features["label"].feature.names))))
    return np.asarray(labels, np.float32 if problem == "regression" else np.int64)


def _common(targets: np.ndarray, problem: str) -> Scorer:
    if problem == "single_label":
        best = np.bincount(targets).astype(float)[None]
    elif problem == "multi_label":
        best = targets.mean(axis=0, keepdims=True) - 0.5
    else:
        best = targets.mean(keepdims=True)[None]
    return lambda texts: np.repeat(best, len(texts), axis=0)


def _tfidf(texts: Sequence[str], targets: np.ndarray, problem: str, two: bool) -> Scorer | None:
    """Fit a linear model; None where there is nothing to fit: texts without a word, or one label alone (as of a run
    that is limited to a few rows). Of a label that training lacks, or that all its texts have, the score is a
    constant."""
    from sklearn.linear_model import Ridge
    from sklearn.svm import LinearSVC

    if (problem == "single_label" and len(set(targets.tolist())) < 2) or not any(map(str.strip, texts)):
        return None
    features = Features(two)
    seen = features.fit(texts)
    if problem == "regression":
        ridge = Ridge(solver="lsqr").fit(seen, targets)
        return lambda others: ridge.predict(features.of(others))[:, None]
    if problem == "multi_label":
        varied = [label for label in range(targets.shape[1]) if 0 < targets[:, label].mean() < 1]
        models = {label: LinearSVC(random_state=0).fit(seen, targets[:, label]) for label in varied}
        constant = np.where(targets.mean(axis=0) < 1, -1.0, 1.0)

        def several(others: Sequence[str]) -> np.ndarray:
            rows = features.of(others)
            scores = np.repeat(constant[None], len(others), axis=0)
            for label, model in models.items():
                scores[:, label] = model.decision_function(rows)
            return scores

        return several
    model = LinearSVC(random_state=0).fit(seen, targets)

    def one(others: Sequence[str]) -> np.ndarray:
        found = model.predict(features.of(others))
        return np.eye(targets.max() + 1)[found]

    return one


class Features:
    """TF-IDF of words and their pairs, and of 2 to 5 characters within words; of two texts that of each, what they
    share, and their cosine.

    Args:
        two: whether a text is two, joined by :data:`.pairs.SEPARATOR`.
    """

    def __init__(self, two: bool) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import FeatureUnion

        options: dict[str, Any] = {"sublinear_tf": True, "max_features": MOST_FEATURES, "dtype": np.float32}
        words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+|[^\w\s]", **options)
        characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **options)
        self.union = FeatureUnion([("words", words), ("characters", characters)])
        self.two = two

    def fit(self, texts: Sequence[str]) -> Any:
        """Learn the vocabulary of texts; return their features, a sparse matrix."""
        self.union.fit([part for text in texts for part in self._parts(text)])
        return self.of(texts)

    def of(self, texts: Sequence[str]) -> Any:
        """Return the features of texts."""
        parts = [self.union.transform(list(column)) for column in zip(*map(self._parts, texts), strict=True)]
        if not self.two:
            return parts[0]
        from scipy.sparse import csr_matrix, hstack

        shared = parts[0].multiply(parts[1])
        cosine = csr_matrix(shared.sum(axis=1))  # of rows whose norm is the same in each
        return hstack([*parts, shared, cosine], format="csr")

    def _parts(self, text: str) -> tuple[str, ...]:
        if not self.two:
            return (text,)
        first, _, second = text.partition(SEPARATOR)
        return first, second
