"""Test that a model family consists of two folders: with those in `third_family/`, it is gated, trained and used."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
THIRD = Path(__file__).parent / "third_family"


@pytest.fixture(scope="module")
def toolkit_copy(tmp_path_factory) -> Path:
    """Return a copy of the toolkit with the two folders added."""
    folder = tmp_path_factory.mktemp("third")
    for name in ("toolkit", "models"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(THIRD / "models" / "echo", folder / "models" / "echo")
    shutil.copytree(THIRD / "families" / "echo", folder / "toolkit" / "parity" / "families" / "echo")
    return folder


@pytest.fixture
def run_toolkit(toolkit_copy, tmp_path):
    """Return a function that runs a command of this toolkit and returns its exit status and its output."""

    def run(*arguments: object, root: Path = toolkit_copy) -> tuple[int, str]:
        process = subprocess.run(
            [sys.executable, "-m", "toolkit", *map(str, arguments)],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True,
        )  # fmt: skip
        return process.returncode, process.stdout + process.stderr

    return run


@pytest.fixture
def csv_path(tmp_path) -> Path:
    rows = [f"{'light river' if number % 3 else 'heavy stone'} {number},{number % 3 > 0:d}" for number in range(120)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["text,label", *rows]))
    return path


def write_recipe(path: Path, task: str, data: str) -> Path:
    path.write_text(
        f"task: {task}\n"
        "model: {name: echo, means: sum, config: {breadth: 16}}\n"
        f"data: {{{data}, validation_fraction: 0.2, max_length: 32}}\n"
        f"train: {{max_steps: 6, batch_size: 8, learning_rate: 0.003, output_dir: {path.with_suffix('')}}}\n"
    )
    return path


def test_a_third_family_is_gated_trained_and_used_with_only_two_folders(run_toolkit, tmp_path, csv_path):
    """The gate of the run comes first, so a port that differs from the reference would not be trained."""
    recipe_path = write_recipe(
        tmp_path / "labels.yaml", "classification", f"dataset: csv, files: {{train: {csv_path}}}"
    )
    status, output = run_toolkit("finetune", recipe_path)
    assert status == 0, output
    assert json.loads((tmp_path / "labels" / "parity" / "parity.json").read_text())["passed"]
    assert "PARITY" in output and "step 6/6" in output and "Echo" in (tmp_path / "labels" / "README.md").read_text()
    assert "means: sum" in (tmp_path / "labels" / "recipe.yaml").read_text()
    status, output = run_toolkit("predict", tmp_path / "labels", "--text", "light river")
    assert status == 0 and "probability" in output, output


def test_a_third_family_with_one_wrong_line_is_drift_at_its_module(run_toolkit, toolkit_copy, tmp_path):
    faulty_copy = tmp_path / "wrong"
    shutil.copytree(toolkit_copy, faulty_copy)
    port = faulty_copy / "models" / "echo" / "modeling.py"
    correct_code = port.read_text()
    port.write_text(correct_code.replace("return x + self.dropout(", "return 1.0001 * x + self.dropout("))
    assert port.read_text() != correct_code
    status, output = run_toolkit("parity", "--model", "echo", "--dtype", "float64", root=faulty_copy)
    assert status == 1 and output.startswith("DRIFT") and "echo.0" in output.splitlines()[0], output


@pytest.mark.slow
def test_a_third_family_can_generate_be_exported_and_have_its_faults_caught(run_toolkit, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the {number} rivers run to the sea, {number} by {number}" for number in range(200)))
    recipe_path = write_recipe(tmp_path / "text.yaml", "language_modeling", f"dataset: text, files: {{train: {text}}}")
    for arguments, expected_output in (
        (("finetune", recipe_path), "perplexity"),
        (("generate", tmp_path / "text", "--prompt", "the", "--length", 4), "the"),
        (
            ("export", tmp_path / "text", "--format", "paddle", "--output", tmp_path / "out"),
            "within float32's rounding",
        ),
        (("parity", "--model", "echo", "--head", "sequence_classification", "--dtype", "all"), "PARITY"),
        (("parity", "mutants", "--model", "echo"), "17 of 17 faults caught, 17 named"),
        (("parity", "sweep", "--model", "echo", "--gates", 2), "0 false alarms in 2 gates"),
    ):
        status, output = run_toolkit(*arguments)
        assert status == 0 and expected_output in output, output
