"""Metrics on disk while the run goes on."""

from __future__ import annotations

import csv
import json
import math
import sys
import types

import pytest

from toolkit.errors import UserError
from toolkit.recipe import Data, Recipe, Tracking, Train
from toolkit.tracking import MetricsFile, Tracker, check_trackers, read_metrics


def recipe(**tracking) -> Recipe:
    data, train = Data(dataset="csv", max_length=8), Train(max_steps=1, learning_rate=1.0)
    return Recipe(data=data, train=train, tracking=Tracking(**tracking))


def row(step: int, split: str = "train", **numbers: float) -> dict:
    return {"step": step, "epoch": step / 10, "split": split, **numbers}


def table(folder) -> list[dict]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_metric_that_comes_later_becomes_a_column(tmp_path):
    metrics = MetricsFile(tmp_path)
    metrics.write(row(1, loss=0.5))
    metrics.write(row(1, "validation", accuracy=0.25))
    metrics.write(row(2, loss=0.25))
    assert read_metrics(metrics.json_path)[1] == row(1, "validation", accuracy=0.25)
    assert [line["loss"] for line in table(tmp_path)] == ["0.5", "", "0.25"]
    assert [line["accuracy"] for line in table(tmp_path)] == ["", "0.25", ""]


def test_a_resumed_run_drops_what_came_after_its_checkpoint(tmp_path):
    metrics = MetricsFile(tmp_path)
    for step in (1, 2, 3):
        metrics.write(row(step, loss=step / 2))
    with metrics.json_path.open("a") as lines:
        lines.write('{"step": 4, "epo')  # a kill in the middle of a line
    MetricsFile(tmp_path, last_step=2).write(row(3, loss=1.5))
    assert [line["step"] for line in read_metrics(metrics.json_path)] == [1, 2, 3]
    assert [line["step"] for line in table(tmp_path)] == ["1", "2", "3"]


DAMAGED_LINE = (b"garbage", b"", b"[1]", b"null", b'{"step": "two"}', b'{"step": NaN}', b"\xff\xfe", b"{", b"[" * 5000)


@pytest.mark.parametrize("damaged", DAMAGED_LINE)
def test_a_damaged_line_loses_no_other_row_and_the_file_as_it_was_is_kept(tmp_path, damaged):
    metrics = MetricsFile(tmp_path)
    for step in (1, 2, 3):
        metrics.write(row(step, loss=step / 2))
    lines = metrics.json_path.read_bytes().splitlines()
    metrics.json_path.write_bytes(b"\n".join([lines[0], damaged, *lines[2:]]) + b"\n")
    before, told = metrics.json_path.read_bytes(), []
    MetricsFile(tmp_path, last_step=3, tell=told.append).write(row(4, loss=2.0))
    assert [line["step"] for line in read_metrics(metrics.json_path)] == [1, 3, 4]
    assert [line["step"] for line in table(tmp_path)] == ["1", "3", "4"]
    kept = tmp_path / "metrics.jsonl.damaged-1"
    assert kept.read_bytes() == before
    assert told == [f"{metrics.json_path}: line 2 is no row of metrics; the others stay, the old file is {kept}"]
    MetricsFile(tmp_path, last_step=4, tell=told.append)
    assert len(told) == 1 and [path.name for path in tmp_path.glob("*.damaged-*")] == [kept.name]


def test_what_is_not_finite_is_null(tmp_path):
    metrics = MetricsFile(tmp_path)
    metrics.write(row(1, loss=math.nan, perplexity=math.inf))
    strict = [json.loads(line, parse_constant=pytest.fail) for line in metrics.json_path.read_text().splitlines()]
    assert strict == [row(1, loss=None, perplexity=None)]
    MetricsFile(tmp_path, last_step=1).write(row(2, loss=0.5))
    assert [line["loss"] for line in table(tmp_path)] == ["", "0.5"]


def test_a_new_run_starts_empty(tmp_path):
    MetricsFile(tmp_path).write(row(1, loss=1.0))
    MetricsFile(tmp_path)
    assert read_metrics(tmp_path / "metrics.jsonl") == [] and table(tmp_path) == []


def test_a_tracker_that_is_not_installed_is_said_at_once(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_trackers(recipe())
    with pytest.raises(UserError, match=r"tracking\.wandb: wandb is not installed; pip install 'toolkit\[tracking\]'"):
        check_trackers(recipe(wandb=True))
    with pytest.raises(UserError, match=r"tracking\.visualdl"):
        check_trackers(recipe(visualdl=True))


def test_visualdl_writes_into_the_run_folder(tmp_path):
    pytest.importorskip("visualdl")
    tracker = Tracker(tmp_path, recipe(visualdl=True))
    tracker.write(row(1, loss=0.5))
    tracker.close()
    assert list((tmp_path / "visualdl").iterdir())


def test_wandb_gets_the_same_numbers_and_a_resumed_run_goes_on_as_the_same(tmp_path, monkeypatch):
    started, logged = [], []

    class Session:
        def log(self, numbers, step):
            logged.append((step, numbers))

        def finish(self):
            logged.append("finished")

    fake = types.ModuleType("wandb")
    fake.util = types.SimpleNamespace(generate_id=lambda: f"id{len(started)}")
    fake.init = lambda **options: started.append(options) or Session()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for step in (1, 2):
        tracker = Tracker(tmp_path, recipe(wandb=True, project="languages"), last_step=step - 1)
        tracker.write(row(step, loss=0.5))
        tracker.close()
    assert [(options["project"], options["id"]) for options in started] == [("languages", "id0")] * 2
    assert logged == [(1, {"train/loss": 0.5}), "finished", (2, {"train/loss": 0.5}), "finished"]
