"""Test the linear model that a run keeps if it is at least as good as the trained model."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer

from toolkit.commands.predict import evaluate_baseline, load_baseline, predict
from toolkit.commands.serve.requests import make_service
from toolkit.commands.serve.serve import describe_run
from toolkit.errors import UserError
from toolkit.finetune.results import BASELINE
from toolkit.tasks.classification import linear_model
from toolkit.tasks.classification.linear_model import Features, LinearModel
from toolkit.terminal.console import LiteralConsole

QUIET = LiteralConsole(quiet=True)
#: Words at least as long as the longest character feature, so that scikit-learn counts each part once.
TEXTS = [
    "Purple monkeys, purple monkeys! Dishwashers: ÄÖÜßé",
    "monkeys  purple\tzebras_12 (12345)",
    "completely different Dishwashers",
    "überall überall \U0001f600\U0001f600\U0001f600\U0001f600 überall",
    "",
]


def test_the_features_equal_those_of_scikit_learn():
    """Compare the products of all pairs of texts, which do not depend on the order of features."""
    features = Features(has_pairs=False)
    our_features = features.fit(TEXTS).toarray().astype(np.float64)
    num_words = len(features.vocabularies[0].hashes)
    words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"(?u)\w+|[^\w\s]", sublinear_tf=True)
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True)
    for columns, reference in ((our_features[:, :num_words], words), (our_features[:, num_words:], characters)):
        reference_features = reference.fit_transform(TEXTS).toarray()
        assert columns.shape == reference_features.shape
        np.testing.assert_allclose(columns @ columns.T, reference_features @ reference_features.T, atol=1e-6)
        np.testing.assert_allclose(np.sort(columns.sum(axis=0)), np.sort(reference_features.sum(axis=0)), atol=1e-6)


def test_texts_have_the_same_features_in_any_chunk(monkeypatch):
    features = Features(has_pairs=False)
    all_features = features.fit(TEXTS).toarray()
    monkeypatch.setattr(linear_model, "CHARACTERS_AT_ONCE", 1)
    chunked_features = Features(has_pairs=False)
    np.testing.assert_array_equal(chunked_features.fit(TEXTS).toarray(), all_features)


def test_the_most_frequent_features_are_kept(monkeypatch):
    monkeypatch.setattr(linear_model, "MAX_FEATURES", 1)
    features = Features(has_pairs=False)
    features.fit(["often often rare", "often other"])
    assert features.transform(["often"]).toarray()[0, 0] == pytest.approx(1)
    assert features.transform(["rare"]).toarray()[0, 0] == 0


@pytest.fixture
def run_folder(tmp_path):
    """Return a finished run of three labels that has kept a baseline, without a trained model."""
    texts = [f"{word} number {n}" for n in range(20) for word in ("red", "green", "blue")]
    targets = np.array([0, 1, 2] * 20)
    model = LinearModel.fit(texts, targets, "single_label", 3, has_pairs=False)
    folder = tmp_path / "run"
    (folder / BASELINE).mkdir(parents=True)
    (folder / "model").mkdir()
    model.save(folder / BASELINE)
    table = tmp_path / "train.jsonl"
    names = ["rot", "grün", "blau"]
    rows = [{"text": text, "label": names[target]} for text, target in zip(texts, targets.tolist(), strict=True)]
    table.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "recipe.yaml").write_text(
        f"task: classification\nmodel: {{name: reformer}}\ntokenizer: {{kind: bytes}}\n"
        f"data: {{dataset: json, files: {{train: {table}, validation: {table}, test: {table}}}, max_length: 64,\n"
        f"  label_names: {json.dumps(names)}}}\n"
        "train: {batch_size: 4, learning_rate: 1e-3, epochs: 1}\n"
    )
    figures = {"kept_baseline": "TF-IDF", "baselines": {"TF-IDF": {"test": {"accuracy": 1.0}}}}
    (folder / "metrics.json").write_text(json.dumps(figures))
    (folder / "model" / "config.json").write_text(json.dumps({"id2label": dict(enumerate(names))}))
    return folder


def test_a_kept_baseline_predicts_without_the_model(run_folder):
    predictions = predict(run_folder, QUIET, baseline=True, texts=["a green car", "something blue"])
    assert [prediction.label for prediction in predictions] == ["grün", "blau"]
    assert all(sum(prediction.probabilities) == pytest.approx(1) for prediction in predictions)


def test_a_kept_baseline_is_measured(run_folder):
    assert evaluate_baseline(run_folder, QUIET)["accuracy"] == 1


def test_a_kept_baseline_is_served(run_folder):
    """Check that the answers equal `toolkit predict`, and that the description has the figures of the baseline."""
    run = load_baseline(run_folder)
    service = make_service(run)
    about = describe_run(run, service)
    assert (about["model"], about["metrics"]) == ("TF-IDF", {"test": {"accuracy": 1.0}})
    (answer,) = service.answer({"text": ["a green car"]}, lambda count: None)["predictions"]
    (prediction,) = predict(run_folder, QUIET, baseline=True, texts=["a green car"])
    assert (answer["predicted_label"], answer["probability"]) == ("grün", prediction.probability)


def test_a_saved_model_has_the_same_scores_and_no_pickle(tmp_path):
    texts, numbers = ["one\ntwo", "two\ntwo", "three\none"] * 5, np.arange(15, dtype=np.float32)
    model = LinearModel.fit(texts, numbers, "regression", 1, has_pairs=True)
    model.save(tmp_path)
    np.testing.assert_array_equal(LinearModel.load(tmp_path).score(texts), model.score(texts))
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}


@pytest.mark.parametrize("name", [linear_model.ARRAYS, linear_model.SETTINGS])
def test_a_damaged_baseline_is_reported_with_its_file(run_folder, name):
    path = run_folder / BASELINE / name
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(UserError, match=rf"{name}: is damaged .*restore it from a copy, or train again"):
        predict(run_folder, QUIET, baseline=True, texts=["red"])


def test_a_missing_baseline_is_reported(run_folder):
    for path in (run_folder / BASELINE).iterdir():
        path.unlink()
    (run_folder / BASELINE).rmdir()
    with pytest.raises(UserError, match=r"has no folder baseline; .*leave out --baseline"):
        predict(run_folder, QUIET, baseline=True, texts=["red"])
