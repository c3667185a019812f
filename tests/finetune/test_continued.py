"""Test `toolkit finetune RECIPE --continue RUN`: a run begins with the weights and the tokenizer of another."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_finish_early import finish_run, interrupted_run, train_until  # noqa: F401
from test_train import gate, recipe_file, run, train  # noqa: F401

from toolkit.errors import UserError
from toolkit.files.digest import file_sha256
from toolkit.files.whole import MANIFEST
from toolkit.finetune.continued_run import _check_architecture
from toolkit.finetune.identity import FILE
from toolkit.run_folder.checkpoint import OPTIMIZER, STATE, WEIGHTS, Checkpoints
from toolkit.run_folder.folder import amending

EMBEDDING = "reformer.embeddings.word_embeddings.weight"


@pytest.fixture
def continue_run(recipe_file, command_line):  # noqa: F811
    """Return a function that continues a run into a folder and returns exit status and output."""

    def finetune(first_run: Path, folder: Path, *overrides: str, skip: bool = True) -> tuple[int, str]:
        options = ["--continue", first_run, *(["--skip-parity", "a test"] if skip else [])]
        status, out, err = command_line("finetune", recipe_file, f"train.output_dir={folder}", *overrides, *options)
        return status, out + err

    return finetune


def begins_with(gate) -> dict[str, np.ndarray]:  # noqa: F811
    (request,) = gate.requests
    return request.weights


def test_a_finished_run_continues_in_a_new_folder_after_a_gate_on_its_weights(gate, run, tmp_path, continue_run):  # noqa: F811
    first = Path(shutil.copytree(run, tmp_path / "run"))
    status, output = continue_run(first, first, "train.max_steps=2", "train.learning_rate=1e-4", skip=False)
    assert status == 0 and f"this run is in {first}-2" in output
    best = json.loads((run / "metrics.json").read_text())["best"]["step"]
    differs = ["train.max_steps: 40 there, 2 here", "train.learning_rate: 0.004 there, 0.0001 here"]
    optimizer = "its optimizer's moments and a new schedule"
    assert f"note   continues {first} from step {best}, with {optimizer}: {'; '.join(differs)}" in output
    saved_weights = load_file(run / "model/model.safetensors")
    for name, value in begins_with(gate).items():
        np.testing.assert_array_equal(value, saved_weights[name], err_msg=name)
    new = tmp_path / "run-2"
    assert json.loads((new / FILE).read_text())["continues"] == {
        **{"run": str(first), "step": best, "differs": differs},
        "optimizer": str(first / OPTIMIZER),
    }
    assert "continued from" in (new / "report.html").read_text()
    assert "continued from" not in (run / "report.html").read_text()
    assert json.loads((new / "metrics.json").read_text())["training"]["steps"] == 2


def test_an_interrupted_run_continues_from_its_best_weights(gate, interrupted_run, tmp_path, continue_run):  # noqa: F811
    first_run = Path(shutil.copytree(interrupted_run, tmp_path / "begun"))
    initial_files = {path: path.read_bytes() for path in first_run.rglob("*") if path.is_file()}
    state = json.loads(next(first_run.glob("checkpoints/step-*20/state.json")).read_text())
    best = load_file(Checkpoints(first_run / "checkpoints").best(state["best_step"]) / WEIGHTS)
    newest = load_file(next(first_run.glob("checkpoints/step-*20")) / WEIGHTS)
    status, output = continue_run(first_run, tmp_path / "new", "train.max_steps=1", skip=False)
    assert status == 0 and f"continues {first_run} from step {state['best_step']}" in output
    np.testing.assert_array_equal(begins_with(gate)[EMBEDDING], best[EMBEDDING])
    assert (best[EMBEDDING] != newest[EMBEDDING]).any()
    assert {path: path.read_bytes() for path in first_run.rglob("*") if path.is_file()} == initial_files


#: Each step has both examples, so the order of the sum does not matter, and nothing is drawn at random.
SAME_STEPS = (
    *("train.batch_size=1", "train.gradient_accumulation_steps=2", "train.lr_scheduler=constant"),
    *("train.warmup_ratio=0", "train.eval_steps=3", "train.save_best=loss", "train.learning_rate=1e-4"),
    *(
        "model.config.attn_layers=[local, local]",
        "model.config.hidden_dropout_prob=0",
        "model.config.local_attention_probs_dropout_prob=0",
    ),
)


@pytest.mark.parametrize(
    ("ending", "optimizer"), [("finished", "adamw"), ("finished", "adafactor"), ("interrupted", "adamw")]
)
def test_with_the_same_schedule_it_equals_one_long_run(recipe_file, tmp_path, continue_run, ending, optimizer):  # noqa: F811
    (tmp_path / "two.csv").write_text("text,label\ncat dog cat,animals\nfig,fruit\n")
    files = f"data.files={{train: {tmp_path}/two.csv, validation: {tmp_path}/two.csv}}"
    shared_options = (*SAME_STEPS, files, f"train.optimizer={optimizer}")
    long = train(recipe_file, tmp_path / "long", *shared_options, "train.max_steps=6")
    if ending == "finished":
        first = train(recipe_file, tmp_path / "first", *shared_options, "train.max_steps=3")
    else:
        first = train_until(3, recipe_file, tmp_path / "first", *shared_options, "train.max_steps=9")
    status, output = continue_run(first, tmp_path / "second", *shared_options, "train.max_steps=3")
    assert status == 0 and "with its optimizer's moments and a new schedule" in output
    weights, expected_weights = (
        load_file(tmp_path / "second/model/model.safetensors"),
        load_file(long / "model/model.safetensors"),
    )
    for name in expected_weights:
        np.testing.assert_array_equal(weights[name], expected_weights[name], err_msg=name)


def test_a_state_that_does_not_fit_is_not_reused(run, tmp_path, continue_run):  # noqa: F811
    status, output = continue_run(run, tmp_path / "other", "train.optimizer=lion", "train.max_steps=1")
    assert status == 0 and "with a new optimizer and schedule: " in output and "adamw there, lion here" in output
    shorter = ("train.max_steps=1", "data.max_length=32")
    status, output = continue_run(run, tmp_path / "shorter", *shorter)
    place = "reformer.embeddings.position_embeddings.weights.0"
    assert status == 0 and f"note   the optimizer is new: {run / OPTIMIZER} does not fit {place}" in output
    first = Path(shutil.copytree(run, tmp_path / "run"))
    (first / OPTIMIZER).write_bytes((run / OPTIMIZER).read_bytes()[:1000])
    status, output = continue_run(first, tmp_path / "damaged", "train.max_steps=1")
    assert status == 2 and f"error: {first / OPTIMIZER}: is damaged" in output
    (first / OPTIMIZER).unlink()
    status, output = continue_run(first, tmp_path / "without", "train.max_steps=1")
    assert status == 0 and "with a new optimizer and schedule: " in output


def test_an_unfinished_adapter_is_merged(gate, recipe_file, tmp_path, continue_run):  # noqa: F811
    first_run = train_until(5, recipe_file, tmp_path / "begun", "train.lora={rank: 2}")
    status, output = continue_run(first_run, tmp_path / "new", "train.max_steps=1", skip=False)
    assert status == 0, output
    finish_run(first_run)
    merged_weights = load_file(first_run / "model/model.safetensors")
    assert begins_with(gate).keys() == merged_weights.keys()
    for name, value in begins_with(gate).items():
        np.testing.assert_array_equal(value, merged_weights[name], err_msg=name)


def test_the_trained_tokenizer_is_kept_for_other_texts(recipe_file, tmp_path, continue_run):  # noqa: F811
    pieces = ("tokenizer.kind=sentencepiece", "tokenizer.vocab_size=30", "train.max_steps=1")
    first = train(recipe_file, tmp_path / "first", *pieces)
    texts = tmp_path / "others.csv"
    texts.write_text("text,label\n" + "".join(f"zz{name} q,{name}\n" for name in ("animals", "fruit", "tools")) * 4)
    status, output = continue_run(first, tmp_path / "new", *pieces, f"data.files.train={texts}")
    assert status == 0, output
    spiece = Path("model", "spiece.model")
    assert (tmp_path / "new" / spiece).read_bytes() == (first / spiece).read_bytes()


def test_a_resumed_run_still_knows_the_run_that_it_continues(recipe_file, run, tmp_path, continue_run):  # noqa: F811
    new = tmp_path / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", interrupting(Checkpoints.save))
        status, output = continue_run(run, new, "train.max_steps=10")
    assert status == 130, output
    status, output = continue_run(run, new, "train.max_steps=10")
    assert status == 0 and f"resuming {new} after step 5" in output
    assert json.loads((new / FILE).read_text())["continues"]["run"] == str(run)
    (new / "metrics.json").unlink()
    assert train(new / "recipe.yaml", new) == new
    assert json.loads((new / FILE).read_text())["continues"]["run"] == str(run)


def interrupting(save):
    def save_and_interrupt(*arguments, **named):
        save(*arguments, **named)
        raise KeyboardInterrupt

    return save_and_interrupt


@pytest.mark.parametrize(
    ("override", "expected_error"),
    [
        ("model.config.hidden_dropout_prob=0.2", ""),
        ("model.config.feed_forward_size=64", "model.config.feed_forward_size: --continue RUN: 32 there, 64 here"),
        ("model.config.num_hashes=2", "model.config.num_hashes: --continue RUN: 1 there, 2 here"),
        ("tokenizer={kind: sentencepiece, vocab_size: 30}", "tokenizer.kind: --continue RUN: bytes there, sentencepie"),
        ("model.weights=elsewhere", "model.weights: --continue RUN: None there, elsewhere here"),
    ],
)
def test_another_architecture_or_tokenizer_is_refused_at_its_key(run, tmp_path, continue_run, override, expected_error):  # noqa: F811
    status, output = continue_run(run, tmp_path / "new", "train.max_steps=1", override)
    if not expected_error:
        assert status == 0 and "model.config.hidden_dropout_prob: 0.1 there, 0.2 here" in output
        return
    errors = [line for line in output.splitlines() if line.startswith("error: ")]
    assert status == 2 and len(errors) == 1 and expected_error.replace("RUN", str(run)) in errors[0]
    assert not (tmp_path / "new").exists()


HEAD = ("classifier.out_proj.weight", "classifier.out_proj.bias")


@pytest.mark.parametrize(
    ("names", "rows", "note"),
    [
        ("[tools, fruit, animals]", [2, 1, 0], "the head keeps its rows of 3 labels; the body is kept; the optimizer"),
        (
            "[animals, fruit, tools, plants]",
            [0, 1, 2, None],
            "the head keeps its rows of 3 labels; the body is kept; new labels: plants",
        ),
        (
            "{animals: a, fruit: b, tools: c}",
            [None] * 3,
            "the head is new; the body is kept; new labels: a, b, c; left out: animals, fruit",
        ),
    ],
)
def test_other_labels_get_known_or_new_rows_of_the_head(gate, run, tmp_path, continue_run, names, rows, note):  # noqa: F811
    overrides = ("train.max_steps=1", f"data.label_names={names}")
    status, output = continue_run(run, tmp_path / "new", *overrides, skip=False)
    assert status == 0 and f"the labels are not those of {run}: the head" in output and note in output
    assert "the optimizer is new after all" in output
    assert json.loads((tmp_path / "new" / FILE).read_text())["continues"]["optimizer"] is None
    check_rows(begins_with(gate), load_file(run / "model/model.safetensors"), rows)


def test_a_checkpoint_with_fewer_labels_gives_its_body_and_the_rows_that_it_has(gate, recipe_file, run, tmp_path):  # noqa: F811
    weights = [f"model.weights={run / 'model'}", "tokenizer.kind=checkpoint"]
    train(
        recipe_file,
        tmp_path / "new",
        *weights,
        "train.max_steps=1",
        "data.label_names=[plants, animals, fruit, tools]",
        skip=None,
    )
    check_rows(begins_with(gate), load_file(run / "model/model.safetensors"), [None, 0, 1, 2])


def check_rows(
    initial_weights: dict[str, np.ndarray], saved_weights: dict[str, np.ndarray], rows: list[int | None]
) -> None:
    for name, value in saved_weights.items():
        if name not in HEAD:
            np.testing.assert_array_equal(initial_weights[name], value, err_msg=name)
    for name in HEAD:
        assert len(initial_weights[name]) == len(rows)
        for initial_row, row in zip(initial_weights[name], rows, strict=True):
            if row is not None:
                np.testing.assert_array_equal(initial_row, saved_weights[name][row])
            else:
                assert not any(np.array_equal(initial_row, saved_row) for saved_row in saved_weights[name])


@pytest.mark.parametrize(
    ("key", "value", "is_refused"),
    [("resid_pdrop", 0.3, False), ("embd_pdrop", 0.0, False), ("n_layer", 3, True), ("layer_norm_epsilon", 1e-3, True)],
)
def test_a_continued_ctrl_may_drop_more_or_less_and_nothing_else_differs(key, value, is_refused):
    def error(path, message):
        return UserError(f"{'.'.join(path)}: {message}")

    recipe = SimpleNamespace(model=SimpleNamespace(name="ctrl", config={key: value}), error=error)
    first_recipe = SimpleNamespace(model=SimpleNamespace(config={"n_layer": 2}))
    with pytest.raises(UserError, match=f"^model.config.{key}: ") if is_refused else contextlib.nullcontext():
        _check_architecture(recipe, first_recipe, {"resid_pdrop": 0.1}, Path("run"))


def test_a_run_without_weights_is_refused(interrupted_run, tmp_path, continue_run):  # noqa: F811
    first_run = Path(shutil.copytree(interrupted_run, tmp_path / "begun"))
    with amending(first_run):
        status, output = continue_run(first_run, tmp_path / "new")
        assert status == 2 and f"{first_run}: another process is using it" in output
    shutil.rmtree(first_run / "checkpoints")
    status, output = continue_run(first_run, tmp_path / "new")
    assert status == 2 and "the run has no checkpoint yet" in output
    status, output = continue_run(tmp_path, tmp_path / "new")
    assert status == 2 and "holds no recipe.yaml, so it is not a run folder" in output
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("best", ["absent", None, [], {}, {"step": None}, {"step": "3"}, {"step": -1}, {"step": True}])
def test_a_finished_run_that_does_not_name_its_best_step_is_damaged(run, tmp_path, continue_run, best):  # noqa: F811
    first_run = Path(shutil.copytree(run, tmp_path / "begun"))
    results = json.loads((first_run / "metrics.json").read_text())
    results.pop("best")
    (first_run / "metrics.json").write_text(json.dumps(results if best == "absent" else {**results, "best": best}))
    status, output = continue_run(first_run, tmp_path / "new")
    assert status == 2 and output.count("\n") == 1, output
    assert output.startswith(f"error: {first_run / 'metrics.json'}: is damaged (ValueError: its best.step should be")


@pytest.mark.parametrize("state", [{}, {"step": "3"}, {"step": 3, "best_step": "3"}, {"step": 3, "best_step": [3]}])
def test_a_checkpoint_of_an_interrupted_run_without_a_step_is_damaged(interrupted_run, tmp_path, continue_run, state):  # noqa: F811
    """Check a state whose manifest fits, as an older version or an edit by hand would write it."""
    first_run = Path(shutil.copytree(interrupted_run, tmp_path / "begun"))
    for folder in (first_run / "checkpoints").glob("step-*"):
        (folder / STATE).write_text(json.dumps(state))
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["sha256"][STATE] = file_sha256(folder / STATE)
        (folder / MANIFEST).write_text(json.dumps(manifest))
    status, output = continue_run(first_run, tmp_path / "new")
    assert status == 2 and "the run has no whole checkpoint" in output.splitlines()[-1], output
