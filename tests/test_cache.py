"""A damaged cache: found when it is read, said in one line, made anew; what comes out is what it was before."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from damages import damage

from toolkit import cache
from toolkit.data import build_tokenizer
from toolkit.parity.job import cache as measurements
from toolkit.recipe import load_recipe
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


def test_the_second_time_nothing_is_made(read, tmp_path, capfd):
    first = read()
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")}
    assert {path.parent.name for path in entries(tmp_path)} == {"rows", "tokens", "tokenizers"}
    assert read() == first
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*")} == made
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
        cache.kept("tokens", "key", fails)
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


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


def test_a_gate_whose_measurements_cannot_be_kept_goes_on(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / measurements.KIND).write_text("in the way")
    measurements.store("key", {"a": 1.5}, {"constant": np.arange(3.0)})
    assert measurements.load("key", dict[str, float]) is None
    assert "is not kept for later runs" in capfd.readouterr().err
