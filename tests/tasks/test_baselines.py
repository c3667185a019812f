"""Test the simple baseline methods: their scores, and the description of the comparison."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Sequence, Value

from toolkit.finetune.baselines import compare_with_baselines, describe_overfitting
from toolkit.tasks.classification import baselines, linear_model
from toolkit.tasks.classification.baselines import TFIDF
from toolkit.tasks.classification.linear_model import LinearModel
from toolkit.tasks.classification.task import LOWER_IS_BETTER
from toolkit.tasks.language_modeling import ngrams
from toolkit.tasks.language_modeling.ngrams import KneserNey, perplexity
from toolkit.terminal.console import LiteralConsole

WORDS = ["red", "green", "blue"]


def recipe(problem: str, columns: int = 1) -> Any:
    return SimpleNamespace(data=SimpleNamespace(problem_type=problem, text_columns=["text"] * columns))


def measure_baselines(run_recipe: Any, data: DatasetDict) -> dict[str, Any]:
    """Return the metrics of each method: method -> split -> metric -> value."""
    baselines_by_method = baselines.measure_baselines(run_recipe, data, LiteralConsole(quiet=True))
    return {method: baseline.metrics for method, baseline in baselines_by_method.items()}


def splits(kind: Any, texts: list[str], labels: list[Any], test_texts: list[str], true: list[Any]) -> DatasetDict:
    features = Features({"text": Value("string"), "label": kind})
    rows = {"train": (texts, labels), "validation": (test_texts, true)}
    return DatasetDict(
        {name: Dataset.from_dict({"text": a, "label": b}, features=features) for name, (a, b) in rows.items()}
    )


def test_one_label_of_a_text():
    texts = [f"number {n} is {WORDS[n % 3]} today" for n in range(30)] + ["number 30 is red today"] * 6
    labels = [n % 3 for n in range(30)] + [0] * 6
    data = splits(ClassLabel(names=WORDS), texts, labels, ["a red car", "a green car", "a blue one"], [0, 1, 2])
    metrics_by_method = measure_baselines(recipe("single_label"), data)
    assert metrics_by_method[TFIDF]["validation"]["accuracy"] == 1
    assert metrics_by_method["most common label"]["validation"]["accuracy"] == pytest.approx(1 / 3)


def test_a_label_without_training_texts_is_never_predicted():
    data = splits(ClassLabel(names=WORDS), ["a red", "a green", "red", "green"], [0, 1, 0, 1], ["blue", "red"], [2, 0])
    assert measure_baselines(recipe("single_label"), data)[TFIDF]["validation"]["accuracy"] == 0.5


def test_several_labels_of_a_text():
    texts = [" ".join(word for bit, word in enumerate(WORDS) if n >> bit & 1) or "none" for n in range(8)] * 4
    labels = [[bit for bit in range(3) if n >> bit & 1] + [3] for n in range(8)] * 4  # every text has the last label
    data = splits(Sequence(ClassLabel(names=[*WORDS, "all"])), texts, labels, texts[:8], labels[:8])
    metrics_by_method = measure_baselines(recipe("multi_label"), data)
    assert metrics_by_method[TFIDF]["validation"]["subset_accuracy"] == 1
    assert metrics_by_method["most common labels"]["validation"]["micro_f1"] < 0.7


def test_a_number_of_two_texts_that_share_words():
    rng = np.random.default_rng(0)
    words = [f"w{n:03}" for n in range(300)]
    texts, numbers = [], []
    for num_shared in rng.integers(0, 6, 300):
        first, second = rng.choice(words, 5, replace=False), rng.choice(words, 5, replace=False)
        texts.append(f"{' '.join(first)}\n{' '.join([*first[:num_shared], *second[num_shared:]])}")
        numbers.append(float(num_shared))
    data = splits(Value("float32"), texts[:200], numbers[:200], texts[200:], numbers[200:])
    metrics_by_method = measure_baselines(recipe("regression", 2), data)
    assert metrics_by_method[TFIDF]["validation"]["pearson"] > 0.9
    assert metrics_by_method["mean"]["validation"]["mse"] > 10 * metrics_by_method[TFIDF]["validation"]["mse"]


def test_a_sample_of_many_texts_is_enough(monkeypatch):
    texts = [f"{WORDS[n % 3]} and more" for n in range(300)]
    data = splits(ClassLabel(names=WORDS), texts, [n % 3 for n in range(300)], WORDS, [0, 1, 2])
    monkeypatch.setattr(baselines, "MAX_CHARACTERS", 1000)
    assert len(baselines._sample_rows(data["train"], 1000)) < 80
    assert measure_baselines(recipe("single_label"), data)[TFIDF]["validation"]["accuracy"] == 1


@pytest.mark.parametrize("problem", ["single_label", "multi_label", "regression"])
def test_baselines_do_not_learn_from_evaluated_texts(problem, monkeypatch):
    """Check that other validation and test rows do not change a score, feature or common label of a split."""
    fitted_texts, fit = [], linear_model.Features.fit
    monkeypatch.setattr(
        linear_model.Features, "fit", lambda self, texts: fitted_texts.append(list(texts)) or fit(self, texts)
    )
    kind, labels = {
        "single_label": (ClassLabel(names=WORDS), [0, 1, 1, 2, 0, 1]),
        "multi_label": (Sequence(ClassLabel(names=WORDS)), [[0], [1], [1], [2], [0, 1], [1]]),
        "regression": (Value("float32"), [0.0, 1.0, 1.0, 2.0, 0.5, 1.0]),
    }[problem]
    texts = ["red", "green", "green car", "blue", "red and green", "green sea"]
    scores = []
    for other_texts, label in (
        (["red", "blue", "red blue"], labels[3]),
        (["odd", "red red", "strange words"], labels[0]),
    ):
        data = splits(kind, texts, labels, ["red", "blue green", "red sea"], [labels[0], labels[3], labels[0]])
        data["test"] = splits(kind, texts, labels, other_texts, [label] * 3)["validation"]
        scores.append(
            {method: by_split["validation"] for method, by_split in measure_baselines(recipe(problem), data).items()}
        )
    assert scores[0] == scores[1] and fitted_texts == [texts, texts]
    assert len(scores[0]) == 2


# -- language models --------------------------------------------------------------------------------------------------


def test_the_probabilities_after_any_context_sum_to_one():
    rng, size = np.random.default_rng(0), 7
    rows, lengths = rng.integers(0, size, (20, 9)) ** 2 % size, rng.integers(3, 10, 20)
    model = KneserNey(rows, lengths, size)
    every = np.stack(np.meshgrid(*[np.arange(size)] * 3, indexing="ij"), -1).reshape(-1, 3)
    context_probabilities = np.exp(-model.surprise(every, np.full(len(every), 3))).reshape(-1, 2)
    np.testing.assert_allclose(context_probabilities[:, 1].reshape(size, size, size).sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(context_probabilities[:, 0].reshape(size, size, size)[:, :, 0].sum(-1), 1, rtol=1e-12)


def test_the_discount_equals_that_of_kneser_and_ney():
    """Compare the discount n1 / (n1 + 2 n2), from n-grams that occur once and twice (Ney, Essen and Kneser 1994)."""
    row = np.array([1, 2, 3, 4, 5, 1, 2, 3, 6, 1, 2, 4])  # the triple 1 2 3 occurs twice, eight others once
    model = KneserNey(row[None], np.array([len(row)]), 7)
    assert model.orders[2].discount == 8 / (8 + 2 * 1)
    np.testing.assert_array_equal(
        model.orders[0].counts, [2, 1, 1, 2, 1, 1]
    )  # number of different preceding words: 1 and 4 have two
    assert model.orders[0].discount == 4 / (4 + 2 * 2)


def test_a_known_row_has_no_surprise_and_padding_does_not_count():
    row = np.arange(2, 12)
    rows, lengths = np.tile(row, (50, 1)), np.full(50, 10)
    assert perplexity((rows, lengths), (row[None], np.array([10])), 20) < 1.1
    short = perplexity((rows, lengths), (row[None], np.array([4])), 20)
    junk = np.where(np.arange(10) < 4, row, 1)[None]
    assert perplexity((rows, lengths), (junk, np.array([4])), 20) == short
    assert perplexity((rows, lengths), (junk, np.array([10])), 20) > 2


# -- descriptions ----------------------------------------------------------------------------------------------------


BETTER, AS_GOOD = (f": the simpler method is {word} here" for word in ("better", "as good"))


def results(
    model_scores: dict[str, float], baseline_scores: dict[str, float], metric: str, split_name: str = "test"
) -> dict[str, Any]:
    return {
        "validation": {},
        split_name: model_scores,
        "best": {"metric": metric},
        "baselines": {"guess": {split_name: baseline_scores}},
    }


@pytest.mark.parametrize(
    ("model_scores", "baseline_scores", "metric", "expected_line"),
    [
        ({"accuracy": 0.82}, {"accuracy": 0.88}, "accuracy", f"test accuracy 0.82; guess 0.88{BETTER}"),
        ({"accuracy": 0.9}, {"accuracy": 0.88}, "accuracy", "test accuracy 0.9; guess 0.88"),
        ({"accuracy": 0.9}, {"accuracy": 0.9}, "accuracy", f"test accuracy 0.9; guess 0.9{AS_GOOD}"),
        ({"mse": 0.5}, {"mse": 0.4}, "mse", f"test mse 0.5; guess 0.4{BETTER}"),
        ({"loss": 1.0, "accuracy": 0.9}, {"accuracy": 0.8}, "loss", "test accuracy 0.9; guess 0.8"),
        ({"pearson": None, "mse": 0.5}, {"pearson": 0.0, "mse": 0.6}, "pearson", "test mse 0.5; guess 0.6"),
        ({"loss": 1.0}, {"accuracy": 0.8}, "loss", ""),
    ],
)  # fmt: skip
def test_a_line_compares_model_and_baseline(model_scores, baseline_scores, metric, expected_line):
    assert (
        str(compare_with_baselines(results(model_scores, baseline_scores, metric), LOWER_IS_BETTER) or "")
        == expected_line
    )


def test_without_a_test_split_or_a_baseline():
    without = results({"accuracy": 0.82}, {"accuracy": 0.88}, "accuracy", "validation")
    assert str(compare_with_baselines(without, LOWER_IS_BETTER)).startswith("validation accuracy 0.82")
    assert compare_with_baselines({**without, "baselines": {}}, LOWER_IS_BETTER) is None


@pytest.mark.parametrize(
    ("losses", "best", "expected_line"),
    [
        ([0.6, 0.5, 0.9], {"step": 3, "metric": "accuracy"}, "the validation loss was 0.5 at step 2, and is 0.9"),
        ([0.6, 0.5, 0.54], {"step": 3, "metric": "accuracy"}, ""),
        ([0.6, 0.5, 0.9], {"step": 2, "metric": "accuracy"}, ""),
        ([0.6, 0.5, 0.9], {"step": 3, "metric": "loss"}, ""),
        ([], {"step": 3, "metric": "accuracy"}, ""),
    ],
)  # fmt: skip
def test_a_rising_loss_is_reported_if_accuracy_selects_the_best(losses, best, expected_line):
    rows = [{"split": "validation", "step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    rows.append({"split": "train", "step": 1, "loss": 0.001})
    assert describe_overfitting(rows, best)[: len(expected_line) or None] == expected_line


def test_a_sample_of_many_tokens_is_counted_and_rows_are_read_in_parts(monkeypatch):
    rng = np.random.default_rng(0)
    rows, lengths = np.cumsum(rng.integers(0, 2, (400, 10)), axis=1) % 9, np.full(400, 10)
    full_perplexity = perplexity((rows, lengths), (rows[:50], lengths[:50]), 9)
    monkeypatch.setattr(ngrams, "ROWS_AT_ONCE", 7)
    assert perplexity((rows, lengths), (rows[:50], lengths[:50]), 9) == pytest.approx(full_perplexity, rel=1e-12)
    monkeypatch.setattr(ngrams, "MAX_TOKENS", 1000)
    assert full_perplexity < perplexity((rows, lengths), (rows[:50], lengths[:50]), 9) < 1.2 * full_perplexity


def test_texts_are_scored_in_parts(monkeypatch):
    data = splits(ClassLabel(names=WORDS), WORDS * 5, [0, 1, 2] * 5, WORDS * 3, [0, 1, 2] * 3)
    monkeypatch.setattr(baselines, "ROWS_AT_ONCE", 4)
    assert measure_baselines(recipe("single_label"), data)[TFIDF]["validation"]["accuracy"] == 1


@pytest.mark.parametrize(("texts", "labels"), [(["a b", "c"], [1, 1]), (["", " \n"], [0, 1])])
def test_without_texts_to_fit_only_the_common_label_is_measured(texts, labels):
    data = splits(ClassLabel(names=WORDS), texts, labels, ["a b"], [1])
    assert list(measure_baselines(recipe("single_label"), data)) == ["most common label"]


def test_the_line_has_the_intervals_of_both():
    run_results = {
        **results({"accuracy": 0.82}, {"accuracy": 0.88}, "accuracy"),
        "intervals": {"test": {"accuracy": [0.79, 0.85]}},
        "baseline_intervals": {"guess": {"test": {"accuracy": [0.86, 0.9]}}},
    }
    line = f"test accuracy 0.82 (95%: 0.79 to 0.85); guess 0.88 (95%: 0.86 to 0.9){BETTER}"
    assert str(compare_with_baselines(run_results, LOWER_IS_BETTER)) == line
    run_results["intervals"]["test"]["accuracy"] = [None, None]  # infinities in JSON
    assert str(compare_with_baselines(run_results, LOWER_IS_BETTER)).startswith("test accuracy 0.82; guess 0.88 (95%")


def test_a_fitted_method_can_be_saved(tmp_path):
    data = splits(ClassLabel(names=WORDS), WORDS * 9, [0, 1, 2] * 9, ["a red car", "blue"], [0, 2])
    baselines_by_method = baselines.measure_baselines(recipe("single_label"), data, LiteralConsole(quiet=True))
    assert baselines_by_method["most common label"].save is None
    baselines_by_method[TFIDF].save(tmp_path)
    model = LinearModel.load(tmp_path)
    assert model.score(["a green hat"]).argmax() == 1
    assert model.calibration["temperature"] > 0
