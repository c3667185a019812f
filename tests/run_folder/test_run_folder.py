"""A run folder: one process at a time, nothing half-written, and what the card says of the gate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import damages
import pytest
from damages import SURELY_BAD

from toolkit import cli
from toolkit.errors import UserError
from toolkit.files.ownership import LEDGER, claim_folder, find_unfinished_prefix
from toolkit.finetune.card import parity_statement
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import in_next_folder, lock_run_folder, read_starts, record_start

RECIPE = """\
data: {dataset: cldr_languages, max_length: 512}
train: {max_steps: 1, learning_rate: 1.0e-3}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    path = tmp_path / "x.yaml"
    path.write_text(RECIPE)
    return load_recipe(path, [f"train.output_dir={tmp_path / 'runs' / 'x'}"])


def begin(recipe: Recipe) -> None:
    """What a run has written when its first step begins."""
    with lock_run_folder(recipe) as folder:
        (folder / "recipe.yaml").write_text(recipe.to_yaml())


def test_the_second_process_is_refused_while_the_first_works_and_let_in_when_it_was_killed(recipe):
    holder = f"""
import sys, time
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.folder import lock_run_folder
with lock_run_folder(load_recipe({str(recipe.path)!r}, ["train.output_dir={recipe.output_dir}"])) as folder:
    print("in", flush=True)
    time.sleep(60)
"""
    first = subprocess.Popen([sys.executable, "-c", holder], stdout=subprocess.PIPE, text=True)
    assert first.stdout.readline() == "in\n"
    refused = pytest.raises(UserError, match=r"train\.output_dir: another process is using .*runs/x; wait")
    with refused, lock_run_folder(recipe):
        raise AssertionError("two at once")
    first.kill()
    first.wait()
    with lock_run_folder(recipe) as folder:
        assert folder == recipe.output_dir


def test_a_folder_in_which_nothing_came_to_stand_is_gone(recipe):
    with lock_run_folder(recipe) as folder:
        assert folder.is_dir()
    assert not folder.parent.exists()
    begin(recipe)
    assert sorted(path.name for path in folder.iterdir()) == [LEDGER, "recipe.yaml"]


def test_a_kill_before_the_first_file_has_its_name_does_not_block_the_folder(recipe):
    folder = recipe.output_dir
    (folder / "parity").mkdir(parents=True)
    (folder / "parity" / "parity.json.partial").write_text("half")
    claim_folder(folder)
    left = [killed_while_it_writes(place) for place in (folder / "recipe.yaml", folder / "parity" / "starts.json")]
    assert all(path.name.startswith(find_unfinished_prefix(folder)) for path in left)
    with lock_run_folder(recipe):
        assert {path.name for path in folder.rglob("*")} == {LEDGER, ".lock", "parity"}


def killed_while_it_writes(path: Path) -> Path:
    """What a process leaves that is killed in the middle of a file; returns that."""
    before = set(path.parent.iterdir())
    writer = f"""
import os, signal
from pathlib import Path
from toolkit.files.whole import open_replacement
with open_replacement(Path({str(path)!r})) as file:
    file.write("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", writer]).returncode == -signal.SIGKILL
    [left] = set(path.parent.iterdir()) - before
    return left


def test_what_looks_unfinished_in_a_run_folder_and_is_not_the_runs_stays(recipe, tmp_path):
    begin(recipe)
    folder = recipe.output_dir
    (folder / "checkpoints").mkdir()
    (elsewhere := tmp_path / "elsewhere").mkdir()
    (elsewhere / "mine").write_text("mine")
    for place in (folder, folder / "checkpoints"):
        (place / ".unfinished-x").mkdir()
        (place / ".unfinished-x" / "mine").write_text("mine")
        (place / "x.partial").write_text("mine")
        (place / "y.partial").symlink_to(elsewhere)
        (place / f"{find_unfinished_prefix(folder)}z").symlink_to(elsewhere)
    before = everything_in(tmp_path)
    with lock_run_folder(recipe):
        pass
    assert everything_in(tmp_path) == before


def everything_in(folder: Path) -> dict[str, bytes | str | None]:
    """By name below a folder: the bytes of a file, where a link leads, nothing of a folder."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
        for path in folder.rglob("*")
    }


def test_a_run_of_a_version_without_a_ledger_goes_on_and_is_known_from_then_on(recipe):
    begin(recipe)
    folder = recipe.output_dir
    (folder / LEDGER).unlink()
    (folder / ".unfinished-x7fa").write_text("left by that version")
    (folder / ".lock").touch()
    with lock_run_folder(recipe):
        assert (folder / "recipe.yaml").is_file()
    assert sorted(path.name for path in folder.iterdir()) == [LEDGER, ".unfinished-x7fa", "recipe.yaml"]


@pytest.mark.parametrize("damage", sorted(SURELY_BAD))
def test_a_damaged_ledger_is_no_failure_and_proves_nothing(recipe, damage):
    begin(recipe)
    folder = recipe.output_dir
    (left := folder / f"{find_unfinished_prefix(folder)}x").write_text("half")
    damages.damage(folder / LEDGER, damage)
    with lock_run_folder(recipe):
        pass
    assert left.read_text() == "half"


def test_the_checkpoints_that_a_kill_has_left_in_a_finished_run_are_removed(recipe):
    begin(recipe)
    folder = recipe.output_dir
    (folder / "metrics.json").write_text("{}")
    (folder / "checkpoints/step-00000001").mkdir(parents=True)
    with pytest.raises(UserError, match="holds a finished run"), lock_run_folder(recipe):
        raise AssertionError("a finished run begins anew")
    assert sorted(path.name for path in folder.iterdir()) == [LEDGER, "metrics.json", "recipe.yaml"]


def test_two_processes_that_add_to_a_finished_run_lose_nothing(tmp_path):
    adder = f"""
import json, pathlib, sys
from toolkit.files.whole import write_text
from toolkit.run_folder.folder import amending
path = pathlib.Path({str(tmp_path)!r}, "evaluation.json")
for number in range(40):
    with amending(path.parent):
        known = json.loads(path.read_text()) if path.exists() else {{}}
        write_text(path, json.dumps({{**known, sys.argv[1] + str(number): 1}}))
"""
    adders = [subprocess.Popen([sys.executable, "-c", adder, name]) for name in "abc"]
    assert [process.wait() for process in adders] == [0, 0, 0]
    assert len(json.loads((tmp_path / "evaluation.json").read_text())) == 120
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation.json"]


def test_the_card_says_which_steps_were_trained_without_the_gate(tmp_path):
    record_start(tmp_path, 0, None, "no torch here")
    record_start(tmp_path, 20, "parity: all agree", None)
    said = parity_statement(read_starts(tmp_path))
    assert said.startswith("**The parity gate was skipped** before steps 1 to 20: no torch here.")
    assert "The parity gate passed before step 21 and all after it: " in said and "(parity: all agree)" in said
    record_start(tmp_path, 30, None, "in a hurry")
    said = parity_statement(read_starts(tmp_path))
    assert "passed before steps 21 to 30: " in said and "skipped** before step 31 and all after it: in a hurry" in said


def test_a_start_of_which_no_step_was_kept_is_not_told(tmp_path):
    record_start(tmp_path, 0, None, "in a hurry")
    record_start(tmp_path, 0, "parity: all agree", None)
    assert parity_statement(read_starts(tmp_path)).startswith("The parity gate passed before training: ")


def test_damaged_starts_do_not_pass_for_a_gate_that_passed(tmp_path):
    record_start(tmp_path, 0, None, "in a hurry")
    (tmp_path / "parity/starts.json").write_text('[{"after_step": 0, "pas')
    record_start(tmp_path, 10, "parity: all agree", None)
    said = parity_statement(read_starts(tmp_path))
    assert said.startswith("**The parity gate was skipped** before steps 1 to 10: unknown, since ")


def finished(folder: Path, recipe: Recipe) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipe.with_values({"train.output_dir": str(folder)}).to_yaml())
    (folder / "metrics.json").write_text("{}")
    return folder


def test_a_finished_folder_names_new_and_how_to_evaluate(recipe):
    folder = finished(recipe.output_dir, recipe)
    with pytest.raises(UserError) as refused, lock_run_folder(recipe):
        raise AssertionError("a finished run begins anew")
    ways = f"to train it further, add --continue {folder}; to train again, add --new, which takes {folder}-2 or"
    assert f"(toolkit evaluate {folder}); {ways}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_new_takes_the_first_folder_in_which_the_recipe_can_run(recipe, tmp_path):
    base = recipe.output_dir
    assert in_next_folder(recipe).output_dir == base
    finished(base, recipe)
    assert in_next_folder(recipe).output_dir == Path(f"{base}-2")
    Path(f"{base}-2").write_text("no folder")
    Path(f"{base}-3").mkdir()
    (Path(f"{base}-3") / "mine.txt").write_text("mine")
    Path(f"{base}-4").symlink_to("nowhere")
    finished(Path(f"{base}-5"), recipe)
    begin(load_recipe(recipe.path, [f"train.output_dir={base}-6", "seed=7"]))  # interrupted, of another recipe
    again = in_next_folder(recipe)
    assert again.output_dir == Path(f"{base}-7") and f"{base}-7" in again.to_yaml()
    begin(again)
    assert in_next_folder(recipe).output_dir == Path(f"{base}-7")  # interrupted, of this one: it goes on
    assert (Path(f"{base}-3") / "mine.txt").read_text() == "mine" and recipe.output_dir == base


def test_new_beside_a_folder_without_a_name(recipe, tmp_path, monkeypatch):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    here, above = recipe.with_values({"train.output_dir": "."}), recipe.with_values({"train.output_dir": ".."})
    for one in (here, above):
        (one.output_dir / "mine").write_text("mine")
    assert in_next_folder(here).output_dir == tmp_path / "a" / "b-2"
    assert in_next_folder(above).output_dir == tmp_path / "a-2"


def test_new_is_refused_to_several_processes(recipe, monkeypatch, capsys):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    with pytest.raises(SystemExit) as left:
        cli.main(["finetune", str(recipe.path), "--new"])
    assert left.value.code == 2 and "--new: several processes train together" in capsys.readouterr().err
