"""Test deletions: only a few modules delete or replace files, after a proof that a file is the toolkit's.

Foreign folders stay unchanged, byte for byte.
"""

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
#: Other modules that delete -> the files, and the proof that they are the toolkit's.
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
#: Every call of these names deletes or replaces, for any object.
ALWAYS = {"unlink", "rmtree", "rmdir", "removedirs", "renames", "truncate", "write_text", "write_bytes"}
#: These names delete as functions of ``os`` or ``shutil``, or with one argument as methods of a path.
OF_A_MODULE = {"remove", "replace", "rename", "move"}


def deleting_name(call: ast.Call) -> str | None:
    """Return the name by which a call deletes or replaces a file, or None for other calls."""
    if isinstance(call.func, ast.Name):
        return "open" if call.func.id == "open" and may_truncate(call, 1) else None
    if not isinstance(call.func, ast.Attribute):
        return None
    name, on = call.func.attr, call.func.value
    module = on.id if isinstance(on, ast.Name) else ""
    if name == "open" and module != "os":
        return name if may_truncate(call, 0) else None
    if name in ALWAYS:
        return None if module == "files" else name  # functions of toolkit/parity/exchange/files.py
    if name in OF_A_MODULE and module in ("os", "shutil"):
        return name
    is_of_a_path = name in ("replace", "rename") and len(call.args) == 1 and not call.keywords
    return name if is_of_a_path else None


def may_truncate(call: ast.Call, place: int) -> bool:
    """Return whether a call of ``open`` may truncate a file by its mode; a variable mode counts as any mode."""
    mode_arguments = [word.value for word in call.keywords if word.arg == "mode"] or call.args[place : place + 1]
    return any(not isinstance(mode, ast.Constant) or "w" in str(mode.value) for mode in mode_arguments)


def modules_that_delete() -> set[str]:
    """Return the modules outside of :data:`FILES` with a call that deletes or replaces files."""
    return {
        module
        for folder in ("toolkit", "models")
        for path in (ROOT / folder).rglob("*.py")
        if not (module := path.relative_to(ROOT).as_posix()).startswith(FILES)
        and any(
            isinstance(node, ast.Call) and deleting_name(node) for node in ast.walk(ast.parse(path.read_text("utf-8")))
        )
    }


def test_only_the_modules_for_files_delete_or_replace_files():
    deleting_modules = modules_that_delete()
    assert deleting_modules - OTHER_MODULES.keys() == set(), "use a function of toolkit/files/ or models/files/"
    assert OTHER_MODULES.keys() - deleting_modules == set(), "modules that no longer do so"


def test_no_deleting_function_is_imported_by_name():
    for above in ("toolkit", "models"):
        for path in (ROOT / above).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module in ("os", "shutil"):
                    assert not {imported_name.name for imported_name in node.names} & (ALWAYS | OF_A_MODULE), path


# -- functions with a proof -----------------------------------------------------------------------------------------


@pytest.fixture
def run_with_a_link(tmp_path) -> Path:
    """Return the folder of a run with a file, and with links to a foreign file and folder."""
    folder, foreign_folder = tmp_path / "run", tmp_path / "theirs"
    for place in (folder / "logs", foreign_folder):
        place.mkdir(parents=True)
        (place / "rank-1.log").write_text("mine")
    (folder / "linked-file").symlink_to(foreign_folder / "rank-1.log")
    (folder / "linked-folder").symlink_to(foreign_folder)
    return folder


def test_a_file_is_removed_only_from_a_run_folder(run_with_a_link):
    initial_contents = everything_in(run_with_a_link.parent)
    for name in ("logs/rank-1.log", "linked-file", "linked-folder/rank-1.log"):
        remove_from_run(run_with_a_link, run_with_a_link / name)
    assert everything_in(run_with_a_link.parent) == initial_contents, "no run has claimed the folder"
    claim_folder(run_with_a_link)
    initial_contents = everything_in(run_with_a_link.parent)
    for name in ("linked-file", "linked-folder/rank-1.log", "absent"):
        remove_from_run(run_with_a_link, run_with_a_link / name)
    assert everything_in(run_with_a_link.parent) == initial_contents, "a link was followed or removed"
    remove_from_run(run_with_a_link, run_with_a_link / "logs/rank-1.log")
    assert not (run_with_a_link / "logs/rank-1.log").exists()


def test_a_file_is_replaced_only_in_a_run_folder(run_with_a_link):
    initial_contents = everything_in(run_with_a_link)
    (run_with_a_link / "optimizer").write_text("earlier")
    replace_in_run(run_with_a_link, run_with_a_link / "logs/rank-1.log", "optimizer")
    assert everything_in(run_with_a_link) == {**initial_contents, "optimizer": b"earlier"}
    claim_folder(run_with_a_link)
    replace_in_run(run_with_a_link, run_with_a_link / "logs/rank-1.log", "optimizer")
    assert (run_with_a_link / "optimizer").read_text() == "mine"


def test_existing_files_and_full_folders_are_not_replaced(run_with_a_link):
    (run_with_a_link / "nowhere").symlink_to(run_with_a_link / "absent")
    initial_contents = everything_in(run_with_a_link)
    for existing_name in ("linked-file", "linked-folder", "logs", "nowhere"):
        with pytest.raises(FileExistsError):
            move_to_free_name(run_with_a_link / "logs" / "rank-1.log", run_with_a_link / existing_name)
        with pytest.raises(FileExistsError):
            write_new_file(run_with_a_link / existing_name, "new")
    remove_empty_folders([run_with_a_link / "logs", run_with_a_link / "linked-folder", run_with_a_link])
    assert everything_in(run_with_a_link) == initial_contents


def test_a_report_is_removed_but_not_a_foreign_file_of_its_name(tmp_path):
    for name, content in (("theirs", "{}"), ("ours", '{"schema": 1}')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "parity.json").write_text(content)
        remove_gate_file(tmp_path / name / "parity.json")
    assert everything_in(tmp_path) == {"theirs": None, "theirs/parity.json": b"{}", "ours": None}


# -- foreign folders ------------------------------------------------------------------------------------------------

#: Foreign files with the names of files of the toolkit.
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
def foreign_folder(request, tmp_path) -> Path:
    """Return a foreign folder."""
    names_by_kind = {"with a report": ("parity/junit.xml",), "with a log": ("logs/rank-1.log",), "locked": (".lock",)}
    names = list(names_by_kind.get(request.param, LOOKALIKES))
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
    """Return the content of each path below a folder: bytes of a file, target of a link, or None for a folder."""
    return {
        str(path.relative_to(folder)): (
            os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        )
        for path in folder.rglob("*")
    }


def exit_status_of(*arguments: object) -> int:
    """Run a command and return its exit status."""
    with pytest.raises(SystemExit) as exit_info:
        cli.main(list(map(str, arguments)))
    return exit_info.value.code or 0


@pytest.mark.parametrize("more", [(), ("--processes", "2")])
def test_finetune_refuses_a_foreign_folder_and_changes_nothing(recipe_file, foreign_folder, capfd, more):  # noqa: F811
    initial_contents = everything_in(foreign_folder)
    assert (
        exit_status_of("finetune", recipe_file, f"train.output_dir={foreign_folder}", "--skip-parity", "a test", *more)
        == 2
    )
    assert capfd.readouterr().err.count("\n") == 1 and everything_in(foreign_folder) == initial_contents


def test_finetune_new_trains_next_to_a_foreign_folder(recipe_file, foreign_folder):  # noqa: F811
    initial_contents = everything_in(foreign_folder)
    short = ("train.max_steps=1", "--skip-parity", "a test", "--new")
    assert exit_status_of("finetune", recipe_file, f"train.output_dir={foreign_folder}", *short) == 0
    assert (foreign_folder.with_name("theirs-2") / "metrics.json").is_file() and everything_in(
        foreign_folder
    ) == initial_contents


def test_commands_with_an_output_keep_a_foreign_folder_unchanged(run, foreign_folder, capfd):  # noqa: F811
    initial_contents = everything_in(foreign_folder)
    rows = foreign_folder.parent / "rows.csv"
    rows.write_text("text,label\ncat dog,animals\n")
    name = next(name for name, content in initial_contents.items() if isinstance(content, bytes))
    for arguments in (
        ("export", run, "--format", "hf", "--output", foreign_folder),
        ("export", run, "--format", "hf", "--output", foreign_folder, "--overwrite"),
        ("predict", run, "--input", rows, "--output", foreign_folder),
        ("predict", run, "--input", rows, "--output", foreign_folder, "--overwrite"),
        ("predict", run, "--input", rows, "--output", foreign_folder / name),
        ("parity", "record", *GATE[1:], "-o", foreign_folder),
        ("recipe", "copy", "reformer_cls", foreign_folder / name),
        ("recipe", "new", rows, "--output", foreign_folder / name),
    ):
        assert exit_status_of(*arguments) == 2, arguments
        err = capfd.readouterr().err
        assert (
            err.count("\n") == 1 and err.startswith("error: ") and everything_in(foreign_folder) == initial_contents
        ), (
            arguments,
            err,
        )


def test_a_gate_adds_its_report_to_a_foreign_folder_and_changes_nothing(foreign_folder, capfd):
    """Check that a file with the name of a report is reported."""
    initial_contents = everything_in(foreign_folder)
    status = exit_status_of(*GATE, "--output", foreign_folder)
    if "cpu/junit.xml" in initial_contents:
        assert (
            status == 2
            and f"{foreign_folder / 'cpu' / 'junit.xml'}: is not of an earlier gate" in capfd.readouterr().err
        )
    else:
        assert status == 0 and (foreign_folder / "cpu" / "parity.json").is_file()
    assert {
        name: content for name, content in everything_in(foreign_folder).items() if name in initial_contents
    } == initial_contents
    assert (set(everything_in(foreign_folder)) == set(initial_contents)) == (status == 2)


def test_a_folder_that_is_not_an_export_is_not_replaced(run, tmp_path, capfd):  # noqa: F811
    target = tmp_path / "hf"
    assert exit_status_of("export", run, "--format", "hf", "--output", target) == 0
    (target / "notes.txt").write_text("mine")
    initial_contents = everything_in(target)
    assert exit_status_of("export", run, "--format", "hf", "--output", target, "--overwrite") == 2
    assert "holds notes.txt, which is not part of the export" in capfd.readouterr().err
    assert everything_in(target) == initial_contents
    (target / "notes.txt").unlink()
    assert exit_status_of("export", run, "--format", "hf", "--output", target, "--overwrite") == 0


def test_a_corrected_map_is_not_replaced(tmp_path, capfd):
    (map_file := tmp_path / "map.yaml").write_text("corrected: by hand")
    for name in ("port.py", "reference.py"):
        (tmp_path / name).write_text("")
    pair = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py")
    assert exit_status_of("parity", "map", *pair, "-o", map_file) == 2
    assert "map.yaml: exists" in capfd.readouterr().err and map_file.read_text() == "corrected: by hand"


@pytest.mark.slow
def test_the_logs_of_a_team_are_removed_and_foreign_files_stay(recipe_file, tmp_path):  # noqa: F811
    """Test the folder of a run whose gate was stopped, with added notes."""
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
