"""Test the confidence intervals of metrics."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.tasks.classification.baselines import text_intervals
from toolkit.tasks.intervals import bootstrap_intervals, mean_interval
from toolkit.tasks.question_answering.scoring import score, score_intervals
from toolkit.tasks.question_answering.squad import Example
from toolkit.tasks.token_classification import tags
from toolkit.tasks.token_classification.linear_tagger import METHOD, tag_words


@pytest.mark.parametrize("num_examples", [100, 1600])
def test_the_interval_of_a_share_equals_that_of_the_normal_distribution(num_examples):
    is_correct = np.arange(num_examples) % 4 > 0  # 75%
    margin = 1.96 * np.sqrt(0.75 * 0.25 / num_examples)
    low, high = bootstrap_intervals(lambda rows: {"accuracy": is_correct[rows].mean()}, num_examples)["accuracy"]
    assert low == pytest.approx(0.75 - margin, abs=0.2 * margin)
    assert high == pytest.approx(0.75 + margin, abs=0.2 * margin)
    assert mean_interval(0.75, is_correct, num_examples) == pytest.approx([0.75 - margin, 0.75 + margin], abs=1e-3)


def test_a_single_example_has_no_interval():
    assert bootstrap_intervals(lambda rows: {"accuracy": 1.0}, 1) == {}
    assert mean_interval(1.0, np.ones(1), 1) == []


def test_every_metric_of_texts_has_an_interval():
    labels = np.arange(60) % 3
    logits = np.eye(3)[(labels + (np.arange(60) % 5 == 0)) % 3]
    intervals = text_intervals(logits, labels)
    assert set(intervals) == {"accuracy", "macro_f1"}
    assert 0.6 < intervals["accuracy"][0] < 0.8 < intervals["accuracy"][1] < 0.95


def test_answerable_and_other_questions_have_separate_intervals():
    examples = [Example(str(n), "ab c", "q", ("ab",) if n % 2 else (), (0,) if n % 2 else ()) for n in range(40)]
    predictions = {item.id: "ab" if int(item.id) % 4 else "" for item in examples}
    scores, intervals = score(examples, predictions), score_intervals(examples, predictions)
    assert set(intervals) == {name for name in scores if not name.endswith("_total")}
    assert intervals["HasAns_f1"] == [100, 100]
    assert intervals["NoAns_f1"][0] < scores["NoAns_f1"] < intervals["NoAns_f1"][1]


def test_the_intervals_of_entities_contain_the_scores():
    reference = [["B-X", "I-X", "O"], ["O", "B-Y"]] * 20
    predicted_labels = [["B-X", "I-X", "O"], ["O", "B-X"]] * 20
    scores, intervals = tags.score(reference, predicted_labels), tags.score_intervals(reference, predicted_labels)
    assert set(intervals) == set(scores)
    assert all(intervals[name][0] < scores[name] < intervals[name][1] for name in scores)


def test_the_tagger_reads_the_neighbors_of_a_word():
    """The most frequent tag of a word would be wrong for half of these names."""
    names = [f"Name{n}" for n in range(40)]
    words = [text for name in names for text in (["Mr", name, "spoke"], ["near", name, "today"])]
    true_tags = [["O", "B-PER", "O"], ["O", "B-LOC", "O"]] * len(names)
    predicted_labels = tag_words(words[:60], true_tags[:60], {"test": words[60:]})
    assert predicted_labels["test"] == true_tags[60:]
    assert METHOD == "linear model of each word and its neighbors"


def test_a_tagger_without_entities_gives_none():
    assert tag_words([["a", "b"]], [["O", "O"]], {"test": [["a"], []]}) == {"test": [["O"], []]}
