"""data.streaming: the first rows of a hub data set, by the real client of `datasets`; what is asked of the hub for them
is counted, and afterwards they are there without it."""

from __future__ import annotations

import io
import itertools
import json
import re
import shutil
from pathlib import Path

import datasets
import pytest
from loopback_hub import Cut, LoopbackHub
from test_hub import KILLED, RUN, Client, checkpoint, command

from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe

#: Rows of a shard.
ROWS = 50
SHARDS = {"train": 6, "validation": 2, "test": 2}
RECIPE = """\
train: {epochs: 1, learning_rate: 1e-3}
model: {config: {axial_pos_shape: [4, 8]}}
data:
  max_length: 32
  dataset: DATASET
  streaming: true
"""
LIMITS = "  limit: {train: 100, validation: 10}\n  splits: {test: null}\n"
#: The card of a data set whose labels have names.
NAMED = """\
---
dataset_info:
  features:
  - {name: text, dtype: string}
  - name: label
    dtype:
      class_label:
        names: {'0': bad, '1': good, '2': odd}
---
"""


def row(number: int) -> dict:
    return {"text": f"text {number}", "label": "ab"[number % 2], "n": f"{number % 5:03}", "at": {"x": number // ROWS}}


def shard(split: str, number: int, kind: str) -> bytes:
    """Some rows that follow each other as a file."""
    found = datasets.Dataset.from_list([row(ROWS * number + index) for index in range(ROWS)])
    target = io.BytesIO()
    if kind == "csv":
        found.remove_columns("at").to_csv(target)
    else:
        {"jsonl": found.to_json, "parquet": found.to_parquet}[kind](target)
    return target.getvalue()


def shards(kind: str) -> dict[str, bytes]:
    return {
        f"data/{split}-{number:05}-of-{count:05}.{kind}": shard(split, number, kind)
        for split, count in SHARDS.items()
        for number in range(count)
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("streaming") / "home"


@pytest.fixture(scope="module")
def served():
    """A hub with data sets of several files."""
    with LoopbackHub() as hub:
        for kind in ("parquet", "jsonl", "csv"):
            hub.add(f"a/{kind}", shards(kind), kind="dataset")
        hub.add("a/gated", shards("parquet"), kind="dataset").access = "gated"
        cut = hub.add("a/cut", {"train.jsonl": shard("train", 0, "jsonl")}, kind="dataset")
        cut.faults["train.jsonl"] = Cut(2000)
        hub.add("a/pictures", {"train/a.png": b"x", "train/b.png": b"y"}, kind="dataset")
        yield hub


@pytest.fixture(scope="module")
def asked(served, home):
    """The real client, one for all tests."""
    client = Client(served, home, TOOLKIT_CACHE=str(home.parent / "cache"))
    yield client
    client.close()


@pytest.fixture
def written(tmp_path):
    """Writes a recipe, each into a file of its own; returns the question for a client."""
    numbers = itertools.count()

    def write(lines: str, dataset: str = "a/parquet") -> dict[str, str]:
        path = tmp_path / f"x{next(numbers)}.yaml"
        path.write_text(RECIPE.replace("DATASET", dataset) + lines)
        return {"recipe": str(path)}

    return write


def numbers(found: dict, split: str = "train") -> list[int]:
    """The numbers of a split's rows, which are what they were written as."""
    assert "rows" in found, found
    return [int(text.removeprefix("text ")) for text in found["rows"][split]]


def fetched(hub: LoopbackHub) -> set[str]:
    """The data files of which something was read since the requests were last counted, without their ends."""
    names = re.compile(r"(?:/resolve/[0-9a-f]{40}|/storage/dataset/.*/[0-9a-f]{40})/data/(\w+-\d+)-of-")
    found = {match[1] for one in hub.requests if one.method == "GET" and (match := names.search(one.path))}
    hub.requests.clear()
    return found


def test_only_the_files_of_the_rows_are_asked_for_and_the_rows_are_there_without_the_hub(served, asked, home, written):
    found = {}
    for kind in ("parquet", "jsonl", "csv"):
        served.requests.clear()
        question = written(LIMITS, f"a/{kind}")["recipe"]
        first = found[question] = asked.send({"recipe": question})
        assert (numbers(first), numbers(first, "validation")) == (list(range(100)), list(range(10)))
        assert list(first["rows"]) == ["train", "validation"]
        assert fetched(served) == {"train-00000", "train-00001", "validation-00000"}
        assert first["notes"] == [
            f"data.streaming: {count} {split} rows, in the order of the data set; data.shuffle_buffer draws them"
            for split, count in (("train", 100), ("validation", 10))
        ]
    assert not list(home.rglob("*-of-*"))  # the client has kept nothing
    moved = served.repositories["dataset", "a/csv"]
    moved.commit({"data/train.csv": "text,label\nnew,a\n"})
    old = asked.send(written(LIMITS + f"  revision: {first['commit']}\n", "a/csv"))
    assert old["rows"] == first["rows"] and fetched(served) == set()
    moved.refs["main"] = first["commit"]
    offline = Client(served, home, TOOLKIT_CACHE=str(home.parent / "cache"), HF_HUB_OFFLINE="1")
    served.requests.clear()
    for question, first in found.items():
        assert offline.send({"recipe": question}) == first
    other = offline.send(written(LIMITS.replace("100", "40")))
    assert ":5: data.dataset: offline and not cached: the data set a/parquet " in other["error"]
    assert served.requests == []
    offline.close()


def test_a_shuffle_buffer_draws_by_the_seed_and_reads_no_further_than_it_must(served, asked, home, written):
    lines = LIMITS.replace("100", "30") + "  shuffle_buffer: 20\n"
    question = written(lines)
    served.requests.clear()
    first = asked.send(question)
    (read,) = {name for name in fetched(served) if name.startswith("train")}  # 30 rows and a buffer of 20: one shard
    begin = ROWS * int(read[-5:])
    drawn = numbers(first)
    assert len(set(drawn)) == 30 and set(drawn) <= set(range(begin, begin + ROWS)) and drawn != sorted(drawn)
    assert "data.streaming: 30 train rows, drawn among 20 at a time" in first["notes"]
    assert numbers(asked.send(written(lines + "seed: 7\n"))) != drawn
    shutil.rmtree(home.parent / "cache")
    served.requests.clear()
    assert asked.send(question) == first and fetched(served)


def test_the_limit_is_one_of_rows_that_the_filter_leaves(served, asked, home, written):
    typed = datasets.Dataset.from_list([{"text": f"text {index}", "label": index % 3} for index in range(20)])
    target = io.BytesIO()
    typed.to_parquet(target)
    files = {f"{split}.parquet": target.getvalue() for split in ("train", "validation")}
    served.add("a/typed", {"README.md": NAMED, **files}, kind="dataset")
    served.requests.clear()
    found = asked.send(written(LIMITS.replace("100", "30") + "  filter: {n: ['001', '003'], at.x: [0, 1]}\n"))
    assert numbers(found) == [number for number in range(100) if number % 5 in (1, 3)][:30]
    assert {name for name in fetched(served) if name.startswith("train")} == {"train-00000", "train-00001"}
    assert found["notes"][0] == (
        "data.streaming: 30 train rows, of 74 that were looked at, in the order of the data set; data.shuffle_buffer "
        "draws them"
    )
    found = asked.send(written("  filter: {at.x: 1}\n  limit: {train: 99, validation: 99}\n  splits: {test: null}\n"))
    assert numbers(found) == numbers(found, "validation") == list(range(ROWS, 2 * ROWS))
    assert found["notes"][0] == (
        "data.streaming: the train split has 50 rows that data.filter keeps, fewer than the 99 of data.limit"
    )
    found = asked.send(written("  filter: {label: [bad, good]}\n  limit: {train: 8, validation: 4}\n", "a/typed"))
    assert (numbers(found), numbers(found, "validation")) == ([0, 1, 3, 4, 6, 7, 9, 10], [0, 1, 3, 4])
    for lines, expected in {
        "  filter: {n: 7}\n": ":9: data.filter: no row of the train split has these values, of 300 in all",
        "  filter: {m: 7}\n": ":9: data.filter.m: no column m in the train split; it has text, label, n, at.x",
        "  filter: {at: 7}\n": ":9: data.filter.at: the column at of the train split holds {'x': 0}; it should hold",
    }.items():
        assert expected in asked.send(written(LIMITS + lines))["error"]


def test_what_the_hub_does_not_give_and_a_split_without_a_limit_are_a_line(served, asked, home, written):
    kept = len(list((home.parent / "cache").rglob("rows.arrow")))
    for lines, dataset, expected in [
        ("  limit: {train: 60}\n", "a/parquet",
         ":7: data.limit.validation: missing: data.streaming needs the number of rows of the split validation to fetch"
         "; set it, or data.splits: {validation: null}"),
        (LIMITS.replace("test: null", "test: tset"), "a/parquet",
         ":8: data.splits.test: a/parquet has no split tset; it has"),
        (LIMITS, "a/gated", ":5: data.dataset: the data set a/gated is gated: "),
        (LIMITS, "a/none", ":5: data.dataset: the data set a/none does not exist, or is private"),
        ("  limit: {train: 60}\n", "a/cut",
         ":5: data.dataset: the download of train.jsonl of the data set a/cut was interrupted: the connection was "
         "closed; run the same command again"),
        (LIMITS, "a/pictures", ":5: data.dataset: a/pictures holds data of the kind imagefolder, which is not read"),
    ]:  # fmt: skip
        error = asked.send(written(lines, dataset))["error"]
        assert expected in error and "\n" not in error and "goes on" not in error, error
    assert len(list((home.parent / "cache").rglob("rows.arrow"))) == kept


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("  dataset: a/b\n  streaming: true\n", "data.limit.train: missing: data.streaming needs the number"),
        ("  dataset: cldr_languages\n  streaming: true\n", ":6: data.streaming: is for a hub data set, not for cldr"),
        ("  dataset: csv\n  streaming: true\n  files: {train: a.csv}\n", ":6: data.streaming: is for a hub data set"),
        ("  dataset: a/b\n  shuffle_buffer: 9\n", ":6: data.shuffle_buffer: is for data.streaming: true; remove it"),
        ("  dataset: a/b\n  streaming: true\n  limit: {train: 9}\n  split_column: c\n",
         ":8: data.split_column: cannot be combined with data.streaming: "),
    ],
)  # fmt: skip
def test_keys_that_make_no_sense_are_refused_at_their_line(tmp_path, lines, expected):
    (tmp_path / "x.yaml").write_text(RECIPE.partition("  dataset")[0] + lines)
    with pytest.raises(UserError) as refused:
        load_recipe(tmp_path / "x.yaml")
    assert expected in str(refused.value)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_without_the_hub_on_the_same_rows(served, tmp_path):
    hub = served
    hub.add("a/tiny", checkpoint(0))
    hub.add("a/data", shards("jsonl"), kind="dataset")
    data = "{dataset: a/data, max_length: 32, streaming: true, shuffle_buffer: 30, splits: {test: null}"
    recipe = RUN.replace("{dataset: a/data, max_length: 32}", data + ", limit: {train: 60, validation: 10}}")
    (tmp_path / "x.yaml").write_text(recipe)
    finetune = ("finetune", "x.yaml", "--skip-parity", "a test", "train.output_dir=run")
    more = {"TOOLKIT_CACHE": str(tmp_path / "cache")}
    assert command(hub, tmp_path, *finetune, code=KILLED, **more)[0] == 9
    assert len(fetched(hub)) in (3, 4)  # 60 rows and a buffer of 30, of shards of 50; one of validation
    splits = json.loads((tmp_path / "run/identity.json").read_text())["splits"]
    status, said, errors = command(hub, tmp_path, *finetune, **more, HF_HUB_OFFLINE="1")
    assert status == 0 and hub.requests == [], errors
    assert "resuming run after step" in said and "60 train, 10 validation" in said
    assert json.loads((tmp_path / "run/identity.json").read_text())["splits"] == splits
