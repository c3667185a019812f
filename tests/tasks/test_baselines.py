"""Simple methods beside a model: what they reach, and what is said of it."""

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
    measured = baselines.measure_baselines(run_recipe, data, LiteralConsole(quiet=True))
    return {method: baseline.metrics for method, baseline in measured.items()}


def splits(kind: Any, texts: list[str], labels: list[Any], others: list[str], true: list[Any]) -> DatasetDict:
    features = Features({"text": Value("string"), "label": kind})
    rows = {"train": (texts, labels), "validation": (others, true)}
    return DatasetDict(
        {name: Dataset.from_dict({"text": a, "label": b}, features=features) for name, (a, b) in rows.items()}
    )


def test_one_label_of_a_text():
    texts = [f"number {n} is {WORDS[n % 3]} today" for n in range(30)] + ["number 30 is red today"] * 6
    labels = [n % 3 for n in range(30)] + [0] * 6
    data = splits(ClassLabel(names=WORDS), texts, labels, ["a red car", "a green car", "a blue one"], [0, 1, 2])
    found = measure_baselines(recipe("single_label"), data)
    assert found[TFIDF]["validation"]["accuracy"] == 1
    assert found["most common label"]["validation"]["accuracy"] == pytest.approx(1 / 3)


def test_a_label_that_training_lacks_is_never_given():
    data = splits(ClassLabel(names=WORDS), ["a red", "a green", "red", "green"], [0, 1, 0, 1], ["blue", "red"], [2, 0])
    assert measure_baselines(recipe("single_label"), data)[TFIDF]["validation"]["accuracy"] == 0.5


def test_several_labels_of_a_text():
    texts = [" ".join(word for bit, word in enumerate(WORDS) if n >> bit & 1) or "none" for n in range(8)] * 4
    labels = [[bit for bit in range(3) if n >> bit & 1] + [3] for n in range(8)] * 4  # the last of every text
    data = splits(Sequence(ClassLabel(names=[*WORDS, "all"])), texts, labels, texts[:8], labels[:8])
    found = measure_baselines(recipe("multi_label"), data)
    assert found[TFIDF]["validation"]["subset_accuracy"] == 1
    assert found["most common labels"]["validation"]["micro_f1"] < 0.7


def test_a_number_of_two_texts_that_share_words():
    rng = np.random.default_rng(0)
    words = [f"w{n:03}" for n in range(300)]
    texts, numbers = [], []
    for shared in rng.integers(0, 6, 300):
        first, second = rng.choice(words, 5, replace=False), rng.choice(words, 5, replace=False)
        texts.append(f"{' '.join(first)}\n{' '.join([*first[:shared], *second[shared:]])}")
        numbers.append(float(shared))
    data = splits(Value("float32"), texts[:200], numbers[:200], texts[200:], numbers[200:])
    found = measure_baselines(recipe("regression", 2), data)
    assert found[TFIDF]["validation"]["pearson"] > 0.9
    assert found["mean"]["validation"]["mse"] > 10 * found[TFIDF]["validation"]["mse"]


def test_of_much_text_a_part_is_enough(monkeypatch):
    texts = [f"{WORDS[n % 3]} and more" for n in range(300)]
    data = splits(ClassLabel(names=WORDS), texts, [n % 3 for n in range(300)], WORDS, [0, 1, 2])
    monkeypatch.setattr(baselines, "MAX_CHARACTERS", 1000)
    assert len(baselines._sample_rows(data["train"], 1000)) < 80
    assert measure_baselines(recipe("single_label"), data)[TFIDF]["validation"]["accuracy"] == 1


@pytest.mark.parametrize("problem", ["single_label", "multi_label", "regression"])
def test_nothing_is_learned_from_the_texts_or_labels_that_are_scored(problem, monkeypatch):
    """Other validation and test rows change no score, feature or common label of a split."""
    seen, fit = [], linear_model.Features.fit
    monkeypatch.setattr(linear_model.Features, "fit", lambda self, texts: seen.append(list(texts)) or fit(self, texts))
    kind, labels = {
        "single_label": (ClassLabel(names=WORDS), [0, 1, 1, 2, 0, 1]),
        "multi_label": (Sequence(ClassLabel(names=WORDS)), [[0], [1], [1], [2], [0, 1], [1]]),
        "regression": (Value("float32"), [0.0, 1.0, 1.0, 2.0, 0.5, 1.0]),
    }[problem]
    texts = ["red", "green", "green car", "blue", "red and green", "green sea"]
    found = []
    for others, label in ((["red", "blue", "red blue"], labels[3]), (["odd", "red red", "strange words"], labels[0])):
        data = splits(kind, texts, labels, ["red", "blue green", "red sea"], [labels[0], labels[3], labels[0]])
        data["test"] = splits(kind, texts, labels, others, [label] * 3)["validation"]
        found.append(
            {method: by_split["validation"] for method, by_split in measure_baselines(recipe(problem), data).items()}
        )
    assert found[0] == found[1] and seen == [texts, texts]
    assert len(found[0]) == 2


# -- language models --------------------------------------------------------------------------------------------------


def test_the_probabilities_after_any_context_sum_to_one():
    rng, size = np.random.default_rng(0), 7
    rows, lengths = rng.integers(0, size, (20, 9)) ** 2 % size, rng.integers(3, 10, 20)
    model = KneserNey(rows, lengths, size)
    every = np.stack(np.meshgrid(*[np.arange(size)] * 3, indexing="ij"), -1).reshape(-1, 3)
    found = np.exp(-model.surprise(every, np.full(len(every), 3))).reshape(-1, 2)
    np.testing.assert_allclose(found[:, 1].reshape(size, size, size).sum(-1), 1, rtol=1e-12)
    np.testing.assert_allclose(found[:, 0].reshape(size, size, size)[:, :, 0].sum(-1), 1, rtol=1e-12)


def test_the_discount_is_that_of_kneser_and_ney():
    """By the n-grams that occur once and twice: n1 / (n1 + 2 n2) (Ney, Essen and Kneser 1994)."""
    row = np.array([1, 2, 3, 4, 5, 1, 2, 3, 6, 1, 2, 4])  # the triple 1 2 3 is twice there, eight others once
    model = KneserNey(row[None], np.array([len(row)]), 7)
    assert model.orders[2].discount == 8 / (8 + 2 * 1)
    np.testing.assert_array_equal(model.orders[0].counts, [2, 1, 1, 2, 1, 1])  # words before each: 1 and 4 have two
    assert model.orders[0].discount == 4 / (4 + 2 * 2)


def test_a_row_that_was_seen_is_no_surprise_and_padding_does_not_count():
    row = np.arange(2, 12)
    rows, lengths = np.tile(row, (50, 1)), np.full(50, 10)
    assert perplexity((rows, lengths), (row[None], np.array([10])), 20) < 1.1
    short = perplexity((rows, lengths), (row[None], np.array([4])), 20)
    junk = np.where(np.arange(10) < 4, row, 1)[None]
    assert perplexity((rows, lengths), (junk, np.array([4])), 20) == short
    assert perplexity((rows, lengths), (junk, np.array([10])), 20) > 2


# -- what is said -----------------------------------------------------------------------------------------------------


BETTER, AS_GOOD = (f": the simpler method is {word} here" for word in ("better", "as good"))


def results(own: dict[str, float], other: dict[str, float], metric: str, split: str = "test") -> dict[str, Any]:
    return {"validation": {}, split: own, "best": {"metric": metric}, "baselines": {"guess": {split: other}}}


@pytest.mark.parametrize(
    ("own", "other", "metric", "said"),
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
def test_a_line_says_which_is_better(own, other, metric, said):
    assert str(compare_with_baselines(results(own, other, metric), LOWER_IS_BETTER) or "") == said


def test_without_a_test_split_or_a_baseline():
    without = results({"accuracy": 0.82}, {"accuracy": 0.88}, "accuracy", "validation")
    assert str(compare_with_baselines(without, LOWER_IS_BETTER)).startswith("validation accuracy 0.82")
    assert compare_with_baselines({**without, "baselines": {}}, LOWER_IS_BETTER) is None


@pytest.mark.parametrize(
    ("losses", "best", "said"),
    [
        ([0.6, 0.5, 0.9], {"step": 3, "metric": "accuracy"}, "the validation loss was 0.5 at step 2, and is 0.9"),
        ([0.6, 0.5, 0.54], {"step": 3, "metric": "accuracy"}, ""),
        ([0.6, 0.5, 0.9], {"step": 2, "metric": "accuracy"}, ""),
        ([0.6, 0.5, 0.9], {"step": 3, "metric": "loss"}, ""),
        ([], {"step": 3, "metric": "accuracy"}, ""),
    ],
)  # fmt: skip
def test_a_loss_that_rises_while_accuracy_is_taken_is_told(losses, best, said):
    rows = [{"split": "validation", "step": step, "loss": loss} for step, loss in enumerate(losses, 1)]
    rows.append({"split": "train", "step": 1, "loss": 0.001})
    assert describe_overfitting(rows, best)[: len(said) or None] == said


def test_of_many_tokens_a_part_is_counted_and_rows_are_read_in_parts(monkeypatch):
    rng = np.random.default_rng(0)
    rows, lengths = np.cumsum(rng.integers(0, 2, (400, 10)), axis=1) % 9, np.full(400, 10)
    whole = perplexity((rows, lengths), (rows[:50], lengths[:50]), 9)
    monkeypatch.setattr(ngrams, "ROWS_AT_ONCE", 7)
    assert perplexity((rows, lengths), (rows[:50], lengths[:50]), 9) == pytest.approx(whole, rel=1e-12)
    monkeypatch.setattr(ngrams, "MAX_TOKENS", 1000)
    assert whole < perplexity((rows, lengths), (rows[:50], lengths[:50]), 9) < 1.2 * whole


def test_texts_are_scored_in_parts(monkeypatch):
    data = splits(ClassLabel(names=WORDS), WORDS * 5, [0, 1, 2] * 5, WORDS * 3, [0, 1, 2] * 3)
    monkeypatch.setattr(baselines, "ROWS_AT_ONCE", 4)
    assert measure_baselines(recipe("single_label"), data)[TFIDF]["validation"]["accuracy"] == 1


@pytest.mark.parametrize(("texts", "labels"), [(["a b", "c"], [1, 1]), (["", " \n"], [0, 1])])
def test_where_there_is_nothing_to_fit_the_common_label_stands_alone(texts, labels):
    data = splits(ClassLabel(names=WORDS), texts, labels, ["a b"], [1])
    assert list(measure_baselines(recipe("single_label"), data)) == ["most common label"]


def test_the_line_has_the_intervals_of_both():
    measured = {
        **results({"accuracy": 0.82}, {"accuracy": 0.88}, "accuracy"),
        "intervals": {"test": {"accuracy": [0.79, 0.85]}},
        "baseline_intervals": {"guess": {"test": {"accuracy": [0.86, 0.9]}}},
    }
    line = f"test accuracy 0.82 (95%: 0.79 to 0.85); guess 0.88 (95%: 0.86 to 0.9){BETTER}"
    assert str(compare_with_baselines(measured, LOWER_IS_BETTER)) == line
    measured["intervals"]["test"]["accuracy"] = [None, None]  # what JSON has for infinities
    assert str(compare_with_baselines(measured, LOWER_IS_BETTER)).startswith("test accuracy 0.82; guess 0.88 (95%")


def test_a_fitted_method_can_be_kept(tmp_path):
    data = splits(ClassLabel(names=WORDS), WORDS * 9, [0, 1, 2] * 9, ["a red car", "blue"], [0, 2])
    measured = baselines.measure_baselines(recipe("single_label"), data, LiteralConsole(quiet=True))
    assert measured["most common label"].save is None
    measured[TFIDF].save(tmp_path)
    model = LinearModel.load(tmp_path)
    assert model.score(["a green hat"]).argmax() == 1
    assert model.calibration["temperature"] > 0
