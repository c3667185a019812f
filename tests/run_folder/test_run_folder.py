"""Test run folders: one process at a time, no partial files, and the card's statement about the gate."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import damages
import pytest
from damages import UNREADABLE

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


def begin_run(recipe: Recipe) -> None:
    """Write the files that a run has written before its first step."""
    with lock_run_folder(recipe) as folder:
        (folder / "recipe.yaml").write_text(recipe.to_yaml())


def test_a_second_process_is_refused_until_the_first_is_killed(recipe):
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
    refusal = pytest.raises(UserError, match=r"train\.output_dir: another process is using .*runs/x; wait")
    with refusal, lock_run_folder(recipe):
        raise AssertionError("two at once")
    first.kill()
    first.wait()
    with lock_run_folder(recipe) as folder:
        assert folder == recipe.output_dir


def test_an_empty_run_folder_is_removed(recipe):
    with lock_run_folder(recipe) as folder:
        assert folder.is_dir()
    assert not folder.parent.exists()
    begin_run(recipe)
    assert sorted(path.name for path in folder.iterdir()) == [LEDGER, "recipe.yaml"]


def test_a_kill_before_the_first_file_has_its_name_does_not_block_the_folder(recipe):
    folder = recipe.output_dir
    (folder / "parity").mkdir(parents=True)
    (folder / "parity" / "parity.json.partial").write_text("half")
    claim_folder(folder)
    partial_files = [kill_while_writing(place) for place in (folder / "recipe.yaml", folder / "parity" / "starts.json")]
    assert all(path.name.startswith(find_unfinished_prefix(folder)) for path in partial_files)
    with lock_run_folder(recipe):
        assert {path.name for path in folder.rglob("*")} == {LEDGER, ".lock", "parity"}


def kill_while_writing(path: Path) -> Path:
    """Kill a process while it writes a file, and return the partial file."""
    initial_paths = set(path.parent.iterdir())
    writer = f"""
import os, signal
from pathlib import Path
from toolkit.files.whole import open_replacement
with open_replacement(Path({str(path)!r})) as file:
    file.write("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", writer]).returncode == -signal.SIGKILL
    [partial_file] = set(path.parent.iterdir()) - initial_paths
    return partial_file


def test_foreign_partial_files_in_a_run_folder_stay(recipe, tmp_path):
    begin_run(recipe)
    folder = recipe.output_dir
    (folder / "checkpoints").mkdir()
    (other_folder := tmp_path / "elsewhere").mkdir()
    (other_folder / "mine").write_text("mine")
    for place in (folder, folder / "checkpoints"):
        (place / ".unfinished-x").mkdir()
        (place / ".unfinished-x" / "mine").write_text("mine")
        (place / "x.partial").write_text("mine")
        (place / "y.partial").symlink_to(other_folder)
        (place / f"{find_unfinished_prefix(folder)}z").symlink_to(other_folder)
    initial_contents = everything_in(tmp_path)
    with lock_run_folder(recipe):
        pass
    assert everything_in(tmp_path) == initial_contents


def everything_in(folder: Path) -> dict[str, bytes | str | None]:
    """Return the content of each path below a folder: bytes of a file, target of a link, or None for a folder."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
        for path in folder.rglob("*")
    }


def test_a_run_without_a_ledger_resumes_and_gets_one(recipe):
    begin_run(recipe)
    folder = recipe.output_dir
    (folder / LEDGER).unlink()
    (folder / ".unfinished-x7fa").write_text("left by that version")
    (folder / ".lock").touch()
    with lock_run_folder(recipe):
        assert (folder / "recipe.yaml").is_file()
    assert sorted(path.name for path in folder.iterdir()) == [LEDGER, ".unfinished-x7fa", "recipe.yaml"]


@pytest.mark.parametrize("damage", sorted(UNREADABLE))
def test_a_damaged_ledger_is_ignored(recipe, damage):
    begin_run(recipe)
    folder = recipe.output_dir
    (partial_file := folder / f"{find_unfinished_prefix(folder)}x").write_text("half")
    damages.damage(folder / LEDGER, damage)
    with lock_run_folder(recipe):
        pass
    assert partial_file.read_text() == "half"


def test_leftover_checkpoints_of_a_finished_run_are_removed(recipe):
    begin_run(recipe)
    folder = recipe.output_dir
    (folder / "metrics.json").write_text("{}")
    (folder / "checkpoints/step-00000001").mkdir(parents=True)
    with pytest.raises(UserError, match="holds a finished run"), lock_run_folder(recipe):
        raise AssertionError("a finished run begins anew")
    assert sorted(path.name for path in folder.iterdir()) == [LEDGER, "metrics.json", "recipe.yaml"]


def test_two_processes_can_add_to_a_finished_run(tmp_path):
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


def test_the_card_names_the_steps_without_the_gate(tmp_path):
    record_start(tmp_path, 0, None, "no torch here")
    record_start(tmp_path, 20, "parity: all agree", None)
    statement = parity_statement(read_starts(tmp_path))
    assert statement.startswith("**The parity gate was skipped** before steps 1 to 20: no torch here.")
    assert (
        "The parity gate passed before step 21 and all after it: " in statement and "(parity: all agree)" in statement
    )
    record_start(tmp_path, 30, None, "in a hurry")
    statement = parity_statement(read_starts(tmp_path))
    assert (
        "passed before steps 21 to 30: " in statement
        and "skipped** before step 31 and all after it: in a hurry" in statement
    )


def test_a_start_without_saved_steps_is_not_mentioned(tmp_path):
    record_start(tmp_path, 0, None, "in a hurry")
    record_start(tmp_path, 0, "parity: all agree", None)
    assert parity_statement(read_starts(tmp_path)).startswith("The parity gate passed before training: ")


def test_damaged_starts_do_not_count_as_a_passed_gate(tmp_path):
    record_start(tmp_path, 0, None, "in a hurry")
    (tmp_path / "parity/starts.json").write_text('[{"after_step": 0, "pas')
    record_start(tmp_path, 10, "parity: all agree", None)
    statement = parity_statement(read_starts(tmp_path))
    assert statement.startswith("**The parity gate was skipped** before steps 1 to 10: unknown, since ")


def write_finished_run(folder: Path, recipe: Recipe) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipe.yaml").write_text(recipe.with_values({"train.output_dir": str(folder)}).to_yaml())
    (folder / "metrics.json").write_text("{}")
    return folder


def test_a_finished_folder_names_new_and_how_to_evaluate(recipe):
    folder = write_finished_run(recipe.output_dir, recipe)
    with pytest.raises(UserError) as error_info, lock_run_folder(recipe):
        raise AssertionError("a finished run begins anew")
    ways = f"to train it further, add --continue {folder}; to train again, add --new, which takes {folder}-2 or"
    assert f"(toolkit evaluate {folder}); {ways}" in str(error_info.value)
    assert "\n" not in str(error_info.value)


def test_new_chooses_the_first_folder_in_which_the_recipe_can_run(recipe, tmp_path):
    base = recipe.output_dir
    assert in_next_folder(recipe).output_dir == base
    write_finished_run(base, recipe)
    assert in_next_folder(recipe).output_dir == Path(f"{base}-2")
    Path(f"{base}-2").write_text("no folder")
    Path(f"{base}-3").mkdir()
    (Path(f"{base}-3") / "mine.txt").write_text("mine")
    Path(f"{base}-4").symlink_to("nowhere")
    write_finished_run(Path(f"{base}-5"), recipe)
    begin_run(load_recipe(recipe.path, [f"train.output_dir={base}-6", "seed=7"]))  # interrupted, of another recipe
    second_recipe = in_next_folder(recipe)
    assert second_recipe.output_dir == Path(f"{base}-7") and f"{base}-7" in second_recipe.to_yaml()
    begin_run(second_recipe)
    assert in_next_folder(recipe).output_dir == Path(f"{base}-7")  # an interrupted run of this recipe, which resumes
    assert (Path(f"{base}-3") / "mine.txt").read_text() == "mine" and recipe.output_dir == base


def test_new_for_a_folder_without_a_name(recipe, tmp_path, monkeypatch):
    inside = tmp_path / "a" / "b"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    current_folder_recipe, parent_folder_recipe = (
        recipe.with_values({"train.output_dir": "."}),
        recipe.with_values({"train.output_dir": ".."}),
    )
    for unnamed_recipe in (current_folder_recipe, parent_folder_recipe):
        (unnamed_recipe.output_dir / "mine").write_text("mine")
    assert in_next_folder(current_folder_recipe).output_dir == tmp_path / "a" / "b-2"
    assert in_next_folder(parent_folder_recipe).output_dir == tmp_path / "a-2"


def test_new_is_refused_to_several_processes(recipe, monkeypatch, capsys):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["finetune", str(recipe.path), "--new"])
    assert exit_info.value.code == 2 and "--new: several processes train together" in capsys.readouterr().err
