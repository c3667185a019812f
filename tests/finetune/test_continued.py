"""`toolkit finetune RECIPE --continue RUN`: a run begins with the weights and the tokenizer of another."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file
from test_finish_early import finish, interrupted, stopped_after  # noqa: F401
from test_train import gate, recipe_file, run, train  # noqa: F401

from toolkit.errors import UserError
from toolkit.files.digest import file_sha256
from toolkit.files.whole import MANIFEST
from toolkit.finetune.continued import _check_architecture
from toolkit.finetune.identity import FILE
from toolkit.run_folder.checkpoint import OPTIMIZER, STATE, WEIGHTS, Checkpoints
from toolkit.run_folder.folder import amending

EMBEDDING = "reformer.embeddings.word_embeddings.weight"


@pytest.fixture
def continuing(recipe_file, command_line):  # noqa: F811
    """Continue a run into a folder: exit status, and all that is said."""

    def finetune(other: Path, folder: Path, *overrides: str, skip: bool = True) -> tuple[int, str]:
        options = ["--continue", other, *(["--skip-parity", "a test"] if skip else [])]
        status, out, err = command_line("finetune", recipe_file, f"train.output_dir={folder}", *overrides, *options)
        return status, out + err

    return finetune


def begins_with(gate) -> dict[str, np.ndarray]:  # noqa: F811
    (request,) = gate.requests
    return request.weights


def test_a_finished_run_goes_on_in_a_new_folder_behind_a_gate_on_its_weights(gate, run, tmp_path, continuing):  # noqa: F811
    first = Path(shutil.copytree(run, tmp_path / "run"))
    status, said = continuing(first, first, "train.max_steps=2", "train.learning_rate=1e-4", skip=False)
    assert status == 0 and f"this run is in {first}-2" in said
    best = json.loads((run / "metrics.json").read_text())["best"]["step"]
    differs = ["train.max_steps: 40 there, 2 here", "train.learning_rate: 0.004 there, 0.0001 here"]
    optimizer = "its optimizer's moments and a new schedule"
    assert f"note   continues {first} from step {best}, with {optimizer}: {'; '.join(differs)}" in said
    saved = load_file(run / "model/model.safetensors")
    for name, value in begins_with(gate).items():
        np.testing.assert_array_equal(value, saved[name], err_msg=name)
    new = tmp_path / "run-2"
    assert json.loads((new / FILE).read_text())["continues"] == {
        **{"run": str(first), "step": best, "differs": differs},
        "optimizer": str(first / OPTIMIZER),
    }
    assert "continued from" in (new / "report.html").read_text()
    assert "continued from" not in (run / "report.html").read_text()
    assert json.loads((new / "metrics.json").read_text())["training"]["steps"] == 2


def test_an_interrupted_run_goes_on_from_its_best_weights_and_stays(gate, interrupted, tmp_path, continuing):  # noqa: F811
    begun = Path(shutil.copytree(interrupted, tmp_path / "begun"))
    before = {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()}
    state = json.loads(next(begun.glob("checkpoints/step-*20/state.json")).read_text())
    best = load_file(Checkpoints(begun / "checkpoints").best(state["best_step"]) / WEIGHTS)
    newest = load_file(next(begun.glob("checkpoints/step-*20")) / WEIGHTS)
    status, said = continuing(begun, tmp_path / "new", "train.max_steps=1", skip=False)
    assert status == 0 and f"continues {begun} from step {state['best_step']}" in said
    np.testing.assert_array_equal(begins_with(gate)[EMBEDDING], best[EMBEDDING])
    assert (best[EMBEDDING] != newest[EMBEDDING]).any()
    assert {path: path.read_bytes() for path in begun.rglob("*") if path.is_file()} == before


#: Every step has both examples, and a sum of two has no order; nothing is drawn.
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
    ("how", "optimizer"), [("finished", "adamw"), ("finished", "adafactor"), ("interrupted", "adamw")]
)
def test_with_the_same_schedule_it_is_one_long_run_to_the_bit(recipe_file, tmp_path, continuing, how, optimizer):  # noqa: F811
    (tmp_path / "two.csv").write_text("text,label\ncat dog cat,animals\nfig,fruit\n")
    files = f"data.files={{train: {tmp_path}/two.csv, validation: {tmp_path}/two.csv}}"
    same = (*SAME_STEPS, files, f"train.optimizer={optimizer}")
    long = train(recipe_file, tmp_path / "long", *same, "train.max_steps=6")
    if how == "finished":
        first = train(recipe_file, tmp_path / "first", *same, "train.max_steps=3")
    else:
        first = stopped_after(3, recipe_file, tmp_path / "first", *same, "train.max_steps=9")
    status, said = continuing(first, tmp_path / "second", *same, "train.max_steps=3")
    assert status == 0 and "with its optimizer's moments and a new schedule" in said
    found, expected = (
        load_file(tmp_path / "second/model/model.safetensors"),
        load_file(long / "model/model.safetensors"),
    )
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_state_that_does_not_fit_is_not_taken_over(run, tmp_path, continuing):  # noqa: F811
    status, said = continuing(run, tmp_path / "other", "train.optimizer=lion", "train.max_steps=1")
    assert status == 0 and "with a new optimizer and schedule: " in said and "adamw there, lion here" in said
    shorter = ("train.max_steps=1", "data.max_length=32")
    status, said = continuing(run, tmp_path / "shorter", *shorter)
    place = "reformer.embeddings.position_embeddings.weights.0"
    assert status == 0 and f"note   the optimizer is new: {run / OPTIMIZER} does not fit {place}" in said
    first = Path(shutil.copytree(run, tmp_path / "run"))
    (first / OPTIMIZER).write_bytes((run / OPTIMIZER).read_bytes()[:1000])
    status, said = continuing(first, tmp_path / "damaged", "train.max_steps=1")
    assert status == 2 and f"error: {first / OPTIMIZER}: is damaged" in said
    (first / OPTIMIZER).unlink()
    status, said = continuing(first, tmp_path / "without", "train.max_steps=1")
    assert status == 0 and "with a new optimizer and schedule: " in said


def test_an_adapter_that_was_not_finished_is_merged(gate, recipe_file, tmp_path, continuing):  # noqa: F811
    begun = stopped_after(5, recipe_file, tmp_path / "begun", "train.lora={rank: 2}")
    status, said = continuing(begun, tmp_path / "new", "train.max_steps=1", skip=False)
    assert status == 0, said
    finish(begun)
    merged = load_file(begun / "model/model.safetensors")
    assert begins_with(gate).keys() == merged.keys()
    for name, value in begins_with(gate).items():
        np.testing.assert_array_equal(value, merged[name], err_msg=name)


def test_the_trained_tokenizer_is_kept_though_the_texts_are_others(recipe_file, tmp_path, continuing):  # noqa: F811
    pieces = ("tokenizer.kind=sentencepiece", "tokenizer.vocab_size=30", "train.max_steps=1")
    first = train(recipe_file, tmp_path / "first", *pieces)
    texts = tmp_path / "others.csv"
    texts.write_text("text,label\n" + "".join(f"zz{name} q,{name}\n" for name in ("animals", "fruit", "tools")) * 4)
    status, said = continuing(first, tmp_path / "new", *pieces, f"data.files.train={texts}")
    assert status == 0, said
    spiece = Path("model", "spiece.model")
    assert (tmp_path / "new" / spiece).read_bytes() == (first / spiece).read_bytes()


def test_a_continued_run_that_is_resumed_still_knows_what_it_continues(recipe_file, run, tmp_path, continuing):  # noqa: F811
    new = tmp_path / "new"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", interrupting(Checkpoints.save))
        status, said = continuing(run, new, "train.max_steps=10")
    assert status == 130, said
    status, said = continuing(run, new, "train.max_steps=10")
    assert status == 0 and f"resuming {new} after step 5" in said
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
    ("override", "said"),
    [
        ("model.config.hidden_dropout_prob=0.2", ""),
        ("model.config.feed_forward_size=64", "model.config.feed_forward_size: --continue RUN: 32 there, 64 here"),
        ("model.config.num_hashes=2", "model.config.num_hashes: --continue RUN: 1 there, 2 here"),
        ("tokenizer={kind: sentencepiece, vocab_size: 30}", "tokenizer.kind: --continue RUN: bytes there, sentencepie"),
        ("model.weights=elsewhere", "model.weights: --continue RUN: None there, elsewhere here"),
    ],
)
def test_another_architecture_or_tokenizer_is_refused_at_its_key(run, tmp_path, continuing, override, said):  # noqa: F811
    status, found = continuing(run, tmp_path / "new", "train.max_steps=1", override)
    if not said:
        assert status == 0 and "model.config.hidden_dropout_prob: 0.1 there, 0.2 here" in found
        return
    errors = [line for line in found.splitlines() if line.startswith("error: ")]
    assert status == 2 and len(errors) == 1 and said.replace("RUN", str(run)) in errors[0]
    assert not (tmp_path / "new").exists()


HEAD = ("classifier.out_proj.weight", "classifier.out_proj.bias")


@pytest.mark.parametrize(
    ("names", "rows", "said"),
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
def test_other_labels_get_their_rows_of_the_head_or_new_ones(gate, run, tmp_path, continuing, names, rows, said):  # noqa: F811
    overrides = ("train.max_steps=1", f"data.label_names={names}")
    status, found = continuing(run, tmp_path / "new", *overrides, skip=False)
    assert status == 0 and f"the labels are not those of {run}: the head" in found and said in found
    assert "the optimizer is new after all" in found
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


def check_rows(begun: dict[str, np.ndarray], saved: dict[str, np.ndarray], rows: list[int | None]) -> None:
    for name, value in saved.items():
        if name not in HEAD:
            np.testing.assert_array_equal(begun[name], value, err_msg=name)
    for name in HEAD:
        assert len(begun[name]) == len(rows)
        for own, row in zip(begun[name], rows, strict=True):
            if row is not None:
                np.testing.assert_array_equal(own, saved[name][row])
            else:
                assert not any(np.array_equal(own, other) for other in saved[name])


@pytest.mark.parametrize(
    ("key", "value", "is_refused"),
    [("resid_pdrop", 0.3, False), ("embd_pdrop", 0.0, False), ("n_layer", 3, True), ("layer_norm_epsilon", 1e-3, True)],
)
def test_a_continued_ctrl_may_drop_more_or_less_and_nothing_else_differs(key, value, is_refused):
    def error(path, message):
        return UserError(f"{'.'.join(path)}: {message}")

    recipe = SimpleNamespace(model=SimpleNamespace(name="ctrl", config={key: value}), error=error)
    there = SimpleNamespace(model=SimpleNamespace(config={"n_layer": 2}))
    with pytest.raises(UserError, match=f"^model.config.{key}: ") if is_refused else contextlib.nullcontext():
        _check_architecture(recipe, there, {"resid_pdrop": 0.1}, Path("run"))


def test_a_run_with_nothing_to_begin_with_is_refused(interrupted, tmp_path, continuing):  # noqa: F811
    begun = Path(shutil.copytree(interrupted, tmp_path / "begun"))
    with amending(begun):
        status, said = continuing(begun, tmp_path / "new")
        assert status == 2 and f"{begun}: another process is using it" in said
    shutil.rmtree(begun / "checkpoints")
    status, said = continuing(begun, tmp_path / "new")
    assert status == 2 and "the run has no checkpoint yet" in said
    status, said = continuing(tmp_path, tmp_path / "new")
    assert status == 2 and "holds no recipe.yaml, so it is not a run folder" in said
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("best", ["absent", None, [], {}, {"step": None}, {"step": "3"}, {"step": -1}, {"step": True}])
def test_a_finished_run_that_does_not_name_its_best_step_is_damaged(run, tmp_path, continuing, best):  # noqa: F811
    begun = Path(shutil.copytree(run, tmp_path / "begun"))
    results = json.loads((begun / "metrics.json").read_text())
    results.pop("best")
    (begun / "metrics.json").write_text(json.dumps(results if best == "absent" else {**results, "best": best}))
    status, said = continuing(begun, tmp_path / "new")
    assert status == 2 and said.count("\n") == 1, said
    assert said.startswith(f"error: {begun / 'metrics.json'}: is damaged (ValueError: its best.step should be")


@pytest.mark.parametrize("state", [{}, {"step": "3"}, {"step": 3, "best_step": "3"}, {"step": 3, "best_step": [3]}])
def test_a_checkpoint_of_an_interrupted_run_without_a_step_is_damaged(interrupted, tmp_path, continuing, state):  # noqa: F811
    """Its manifest fits: an older version, or somebody's hand, has written it."""
    begun = Path(shutil.copytree(interrupted, tmp_path / "begun"))
    for folder in (begun / "checkpoints").glob("step-*"):
        (folder / STATE).write_text(json.dumps(state))
        manifest = json.loads((folder / MANIFEST).read_text())
        manifest["sha256"][STATE] = file_sha256(folder / STATE)
        (folder / MANIFEST).write_text(json.dumps(manifest))
    status, said = continuing(begun, tmp_path / "new")
    assert status == 2 and "the run has no whole checkpoint" in said.splitlines()[-1], said
