"""What is on disk after a save, a kill or a damaged file."""

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
    """A layer and an optimizer that has moments and a schedule that has moved."""
    model = paddle.nn.Sequential(paddle.nn.Linear(3, 4), paddle.nn.LayerNorm(4))
    schedule = paddle.optimizer.lr.LambdaDecay(0.1, lambda step: 1 / (1 + step))
    optimizer = create(kind, model, schedule, weight_decay=0.1, max_grad_norm=1.0, **OPTIMIZERS[kind])
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer


def step(model: paddle.nn.Layer, optimizer: paddle.optimizer.Optimizer) -> None:
    (model(paddle.ones([2, 3]) * 0.5) ** 3).sum().backward()
    optimizer.step()
    optimizer.clear_grad()
    optimizer._learning_rate.step()


def tensors(model: paddle.nn.Layer) -> list[np.ndarray]:
    return [value.numpy() for value in model.parameters()]


@pytest.fixture
def checkpoints(tmp_path) -> Checkpoints:
    """The checkpoints of a folder that a run has claimed."""
    claim_folder(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    return Checkpoints(tmp_path / "checkpoints")


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_was_saved_goes_on_as_if_nothing_had_happened(kind, tmp_path):
    """Into new objects, whose Paddle names differ from the saved ones."""
    model, optimizer = trained_pair(kind)
    folder = Checkpoints(tmp_path).save(3, model, optimizer, {"best_step": None})
    other, other_optimizer = trained_pair(kind)
    assert other[0].weight.name != model[0].weight.name
    checkpoint.load_weights(other, folder)
    checkpoint.load_optimizer(other_optimizer, other, folder, checkpoint.read_state(folder)["schedule"])
    assert other_optimizer.get_lr() == optimizer.get_lr()
    for _ in range(3):
        step(model, optimizer)
        step(other, other_optimizer)
    for ours, theirs in zip(tensors(other), tensors(model), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_all_generators_go_on_where_they_were():
    def draw():
        return [random.random(), np.random.standard_normal(), *paddle.randn([3]).tolist()]

    paddle.seed(11)
    np.random.standard_normal()  # leaves one number cached in the generator
    draw()
    state = json.loads(json.dumps(checkpoint.random_state()))
    expected = [draw(), draw()]
    checkpoint.set_random_state(state)
    assert [draw(), draw()] == expected
    with checkpoint.undisturbed_random_state():
        inside = draw()
    assert draw() == inside


@pytest.mark.parametrize("name", [checkpoint.WEIGHTS, checkpoint.OPTIMIZER, checkpoint.STATE])
def test_a_changed_file_is_noticed_and_the_checkpoint_before_it_is_taken(tmp_path, name):
    model, optimizer = trained_pair()
    checkpoints = Checkpoints(tmp_path)
    older = checkpoints.save(1, model, optimizer, {"best_step": None})
    newer = checkpoints.save(2, model, optimizer, {"best_step": None})
    content = bytearray((newer / name).read_bytes())
    content[len(content) // 2] ^= 1
    (newer / name).write_bytes(bytes(content))
    told: list[DamagedFolderError] = []
    assert checkpoints.newest(told.append) == older
    assert len(told) == 1 and name in str(told[0]) and "SHA-256" in str(told[0])


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
    told: list[DamagedFolderError] = []
    assert checkpoints.newest(told.append) is None and len(told) == 1


def test_a_save_that_fails_half_way_leaves_what_was_there(tmp_path):
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


def test_what_is_not_called_as_a_checkpoint_of_the_run_is_neither_read_nor_removed(checkpoints):
    model, optimizer = trained_pair()
    names = ("best-of-all", "best-1", "step-1", "step-00000003-copy", ".unfinished-step-00000001-x")
    foreign = [checkpoints.folder / name / checkpoint.WEIGHTS for name in names]
    for path in foreign:
        path.parent.mkdir()
    foreign += [checkpoints.folder / "step-00000099", checkpoints.folder / "best-00000099"]
    for path in foreign:
        path.write_text("mine")
    (elsewhere := checkpoints.folder / "elsewhere").mkdir()
    (elsewhere / checkpoint.WEIGHTS).write_text("mine")
    (checkpoints.folder / "step-00000098").symlink_to(elsewhere)
    for number in (1, 2, 3):
        checkpoints.save(number, model, optimizer, {"best_step": None})
    assert checkpoints.newest(pytest.fail).name == "step-00000003"
    (notes := checkpoints.folder / "step-00000002" / "notes.txt").write_text("mine")
    checkpoints.remove()
    assert all(path.read_text() == "mine" for path in (*foreign, notes, elsewhere / checkpoint.WEIGHTS))
    assert (checkpoints.folder / "step-00000098").is_symlink() and not (checkpoints.folder / "step-00000003").exists()


@pytest.mark.parametrize("kind", ["a file", "a link", "a folder with something else in it"])
def test_what_stands_where_a_folder_is_to_be_written_is_named_and_stays(tmp_path, kind):
    target = tmp_path / "model"
    if kind == "a file":
        target.write_text("mine")
    elif kind == "a link":
        (tmp_path / "elsewhere").mkdir()
        target.symlink_to("elsewhere")
    else:
        whole.write_folder(target, lambda folder: (folder / "a.txt").write_text("ours"))
        (target / "notes.txt").write_text("mine")
    named = "model/notes.txt" if target.is_dir() and not target.is_symlink() else "model"
    with pytest.raises(DestinationOccupiedError, match=rf"{named}: is not of the toolkit's making; move it away"):
        whole.write_folder(target, lambda folder: (folder / "b.txt").write_text("new"))
    assert not (target / "b.txt").exists()
    assert target.is_symlink() or (target if target.is_file() else target / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("change", ["no ledger", "a link"])
def test_nothing_is_removed_where_no_run_has_begun_or_through_a_link(checkpoints, change):
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
    before = sorted(checkpoints.folder.rglob("*"))
    checkpoints.remove(best_step=1)
    assert sorted(checkpoints.folder.rglob("*")) == before
    assert (checkpoints.folder / "step-00000001" / checkpoint.STATE).is_file()


def test_a_later_step_of_an_abandoned_line_is_removed(checkpoints):
    """The newest was damaged, the run went back: its own next save is now the newest."""
    model, optimizer = trained_pair()
    for number in (10, 20, 15):
        checkpoints.save(number, model, optimizer, {"best_step": None})
    assert checkpoints.newest(pytest.fail).name == "step-00000015"
    assert not (checkpoints.folder / "step-00000020").exists()


def test_weights_of_another_model_are_refused_by_name(tmp_path):
    model, optimizer = trained_pair()
    folder = Checkpoints(tmp_path).save(1, model, optimizer, {"best_step": None})
    other = paddle.nn.Sequential(paddle.nn.Linear(3, 5), paddle.nn.LayerNorm(5))
    with pytest.raises(DamagedFolderError, match=r"0\.bias and 3 more do not fit"):
        checkpoint.load_weights(other, folder)


def test_no_pickle_is_written(tmp_path):
    model, optimizer = trained_pair()
    folder = Checkpoints(tmp_path).save(1, model, optimizer, {"best_step": None})
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}
