"""Test `toolkit export`: an export gives the logits of the port, or is not written."""

from __future__ import annotations

import io
import json
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import test_question_answering as qa
from rich.console import Console
from test_train import recipe_file, train  # noqa: F401

import toolkit.commands.export.check
from toolkit.commands.export import onnx_file
from toolkit.commands.export.check import PortLogits, compare_logits
from toolkit.commands.export.export import export_run
from toolkit.commands.export.graph import run_graph
from toolkit.commands.predict import load_run
from toolkit.errors import ParityDrift, UserError
from toolkit.finetune.finetune import finetune
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification.task import classify

TEXTS = ["cat dog cow", "saw axe", "pear fig plum kiwi " * 4]


@pytest.fixture(scope="module")
def run(recipe_file, tmp_path_factory) -> Path:  # noqa: F811
    """Return a classifier with local and LSH attention, with random rotations."""
    return train(recipe_file, tmp_path_factory.mktemp("runs") / "tiny", "train.max_steps=2")


@pytest.fixture(scope="module")
def paddle_graph(run) -> Path:
    return export_run(run, "paddle", None, make_console(), overwrite=False)


def make_console() -> Console:
    return Console(file=io.StringIO(), width=300)


def pad_texts(run: Path, folder: Path) -> dict[str, np.ndarray]:
    """Return the texts with the padding of export.json."""
    about = json.loads((folder / "export.json").read_text())
    rows = [ids[: about["padding"]["text_cut_to"]] for ids in load_run(run).tokenizer(TEXTS)["input_ids"]]
    batch = {name: np.full([len(rows), about["padding"]["to"]], about["padding"][name]) for name in about["inputs"]}
    for index, row in enumerate(rows):
        batch["input_ids"][index, : len(row)] = row
        batch["attention_mask"][index, : len(row)] = 1
    return batch


def probabilities(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def assert_within(folder: Path) -> dict:
    about = json.loads((folder / "export.json").read_text())
    comparison = about["compared_with_the_port"]
    assert comparison["max"] <= comparison["max_bound"] < 1e-3 * comparison["logits_rms"]
    assert comparison["rms"] <= comparison["rms_bound"] and comparison["texts"] >= 6
    return about


def test_paddle_inference_equals_predict(run, paddle_graph):
    about = assert_within(paddle_graph)
    assert paddle_graph == run / "export" / "paddle"
    assert {path.name for path in paddle_graph.iterdir()} == {
        "model.json",
        "model.pdiparams",
        "export.json",
        *(path.name for path in (run / "model").iterdir() if path.suffix != ".safetensors"),
    }
    assert about["label_names"] == ["animals", "fruit", "tools"] and about["outputs"] == ["logits"]
    assert about["inputs"]["input_ids"] == {"dtype": "int64", "shape": ["batch", 64]}
    assert "drawn by the seed" in about["lsh_rotations"]
    batch = pad_texts(run, paddle_graph)
    ((logits,),) = run_graph(paddle_graph, [batch])
    expected_probabilities = [prediction.probabilities for prediction in classify(load_run(run), TEXTS)]
    temperature = json.loads((run / "metrics.json").read_text())["calibration"]["temperature"]
    assert about["calibration"] == {"temperature": 1.0, "divided_by": temperature} and abs(temperature - 1) > 0.05
    assert probabilities(logits) == pytest.approx(np.array(expected_probabilities), abs=1e-5)


def test_jit_load_gives_equal_logits_for_repeated_and_other_batches(run, paddle_graph):
    import paddle

    batch = pad_texts(run, paddle_graph)
    ((first,), (second,)) = run_graph(paddle_graph, [batch, batch])
    assert np.array_equal(first, second)
    loaded_graph = paddle.jit.load(str(paddle_graph / "model"))
    inputs = [paddle.to_tensor(batch[name]) for name in ("input_ids", "attention_mask")]
    with paddle.no_grad():
        calls = [loaded_graph(*inputs).numpy() for _ in range(2)]
        single_outputs = [
            loaded_graph(*(array[index : index + 1] for array in inputs)).numpy() for index in range(len(TEXTS))
        ]
    assert np.array_equal(*calls)
    assert np.concatenate(single_outputs) == pytest.approx(first, abs=1e-5)


def test_a_folder_for_transformers_has_the_model_and_a_card_that_loads_it(run, tmp_path):
    output = make_console()
    folder = export_run(run, "hf", tmp_path / "new" / "hf", output, overwrite=False)
    temperature = json.loads((run / "metrics.json").read_text())["calibration"]["temperature"]
    assert f"toolkit predict divides them by {temperature:.4g}" in output.file.getvalue()
    assert json.loads((folder / "export.json").read_text())["calibration"] == {"temperature": temperature}
    for path in (run / "model").iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert json.loads((folder / "export.json").read_text())["compared_with_the_port"]["max"] == 0.0
    card = (folder / "README.md").read_text()
    assert f".logits / {temperature:.6g}).softmax(-1)" in card
    assert 'from_pretrained(".")' in card and 'pipeline("text-classification", ".")' in card


@pytest.mark.parametrize("form", ["hf", "paddle", "onnx"])
def test_a_device_instead_of_a_file_is_not_copied(run, tmp_path, form):
    """Test /dev/zero, which has no end."""
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run/model/special_tokens_map.json"
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"{tmp_path}/run/model: is damaged .*special_tokens_map.json is no plain file"):
        export_run(tmp_path / "run", form, tmp_path / "export", make_console(), overwrite=False)
    assert not (tmp_path / "export").exists()


def test_a_model_that_differs_by_more_than_rounding_is_removed(run, tmp_path, monkeypatch):
    import toolkit.commands.export.graph as graph

    def run_wrong_graph(folder, batches):
        return [
            tuple(array + 1e-4 * np.abs(array).max() for array in outputs) for outputs in run_graph(folder, batches)
        ]

    monkeypatch.setattr(graph, "run_graph", run_wrong_graph)
    output = make_console()
    with pytest.raises(ParityDrift, match="not written: the exported model does not give the port's logits"):
        export_run(run, "paddle", tmp_path / "new" / "paddle", output, overwrite=False)
    assert "BEYOND float32's rounding" in output.file.getvalue()
    assert list(tmp_path.iterdir()) == []


def test_only_an_export_is_replaced_on_request(run, tmp_path):
    target = export_run(run, "hf", tmp_path / "hf", make_console(), overwrite=False)
    (target / "config.json").write_text("old")
    with pytest.raises(UserError, match="exists; add --overwrite"):
        export_run(run, "hf", target, make_console(), overwrite=False)
    export_run(run, "hf", target, make_console(), overwrite=True)
    assert (target / "config.json").read_text() != "old"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="exists and is not an export; name another folder"):
        export_run(run, "hf", tmp_path / "mine", make_console(), overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "mine"}


def test_texts_with_ambiguous_buckets_are_omitted_and_nan_always_fails():
    exact = np.linspace(1, 2, 12).reshape(4, 3)
    port_logits = (exact * (1 + 1e-7)).astype(np.float32)
    changed_logits = port_logits.copy()
    changed_logits[1] += 0.5
    clear = np.array([True, False, True, True])
    comparison = compare_logits(PortLogits([port_logits], [exact], clear), [(changed_logits,)])
    assert comparison.is_within_bounds and (comparison.texts, comparison.left_out) == (3, 1)
    assert not compare_logits(
        PortLogits([port_logits], [exact], np.ones(4, bool)), [(changed_logits,)]
    ).is_within_bounds
    assert not compare_logits(
        PortLogits([port_logits], [exact], np.zeros(4, bool)), [(changed_logits,)]
    ).is_within_bounds  # too few: all are compared
    changed_logits[0, 0] = np.nan
    assert not compare_logits(PortLogits([port_logits], [exact], clear), [(changed_logits,)]).is_within_bounds


def test_texts_with_a_choice_within_rounding_are_detected():
    mask = np.array([[1, 1], [1, 0]])
    exact = np.array([[[1.0, 0.5], [0.2, 0.9]], [[1.0, -0.2], [1.0, 1.0 - 1e-9]]]).reshape(2, 1, 2, 1, 2)
    shifted_scores = exact + 1e-8
    assert toolkit.commands.export.check._clear_texts([shifted_scores], [exact], mask).tolist() == [
        True,
        True,
    ]  # padding does not count
    assert toolkit.commands.export.check._clear_texts([shifted_scores], [exact], np.ones_like(mask)).tolist() == [
        True,
        False,
    ]


def test_onnx_reports_missing_packages_before_any_computation(run, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else types)
    with pytest.raises(UserError, match="needs onnxruntime, by which the converted model is checked: pip install onn"):
        export_run(run, "onnx", tmp_path / "onnx", make_console(), overwrite=False)


def test_a_complaint_of_paddle2onnx_is_shortened_to_one_line():
    complaint = (
        "[ERROR] There are some ops not supported yet, including pd_op.foo,pd_op.bar\nTraceback ...\nRuntimeError: x"
    )
    assert "pd_op.foo" in onnx_file.failure_reason(complaint)
    assert onnx_file.failure_reason("a\nRuntimeError: it   broke\n") == "RuntimeError: it broke"
    assert onnx_file.failure_reason("") == "it says nothing"


@pytest.mark.slow
def test_a_graph_that_cannot_be_converted_leaves_nothing(tmp_path):
    (tmp_path / "graph").mkdir()
    (tmp_path / "graph" / "model.json").write_text("{}")
    (tmp_path / "graph" / "model.pdiparams").write_bytes(b"")
    with pytest.raises(onnx_file.ConversionError, match="--format onnx: Paddle2ONNX cannot convert this model: "):
        onnx_file.convert_to_onnx(tmp_path / "graph", tmp_path)
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.slow
def test_onnx_runtime_gives_the_port_s_logits(run, tmp_path):
    pytest.importorskip("onnxruntime")
    folder = export_run(run, "onnx", tmp_path / "onnx", make_console(), overwrite=False)
    about = assert_within(folder)
    assert list(about["outputs"].values()) == ["logits"]
    batch = pad_texts(run, folder)
    ((first,), (second,)) = onnx_file.run_onnx(folder, [batch, batch])
    assert np.array_equal(first, second)
    expected_probabilities = [prediction.probabilities for prediction in classify(load_run(run), TEXTS)]
    assert probabilities(first) == pytest.approx(np.array(expected_probabilities), abs=1e-5)


@pytest.mark.slow
def test_answers_and_next_words_are_exported_too(tmp_path):
    from test_exports import language_model

    recipe = load_recipe(qa.write_recipe(tmp_path), ["train.max_steps=2", "train.eval_steps=2"])
    answering_run = finetune(recipe, "a test", make_console())
    about = assert_within(export_run(answering_run, "paddle", None, make_console(), overwrite=False))
    assert about["outputs"] == ["start_logits", "end_logits"]
    (tmp_path / "lm").mkdir()
    speaker = language_model(tmp_path / "lm")
    assert assert_within(export_run(speaker, "paddle", None, make_console(), overwrite=False))["outputs"] == ["logits"]
    if "onnxruntime" in sys.modules or onnx_file.importlib.util.find_spec("onnxruntime"):
        for folder in (answering_run, speaker):
            assert_within(export_run(folder, "onnx", None, make_console(), overwrite=False))
