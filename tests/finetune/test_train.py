"""Test `toolkit finetune` on the real port with a small recipe, whose run takes two seconds."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import types
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import yaml
from rich.console import Console
from safetensors.numpy import load_file
from small_reformers import SMALL_CONFIG

from toolkit import api, cli
from toolkit.commands.predict import evaluate_baseline, predict
from toolkit.errors import Inconclusive, ParityDrift, ToolkitError, UserError
from toolkit.files.ownership import LEDGER
from toolkit.finetune.assembly import assemble
from toolkit.finetune.finetune import finetune
from toolkit.finetune.model import load_model
from toolkit.parity.report.report import remove_report
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.folder import differing_keys
from toolkit.run_folder.tracking import read_metrics
from toolkit.terminal.console import LiteralConsole

WORDS = {
    "animals": ("cat", "dog", "horse", "lion", "cow"),
    "fruit": ("apple", "pear", "plum", "fig", "kiwi"),
    "tools": ("saw", "hammer", "drill", "axe", "file"),
}
SIZES = {"train": 60, "validation": 15, "test": 15}

#: Dropout and LSH draw random numbers, and the last group of an epoch is short: a resume could get these wrong.
RECIPE = {
    "model": {"config": {**SMALL_CONFIG, "axial_pos_shape": [8, 8], "hidden_dropout_prob": 0.1}},
    "data": {
        "dataset": "csv",
        "files": {"train": "train.csv", "validation": "validation.csv", "test": "test.csv"},
        "max_length": 64,
    },
    "train": {
        "max_steps": 40,
        "batch_size": 4,
        "eval_batch_size": 16,
        "gradient_accumulation_steps": 2,
        "learning_rate": 4e-3,
        "warmup_ratio": 0.1,
        "eval_steps": 5,
    },
}


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory) -> Path:
    """Write a recipe and its data."""
    folder = tmp_path_factory.mktemp("recipe")
    os.environ["TOOLKIT_CACHE"] = str(folder / "cache")
    draws = random.Random(0)
    for split_name, count in SIZES.items():
        with (folder / f"{split_name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            for index in range(count):
                label = list(WORDS)[index % len(WORDS)]
                rows.writerow([" ".join(draws.choice(WORDS[label]) for _ in range(8)), label])
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    return path


@pytest.fixture(scope="session")
def run(recipe_file, tmp_path_factory) -> Path:
    """Return a finished, uninterrupted run."""
    return train(recipe_file, tmp_path_factory.mktemp("runs") / "whole")


def train(recipe_file: Path, folder: Path, *overrides: str, skip: str | None = "a test") -> Path:
    recipe = load_recipe(recipe_file, [f"train.output_dir={folder}", *overrides])
    return finetune(recipe, skip, Console(file=io.StringIO(), width=120))


def numbers(folder: Path) -> list[dict]:
    return [{key: row[key] for key in row if key != "seconds"} for row in read_metrics(folder / "metrics.jsonl")]


def assert_same_run(our_run: Path, their_run: Path) -> None:
    assert numbers(our_run) == numbers(their_run)
    our_weights, their_weights = (
        load_file(our_run / "model/model.safetensors"),
        load_file(their_run / "model/model.safetensors"),
    )
    assert our_weights.keys() == their_weights.keys()
    for name in their_weights:
        np.testing.assert_array_equal(our_weights[name], their_weights[name], err_msg=name)
    for split_name in ("validation", "test"):
        name = f"predictions-{split_name}.csv"
        assert (our_run / name).read_bytes() == (their_run / name).read_bytes()
        assert (
            json.loads((our_run / "metrics.json").read_text())[split_name]
            == (json.loads((their_run / "metrics.json").read_text())[split_name])
        )


def test_a_run_learns_and_leaves_its_folder(run):
    assert sorted(path.name for path in run.iterdir()) == [
        LEDGER,
        "README.md",
        "baseline",
        "identity.json",
        "metrics.csv",
        "metrics.json",
        "metrics.jsonl",
        "model",
        "optimizer.safetensors",
        "parity",
        "predictions-test.csv",
        "predictions-validation.csv",
        "recipe.yaml",
        "report.html",
        "versions.json",
    ]
    results = json.loads((run / "metrics.json").read_text())
    assert results["test"]["accuracy"] >= 0.8
    assert results["training"]["steps"] == 40 and results["examples"] == SIZES
    rows = read_metrics(run / "metrics.jsonl")
    validation = {row["step"]: row for row in rows if row["split"] == "validation"}
    best = results["best"]
    assert list(validation) == list(range(5, 45, 5))
    assert best["value"] == max(row["accuracy"] for row in validation.values())
    assert results["validation"]["accuracy"] == best["value"] == validation[best["step"]]["accuracy"]
    assert results["validation"]["loss"] == validation[best["step"]]["loss"]


def test_the_run_keeps_the_simple_method_and_its_figures(run):
    results = json.loads((run / "metrics.json").read_text())
    method = results["kept_baseline"]
    assert evaluate_baseline(run, LiteralConsole(quiet=True)) == results["baselines"][method]["test"]
    for figures, intervals in (
        (results["test"], results["intervals"]["test"]),
        (results["baselines"][method]["test"], results["baseline_intervals"][method]["test"]),
    ):
        assert set(figures) - set(intervals) <= {"loss"}  # the loss of a single batch has no interval
        assert all(low <= figures[name] <= high for name, (low, high) in intervals.items())
    (animal,) = predict(run, LiteralConsole(quiet=True), baseline=True, texts=["the cat and the horse"])
    assert animal.label == "animals"


def test_python_functions_do_the_same_as_the_commands(recipe_file, run, tmp_path):
    changes = {"train.output_dir": str(tmp_path / "x"), "train.batch_sise": 4}
    with pytest.raises(UserError, match=r"train\.batch_sise: unknown key"):
        api.finetune(recipe_file, changes, skip_parity="a test", quiet=True)
    del changes["train.batch_sise"]
    changes |= {"train.epochs": None, "train.max_steps": 1, "train.baseline": False}
    assert api.finetune(recipe_file, changes, skip_parity="a test", quiet=True) == tmp_path / "x"
    labels = [prediction.label for prediction in api.predict(run, ["cat dog horse lion cow", "apple"])]
    assert labels[0] == "animals" and len(labels) == 2
    with pytest.raises(UserError, match="takes no question"):
        api.predict(run, ["cat"], question="Which?")


def test_the_model_knows_its_labels(run):
    config = json.loads((run / "model/config.json").read_text())
    assert config["id2label"] == {"0": "animals", "1": "fruit", "2": "tools"}
    assert config["model_type"] == "reformer"


def test_the_reason_for_skipping_the_gate_is_recorded(run):
    starts = json.loads((run / "parity/starts.json").read_text())
    assert starts == [{"after_step": 0, "passed": None, "skipped": "a test"}]
    assert "**The parity gate was skipped** before training: a test." in (run / "README.md").read_text()


def test_the_recipe_in_the_folder_means_the_same(run, recipe_file):
    """Compare the recipes, apart from the choice of the run: its backward pass."""
    loaded_recipe = load_recipe(run / "recipe.yaml", [])
    resolved_overrides = [f"train.output_dir={run}", "model.backward=autograd"]
    assert loaded_recipe.to_yaml() == load_recipe(recipe_file, resolved_overrides).to_yaml()


def test_the_same_recipe_gives_the_same_weights(run, recipe_file, tmp_path):
    assert_same_run(train(recipe_file, tmp_path / "again"), run)


def kill_at_a_checkpoint(recipe_file: Path, folder: Path, *overrides: str) -> None:
    """Kill the run at any moment after its first checkpoint."""
    code = "import sys; from toolkit.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", code, "finetune", str(recipe_file), f"train.output_dir={folder}", *overrides]
    process = subprocess.Popen([*command, "--skip-parity", "a test"], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not list(folder.glob("checkpoints/step-*")) and time.monotonic() < end:
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.005)
    time.sleep(0.1)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert not (folder / "metrics.json").exists()


def test_a_killed_run_resumes_bit_for_bit(run, recipe_file, tmp_path):
    folder = tmp_path / "killed"
    kill_at_a_checkpoint(recipe_file, folder)
    train(recipe_file, folder)
    assert_same_run(folder, run)
    assert not (folder / "checkpoints").exists()


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["lion", "adafactor"])
def test_a_killed_run_of_another_optimizer_with_token_dropout_resumes_bit_for_bit(optimizer, recipe_file, tmp_path):
    overrides = (f"train.optimizer={optimizer}", "train.token_dropout=0.2", "train.label_smoothing=0.1")
    uninterrupted_run = train(recipe_file, tmp_path / "whole", *overrides)
    kill_at_a_checkpoint(recipe_file, tmp_path / "killed", *overrides)
    assert_same_run(train(recipe_file, tmp_path / "killed", *overrides), uninterrupted_run)


def test_an_unfinished_run_of_another_recipe_is_unchanged(recipe_file, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "recipe.yaml").write_text(load_recipe(recipe_file, [f"train.output_dir={folder}"]).to_yaml())
    expected_error = r"batch_size: 4 there, 2 here.*: toolkit finetune .*recipe.*give the folder to toolkit finish"
    with pytest.raises(UserError, match=expected_error):
        train(recipe_file, folder, "train.batch_size=2")
    assert [path.name for path in folder.iterdir()] == ["recipe.yaml"]


def test_a_finished_run_is_not_overwritten(run, recipe_file):
    initial_content = (run / "metrics.json").read_bytes()
    with pytest.raises(UserError, match=r"train\.output_dir: .* holds a finished run"):
        train(recipe_file, run)
    assert (run / "metrics.json").read_bytes() == initial_content


def test_a_second_run_with_new_gets_a_folder_next_to_the_first(run, recipe_file, tmp_path, capsys):
    first = tmp_path / "run"
    shutil.copytree(run, first)
    arguments = [
        "finetune",
        str(recipe_file),
        f"train.output_dir={first}",
        "train.max_steps=1",
        "--skip-parity",
        "a test",
    ]
    with pytest.raises(SystemExit) as exit_info:
        cli.main([*arguments, "--new"])
    output = capsys.readouterr().out
    assert exit_info.value.code == 0 and f"note   {first} is taken; this run is in {first}-2" in output
    assert json.loads((tmp_path / "run-2" / "metrics.json").read_text())["training"]["steps"] == 1
    assert (first / "metrics.json").read_bytes() == (run / "metrics.json").read_bytes()


def test_a_folder_with_something_else_is_refused(recipe_file, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"is not empty and holds no run"):
        train(recipe_file, tmp_path)


def test_recipes_are_compared_key_by_key():
    assert differing_keys("a: {b: 1, c: 2}\n", "a: {b: 1, c: 3}\nd: 4\n") == [
        "a.c: 2 there, 3 here",
        "d: None there, 4 here",
    ]


def test_diverging_training_ends_with_an_error_and_without_a_finished_run(recipe_file, tmp_path):
    with pytest.raises(ToolkitError, match=r"lower train\.learning_rate") as error_info:
        train(recipe_file, tmp_path / "run", "train.learning_rate=1e30", "train.max_grad_norm=null")
    assert error_info.value.exit_status == 1
    assert not (tmp_path / "run/metrics.json").exists() and not (tmp_path / "run/model").exists()


# -- the gate -------------------------------------------------------------------------------------------------------


@dataclass
class Report:
    passed: bool
    exit_status: int

    def summary(self) -> str:
        return "parity: 158 tensors agree" if self.passed else "drift: reformer.encoder.layers.0: off by 1e6"


@pytest.fixture
def gate(monkeypatch):
    """Replace the gate by one that returns the test's verdict and records its requests."""
    fake = types.ModuleType("toolkit.parity.gate")
    fake.report, fake.requests = Report(True, 0), []

    def run_gate(request, folder, console, brief):
        fake.requests.append(request)
        fake.brief = brief
        remove_report(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "parity.json").write_text('{"judged": null}')
        return fake.report

    fake.run_gate = run_gate
    monkeypatch.setitem(sys.modules, "toolkit.parity.gate", fake)
    return fake


@pytest.mark.parametrize(("status", "error"), [(1, ParityDrift), (3, Inconclusive)])
def test_without_parity_only_a_report_is_written(gate, recipe_file, tmp_path, status, error):
    gate.report = Report(False, status)
    with pytest.raises(error, match=r"layers\.0: off by 1e6; no training; see .*parity\.json"):
        train(recipe_file, tmp_path / "run", skip=None)
    paths = [path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")]
    assert sorted(paths) == ["run", f"run/{LEDGER}", "run/parity", "run/parity/parity.json"]
    assert error.exit_status == status


def test_after_a_drift_the_fixed_port_trains_into_the_same_folder(gate, recipe_file, tmp_path):
    gate.report = Report(False, 1)
    with pytest.raises(ParityDrift):
        train(recipe_file, tmp_path / "run", skip=None)
    gate.report = Report(True, 0)
    train(recipe_file, tmp_path / "run", "train.max_steps=2", skip=None)
    card = (tmp_path / "run/README.md").read_text()
    assert "The parity gate passed" in card and "(parity: 158 tensors agree)" in card


@pytest.mark.parametrize("process_options", [(), ("--processes", "1")])
def test_the_gate_is_brief_unless_the_run_is_verbose(gate, recipe_file, tmp_path, monkeypatch, process_options):
    monkeypatch.setattr("toolkit.finetune.launch._run", lambda team, before, arguments, *_: 0)
    command = [
        "finetune",
        str(recipe_file),
        f"train.output_dir={tmp_path / 'run'}",
        "train.max_steps=1",
        *process_options,
    ]
    for verbose in ([], ["--new", "--verbose"]):
        with pytest.raises(SystemExit) as exit_info:
            cli.main([*command, *verbose])
        assert exit_info.value.code == 0 and gate.brief is not bool(verbose)


def test_the_gate_judges_the_model_that_is_trained(gate, recipe_file, tmp_path):
    train(recipe_file, tmp_path / "run", "train.max_steps=1", "parity.examples=3", skip=None)
    (request,) = gate.requests
    assert (request.model, request.head, request.dtypes) == (
        "reformer",
        "sequence_classification",
        ("float64", "float32"),
    )
    assert {name: value.shape for name, value in request.batch.items()} == {
        "input_ids": (3, 64),
        "attention_mask": (3, 64),
        "labels": (3,),
    }
    assert request.tokenizer.kind == "bytes" and len(request.tokenizer.texts) == 60
    job = assemble(load_recipe(recipe_file, []))
    assert request.config["id2label"] == {"0": "animals", "1": "fruit", "2": "tools"}
    parameters = dict(load_model(load_recipe(recipe_file, []), job).named_parameters())
    assert request.weights.keys() == parameters.keys()
    for name, value in job.weights.items():
        np.testing.assert_array_equal(request.weights[name], value)


def test_another_python_for_the_reference_is_checked_before_anything_is_loaded(gate, recipe_file, tmp_path):
    with pytest.raises(UserError, match=r"command line: parity\.reference_python: .*nowhere: no such interpreter"):
        train(recipe_file, tmp_path / "run", f"parity.reference_python={tmp_path / 'nowhere'}", skip=None)
    assert gate.requests == [] and not (tmp_path / "run").exists()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    train(recipe_file, tmp_path / "run", f"parity.reference_python={python}", "train.max_steps=1", skip=None)
    assert gate.requests[0].reference_python == str(python)


def test_the_environment_may_name_the_references_python_if_the_recipe_does_not(
    gate, recipe_file, tmp_path, monkeypatch
):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("TOOLKIT_REFERENCE_PYTHON", str(python))
    train(recipe_file, tmp_path / "run", "train.max_steps=1", skip=None)
    assert gate.requests[0].reference_python == str(python)
    train(recipe_file, tmp_path / "own", f"parity.reference_python={sys.executable}", "train.max_steps=1", skip=None)
    assert gate.requests[1].reference_python == sys.executable
    monkeypatch.setenv("TOOLKIT_REFERENCE_PYTHON", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"^TOOLKIT_REFERENCE_PYTHON: .*nowhere: no such interpreter"):
        train(recipe_file, tmp_path / "other", "train.max_steps=1", skip=None)


def test_training_starts_from_a_checkpoint_and_initializes_missing_weights(run, recipe_file):
    job = assemble(load_recipe(recipe_file, [f"model.weights={run / 'model'}", "tokenizer.kind=checkpoint"]))
    assert job.new_weights == []
    for name, value in load_file(run / "model/model.safetensors").items():
        np.testing.assert_array_equal(job.weights[name], value)


def test_weights_that_do_not_fit_are_reported_at_their_line(run, recipe_file):
    with pytest.raises(UserError, match=r"model\.weights: .*shape"):
        assemble(load_recipe(recipe_file, [f"model.weights={run / 'model'}", "model.config.feed_forward_size=64"]))


def test_several_seeds_are_run_and_compared(recipe_file, tmp_path, monkeypatch, capsys):
    """Check that a finished run of the same recipe is kept, and a run of another recipe is refused."""
    seeds = []

    def small_run(recipe, skip_parity, console, verbose=False):
        seeds.append(recipe.seed)
        recipe.output_dir.mkdir(parents=True)
        (recipe.output_dir / "recipe.yaml").write_text(recipe.to_yaml())
        scores = {"validation": {"accuracy": 0.1 * recipe.seed}}
        facts = {"training": {"steps": 1, "seconds": 1.0}, "parameters": 1}
        (recipe.output_dir / "identity.json").write_text(json.dumps({"splits": {"validation": str(recipe.seed)}}))
        (recipe.output_dir / "metrics.json").write_text(json.dumps({**scores, **facts}))

    monkeypatch.setattr("toolkit.commands.seeds.finetune", small_run)
    monkeypatch.setenv("COLUMNS", "200")
    command = ["finetune", str(recipe_file), f"train.output_dir={tmp_path / 'x'}", "seed=3", "--skip-parity", "a test"]

    def run_command(*more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as exit_info:
            cli.main([*command, *more])
        streams = capsys.readouterr()
        return exit_info.value.code or 0, streams.out + streams.err

    assert run_command("--seeds", "2")[0] == 0 and seeds == [3, 4]
    status, output = run_command("--seeds", "3")
    assert status == 0 and seeds == [3, 4, 5] and "Spread over 3 seeds" in output
    assert re.search(r"validation accuracy +│ 0\.4 +│ 0\.1 ", output)
    assert "the seed also draws the validation rows, so they differ" in output
    status, output = run_command("--seeds", "2", "train.batch_size=7")
    assert status == 2 and "holds a finished run of another recipe (train.batch_size" in output
    status, output = run_command("--seeds", "2", "--new")
    assert status == 2 and "--seeds: cannot be combined with" in output
