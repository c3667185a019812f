"""Test `toolkit finish`: an interrupted run ends with its best weights so far, like a run that finished there."""

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


class SimulatedKill(Exception):
    """Simulate a kill: the run does nothing after this exception."""


def train_until(step: int, recipe_file: Path, folder: Path, *overrides: str) -> Path:  # noqa: F811
    """Return a run that stopped after the checkpoint of a step."""
    original_save = Checkpoints.save

    def save_and_stop(self, at, *arguments, **named):
        original_save(self, at, *arguments, **named)
        if at == step:
            raise SimulatedKill

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoints, "save", save_and_stop)
        with pytest.raises(SimulatedKill):
            train(recipe_file, folder, *overrides)
    return folder


@pytest.fixture(scope="module")
def interrupted_run(recipe_file, tmp_path_factory) -> Path:  # noqa: F811
    """Return a run that stopped at step 20 of 40, after four validations."""
    return train_until(20, recipe_file, tmp_path_factory.mktemp("interrupted") / "run")


@pytest.fixture
def run_copy(interrupted_run, tmp_path) -> Path:
    return Path(shutil.copytree(interrupted_run, tmp_path / "run"))


def finish_run(folder: Path) -> str:
    output = io.StringIO()
    finish_early(folder, Console(file=output, width=200))
    return output.getvalue()


def test_the_best_weights_so_far_are_the_model(run_copy):
    validations = [row for row in read_metrics(run_copy / "metrics.jsonl") if row["split"] == "validation"]
    best = json.loads(next(run_copy.glob("checkpoints/step-*20/state.json")).read_text())["best_step"]
    assert best < 20, "the newest weights are the best: this shows nothing"
    weights = load_file(Checkpoints(run_copy / "checkpoints").best(best) / WEIGHTS)
    output = finish_run(run_copy)
    results = json.loads((run_copy / "metrics.json").read_text())
    assert "finished early at step 20 of 40" in output and f"best model (step {best}" in output
    assert results["best"]["step"] == best and results["training"]["finished_early"] is True
    assert results["training"]["steps"] == 20 and results["training"]["schedule"]["max_steps"] == 40
    assert results["validation"]["accuracy"] == max(row["accuracy"] for row in validations)
    assert read_metrics(run_copy / "metrics.jsonl")[-1]["step"] == 20
    for name in ("README.md", "report.html"):
        assert "finished early at step 20 of 40" in (run_copy / name).read_text()
    saved_weights = load_file(run_copy / "model/model.safetensors")
    embedding = "reformer.embeddings.word_embeddings.weight"
    np.testing.assert_array_equal(saved_weights[embedding], weights[embedding])
    assert not (run_copy / "checkpoints").exists()
    assert evaluate(run_copy, Console(file=io.StringIO())) == results["test"]


def test_a_run_that_was_killed_at_its_end_finishes_normally(run, recipe_file, tmp_path):  # noqa: F811
    folder = train_until(40, recipe_file, tmp_path / "run")
    assert "finished early" not in finish_run(folder)
    assert_same_run(folder, run)
    training = json.loads((folder / "metrics.json").read_text())["training"]
    assert training["finished_early"] is False
    assert "finished early" not in (folder / "README.md").read_text()


def test_without_a_validation_the_newest_weights_are_evaluated(recipe_file, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setattr("toolkit.training.trainer.CHECKPOINT_SECONDS", 0.0)
    folder = train_until(3, recipe_file, tmp_path / "run")
    assert "step 3/40" in finish_run(folder)
    results = json.loads((folder / "metrics.json").read_text())
    assert results["best"]["step"] == results["training"]["steps"] == 3
    assert read_metrics(folder / "metrics.jsonl")[-1]["split"] == "validation"
    assert evaluate(folder, Console(file=io.StringIO())) == results["test"]


def test_with_lora_the_adapted_weights_are_the_model(recipe_file, tmp_path):  # noqa: F811
    folder = train_until(5, recipe_file, tmp_path / "run", "train.lora={rank: 2}")
    finish_run(folder)
    results = json.loads((folder / "metrics.json").read_text())
    assert (folder / "adapter.safetensors").is_file()
    assert evaluate(folder, Console(file=io.StringIO())) == results["test"]


def test_a_moved_run_folder_is_finished_in_its_new_place(run_copy, tmp_path):
    moved_run = run_copy.rename(tmp_path / "moved")
    assert f"run folder: {moved_run}" in finish_run(moved_run) and not run_copy.exists()


def test_a_run_that_cannot_be_finished_is_reported_in_one_line(run_copy, run, recipe_file, command_line):  # noqa: F811
    def refusal(folder: Path) -> str:
        status, _, err = command_line("finish", folder)
        assert status == 2 and err.count("\n") == 1
        return err

    initial_paths = sorted(run_copy.rglob("*"))
    with amending(run_copy):
        assert refusal(run_copy) == f"error: {run_copy}: another process is using it; wait until that has ended\n"
    assert sorted(run_copy.rglob("*")) == initial_paths
    assert "the run has finished already: toolkit evaluate" in refusal(run)
    assert "holds no recipe.yaml, so it is not a run folder" in refusal(run_copy.parent)
    shutil.rmtree(run_copy / "checkpoints")
    assert f"the run has no checkpoint yet; train it: toolkit finetune {run_copy}/recipe.yaml" in refusal(run_copy)


def test_a_run_on_changed_data_is_not_finished(run_copy, recipe_file, tmp_path):  # noqa: F811
    changed_file = tmp_path / "test.csv"
    changed_file.write_text((recipe_file.parent / "test.csv").read_text().replace("cat", "dog"))
    recipe = run_copy / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace(str(recipe_file.parent / "test.csv"), str(changed_file)))
    with pytest.raises(UserError, match=r"since it began the rows of test have changed"):
        finish_run(run_copy)
    assert not (run_copy / "model").exists()
