"""`toolkit finish`: an interrupted run ends with its best weights so far, as if it had ended there by itself."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file
from test_train import assert_same_run, recipe_file, run, train  # noqa: F401

from toolkit.commands.predict import evaluate
from toolkit.errors import UserError
from toolkit.finetune.finish_early import finish_early
from toolkit.run_folder.checkpoint import WEIGHTS, Checkpoints
from toolkit.run_folder.folder import amending
from toolkit.run_folder.tracking import read_metrics


class Stopped(Exception):
    """In the place of a kill: nothing of the run is done after it."""


def stopped_after(step: int, recipe_file: Path, folder: Path, *overrides: str) -> Path:  # noqa: F811
    """A run that ended after the checkpoint of a step."""
    kept = Checkpoints.save

    def save_and_stop(self, at, *arguments, **named):
        kept(self, at, *arguments, **named)
        if at == step:
            raise Stopped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_stop)
        with pytest.raises(Stopped):
            train(recipe_file, folder, *overrides)
    return folder


@pytest.fixture(scope="module")
def interrupted(recipe_file, tmp_path_factory) -> Path:  # noqa: F811
    """A run that stopped at step 20 of 40, with four validations."""
    return stopped_after(20, recipe_file, tmp_path_factory.mktemp("interrupted") / "run")


@pytest.fixture
def begun(interrupted, tmp_path) -> Path:
    return Path(shutil.copytree(interrupted, tmp_path / "run"))


def finish(folder: Path) -> str:
    said = io.StringIO()
    finish_early(folder, Console(file=said, width=200))
    return said.getvalue()


def test_the_best_weights_so_far_are_the_model(begun):
    validations = [row for row in read_metrics(begun / "metrics.jsonl") if row["split"] == "validation"]
    best = json.loads(next(begun.glob("checkpoints/step-*20/state.json")).read_text())["best_step"]
    assert best < 20, "the newest weights are the best: this shows nothing"
    weights = load_file(Checkpoints(begun / "checkpoints").best(best) / WEIGHTS)
    said = finish(begun)
    results = json.loads((begun / "metrics.json").read_text())
    assert "finished early at step 20 of 40" in said and f"best model (step {best}" in said
    assert results["best"]["step"] == best and results["training"]["finished_early"] is True
    assert results["training"]["steps"] == 20 and results["training"]["schedule"]["max_steps"] == 40
    assert results["validation"]["accuracy"] == max(row["accuracy"] for row in validations)
    assert read_metrics(begun / "metrics.jsonl")[-1]["step"] == 20
    for name in ("README.md", "report.html"):
        assert "finished early at step 20 of 40" in (begun / name).read_text()
    saved = load_file(begun / "model/model.safetensors")
    embedding = "reformer.embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(saved[embedding], weights[embedding])
    assert not (begun / "checkpoints").exists()
    assert evaluate(begun, Console(file=io.StringIO())) == results["test"]


def test_a_run_that_was_killed_at_its_end_ends_as_it_would_have(run, recipe_file, tmp_path):  # noqa: F811
    folder = stopped_after(40, recipe_file, tmp_path / "run")
    assert "finished early" not in finish(folder)
    assert_same_run(folder, run)
    training = json.loads((folder / "metrics.json").read_text())["training"]
    assert training["finished_early"] is False
    assert "finished early" not in (folder / "README.md").read_text()


def test_without_a_validation_the_newest_weights_get_one(recipe_file, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr("toolkit.training.trainer.CHECKPOINT_SECONDS", 0.0)
    folder = stopped_after(3, recipe_file, tmp_path / "run")
    assert "step 3/40" in finish(folder)
    results = json.loads((folder / "metrics.json").read_text())
    assert results["best"]["step"] == results["training"]["steps"] == 3
    assert read_metrics(folder / "metrics.jsonl")[-1]["split"] == "validation"
    assert evaluate(folder, Console(file=io.StringIO())) == results["test"]


def test_with_lora_the_adapted_weights_are_the_model(recipe_file, tmp_path):  # noqa: F811
    folder = stopped_after(5, recipe_file, tmp_path / "run", "train.lora={rank: 2}")
    finish(folder)
    results = json.loads((folder / "metrics.json").read_text())
    assert (folder / "adapter.safetensors").is_file()
    assert evaluate(folder, Console(file=io.StringIO())) == results["test"]


def test_a_run_whose_folder_has_moved_ends_where_it_is_now(begun, tmp_path):
    moved = begun.rename(tmp_path / "moved")
    assert f"run folder: {moved}" in finish(moved) and not begun.exists()


def test_what_cannot_be_finished_is_said_in_a_line(begun, run, recipe_file, command_line):  # noqa: F811
    def refused(folder: Path) -> str:
        status, _, err = command_line("finish", folder)
        assert status == 2 and err.count("\n") == 1
        return err

    before = sorted(begun.rglob("*"))
    with amending(begun):
        assert refused(begun) == f"error: {begun}: another process is using it; wait until that has ended\n"
    assert sorted(begun.rglob("*")) == before
    assert "the run has finished already: toolkit evaluate" in refused(run)
    assert "holds no recipe.yaml, so it is not a run folder" in refused(begun.parent)
    shutil.rmtree(begun / "checkpoints")
    assert f"the run has no checkpoint yet; train it: toolkit finetune {begun}/recipe.yaml" in refused(begun)


def test_of_other_data_no_model_is_made(begun, recipe_file, tmp_path):  # noqa: F811
    changed = tmp_path / "test.csv"
    changed.write_text((recipe_file.parent / "test.csv").read_text().replace("cat", "dog"))
    recipe = begun / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(recipe_file.parent / "test.csv"), str(changed)))
    with pytest.raises(UserError, match=r"since it began the rows of test have changed"):
        finish(begun)
    assert not (begun / "model").exists()
