"""Test the metrics on disk and the trackers during a run."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import wandb
from test_train import recipe_file  # noqa: F401
from wandb_files import HEADER, offline_runs

from toolkit.errors import UserError
from toolkit.recipe.keys import Data, Tracking, Train
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.folder import record_start
from toolkit.run_folder.tracking import (
    WRITER_PACKAGES,
    MetricsFile,
    Tracker,
    check_trackers,
    complaint_of_finished,
    read_metrics,
)
from toolkit.run_folder.wandb import more_private, own_settings


def recipe(**tracking) -> Recipe:
    data, train = Data(dataset="csv", max_length=8), Train(max_steps=1, learning_rate=1.0)
    return Recipe(data=data, train=train, tracking=Tracking(**tracking))


def row(step: int, split_name: str = "train", **numbers: float) -> dict:
    return {"step": step, "epoch": step / 10, "split": split_name, **numbers}


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


def test_a_resumed_run_drops_rows_after_its_checkpoint(tmp_path):
    metrics = MetricsFile(tmp_path)
    for step in (1, 2, 3):
        metrics.write(row(step, loss=step / 2))
    with metrics.json_path.open("a") as lines:
        lines.write('{"step": 4, "epo')  # a kill in the middle of a line
    MetricsFile(tmp_path, last_step=2).write(row(3, loss=1.5))
    assert [line["step"] for line in read_metrics(metrics.json_path)] == [1, 2, 3]
    assert [line["step"] for line in table(tmp_path)] == ["1", "2", "3"]


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_an_interrupted_validation_is_the_only_dropped_row_of_its_step(tmp_path, is_interrupted):
    metrics = MetricsFile(tmp_path)
    rows = [row(step, split_name, loss=0.5) for step in (1, 2, 3) for split_name in ("train", "validation")]
    for metrics_row in rows:
        metrics.write(metrics_row)
    MetricsFile(tmp_path, last_step=2, repeats_validation=is_interrupted)
    kept_rows = rows[:3] if is_interrupted else rows[:4]
    assert read_metrics(metrics.json_path) == kept_rows
    assert [(line["step"], line["split"]) for line in table(tmp_path)] == [
        (str(metrics_row["step"]), metrics_row["split"]) for metrics_row in kept_rows
    ]


DAMAGED_LINE = (b"garbage", b"", b"[1]", b"null", b'{"step": "two"}', b'{"step": NaN}', b"\xff\xfe", b"{", b"[" * 5000)


@pytest.mark.parametrize("damaged_line", DAMAGED_LINE)
def test_a_damaged_line_loses_no_other_row_and_the_file_is_backed_up(tmp_path, damaged_line):
    metrics = MetricsFile(tmp_path)
    for step in (1, 2, 3):
        metrics.write(row(step, loss=step / 2))
    lines = metrics.json_path.read_bytes().splitlines()
    metrics.json_path.write_bytes(b"\n".join([lines[0], damaged_line, *lines[2:]]) + b"\n")
    initial_content, warnings = metrics.json_path.read_bytes(), []
    MetricsFile(tmp_path, last_step=3, on_warning=warnings.append).write(row(4, loss=2.0))
    assert [line["step"] for line in read_metrics(metrics.json_path)] == [1, 3, 4]
    assert [line["step"] for line in table(tmp_path)] == ["1", "3", "4"]
    backup = tmp_path / "metrics.jsonl.damaged-1"
    assert backup.read_bytes() == initial_content
    assert warnings == [f"{metrics.json_path}: line 2 is no row of metrics; the others stay, the old file is {backup}"]
    MetricsFile(tmp_path, last_step=4, on_warning=warnings.append)
    assert len(warnings) == 1 and [path.name for path in tmp_path.glob("*.damaged-*")] == [backup.name]


DAMAGED_FILES = {
    "deleted": (lambda path: path.unlink(), "is missing; lost are the train rows of 4 steps from 1 to 4"),
    "binary": (
        lambda path: path.write_bytes(b"\x80" * 99),
        "line 1 is no row of metrics; lost are the train rows of 4",
    ),
    "zeros": (lambda path: path.write_bytes(bytes(99)), "line 1 is no row of metrics; lost are the train rows of 4"),
    "empty": (lambda path: path.write_bytes(b""), "lacks rows; lost are the train rows of 4 steps from 1 to 4"),
    "cut": (
        lambda path: path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:4])),
        "lacks rows; lost are the train rows of step 4 and the validation rows of step 4",
    ),
    "a validation lost": (
        lambda path: path.write_bytes(b"".join(path.read_bytes().splitlines(True)[:-1])),
        "lacks rows; lost are the validation rows of step 4",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED_FILES)
def test_lost_rows_are_reported_and_the_table_is_backed_up(tmp_path, damage):
    metrics = MetricsFile(tmp_path)
    for step in (1, 2, 3, 4):
        metrics.write(row(step, loss=step / 2))
        if step % 2 == 0:
            metrics.write(row(step, "validation", loss=step / 4))
    MetricsFile(tmp_path, last_step=4, on_warning=pytest.fail, eval_steps=2)
    initial_content = metrics.csv_path.read_bytes()
    change, expected_warning = DAMAGED_FILES[damage]
    change(metrics.json_path)
    warnings: list[str] = []
    MetricsFile(tmp_path, last_step=4, on_warning=warnings.append, eval_steps=2)
    assert len(warnings) == 1 and f"{metrics.json_path}: {expected_warning}" in warnings[0]
    backup = tmp_path / "metrics.csv.damaged-1"
    assert warnings[0].endswith(f", the old file is {backup}") and backup.read_bytes() == initial_content
    MetricsFile(tmp_path, last_step=4, on_warning=warnings.append, eval_steps=2)
    assert "lacks rows; lost are" in warnings[1] and "the old file" not in warnings[1]


@pytest.mark.parametrize(
    "steps, expected_complaint",
    [
        (10**12, "lost are the train rows of 999999999998 steps from 3 to 1000000000000 and the validation rows of"),
        (1e308, None),  # more steps than a range can count
        (math.inf, None),
    ],
)
def test_a_damaged_length_of_a_run_is_not_counted_step_by_step(tmp_path, steps, expected_complaint):
    metrics = MetricsFile(tmp_path)
    for step in (1, 2):
        metrics.write(row(step, loss=0.5))
    content = {"training": {"steps": steps, "schedule": {"eval_steps": 10**12}}}
    (tmp_path / "metrics.json").write_text(json.dumps(content))
    complaint = complaint_of_finished(tmp_path)
    assert complaint is None if expected_complaint is None else expected_complaint in complaint


def test_values_that_are_not_finite_are_null(tmp_path):
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


def test_a_missing_tracker_is_reported_at_once(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    check_trackers(recipe())
    with pytest.raises(UserError, match=r"tracking\.wandb: wandb is not installed; pip install .*'\.\[tracking\]'"):
        check_trackers(recipe(wandb=True))
    for key, package in WRITER_PACKAGES.items():
        with pytest.raises(UserError, match=rf"tracking\.{key}: {package} is not installed; pip install {package},"):
            check_trackers(recipe(**{key: True}))


@pytest.mark.parametrize(("key", "package"), WRITER_PACKAGES.items())
def test_log_files_are_written_into_the_run_folder(tmp_path, key, package):
    pytest.importorskip(package)
    tracker = Tracker(tmp_path, recipe(**{key: True}))
    tracker.write(row(1, loss=0.5))
    tracker.close()
    assert list((tmp_path / key).iterdir())


# -- Weights & Biases: the real one, offline ------------------------------------------------------------------------

TRACKING_TESTS = Path(__file__).resolve()
GATE = {
    "tensors": [
        {"name": "logits", "dtype": "float64", "margin": 0.25},
        {"name": "loss", "dtype": "float32", "margin": 0.5},
    ]
}


@pytest.fixture
def logged_out_wandb(tmp_path_factory, monkeypatch):
    """Set wandb up as on a machine where it was never used."""
    empty = tmp_path_factory.mktemp("home")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(empty))
    monkeypatch.setenv("NETRC", str(empty / "netrc"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(empty))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.chdir(empty)
    wandb.teardown()
    yield
    wandb.teardown()


def wandb_tracker(folder, last_step=0, warnings=None, **tracking) -> Tracker:
    def add_warning(text: str) -> None:
        assert warnings is not None, text
        warnings.append(text)

    return Tracker(folder, recipe(wandb=True, wandb_mode="offline", **tracking), last_step, add_warning)


def test_wandb_gets_the_recipe_every_row_the_gates_verdict_and_the_end(tmp_path, logged_out_wandb, capfd):
    folder = tmp_path / "runs" / "x"
    (folder / "parity").mkdir(parents=True)
    (folder / "model").mkdir()
    (folder / "model" / "config.json").write_text("{}")
    (folder / "parity" / "parity.html").write_text("<p>all agree</p>")
    (folder / "parity" / "parity.json").write_text(json.dumps(GATE))
    record_start(folder, 0, "parity: all agree", None)
    tracker = wandb_tracker(folder, project="languages", log_model=True)
    tracker.write(row(1, loss=0.5))
    tracker.write(row(1, "validation", loss=0.75, accuracy=0.25))
    best = {"metric": "accuracy", "value": 0.25, "step": 1}
    tracker.summarize({"best": best, "validation": {"accuracy": 0.25}, "test": {"accuracy": 0.125, "loss": 2.0}})
    tracker.close()
    (wandb_run,) = offline_runs(folder)
    assert wandb_run.project == "languages" and wandb_run.id == (folder / "wandb_id.txt").read_text().strip()
    assert wandb_run.config["data"]["max_length"] == 8 and wandb_run.config["train"]["learning_rate"] == 1.0
    assert wandb_run.rows == [
        {"step": 1, "epoch": 0.1, "train/loss": 0.5},
        {"step": 1, "epoch": 0.1, "validation/loss": 0.75, "validation/accuracy": 0.25},
    ]
    assert wandb_run.axes == {"step": "", "*": "step"}
    assert wandb_run.summary | {
        "gate/status": "passed", "gate/tensors": 2, "gate/nearest": "loss (float32)", "gate/margin": 0.5,
        "best/step": 1, "best/accuracy": 0.25, "best/validation/accuracy": 0.25,
        "test/accuracy": 0.125, "test/loss": 2,
    } == wandb_run.summary  # fmt: skip
    assert "parity/parity.html" in wandb_run.files and wandb_run.artifacts == ["model"] and wandb_run.exit_code == 0
    assert capfd.readouterr() == ("", "") and list(Path.cwd().glob("wandb")) == []


def test_a_resumed_run_keeps_its_id_and_repeated_steps_overlap(tmp_path, logged_out_wandb):
    record_start(tmp_path, 0, None, "in a hurry")
    tracker = wandb_tracker(tmp_path)
    for step in (1, 2, 3):
        tracker.write(row(step, loss=step / 2, seconds=4.0 * step))
    tracker.close(exit_status=1)
    time.sleep(1)  # wandb names its folders after the second
    tracker = wandb_tracker(tmp_path, last_step=2)
    for step in (3, 4):
        tracker.write(row(step, loss=step / 2, seconds=4.0 * step))
    tracker.close()
    first, second = offline_runs(tmp_path)
    assert first.id == second.id and first.resume and second.resume
    assert [wandb_row["step"] for wandb_row in first.rows] == [1, 2, 3]
    assert [wandb_row["step"] for wandb_row in second.rows] == [
        2,
        3,
        4,
    ]  # 2 was logged in the last seconds, which a kill may lose
    assert (first.exit_code, second.exit_code) == (1, 0)
    assert first.artifacts == [] and first.summary["gate/status"] == "skipped: in a hurry"
    assert first.rows[1:] == second.rows[:2]


def test_a_failure_of_wandb_is_one_line_and_training_continues(tmp_path, logged_out_wandb, monkeypatch):
    warnings = []
    (tmp_path / "a").mkdir()
    tracker = wandb_tracker(tmp_path / "a", warnings=warnings)
    monkeypatch.setattr(tracker._wandb._run, "log", lambda *_: (_ for _ in ()).throw(wandb.Error("lost")))
    for step in (1, 2):
        tracker.write(row(step, loss=0.5))
    tracker.summarize({"best": {"metric": "loss", "value": 1.0, "step": 1}})
    tracker.close()
    assert warnings == ["wandb failed, and the run goes on without it: Error: lost"]
    assert [line["step"] for line in read_metrics(tmp_path / "a" / "metrics.jsonl")] == [1, 2]
    monkeypatch.setattr("wandb.init", lambda **_: (_ for _ in ()).throw(wandb.Error("no\nservice")))
    (tmp_path / "b").mkdir()
    wandb_tracker(tmp_path / "b", warnings=warnings).close()
    assert warnings[1:] == ["wandb failed, and the run goes on without it: Error: no service"]


def test_a_damaged_id_is_replaced(tmp_path, logged_out_wandb):
    (tmp_path / "wandb_id.txt").write_text("../../x")
    wandb_tracker(tmp_path).close()
    (wandb_run,) = offline_runs(tmp_path)
    assert wandb_run.id == (tmp_path / "wandb_id.txt").read_text().strip()
    assert re.fullmatch("[0-9a-f]{8}", wandb_run.id)


def test_a_missing_login_is_reported_without_a_prompt(logged_out_wandb, monkeypatch):
    monkeypatch.setattr("wandb.init", pytest.fail)
    with pytest.raises(UserError, match=r"tracking\.wandb: nobody is logged in .* `wandb login`, or set .*: offline"):
        check_trackers(recipe(wandb=True))
    check_trackers(recipe(wandb=True, wandb_mode="offline"))


@pytest.mark.parametrize(
    ("own_mode", "recipe_mode", "mode"),
    [("offline", None, "offline"), ("offline", "online", "offline"), ("disabled", "online", "disabled"),
     ("online", "offline", "offline"), ("dryrun", "online", "offline")],
)  # fmt: skip
def test_the_more_private_mode_of_environment_and_recipe_counts(
    logged_out_wandb, monkeypatch, own_mode, recipe_mode, mode
):
    monkeypatch.setenv("WANDB_MODE", own_mode)
    check_trackers(recipe(wandb=True, wandb_mode=recipe_mode))  # and nobody is logged in
    assert more_private(own_settings()[0], recipe_mode) == mode


def test_an_unknown_mode_of_wandb_is_reported_before_any_computation(logged_out_wandb, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "onlin")
    with pytest.raises(UserError, match=r"tracking\.wandb: wandb does not start: .*mode") as problem:
        check_trackers(recipe(wandb=True))
    assert "\n" not in str(problem.value)


def test_only_the_first_of_several_processes_has_a_wandb_run(tmp_path, logged_out_wandb, monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINER_ID", "1")
    monkeypatch.setattr("wandb.init", pytest.fail)
    check_trackers(recipe(wandb=True, wandb_mode="online"))
    tracker = wandb_tracker(tmp_path)
    tracker.write(row(1, loss=0.5))
    tracker.close()


def test_without_wandb_in_the_recipe_it_is_not_imported():
    code = "import sys, toolkit.run_folder.tracking, toolkit.finetune.gate; print('wandb' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "False\n"


@pytest.mark.slow
@pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace, which shows what every process connects to, is absent"
)
def test_offline_wandb_opens_no_connection(tmp_path, logged_out_wandb, monkeypatch):
    code = f"""
import sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from test_tracking import row, wandb_tracker
tracker = wandb_tracker(Path({str(tmp_path)!r}))
tracker.write(row(1, loss=0.5))
tracker.close()
"""

    def calls(script: str) -> list[str]:
        log = tmp_path / "calls"
        strace_command = [
            "strace",
            "-f",
            "--seccomp-bpf",
            "-qq",
            "-e",
            "trace=connect,sendto",
            "-o",
            log,
            sys.executable,
        ]
        subprocess.run([*strace_command, "-c", script], check=False, capture_output=True)
        return [line for line in log.read_text().splitlines() if "AF_INET" in line]

    monkeypatch.delenv("WANDB_ERROR_REPORTING")
    assert calls(code) == [] and len(offline_runs(tmp_path)) == 1
    # a call would look like this
    assert len(calls("import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('127.0.0.1', 9))")) == 1


def has_begun(folder: Path) -> bool:
    """Return whether wandb, which writes once a second, has written its first input, the gate's summary."""
    has_content = all(path.stat().st_size > HEADER for path in folder.glob("wandb/offline-run-*/*.wandb"))
    return has_content and any("gate/status" in run.summary for run in offline_runs(folder))


@pytest.mark.slow
def test_a_killed_and_resumed_run_is_one_wandb_run_with_every_step(recipe_file, tmp_path, logged_out_wandb):  # noqa: F811
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "toolkit", "finetune", recipe_file, f"train.output_dir={folder}",
               "train.max_steps=200", "train.eval_steps=20", "tracking.wandb=true", "tracking.wandb_mode=offline",
               "--skip-parity", "a test"]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(TRACKING_TESTS.parents[2])}
    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while len(read_metrics(folder / "metrics.jsonl")) < 25 or not has_begun(folder):
        assert first.poll() is None, first.communicate()
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0 and "resuming" in result.stdout and result.stderr == ""
    killed_run, resumed_run = offline_runs(folder)
    assert killed_run.id == resumed_run.id and resumed_run.exit_code == 0 and killed_run.exit_code != 0
    assert (killed_run.summary["gate/status"], resumed_run.summary["best/step"] % 20) == ("skipped: a test", 0)
    rows = [train_row for train_row in (*killed_run.rows, *resumed_run.rows) if "train/loss" in train_row]
    losses = {}
    for train_row in rows:  # steps that were written twice are equal
        assert losses.setdefault(train_row["step"], train_row["train/loss"]) == train_row["train/loss"]
    recorded_rows = [train_row for train_row in read_metrics(folder / "metrics.jsonl") if train_row["split"] == "train"]
    assert losses == {train_row["step"]: train_row["loss"] for train_row in recorded_rows} and sorted(losses) == list(
        range(1, 201)
    )
