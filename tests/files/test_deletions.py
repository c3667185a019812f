"""What the toolkit deletes and replaces: only a few modules do so, each with a proof that the file is the toolkit's.
A folder of somebody else's stays as it is, byte for byte."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from test_train import recipe_file, run  # noqa: F401

from toolkit import cli
from toolkit.files.lossless import move_to_free_name, remove_empty_folders, write_new_file
from toolkit.files.ownership import claim_folder, remove_from_run, remove_gate_file, replace_in_run

ROOT = Path(__file__).resolve().parents[2]
#: Folders whose modules delete and replace files for all others.
FILES = ("toolkit/files", "models/files")
#: Other modules that do so -> what, and what proves that it is the toolkit's.
OTHER_MODULES = {
    "models/operations/loop_code.py": "compiled loops: a digest is in the name, and nobody else may write the folder",
    "toolkit/commands/recipe_new/recipe_new.py": "tables made in this call, at names that were free",
    "toolkit/finetune/launch.py": "the log of an earlier process of this run, in a folder that the run has claimed",
    "toolkit/machine/disk.py": "below toolkit/files: a file that was just written, and empty folders made in this call",
    "toolkit/machine/scratch.py": "below toolkit/files: scratch folders that this program has made",
    "toolkit/parity/bundle/bundle.py": "bundles: bundle.json lists all that is in one; the rest is in a scratch folder",
    "toolkit/parity/exchange/files.py": "files of a job, and reports whose earlier files were looked into",
    "toolkit/parity/processes/processes.py": "the log of a worker, in a job",
    "toolkit/parity/exchange/stages.py": "tensors of a stage that both sides have read, in a job",
    "toolkit/parity/request/streaming.py": "a job that outlives its gate: it has a key and a job.json",
    "toolkit/parity/exchange/tensor_file.py": "tensors of a job",
    "toolkit/parity/other_frameworks/in_jax.py": "results in a job; this program imports nothing of the toolkit",
    "toolkit/parity/other_frameworks/in_onnx.py": "results in a job; this program imports nothing of the toolkit",
    "toolkit/parity/other_frameworks/run.py": "results of the dtype before, in a job",
    "toolkit/run_folder/folder.py": "the lock that this process holds",
}
#: Of these names every call deletes or replaces, whatever it is called on.
ALWAYS = {"unlink", "rmtree", "rmdir", "removedirs", "renames", "truncate", "write_text", "write_bytes"}
#: These do so as functions of ``os`` or ``shutil``; with one argument, as methods of a path.
OF_A_MODULE = {"remove", "replace", "rename", "move"}


def deleting(call: ast.Call) -> str | None:
    """By what name a call deletes or replaces a file; None of other calls."""
    if isinstance(call.func, ast.Name):
        return "open" if call.func.id == "open" and writes(call, 1) else None
    if not isinstance(call.func, ast.Attribute):
        return None
    name, on = call.func.attr, call.func.value
    module = on.id if isinstance(on, ast.Name) else ""
    if name == "open" and module != "os":
        return name if writes(call, 0) else None
    if name in ALWAYS:
        return None if module == "files" else name  # functions of toolkit/parity/exchange/files.py
    if name in OF_A_MODULE and module in ("os", "shutil"):
        return name
    is_of_a_path = name in ("replace", "rename") and len(call.args) == 1 and not call.keywords
    return name if is_of_a_path else None


def writes(call: ast.Call, place: int) -> bool:
    """Whether a call of ``open`` may begin a file anew, by its mode: one that is no constant may be any."""
    given = [word.value for word in call.keywords if word.arg == "mode"] or call.args[place : place + 1]
    return any(not isinstance(mode, ast.Constant) or "w" in str(mode.value) for mode in given)


def modules_that_delete() -> set[str]:
    """Modules outside of :data:`FILES` with a call that deletes or replaces."""
    return {
        module
        for folder in ("toolkit", "models")
        for path in (ROOT / folder).rglob("*.py")
        if not (module := path.relative_to(ROOT).as_posix()).startswith(FILES)
        and any(isinstance(node, ast.Call) and deleting(node) for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    }


def test_only_the_modules_for_files_delete_or_replace_files():
    found = modules_that_delete()
    assert found - OTHER_MODULES.keys() == set(), "use a function of toolkit/files/ or models/files/"
    assert OTHER_MODULES.keys() - found == set(), "modules that no longer do so"


def test_no_call_that_deletes_hides_behind_a_name_of_its_own():
    for above in ("toolkit", "models"):
        for path in (ROOT / above).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil"):
                    assert not {one.name for one in node.names} & (ALWAYS | OF_A_MODULE), path


# -- functions that prove it ----------------------------------------------------------------------------------------


@pytest.fixture
def run_with_a_link(tmp_path) -> Path:
    """The folder of a run, with a file and links to somebody else's file and folder."""
    folder, theirs = tmp_path / "run", tmp_path / "theirs"
    for place in (folder / "logs", theirs):
        place.mkdir(parents=True)
        (place / "rank-1.log").write_text("mine")
    (folder / "linked-file").symlink_to(theirs / "rank-1.log")
    (folder / "linked-folder").symlink_to(theirs)
    return folder


def test_a_file_is_removed_from_a_run_and_from_no_other_folder(run_with_a_link):
    before = everything_in(run_with_a_link.parent)
    for name in ("logs/rank-1.log", "linked-file", "linked-folder/rank-1.log"):
        remove_from_run(run_with_a_link, run_with_a_link / name)
    assert everything_in(run_with_a_link.parent) == before, "no run has claimed the folder"
    claim_folder(run_with_a_link)
    before = everything_in(run_with_a_link.parent)
    for name in ("linked-file", "linked-folder/rank-1.log", "absent"):
        remove_from_run(run_with_a_link, run_with_a_link / name)
    assert everything_in(run_with_a_link.parent) == before, "a link was followed or removed"
    remove_from_run(run_with_a_link, run_with_a_link / "logs/rank-1.log")
    assert not (run_with_a_link / "logs/rank-1.log").exists()


def test_a_file_is_replaced_in_a_run_and_in_no_other_folder(run_with_a_link):
    before = everything_in(run_with_a_link)
    (run_with_a_link / "optimizer").write_text("earlier")
    replace_in_run(run_with_a_link, run_with_a_link / "logs/rank-1.log", "optimizer")
    assert everything_in(run_with_a_link) == {**before, "optimizer": b"earlier"}
    claim_folder(run_with_a_link)
    replace_in_run(run_with_a_link, run_with_a_link / "logs/rank-1.log", "optimizer")
    assert (run_with_a_link / "optimizer").read_text() == "mine"


def test_nothing_is_lost_at_a_name_that_is_taken_or_in_a_folder_that_is_not_empty(run_with_a_link):
    (run_with_a_link / "nowhere").symlink_to(run_with_a_link / "absent")
    before = everything_in(run_with_a_link)
    for taken in ("linked-file", "linked-folder", "logs", "nowhere"):
        with pytest.raises(FileExistsError):
            move_to_free_name(run_with_a_link / "logs" / "rank-1.log", run_with_a_link / taken)
        with pytest.raises(FileExistsError):
            write_new_file(run_with_a_link / taken, "new")
    remove_empty_folders([run_with_a_link / "logs", run_with_a_link / "linked-folder", run_with_a_link])
    assert everything_in(run_with_a_link) == before


def test_a_report_is_removed_and_no_other_file_of_its_name(tmp_path):
    for name, content in (("theirs", "{}"), ("ours", '{"schema": 1}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "parity.json").write_text(content)
        remove_gate_file(tmp_path / name / "parity.json")
    assert everything_in(tmp_path) == {"theirs": None, "theirs/parity.json": b"{}", "ours": None}


# -- somebody else's folder -----------------------------------------------------------------------------------------

#: Files that are called as those of the toolkit, and are not.
LOOKALIKES = (
    "x.partial",
    ".unfinished-x",
    ".unfinished-0123456789abcdef-model-x/weights",
    ".lock",
    "adapter.safetensors.partial",
    "model/config.json",
    "logs/rank-1.log",
    "export/hf/config.json",
    "export.json",
    "cpu/junit.xml",
    "cpu/streamed/key",
    "parity/parity.json",
    "parity/parity.json.partial",
    "parity/.unfinished-z",
    "parity/z.partial",
    "checkpoints/y.partial",
    "checkpoints/.unfinished-y/weights",
    "checkpoints/best-of-all/weights.safetensors",
    "checkpoints/best-00000010/weights.safetensors",
    "checkpoints/step-00000010/weights.safetensors",
    "checkpoints/step-00000099",
)
GATE = ("parity", "--model", "ctrl", "--layers", "1", "--length", "8", "n_embd=8", "n_head=2", "dff=8", "vocab_size=40")


@pytest.fixture(params=["alike", "with a recipe", "with a recipe and metrics", "with a report", "with a log", "locked"])
def theirs(request, tmp_path) -> Path:
    """A folder of somebody else's."""
    kept = {"with a report": ("parity/junit.xml",), "with a log": ("logs/rank-1.log",), "locked": (".lock",)}
    names = list(kept.get(request.param, LOOKALIKES))
    names += ["recipe.yaml"] if "recipe" in request.param else []
    names += ["metrics.json"] if "metrics" in request.param else []
    folder = tmp_path / "theirs"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(f"mine: {name}\n")
    if "checkpoints/step-00000099" in names:
        (folder / "a.partial").symlink_to(tmp_path)
        (folder / "checkpoints" / "step-00000011").symlink_to(tmp_path)
    return folder


def everything_in(folder: Path) -> dict[str, bytes | str | None]:
    """By name below a folder: the bytes of a file, where a link leads, nothing of a folder."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
        for path in folder.rglob("*")
    }


def leave(*arguments: object) -> int:
    """The exit status of a command."""
    with pytest.raises(SystemExit) as left:
        cli.main(list(map(str, arguments)))
    return left.value.code or 0


@pytest.mark.parametrize("more", [(), ("--processes", "2")])
def test_finetune_refuses_somebody_elses_folder_and_touches_nothing(recipe_file, theirs, capfd, more):  # noqa: F811
    before = everything_in(theirs)
    assert leave("finetune", recipe_file, f"train.output_dir={theirs}", "--skip-parity", "a test", *more) == 2
    assert capfd.readouterr().err.count("\n") == 1 and everything_in(theirs) == before


def test_finetune_new_trains_beside_somebody_elses_folder(recipe_file, theirs):  # noqa: F811
    before = everything_in(theirs)
    short = ("train.max_steps=1", "--skip-parity", "a test", "--new")
    assert leave("finetune", recipe_file, f"train.output_dir={theirs}", *short) == 0
    assert (theirs.with_name("theirs-2") / "metrics.json").is_file() and everything_in(theirs) == before


def test_commands_with_an_output_leave_somebody_elses_folder_as_it_is(run, theirs, capfd):  # noqa: F811
    before = everything_in(theirs)
    rows = theirs.parent / "rows.csv"
    rows.write_text("text,label\ncat dog,animals\n")
    name = next(name for name, content in before.items() if isinstance(content, bytes))
    for arguments in (
        ("export", run, "--format", "hf", "--output", theirs),
        ("export", run, "--format", "hf", "--output", theirs, "--overwrite"),
        ("predict", run, "--input", rows, "--output", theirs),
        ("predict", run, "--input", rows, "--output", theirs, "--overwrite"),
        ("predict", run, "--input", rows, "--output", theirs / name),
        ("parity", "record", *GATE[1:], "-o", theirs),
        ("recipe", "copy", "reformer_cls", theirs / name),
        ("recipe", "new", rows, "--output", theirs / name),
    ):
        assert leave(*arguments) == 2, arguments
        err = capfd.readouterr().err
        assert err.count("\n") == 1 and err.startswith("error: ") and everything_in(theirs) == before, (arguments, err)


def test_a_gate_adds_its_report_to_somebody_elses_folder_and_changes_nothing_there(theirs, capfd):
    """Where a file of the report's name is there, it says so."""
    before = everything_in(theirs)
    status = leave(*GATE, "--output", theirs)
    if "cpu/junit.xml" in before:
        assert status == 2 and f"{theirs / 'cpu' / 'junit.xml'}: is not of an earlier gate" in capfd.readouterr().err
    else:
        assert status == 0 and (theirs / "cpu" / "parity.json").is_file()
    assert {name: content for name, content in everything_in(theirs).items() if name in before} == before
    assert (set(everything_in(theirs)) == set(before)) == (status == 2)


def test_an_export_that_holds_something_else_is_not_replaced(run, tmp_path, capfd):  # noqa: F811
    target = tmp_path / "hf"
    assert leave("export", run, "--format", "hf", "--output", target) == 0
    (target / "notes.txt").write_text("mine")
    before = everything_in(target)
    assert leave("export", run, "--format", "hf", "--output", target, "--overwrite") == 2
    assert "holds notes.txt, which is not part of the export" in capfd.readouterr().err
    assert everything_in(target) == before
    (target / "notes.txt").unlink()
    assert leave("export", run, "--format", "hf", "--output", target, "--overwrite") == 0


def test_a_map_does_not_replace_one_that_was_corrected(tmp_path, capfd):
    (mapped := tmp_path / "map.yaml").write_text("corrected: by hand")
    for name in ("port.py", "reference.py"):
        (tmp_path / name).write_text("")
    pair = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py")
    assert leave("parity", "map", *pair, "-o", mapped) == 2
    assert "map.yaml: exists" in capfd.readouterr().err and mapped.read_text() == "corrected: by hand"


@pytest.mark.slow
def test_the_logs_of_a_team_go_and_what_else_is_among_them_stays(recipe_file, tmp_path):  # noqa: F811
    """The folder of a run whose gate was stopped, to which somebody has added notes."""
    folder = tmp_path / "run"
    (folder / "logs").mkdir(parents=True)
    claim_folder(folder)
    for name in ("rank-1.log", "notes.txt"):
        (folder / "logs" / name).write_text("mine")
    command = [sys.executable, "-m", "toolkit", "finetune", str(recipe_file), f"train.output_dir={folder}"]
    more = ["train.max_steps=1", "--skip-parity", "a test", "--processes", "2"]
    assert subprocess.run([*command, *more], cwd=ROOT).returncode == 0
    assert (folder / "metrics.json").is_file()
    assert [path.name for path in (folder / "logs").iterdir()] == ["notes.txt"]
