"""Test data.streaming: the first rows of a hub data set, read by the real client of `datasets`.

The requests to the hub are counted; afterwards the rows are available without the hub.
"""

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
from test_hub import KILL_AFTER_CHECKPOINT, RUN, Client, make_checkpoint, run_command

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
CARD_WITH_LABEL_NAMES = """\
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


def shard(split_name: str, number: int, kind: str) -> bytes:
    """Return a file of consecutive rows."""
    rows = datasets.Dataset.from_list([row(ROWS * number + index) for index in range(ROWS)])
    target = io.BytesIO()
    if kind == "csv":
        rows.remove_columns("at").to_csv(target)
    else:
        {"jsonl": rows.to_json, "parquet": rows.to_parquet}[kind](target)
    return target.getvalue()


def shards(kind: str) -> dict[str, bytes]:
    return {
        f"data/{split_name}-{number:05}-of-{count:05}.{kind}": shard(split_name, number, kind)
        for split_name, count in SHARDS.items()
        for number in range(count)
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("streaming") / "home"


@pytest.fixture(scope="module")
def hub():
    """Return a hub with data sets of several files."""
    with LoopbackHub() as hub:
        for kind in ("parquet", "jsonl", "csv"):
            hub.add(f"a/{kind}", shards(kind), kind="dataset")
        hub.add("a/gated", shards("parquet"), kind="dataset").access = "gated"
        cut = hub.add("a/cut", {"train.jsonl": shard("train", 0, "jsonl")}, kind="dataset")
        cut.faults["train.jsonl"] = Cut(2000)
        hub.add("a/pictures", {"train/a.png": b"x", "train/b.png": b"y"}, kind="dataset")
        yield hub


@pytest.fixture(scope="module")
def hub_client(hub, home):
    """Return the real client, shared by all tests."""
    client = Client(hub, home, TOOLKIT_CACHE=str(home.parent / "cache"))
    yield client
    client.close()


@pytest.fixture
def write_recipe(tmp_path):
    """Return a function that writes a recipe into a new file and returns the request for a client."""
    numbers = itertools.count()

    def write(lines: str, dataset: str = "a/parquet") -> dict[str, str]:
        path = tmp_path / f"x{next(numbers)}.yaml"
        path.write_text(RECIPE.replace("DATASET", dataset) + lines)
        return {"recipe": str(path)}

    return write


def row_numbers(answer: dict, split_name: str = "train") -> list[int]:
    """Return the numbers in the texts of a split's rows."""
    assert "rows" in answer, answer
    return [int(text.removeprefix("text ")) for text in answer["rows"][split_name]]


def fetched_files(hub: LoopbackHub) -> set[str]:
    """Return the names of the data files that the recorded requests read, without suffixes."""
    names = re.compile(r"(?:/resolve/[0-9a-f]{40}|/storage/dataset/.*/[0-9a-f]{40})/data/(\w+-\d+)-of-")
    stems = {match[1] for request in hub.requests if request.method == "GET" and (match := names.search(request.path))}
    hub.requests.clear()
    return stems


def test_only_files_of_the_rows_are_requested_and_the_rows_are_cached(hub, hub_client, home, write_recipe):
    answers = {}
    for kind in ("parquet", "jsonl", "csv"):
        hub.requests.clear()
        question = write_recipe(LIMITS, f"a/{kind}")["recipe"]
        first = answers[question] = hub_client.send({"recipe": question})
        assert (row_numbers(first), row_numbers(first, "validation")) == (list(range(100)), list(range(10)))
        assert list(first["rows"]) == ["train", "validation"]
        assert fetched_files(hub) == {"train-00000", "train-00001", "validation-00000"}
        assert first["notes"] == [
            f"data.streaming: {count} {split_name} rows, in the order of the data set; data.shuffle_buffer draws them"
            for split_name, count in (("train", 100), ("validation", 10))
        ]
    assert not list(home.rglob("*-of-*"))  # the client has stored no shard
    changed_repository = hub.repositories["dataset", "a/csv"]
    changed_repository.commit({"data/train.csv": "text,label\nnew,a\n"})
    old_answer = hub_client.send(write_recipe(LIMITS + f"  revision: {first['commit']}\n", "a/csv"))
    assert old_answer["rows"] == first["rows"] and fetched_files(hub) == set()
    changed_repository.refs["main"] = first["commit"]
    offline = Client(hub, home, TOOLKIT_CACHE=str(home.parent / "cache"), HF_HUB_OFFLINE="1")
    hub.requests.clear()
    for question, first in answers.items():
        assert offline.send({"recipe": question}) == first
    offline_answer = offline.send(write_recipe(LIMITS.replace("100", "40")))
    assert ":5: data.dataset: offline and not cached: the data set a/parquet " in offline_answer["error"]
    assert hub.requests == []
    offline.close()


def test_a_shuffle_buffer_draws_by_the_seed_and_reads_no_further_than_needed(hub, hub_client, home, write_recipe):
    lines = LIMITS.replace("100", "30") + "  shuffle_buffer: 20\n"
    question = write_recipe(lines)
    hub.requests.clear()
    first = hub_client.send(question)
    (read,) = {name for name in fetched_files(hub) if name.startswith("train")}  # 30 rows and a buffer of 20: one shard
    begin = ROWS * int(read[-5:])
    drawn_numbers = row_numbers(first)
    assert (
        len(set(drawn_numbers)) == 30
        and set(drawn_numbers) <= set(range(begin, begin + ROWS))
        and drawn_numbers != sorted(drawn_numbers)
    )
    assert "data.streaming: 30 train rows, drawn among 20 at a time" in first["notes"]
    assert row_numbers(hub_client.send(write_recipe(lines + "seed: 7\n"))) != drawn_numbers
    shutil.rmtree(home.parent / "cache")
    hub.requests.clear()
    assert hub_client.send(question) == first and fetched_files(hub)


def test_the_limit_counts_rows_after_the_filter(hub, hub_client, home, write_recipe):
    dataset = datasets.Dataset.from_list([{"text": f"text {index}", "label": index % 3} for index in range(20)])
    target = io.BytesIO()
    dataset.to_parquet(target)
    files = {f"{split_name}.parquet": target.getvalue() for split_name in ("train", "validation")}
    hub.add("a/typed", {"README.md": CARD_WITH_LABEL_NAMES, **files}, kind="dataset")
    hub.requests.clear()
    answer = hub_client.send(
        write_recipe(LIMITS.replace("100", "30") + "  filter: {n: ['001', '003'], at.x: [0, 1]}\n")
    )
    assert row_numbers(answer) == [number for number in range(100) if number % 5 in (1, 3)][:30]
    assert {name for name in fetched_files(hub) if name.startswith("train")} == {"train-00000", "train-00001"}
    assert answer["notes"][0] == (
        "data.streaming: 30 train rows, of 74 that were looked at, in the order of the data set; data.shuffle_buffer "
        "draws them"
    )
    answer = hub_client.send(
        write_recipe("  filter: {at.x: 1}\n  limit: {train: 99, validation: 99}\n  splits: {test: null}\n")
    )
    assert row_numbers(answer) == row_numbers(answer, "validation") == list(range(ROWS, 2 * ROWS))
    assert answer["notes"][0] == (
        "data.streaming: the train split has 50 rows that data.filter keeps, fewer than the 99 of data.limit"
    )
    answer = hub_client.send(
        write_recipe("  filter: {label: [bad, good]}\n  limit: {train: 8, validation: 4}\n", "a/typed")
    )
    assert (row_numbers(answer), row_numbers(answer, "validation")) == ([0, 1, 3, 4, 6, 7, 9, 10], [0, 1, 3, 4])
    for lines, expected_error in {
        "  filter: {n: 7}\n": ":9: data.filter: no row of the train split has these values, of 300 in all",
        "  filter: {m: 7}\n": ":9: data.filter.m: no column m in the train split; it has text, label, n, at.x",
        "  filter: {at: 7}\n": ":9: data.filter.at: the column at of the train split holds {'x': 0}; it should hold",
    }.items():
        assert expected_error in hub_client.send(write_recipe(LIMITS + lines))["error"]


def test_missing_files_and_missing_limits_are_reported_in_one_line(hub, hub_client, home, write_recipe):
    num_files = len(list((home.parent / "cache").rglob("rows.arrow")))
    for lines, dataset, expected_error in [
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
        error = hub_client.send(write_recipe(lines, dataset))["error"]
        assert expected_error in error and "\n" not in error and "goes on" not in error, error
    assert len(list((home.parent / "cache").rglob("rows.arrow"))) == num_files


@pytest.mark.parametrize(
    ("lines", "expected_error"),
    [
        ("  dataset: a/b\n  streaming: true\n", "data.limit.train: missing: data.streaming needs the number"),
        ("  dataset: cldr_languages\n  streaming: true\n", ":6: data.streaming: is for a hub data set, not for cldr"),
        ("  dataset: csv\n  streaming: true\n  files: {train: a.csv}\n", ":6: data.streaming: is for a hub data set"),
        ("  dataset: a/b\n  shuffle_buffer: 9\n", ":6: data.shuffle_buffer: is for data.streaming: true; remove it"),
        ("  dataset: a/b\n  streaming: true\n  limit: {train: 9}\n  split_column: c\n",
         ":8: data.split_column: cannot be combined with data.streaming: "),
    ],
)  # fmt: skip
def test_unsuitable_keys_are_refused_at_their_line(tmp_path, lines, expected_error):
    (tmp_path / "x.yaml").write_text(RECIPE.partition("  dataset")[0] + lines)
    with pytest.raises(UserError) as error_info:
        load_recipe(tmp_path / "x.yaml")
    assert expected_error in str(error_info.value)


@pytest.mark.slow
def test_a_killed_run_resumes_on_the_same_rows_without_the_hub(hub, tmp_path):
    hub.add("a/tiny", make_checkpoint(0))
    hub.add("a/data", shards("jsonl"), kind="dataset")
    data = "{dataset: a/data, max_length: 32, streaming: true, shuffle_buffer: 30, splits: {test: null}"
    recipe = RUN.replace("{dataset: a/data, max_length: 32}", data + ", limit: {train: 60, validation: 10}}")
    (tmp_path / "x.yaml").write_text(recipe)
    finetune = ("finetune", "x.yaml", "--skip-parity", "a test", "train.output_dir=run")
    more = {"TOOLKIT_CACHE": str(tmp_path / "cache")}
    assert run_command(hub, tmp_path, *finetune, code=KILL_AFTER_CHECKPOINT, **more)[0] == 9
    assert len(fetched_files(hub)) in (
        3,
        4,
    )  # 60 rows and a buffer of 30 from shards of 50 rows, and one shard of validation
    splits = json.loads((tmp_path / "run/identity.json").read_text())["splits"]
    status, output, errors = run_command(hub, tmp_path, *finetune, **more, HF_HUB_OFFLINE="1")
    assert status == 0 and hub.requests == [], errors
    assert "resuming run after step" in output and "60 train, 10 validation" in output
    assert json.loads((tmp_path / "run/identity.json").read_text())["splits"] == splits
