"""A damaged cache: found when it is read, said in one line, made anew; what comes out is what it was before."""

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
    """Reads and tokenizes a recipe's data; what comes out, as one value."""
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    for name, rows in (("t", ROWS), ("v", ROWS[:10])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "x.yaml").write_text(RECIPE)
    recipe = load_recipe(tmp_path / "x.yaml")

    def result() -> object:
        splits = classification.load_splits(recipe)
        tokenizer = build_tokenizer(recipe, splits["train"]["text"][:])
        prepared = classification.prepare(recipe, tokenizer, splits)
        tokens = tokenize_once(["a fox", "two foxes"], tokenizer)
        examples = [
            {name: np.asarray(value).tolist() for name, value in rows[index].items()}
            for rows in (prepared.train, prepared.validation)
            for index in range(len(rows))
        ]
        return examples, tokenizer.fingerprint(), tokens.ids.tolist(), tokens.spans.tolist()

    return result


def entries(folder: Path) -> list[Path]:
    return sorted(path for kind in (folder / "cache").iterdir() for path in kind.iterdir())


def times(folder: Path) -> dict[Path, int]:
    """When each file was written; that of an entry's name says when it was last used."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != cache.NAME_FILE}


def test_the_second_time_nothing_is_made(read, tmp_path, capfd):
    first = read()
    made = times(tmp_path / "cache")
    assert {path.parent.name for path in entries(tmp_path)} == {"rows", "tokens", "tokenizers"}
    assert read() == first
    assert times(tmp_path / "cache") == made
    assert capfd.readouterr().err == ""


#: Whatever the damage, a hash tells; these are the kinds that reading and comparing could stumble over.
SOME = (
    "empty", "only zeros", "random bytes", "null", "lists nested deeply", "UTF-16", "cut in half", "one bit",
    "a folder", "a pipe", "a link to itself", "nothing",
)  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_a_damaged_file_of_the_cache_is_made_anew(read, tmp_path, capfd, name):
    first = read()
    for number in range(len(entries(tmp_path))):
        entry = entries(tmp_path)[number]
        for file in sorted(path.relative_to(entry) for path in entry.rglob("*") if path.is_file()):
            damage(entry / file, name)
            assert read() == first
            said = capfd.readouterr().err
            assert said.count("\n") == 1 and said.startswith("note: the cache is damaged") and entry.name in said
            assert (entry / file).is_file()


@pytest.mark.parametrize("kind", ["rows", "tokens"])
def test_entries_that_changed_places_are_made_anew(read, tmp_path, capfd, kind):
    first = read()
    one, other = sorted((tmp_path / "cache" / kind).iterdir())[:2]
    one.rename(tmp_path / "aside")
    other.rename(one)
    (tmp_path / "aside").rename(other)
    assert read() == first
    assert capfd.readouterr().err.count("holds another entry") == 2


@pytest.mark.parametrize("make", [lambda path: path.write_text("x"), os.mkfifo, lambda path: path.symlink_to(path)])
def test_something_else_in_the_place_of_an_entry_is_made_anew(read, tmp_path, capfd, make):
    first = read()
    for entry in entries(tmp_path):
        shutil.rmtree(entry)
        make(entry)
    assert read() == first
    assert capfd.readouterr().err.count("note: the cache is damaged") == len(entries(tmp_path))


def test_a_cache_that_cannot_be_written_is_no_fault_of_the_data(read, tmp_path, capfd):
    (tmp_path / "cache").write_text("a file")
    read()
    assert capfd.readouterr().err.startswith(f"note: the cache {tmp_path / 'cache'}: is there and is no folder; ")


def test_an_entry_for_which_the_cache_has_no_room_is_made_among_the_temporary_files(read, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "rows").write_text("in the way, as a full disk would be")
    read()
    said = capfd.readouterr().err
    assert said.startswith(f"note: {tmp_path / 'cache' / 'rows'}/") and "is not kept for later runs: " in said


def test_an_entry_that_cannot_be_made_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))

    def fails(folder: Path) -> None:
        (folder / "half").write_text("half")
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.get_or_create_entry("tokens", "key", fails)
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


def test_of_two_processes_that_make_an_entry_the_first_keeps_its_own(tmp_path, monkeypatch, capfd):
    """One of four processes once found its rows gone, since another replaced them by the same."""
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    inodes = []

    def fill(folder: Path) -> None:
        if not inodes:
            inodes.append(0)
            other = cache.get_or_create_entry("tokens", "key", fill)  # as another process does meanwhile
            inodes[0] = (other / "x").stat().st_ino
        (folder / "x").write_text("x")

    folder = cache.get_or_create_entry("tokens", "key", fill)
    assert (folder / "x").stat().st_ino == inodes[0]
    assert [path.name for path in folder.parent.iterdir()] == ["key"] and capfd.readouterr().err == ""


@pytest.mark.parametrize("file", ["measured.json", "constants.safetensors", "manifest.json", "entry.txt"])
@pytest.mark.parametrize("name", ["empty", "cut in half", "one bit", "a folder", "nothing", "random bytes"])
def test_a_damaged_measurement_of_a_gate_is_measured_again(tmp_path, monkeypatch, capfd, file, name):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    measurements.store("key", {"a": 1.5}, {"constant": np.arange(3.0)})
    measured, constants = measurements.load("key", dict[str, float])
    assert measured == {"a": 1.5} and constants["constant"].tolist() == [0, 1, 2]
    damage(tmp_path / "parity" / "key" / file, name)
    assert measurements.load("key", dict[str, float]) is None
    assert capfd.readouterr().err.count("\n") == 1
    assert measurements.load("key", dict[str, float]) is None  # and it is gone
    assert capfd.readouterr().err == ""


#: Writes down, when a worker leaves, the files of all modules that it has imported.
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


def test_the_key_of_a_gate_hangs_on_every_file_that_its_workers_import(tmp_path, monkeypatch):
    """A changed ``IGNORED_LABEL`` of a module that no list named was once `PARITY, cached`."""
    (tmp_path / "sitecustomize.py").write_text(WRITES_MODULES)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    request, job = reformer_request(TINY_REFORMER), tmp_path / "job"
    write_request(request, randomize_constants(request.weights, request.seed)[0], job)
    run_workers([job], quiet(), workers_of(request))
    imported = {line for path in tmp_path.glob("modules-*") for line in path.read_text().splitlines()}
    of_project = {Path(file).relative_to(ROOT) for file in imported if file.startswith(f"{ROOT}/")}
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
    before = measurements.key_of(job)
    (copy / "README.md").write_text("something else")
    (copy / "toolkit" / "parity" / "README.md").write_text("something else")
    assert measurements.key_of(job) == before
    hashed, sha256 = set(), measurements.files.file_sha256
    monkeypatch.setattr(measurements.files, "file_sha256", lambda path: hashed.add(path) or sha256(path))
    assert measurements.key_of(job) == before and {copy / file for file in of_project} <= hashed
    for file in sorted(of_project)[::40]:
        plain = (copy / file).read_bytes()
        (copy / file).write_bytes(plain + b"# changed\n")
        assert measurements.key_of(job) != before, file
        (copy / file).write_bytes(plain)
    assert measurements.key_of(job) == before


def test_a_gate_whose_measurements_cannot_be_kept_goes_on(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / measurements.KIND).write_text("in the way")
    measurements.store("key", {"a": 1.5}, {"constant": np.arange(3.0)})
    assert measurements.load("key", dict[str, float]) is None
    assert "is not kept for later runs" in capfd.readouterr().err


# -- clearing it ----------------------------------------------------------------------------------------------------

DAY = 86400


def command(capsys, *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        cli.main(["cache", *arguments])
    return left.value.code, capsys.readouterr().out


def used_days_ago(folder: Path, days: float) -> None:
    os.utime(folder / cache.NAME_FILE, (time.time() - days * DAY,) * 2)


def made(kind: str, key: str) -> Path:
    return cache.store_entry(kind, key, lambda folder: (folder / "x").write_text(key) and None)


def test_all_that_a_recipe_keeps_is_seen_cleared_and_made_again(read, tmp_path, capsys):
    first = read()
    place = tmp_path / "cache"
    kept = entries(tmp_path)
    assert [entry.path for entry in list_entries(place)] == kept and {path.parent.name for path in kept} <= set(KINDS)
    size = sum(path.stat().st_size for entry in kept for path in entry.rglob("*") if path.is_file())
    assert sum(entry.size for entry in list_entries(place)) == size
    status, said = command(capsys)
    assert status == 0 and f"{place}: {len(kept)} entries, " in said and "tokenizers" in said
    for held in list(cache._held_locks):  # as when the run has ended
        os.close(cache._held_locks.pop(held))
    assert len(clear_cache(place).removed_entries) == len(kept) and list_entries(place) == []
    assert read() == first


def test_clearing_removes_the_toolkits_entries_and_nothing_else(tmp_path, monkeypatch, capsys):
    """In a folder that holds others' things, as ``.cache`` of a home folder does; with links that lead out."""
    place, outside = tmp_path / "cache", tmp_path / "outside"
    monkeypatch.setenv("TOOLKIT_CACHE", str(place))
    elsewhere = {kind: outside / kind / ("a" * 32) / cache.NAME_FILE for kind in ("tokens", "rows")}
    for kind, name in elsewhere.items():
        name.parent.mkdir(parents=True)
        name.write_text(f"{kind}/{'a' * 32}\n")
    (outside / "mine").write_text("mine")
    ours = [made("tokens", "b" * 32), made("parity", "key")]
    (ours[0] / "out").symlink_to(outside)
    (ours[1] / "manifest.json").write_text("damaged")
    hub = place / "huggingface" / "hub" / "models--x" / "blobs" / ("c" * 32)
    others = [place / "tokens" / "notes.txt", place / "weights" / "best" / "entry.txt", place / "note", hub]
    for path in others:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (place / "rows").symlink_to(outside / "rows")
    (place / "tokens" / ("a" * 32)).symlink_to(outside / "tokens" / ("a" * 32))
    key = "0123456789abcdef" * 4
    young, left, empty = (place / "tokens" / f".unfinished-{name}" for name in (f"{key}-young", f"{key}-left", "empty"))
    for path in (young, left, empty):
        path.mkdir()
    for path in (young, left, theirs := place / "tokens" / ".unfinished-draft"):
        path.mkdir(exist_ok=True)
        (path / "text").write_text("mine")
    others.append(theirs / "text")
    for path in (left, empty, theirs):
        os.utime(path, (time.time() - DAY,) * 2)
    status, said = command(capsys, "clear")
    assert status == 0 and f"{place}: removed 4 entries, " in said
    assert not any(path.exists() for path in (*ours, left, empty)) and young.is_dir()
    assert all(path.read_text() == "mine" for path in (*others, outside / "mine"))
    assert all(name.is_file() for name in elsewhere.values())
    assert (place / "rows").is_symlink() and (place / "tokens" / ("a" * 32)).is_symlink()


def test_older_than_goes_by_the_last_use(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    old, used = made("tokens", "old"), made("tokens", "used")
    for folder in (old, used):
        used_days_ago(folder, 10)
    assert cache.find_entry("tokens", "used") == used
    assert [entry.path for entry in clear_cache(tmp_path, older_than=9).removed_entries] == [old] and used.is_dir()
    assert [entry.path for entry in clear_cache(tmp_path, older_than=0).removed_entries] == [used]


def test_what_a_run_is_using_stays_until_it_ends(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    user = """
import sys
from toolkit.files import cache
print(cache.get_or_create_entry("weights", "a", lambda folder: (folder / "x").write_text("x")), flush=True)
sys.stdin.read()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other = made("weights", "b")
    with subprocess.Popen([sys.executable, "-c", user], **pipes) as run:
        used = Path(run.stdout.readline().strip())
        status, said = command(capsys, "clear")
        assert status == 0 and "removed 1 entry, " in said and "a run is using 1 entry, " in said
        assert (used / "x").read_text() == "x" and not other.exists()
        run.communicate()
    assert "removed 1 entry" in command(capsys, "clear")[1] and not used.exists()


def test_an_entry_that_is_cleared_between_being_found_and_being_held_is_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    folder, note_use, cleared = made("tokens", "a"), cache._record_use, []

    def clear_at_once(found: Path) -> None:
        note_use(found)
        if not cleared:
            cleared.extend(clear_cache(tmp_path).removed_entries)

    monkeypatch.setattr(cache, "_record_use", clear_at_once)
    assert (
        cache.get_or_create_entry("tokens", "a", lambda unfinished: (unfinished / "x").write_text("new") and None)
        == folder
    )
    assert len(cleared) == 1 and (folder / "x").read_text() == "new"


def test_an_entry_that_cannot_be_removed_is_said(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    folder = made("tokens", "a")
    monkeypatch.setattr("toolkit.files.cache.os.rename", lambda *_: (_ for _ in ()).throw(OSError(30, "read-only")))
    status, said = command(capsys, "clear")
    assert status == 1 and f"{folder}: cannot be removed: Read-only file system" in said.replace("\n", "")
    assert (folder / "x").is_file() and [path.name for path in folder.parent.iterdir()] == ["a"]


def test_a_cache_that_is_not_there_is_empty(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "none"))
    assert command(capsys, "clear") == (0, f"{tmp_path / 'none'}: removed 0 entries, 0.0 MB\n")
    assert command(capsys)[0] == 0 and not (tmp_path / "none").exists()
