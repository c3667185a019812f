"""Test the files of checkpoints after a save, a kill and a damage."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import paddle
import pytest

from toolkit.files import whole
from toolkit.files.ownership import LEDGER, claim_folder
from toolkit.files.whole import DamagedFolderError
from toolkit.machine.disk import DestinationOccupiedError
from toolkit.run_folder import checkpoint
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.training.optimizer import create

#: Settings of each optimizer of a recipe.
OPTIMIZERS = {
    "adamw": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "lion": {"beta1": 0.9, "beta2": 0.99},
    "sgd": {"momentum": 0.9},
    "adafactor": {},
}


def trained_pair(kind: str = "adamw") -> tuple[paddle.nn.Layer, paddle.optimizer.Optimizer]:
    """Return a model and an optimizer with moments, after some steps of its schedule."""
    model = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.LayerNorm(4))
    schedule = paddle.optimizer.lr.LambdaDecay(0.1, lambda step: 1 / (1 + step))
    optimizer = create(kind, model, schedule, weight_decay=0.1, max_grad_norm=1.0, **OPTIMIZERS[kind])
    for _ in range(3):
        train_step(model, optimizer)
    return model, optimizer


def train_step(model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
    (model(paddle.ones([2, 3]) * 0.5) ** 3).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
    optimizer._learning_rate.step()


def model_tensors(model: paddle.nn.Layer) -> list[np.ndarray]:
    return [value.numpy() for value in model.parameters()]


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    """Return the checkpoints in the folder of a run."""
    claim_folder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    return Checkpoints(tmp_path / "checkpoints")


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_resumes_exactly_from_a_checkpoint(kind, tmp_path):
    """Load a checkpoint into new objects, whose Paddle names differ from the saved names."""
    model, optimizer = trained_pair(kind)
    folder = Checkpoints(tmp_path).save(3, model, optimizer, {"best_step": None})
    other_model, other_optimizer = trained_pair(kind)
    assert other_model[0].weight.name != model[0].weight.name
    checkpoint.load_weights(other_model, folder)
    checkpoint.load_optimizer(other_optimizer, other_model, folder, checkpoint.read_state(folder)["schedule"])
    assert other_optimizer.get_lr() == optimizer.get_lr()
    for _ in range(3):
        train_step(model, optimizer)
        train_step(other_model, other_optimizer)
    for loaded_tensor, saved_tensor in zip(model_tensors(other_model), model_tensors(model), strict=True):
        np.testing.assert_array_equal(loaded_tensor, saved_tensor)


def test_all_generators_resume_their_states():
    def draw():
        return [random.random(), np.random.standard_normal(), *paddle.randn([3]).tolist()]

    paddle.seed(11)
    np.random.standard_normal()  # leaves one number cached in the generator
    draw()
    state = json.loads(json.dumps(checkpoint.random_state()))
    expected_numbers = [draw(), draw()]
    checkpoint.set_random_state(state)
    assert [draw(), draw()] == expected_numbers
    with checkpoint.undisturbed_random_state():
        inside = draw()
    assert draw() == inside


@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.OPTIMIZER, checkpoint.STATE])
def test_a_damaged_checkpoint_is_reported_and_the_previous_one_used(tmp_path, name):
    model, optimizer = trained_pair()
    checkpoints = Checkpoints(tmp_path)
    older = checkpoints.save(1, model, optimizer, {"best_step": None})
    newer = checkpoints.save(2, model, optimizer, {"best_step": None})
    content = bytearray((newer / name).read_bytes())
    content[len(content) // 2] ^= 1
    (newer / name).write_bytes(bytes(content))
    errors: list[DamagedFolderError] = []
    assert checkpoints.newest(errors.append) == older
    assert len(errors) == 1 and name in str(errors[0]) and "SHA-256" in str(errors[0])


@pytest.mark.parametrize("damage", ["missing", "added", "no manifest", "best missing"])
def test_an_incomplete_checkpoint_is_not_resumed_from(tmp_path, damage):
    model, optimizer = trained_pair()
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save_best(1, model)
    folder = checkpoints.save(1, model, optimizer, {"best_step": 1})
    assert checkpoints.newest(pytest.fail) == folder
    if damage == "missing":
        (folder / checkpoint.OPTIMIZER).unlink()
    elif damage == "added":
        (folder / "more.json").write_text("{}")
    elif damage == "no manifest":
        (folder / whole.MANIFEST).unlink()
    else:
        (checkpoints.best(1) / checkpoint.WEIGHTS).unlink()
    errors: list[DamagedFolderError] = []
    assert checkpoints.newest(errors.append) is None and len(errors) == 1


def test_a_failed_save_keeps_the_previous_files(tmp_path):
    target = tmp_path / "folder"
    whole.write_folder(target, lambda folder: (folder / "a.txt").write_text("whole"))

    def fails(folder: Path) -> None:
        (folder / "a.txt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        whole.write_folder(target, fails)
    assert (target / "a.txt").read_text() == "whole"
    whole.verify_folder(target)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_two_steps_and_the_best_weights_they_refer_to_are_kept(checkpoints):
    model, optimizer = trained_pair()
    for number, best in ((1, 1), (2, 2), (3, 2), (4, 4)):
        if best == number:
            checkpoints.save_best(number, model)
        checkpoints.save(number, model, optimizer, {"best_step": best})
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == [
        "best-00000002",
        "best-00000004",
        "step-00000003",
        "step-00000004",
    ]


def test_foreign_folders_are_neither_read_nor_removed(checkpoints):
    model, optimizer = trained_pair()
    names = ("best-of-all", "best-1", "step-1", "step-00000003-copy", ".unfinished-step-00000001-x")
    foreign = [checkpoints.folder / name / checkpoint.WEIGHTS for name in names]
    for path in foreign:
        path.parent.mkdir()
    foreign += [checkpoints.folder / "step-00000099", checkpoints.folder / "best-00000099"]
    for path in foreign:
        path.write_text("mine")
    (other_folder := checkpoints.folder / "elsewhere").mkdir()
    (other_folder / checkpoint.WEIGHTS).write_text("mine")
    (checkpoints.folder / "step-00000098").symlink_to(other_folder)
    for number in (1, 2, 3):
        checkpoints.save(number, model, optimizer, {"best_step": None})
    assert checkpoints.newest(pytest.fail).name == "step-00000003"
    (notes := checkpoints.folder / "step-00000002" / "notes.txt").write_text("mine")
    checkpoints.remove()
    assert all(path.read_text() == "mine" for path in (*foreign, notes, other_folder / checkpoint.WEIGHTS))
    assert (checkpoints.folder / "step-00000098").is_symlink() and not (checkpoints.folder / "step-00000003").exists()


@pytest.mark.parametrize("kind", ["a file", "a link", "a folder with something else in it"])
def test_a_foreign_file_in_the_way_is_named_and_stays(tmp_path, kind):
    target = tmp_path / "model"
    if kind == "a file":
        target.write_text("mine")
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to("elsewhere")
    else:
        whole.write_folder(target, lambda folder: (folder / "a.txt").write_text("ours"))
        (target / "notes.txt").write_text("mine")
    expected_name = "model/notes.txt" if target.is_dir() and not target.is_symlink() else "model"
    with pytest.raises(
        DestinationOccupiedError, match=rf"{expected_name}: is not of the toolkit's making; move it away"
    ):
        whole.write_folder(target, lambda folder: (folder / "b.txt").write_text("new"))
    assert not (target / "b.txt").exists()
    assert target.is_symlink() or (target if target.is_file() else target / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("change", ["no ledger", "a link"])
def test_nothing_is_removed_without_a_ledger_or_through_a_link(checkpoints, change):
    model, optimizer = trained_pair()
    checkpoints.save(1, model, optimizer, {"best_step": None})
    if change == "a link":
        checkpoints.folder.rename(checkpoints.folder.with_name("elsewhere"))
        checkpoints.folder.symlink_to("elsewhere")
    else:
        (checkpoints.folder.parent / LEDGER).unlink()
    for number in (2, 3):
        checkpoints.save(number, model, optimizer, {"best_step": 1})
    checkpoints.save_best(1, model, optimizer)
    initial_paths = sorted(checkpoints.folder.rglob("*"))
    checkpoints.remove(best_step=1)
    assert sorted(checkpoints.folder.rglob("*")) == initial_paths
    assert (checkpoints.folder / "step-00000001" / checkpoint.STATE).is_file()


def test_a_later_step_of_an_abandoned_run_is_removed(checkpoints):
    """Test a run that went back from a damaged checkpoint: its next save is the newest."""
    model, optimizer = trained_pair()
    for number in (10, 20, 15):
        checkpoints.save(number, model, optimizer, {"best_step": None})
    assert checkpoints.newest(pytest.fail).name == "step-00000015"
    assert not (checkpoints.folder / "step-00000020").exists()


def test_weights_of_another_model_are_refused_by_name(tmp_path):
    model, optimizer = trained_pair()
    folder = Checkpoints(tmp_path).save(1, model, optimizer, {"best_step": None})
    other_model = paddle.nn.Sequential(paddle.nn.Linear(3, 5), paddle.nn.LayerNorm(5))
    with pytest.raises(DamagedFolderError, match=r"0\.bias and 3 more do not fit"):
        checkpoint.load_weights(other_model, folder)


def test_no_pickle_is_written(tmp_path):
    model, optimizer = trained_pair()
    folder = Checkpoints(tmp_path).save(1, model, optimizer, {"best_step": None})
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}
