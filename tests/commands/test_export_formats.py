"""`toolkit export`: what leaves this project gives the port's logits, or does not leave it."""

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
    """A classifier with local and LSH attention, whose rotations nothing fixes."""
    return train(recipe_file, tmp_path_factory.mktemp("runs") / "tiny", "train.max_steps=2")


@pytest.fixture(scope="module")
def paddle_graph(run) -> Path:
    return export_run(run, "paddle", None, console(), overwrite=False)


def console() -> Console:
    return Console(file=io.StringIO(), width=300)


def padded(run: Path, folder: Path) -> dict[str, np.ndarray]:
    """The texts as export.json says that they are to be padded."""
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
    found = about["compared_with_the_port"]
    assert found["max"] <= found["max_bound"] < 1e-3 * found["logits_rms"]
    assert found["rms"] <= found["rms_bound"] and found["texts"] >= 6
    return about


def test_paddle_inference_gives_what_predict_gives(run, paddle_graph):
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
    batch = padded(run, paddle_graph)
    ((logits,),) = run_graph(paddle_graph, [batch])
    expected = [one.probabilities for one in classify(load_run(run), TEXTS)]
    fitted = json.loads((run / "metrics.json").read_text())["calibration"]["temperature"]
    assert about["calibration"] == {"temperature": 1.0, "divided_by": fitted} and abs(fitted - 1) > 0.05
    assert probabilities(logits) == pytest.approx(np.array(expected), abs=1e-5)


def test_two_calls_and_other_batches_give_equal_logits_by_jit_load_too(run, paddle_graph):
    import paddle

    batch = padded(run, paddle_graph)
    ((first,), (second,)) = run_graph(paddle_graph, [batch, batch])
    assert np.array_equal(first, second)
    loaded = paddle.jit.load(str(paddle_graph / "model"))
    inputs = [paddle.to_tensor(batch[name]) for name in ("input_ids", "attention_mask")]
    with paddle.no_grad():
        calls = [loaded(*inputs).numpy() for _ in range(2)]
        alone = [loaded(*(one[index : index + 1] for one in inputs)).numpy() for index in range(len(TEXTS))]
    assert np.array_equal(*calls)
    assert np.concatenate(alone) == pytest.approx(first, abs=1e-5)


def test_a_folder_for_transformers_has_the_model_and_a_card_that_loads_it(run, tmp_path):
    said = console()
    folder = export_run(run, "hf", tmp_path / "new" / "hf", said, overwrite=False)
    fitted = json.loads((run / "metrics.json").read_text())["calibration"]["temperature"]
    assert f"toolkit predict divides them by {fitted:.4g}" in said.file.getvalue()
    assert json.loads((folder / "export.json").read_text())["calibration"] == {"temperature": fitted}
    for path in (run / "model").iterdir():
        assert (folder / path.name).read_bytes() == path.read_bytes()
    assert json.loads((folder / "export.json").read_text())["compared_with_the_port"]["max"] == 0.0
    card = (folder / "README.md").read_text()
    assert f".logits / {fitted:.6g}).softmax(-1)" in card
    assert 'from_pretrained(".")' in card and 'pipeline("text-classification", ".")' in card


@pytest.mark.parametrize("form", ["hf", "paddle", "onnx"])
def test_a_device_in_place_of_a_file_is_not_copied(run, tmp_path, form):
    """/dev/zero has no end."""
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run/model/special_tokens_map.json"
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UserError, match=f"{tmp_path}/run/model: is damaged .*special_tokens_map.json is no plain file"):
        export_run(tmp_path / "run", form, tmp_path / "export", console(), overwrite=False)
    assert not (tmp_path / "export").exists()


def test_a_model_that_differs_by_more_than_rounding_is_not_left(run, tmp_path, monkeypatch):
    import toolkit.commands.export.graph as graph

    def wrong(folder, batches):
        return [tuple(one + 1e-4 * np.abs(one).max() for one in outputs) for outputs in run_graph(folder, batches)]

    monkeypatch.setattr(graph, "run_graph", wrong)
    said = console()
    with pytest.raises(ParityDrift, match="not written: the exported model does not give the port's logits"):
        export_run(run, "paddle", tmp_path / "new" / "paddle", said, overwrite=False)
    assert "BEYOND float32's rounding" in said.file.getvalue()
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_kept_unless_it_is_an_export_to_be_replaced(run, tmp_path):
    target = export_run(run, "hf", tmp_path / "hf", console(), overwrite=False)
    (target / "config.json").write_text("old")
    with pytest.raises(UserError, match="exists; add --overwrite"):
        export_run(run, "hf", target, console(), overwrite=False)
    export_run(run, "hf", target, console(), overwrite=True)
    assert (target / "config.json").read_text() != "old"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    with pytest.raises(UserError, match="exists and is not an export; name another folder"):
        export_run(run, "hf", tmp_path / "mine", console(), overwrite=True)
    assert {path.name for path in tmp_path.iterdir()} == {"hf", "mine"}


def test_texts_of_which_rounding_chooses_a_bucket_are_left_out_and_nan_is_never_within():
    exact = np.linspace(1, 2, 12).reshape(4, 3)
    ours = (exact * (1 + 1e-7)).astype(np.float32)
    flipped = ours.copy()
    flipped[1] += 0.5
    clear = np.array([True, False, True, True])
    found = compare_logits(PortLogits([ours], [exact], clear), [(flipped,)])
    assert found.is_within_bounds and (found.texts, found.left_out) == (3, 1)
    assert not compare_logits(PortLogits([ours], [exact], np.ones(4, bool)), [(flipped,)]).is_within_bounds
    assert not compare_logits(
        PortLogits([ours], [exact], np.zeros(4, bool)), [(flipped,)]
    ).is_within_bounds  # too few: all are compared
    flipped[0, 0] = np.nan
    assert not compare_logits(PortLogits([ours], [exact], clear), [(flipped,)]).is_within_bounds


def test_a_choice_that_float64_has_as_near_as_rounding_is_found():
    mask = np.array([[1, 1], [1, 0]])
    exact = np.array([[[1.0, 0.5], [0.2, 0.9]], [[1.0, -0.2], [1.0, 1.0 - 1e-9]]]).reshape(2, 1, 2, 1, 2)
    moved = exact + 1e-8
    assert toolkit.commands.export.check._clear_texts([moved], [exact], mask).tolist() == [
        True,
        True,
    ]  # padding does not count
    assert toolkit.commands.export.check._clear_texts([moved], [exact], np.ones_like(mask)).tolist() == [True, False]


def test_onnx_says_what_is_missing_before_anything_is_computed(run, tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_file.importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else types)
    with pytest.raises(UserError, match="needs onnxruntime, by which the converted model is checked: pip install onn"):
        export_run(run, "onnx", tmp_path / "onnx", console(), overwrite=False)


def test_what_paddle2onnx_complains_of_is_a_line():
    said = "[ERROR] There are some ops not supported yet, including pd_op.foo,pd_op.bar\nTraceback ...\nRuntimeError: x"
    assert "pd_op.foo" in onnx_file.failure_reason(said)
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
    folder = export_run(run, "onnx", tmp_path / "onnx", console(), overwrite=False)
    about = assert_within(folder)
    assert list(about["outputs"].values()) == ["logits"]
    batch = padded(run, folder)
    ((first,), (second,)) = onnx_file.run_onnx(folder, [batch, batch])
    assert np.array_equal(first, second)
    expected = [one.probabilities for one in classify(load_run(run), TEXTS)]
    assert probabilities(first) == pytest.approx(np.array(expected), abs=1e-5)


@pytest.mark.slow
def test_answers_and_next_words_are_exported_too(tmp_path):
    from test_exports import language_model

    recipe = load_recipe(qa.write_recipe(tmp_path), ["train.max_steps=2", "train.eval_steps=2"])
    asked = finetune(recipe, "a test", console())
    about = assert_within(export_run(asked, "paddle", None, console(), overwrite=False))
    assert about["outputs"] == ["start_logits", "end_logits"]
    (tmp_path / "lm").mkdir()
    speaker = language_model(tmp_path / "lm")
    assert assert_within(export_run(speaker, "paddle", None, console(), overwrite=False))["outputs"] == ["logits"]
    if "onnxruntime" in sys.modules or onnx_file.importlib.util.find_spec("onnxruntime"):
        for folder in (asked, speaker):
            assert_within(export_run(folder, "onnx", None, console(), overwrite=False))
