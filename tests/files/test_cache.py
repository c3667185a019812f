"""Test a damaged cache: reading detects the damage, reports it in one line and rebuilds the same entry."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damages import damage
from gates import ROOT, TINY_REFORMER, copied_source, quiet, reformer_request

from toolkit import cli
from toolkit.commands.cache import KINDS, clear_cache, list_entries
from toolkit.data.load import build_tokenizer
from toolkit.files import cache
from toolkit.parity.bundle import cache as measurements
from toolkit.parity.inputs.synthetic import randomize_constants
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.request.build import workers_of, write_request
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification
from toolkit.tasks.question_answering.windows import tokenize_once

RECIPE = """\
train: {epochs: 1, learning_rate: 1e-3}
model: {config: {axial_pos_shape: [4, 8]}}
tokenizer: {kind: sentencepiece, vocab_size: 40}
data: {dataset: json, max_length: 32, files: {train: t.jsonl, validation: v.jsonl}}
"""
ROWS = [{"text": f"the quick brown fox number {index} jumps", "label": index % 2} for index in range(40)]


@pytest.fixture
def read(tmp_path, monkeypatch) -> Callable[[], object]:
    """Return a function that reads and tokenizes a recipe's data and returns the result as one value."""
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    for name, rows in (("t", ROWS), ("v", ROWS[:10])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "x.yaml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "x.yaml")

    def result() -> object:
        splits = classification.load_splits(recipe)
        tokenizer = build_tokenizer(recipe, splits["train"]["text"][:])
        prepared_data = classification.prepare(recipe, tokenizer, splits)
        tokens = tokenize_once(["a fox", "two foxes"], tokenizer)
        examples = [
            {name: np.asarray(value).tolist() for name, value in rows[index].items()}
            for rows in (prepared_data.train, prepared_data.validation)
            for index in range(len(rows))
        ]
        return examples, tokenizer.fingerprint(), tokens.ids.tolist(), tokens.spans.tolist()

    return result


def cache_entries(folder: Path) -> list[Path]:
    return sorted(path for kind in (folder / "cache").iterdir() for path in kind.iterdir())


def file_times(folder: Path) -> dict[Path, int]:
    """Return the write time of each file, except for the file with an entry's name, which changes at each use."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != cache.NAME_FILE}


def test_the_second_read_creates_no_entry(read, tmp_path, capfd):
    first = read()
    first_times = file_times(tmp_path / "cache")
    assert {path.parent.name for path in cache_entries(tmp_path)} == {"rows", "tokens", "tokenizers"}
    assert read() == first
    assert file_times(tmp_path / "cache") == first_times
    assert capfd.readouterr().err == ""


#: Any damage changes a hash; these kinds could make reading or comparing fail.
SOME = (
    "empty", "only zeros", "random bytes", "null", "lists nested deeply", "UTF-16", "cut in half", "one bit",
    "a folder", "a pipe", "a link to itself", "nothing",
)  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_a_damaged_file_of_the_cache_is_rebuilt(read, tmp_path, capfd, name):
    first = read()
    files_of_entries = {
        entry.name: sorted(path for path in entry.rglob("*") if path.is_file()) for entry in cache_entries(tmp_path)
    }
    for number in range(max(map(len, files_of_entries.values()))):  # in each entry at once
        damaged_files = {entry: files[number] for entry, files in files_of_entries.items() if number < len(files)}
        for file in damaged_files.values():
            damage(file, name)
        assert read() == first
        notes = capfd.readouterr().err.splitlines()
        assert len(notes) == len(damaged_files) and all(note.startswith("note: the cache is damaged") for note in notes)
        for entry, file in damaged_files.items():
            assert file.is_file() and sum(entry in note for note in notes) == 1


@pytest.mark.parametrize("kind", ["rows", "tokens"])
def test_swapped_entries_are_rebuilt(read, tmp_path, capfd, kind):
    first = read()
    first_entry, second_entry = sorted((tmp_path / "cache" / kind).iterdir())[:2]
    first_entry.rename(tmp_path / "aside")
    second_entry.rename(first_entry)
    (tmp_path / "aside").rename(second_entry)
    assert read() == first
    assert capfd.readouterr().err.count("holds another entry") == 2


@pytest.mark.parametrize("make", [lambda path: path.write_text("x"), os.mkfifo, lambda path: path.symlink_to(path)])
def test_a_foreign_file_at_the_path_of_an_entry_is_replaced(read, tmp_path, capfd, make):
    first = read()
    for entry in cache_entries(tmp_path):
        shutil.rmtree(entry)
        make(entry)
    assert read() == first
    assert capfd.readouterr().err.count("note: the cache is damaged") == len(cache_entries(tmp_path))


def test_a_read_only_cache_does_not_prevent_reading_data(read, tmp_path, capfd):
    (tmp_path / "cache").write_text("a file")
    read()
    assert capfd.readouterr().err.startswith(f"note: the cache {tmp_path / 'cache'}: is there and is no folder; ")


def test_an_entry_that_does_not_fit_into_the_cache_is_a_temporary_file(read, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "rows").write_text("in the way, as a full disk would be")
    read()
    errors = capfd.readouterr().err
    assert errors.startswith(f"note: {tmp_path / 'cache' / 'rows'}/") and "is not kept for later runs: " in errors


def test_a_failed_entry_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))

    def fails(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get_or_create_entry("tokens", "key", fails)
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


def test_the_first_of_two_processes_keeps_its_entry(tmp_path, monkeypatch, capfd):
    """Check that a second process does not replace an equal entry that the first process uses."""
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    inodes = []

    def fill(folder: Path) -> None:
        if not inodes:
            inodes.append(0)
            other_entry = cache.get_or_create_entry("tokens", "key", fill)  # as another process does meanwhile
            inodes[0] = (other_entry / "x").stat().st_ino
        (folder / "x").write_text("x")

    folder = cache.get_or_create_entry("tokens", "key", fill)
    assert (folder / "x").stat().st_ino == inodes[0]
    assert [path.name for path in folder.parent.iterdir()] == ["key"] and capfd.readouterr().err == ""


@pytest.mark.parametrize("file", ["measured.json", "constants.safetensors", "manifest.json", "entry.txt"])
@pytest.mark.parametrize("name", ["empty", "cut in half", "one bit", "a folder", "nothing", "random bytes"])
def test_a_damaged_measurement_of_a_gate_is_measured_again(tmp_path, monkeypatch, capfd, file, name):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    measurements.store("key", {"a": 1.5}, {"constant": np.arange(3.0)})
    values, constants = measurements.load("key", dict[str, float])
    assert values == {"a": 1.5} and constants["constant"].tolist() == [0, 1, 2]
    damage(tmp_path / "parity" / "key" / file, name)
    assert measurements.load("key", dict[str, float]) is None
    assert capfd.readouterr().err.count("\n") == 1
    assert measurements.load("key", dict[str, float]) is None  # the damaged entry is removed
    assert capfd.readouterr().err == ""


#: Records the files of all modules that a worker has imported when it exits.
WRITES_MODULES = """\
import os, sys
def write():
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    with open(os.path.join(os.path.dirname(__file__), f"modules-{os.getpid()}"), "w") as out:
        out.write("\\n".join(sorted(filter(None, files))))
leave = os._exit
def leave_with(status):
    write()
    leave(status)
os._exit = leave_with
"""


def test_the_key_of_a_gate_depends_on_every_file_that_its_workers_import(tmp_path, monkeypatch):
    """Check that a change in any imported module, such as ``IGNORED_LABEL``, changes the key."""
    (tmp_path / "sitecustomize.py").write_text(WRITES_MODULES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    request, job = reformer_request(TINY_REFORMER), tmp_path / "job"
    write_request(request, randomize_constants(request.weights, request.seed)[0], job)
    run_workers([job], quiet(), workers_of(request))
    module_files = {line for path in tmp_path.glob("modules-*") for line in path.read_text().splitlines()}
    of_project = {Path(file).relative_to(ROOT) for file in module_files if file.startswith(f"{ROOT}/")}
    of_project = {file for file in of_project if file.parts[0] in ("models", "toolkit")}
    assert {
        Path(name)
        for name in (
            "models/operations/losses.py",
            "toolkit/run_folder/checkpoint.py",
            "toolkit/parity/reference/step.py",
        )
    } <= of_project

    copy = copied_source(tmp_path / "copy", "toolkit/__init__.py")
    (copy / "README.md").write_text("what the project is")
    monkeypatch.setattr(measurements, "ROOT", copy)
    initial_key = measurements.key_of(job)
    (copy / "README.md").write_text("something else")
    (copy / "toolkit" / "parity" / "README.md").write_text("something else")
    assert measurements.key_of(job) == initial_key
    hashed_files, sha256 = set(), measurements.files.file_sha256
    monkeypatch.setattr(measurements.files, "file_sha256", lambda path: hashed_files.add(path) or sha256(path))
    assert measurements.key_of(job) == initial_key and {copy / file for file in of_project} <= hashed_files
    for file in sorted(of_project)[::40]:
        plain = (copy / file).read_bytes()
        (copy / file).write_bytes(plain + b"# changed\n")
        assert measurements.key_of(job) != initial_key, file
        (copy / file).write_bytes(plain)
    assert measurements.key_of(job) == initial_key


def test_a_gate_continues_if_its_measurements_cannot_be_cached(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / measurements.KIND).write_text("in the way")
    measurements.store("key", {"a": 1.5}, {"constant": np.arange(3.0)})
    assert measurements.load("key", dict[str, float]) is None
    assert "is not kept for later runs" in capfd.readouterr().err


# -- clearing it ----------------------------------------------------------------------------------------------------

DAY = 86400


def run_cache_command(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["cache", *arguments])
    return exit_info.value.code, capsys.readouterr().out


def used_days_ago(folder: Path, days: float) -> None:
    os.utime(folder / cache.NAME_FILE, (time.time() - days * DAY,) * 2)


def create_entry(kind: str, key: str) -> Path:
    return cache.store_entry(kind, key, lambda folder: (folder / "x").write_text(key) and None)


def test_all_entries_of_a_recipe_are_listed_cleared_and_rebuilt(read, tmp_path, capsys):
    first = read()
    place = tmp_path / "cache"
    cached_entries = cache_entries(tmp_path)
    assert [entry.path for entry in list_entries(place)] == cached_entries and {
        path.parent.name for path in cached_entries
    } <= set(KINDS)
    size = sum(path.stat().st_size for entry in cached_entries for path in entry.rglob("*") if path.is_file())
    assert sum(entry.size for entry in list_entries(place)) == size
    status, output = run_cache_command(capsys)
    assert status == 0 and f"{place}: {len(cached_entries)} entries, " in output and "tokenizers" in output
    for lock_path in list(cache._held_locks):  # as when the run has ended
        os.close(cache._held_locks.pop(lock_path))
    assert len(clear_cache(place).removed_entries) == len(cached_entries) and list_entries(place) == []
    assert read() == first


def test_clearing_removes_the_toolkits_entries_and_nothing_else(tmp_path, monkeypatch, capsys):
    """Clear a folder that also contains foreign files, such as ``~/.cache``, and links that lead outside."""
    place, outside = tmp_path / "cache", tmp_path / "outside"
    monkeypatch.setenv("TOOLKIT_CACHE", str(place))
    outside_files = {kind: outside / kind / ("a" * 32) / cache.NAME_FILE for kind in ("tokens", "rows")}
    for kind, name in outside_files.items():
        name.parent.mkdir(parents=True)
        name.write_text(f"{kind}/{'a' * 32}\n")
    (outside / "mine").write_text("mine")
    own_entries = [create_entry("tokens", "b" * 32), create_entry("parity", "key")]
    (own_entries[0] / "out").symlink_to(outside)
    (own_entries[1] / "manifest.json").write_text("damaged")
    hub = place / "huggingface" / "hub" / "models--x" / "blobs" / ("c" * 32)
    foreign_files = [place / "tokens" / "notes.txt", place / "weights" / "best" / "entry.txt", place / "note", hub]
    for path in foreign_files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (place / "rows").symlink_to(outside / "rows")
    (place / "tokens" / ("a" * 32)).symlink_to(outside / "tokens" / ("a" * 32))
    key = "0123456789abcdef" * 4
    young, abandoned_draft, empty = (
        place / "tokens" / f".unfinished-{name}" for name in (f"{key}-young", f"{key}-left", "empty")
    )
    for path in (young, abandoned_draft, empty):
        path.mkdir()
    for path in (young, abandoned_draft, foreign_draft := place / "tokens" / ".unfinished-draft"):
        path.mkdir(exist_ok=True)
        (path / "text").write_text("mine")
    foreign_files.append(foreign_draft / "text")
    for path in (abandoned_draft, empty, foreign_draft):
        os.utime(path, (time.time() - DAY,) * 2)
    status, output = run_cache_command(capsys, "clear")
    assert status == 0 and f"{place}: removed 4 entries, " in output
    assert not any(path.exists() for path in (*own_entries, abandoned_draft, empty)) and young.is_dir()
    assert all(path.read_text() == "mine" for path in (*foreign_files, outside / "mine"))
    assert all(name.is_file() for name in outside_files.values())
    assert (place / "rows").is_symlink() and (place / "tokens" / ("a" * 32)).is_symlink()


def test_older_than_compares_the_last_use(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    old_entry, used_entry = create_entry("tokens", "old"), create_entry("tokens", "used")
    for folder in (old_entry, used_entry):
        used_days_ago(folder, 10)
    assert cache.find_entry("tokens", "used") == used_entry
    assert [entry.path for entry in clear_cache(tmp_path, older_than=9).removed_entries] == [
        old_entry
    ] and used_entry.is_dir()
    assert [entry.path for entry in clear_cache(tmp_path, older_than=0).removed_entries] == [used_entry]


def test_entries_in_use_stay_until_the_run_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    user = """
import sys
from toolkit.files import cache
print(cache.get_or_create_entry("weights", "a", lambda folder: (folder / "x").write_text("x")), flush=True)
sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    unused_entry = create_entry("weights", "b")
    with subprocess.Popen([sys.executable, "-c", user], **pipes) as run:
        used = Path(run.stdout.readline().strip())
        status, output = run_cache_command(capsys, "clear")
        assert status == 0 and "removed 1 entry, " in output and "a run is using 1 entry, " in output
        assert (used / "x").read_text() == "x" and not unused_entry.exists()
        run.communicate()
    assert "removed 1 entry" in run_cache_command(capsys, "clear")[1] and not used.exists()


def test_an_entry_that_is_cleared_before_its_lock_is_rebuilt(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    folder, note_use, removed_entries = create_entry("tokens", "a"), cache._record_use, []

    def clear_at_once(entry: Path) -> None:
        note_use(entry)
        if not removed_entries:
            removed_entries.extend(clear_cache(tmp_path).removed_entries)

    monkeypatch.setattr(cache, "_record_use", clear_at_once)
    assert (
        cache.get_or_create_entry("tokens", "a", lambda unfinished: (unfinished / "x").write_text("new") and None)
        == folder
    )
    assert len(removed_entries) == 1 and (folder / "x").read_text() == "new"


def test_an_entry_that_cannot_be_removed_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    folder = create_entry("tokens", "a")
    monkeypatch.setattr("toolkit.files.cache.os.rename", lambda *_: (_ for _ in ()).throw(OSError(30, "read-only")))
    status, output = run_cache_command(capsys, "clear")
    assert status == 1 and f"{folder}: cannot be removed: Read-only file system" in output.replace("\n", "")
    assert (folder / "x").is_file() and [path.name for path in folder.parent.iterdir()] == ["a"]


def test_a_missing_cache_is_empty(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "none"))
    assert run_cache_command(capsys, "clear") == (0, f"{tmp_path / 'none'}: removed 0 entries, 0.0 MB\n")
    assert run_cache_command(capsys)[0] == 0 and not (tmp_path / "none").exists()
