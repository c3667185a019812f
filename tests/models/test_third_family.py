"""A family of models is two folders: a third one, in ``third_family/``, is gated, trained and used by adding them."""

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
def tree(tmp_path_factory) -> Path:
    """The toolkit with the two folders added."""
    folder = tmp_path_factory.mktemp("third")
    for name in ("toolkit", "models"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copytree(THIRD / "models" / "echo", folder / "models" / "echo")
    shutil.copytree(THIRD / "families" / "echo", folder / "toolkit" / "parity" / "families" / "echo")
    return folder


@pytest.fixture
def toolkit(tree, tmp_path):
    """Runs a command of that toolkit; returns its exit status and what it said."""

    def run(*arguments: object, at: Path = tree) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "toolkit", *map(str, arguments)],
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(at)}, capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture
def table(tmp_path) -> Path:
    rows = [f"{'light river' if number % 3 else 'heavy stone'} {number},{number % 3 > 0:d}" for number in range(120)]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["text,label", *rows]))
    return path


def recipe(path: Path, task: str, data: str) -> Path:
    path.write_text(
        f"task: {task}\n"
        "model: {name: echo, means: sum, config: {breadth: 16}}\n"
        f"data: {{{data}, validation_fraction: 0.2, max_length: 32}}\n"
        f"train: {{max_steps: 6, batch_size: 8, learning_rate: 0.003, output_dir: {path.with_suffix('')}}}\n"
    )
    return path


def test_a_third_family_is_gated_trained_and_asked_by_its_two_folders_alone(toolkit, tmp_path, table):
    """The run's gate comes first: it trains only if the port equals the reference."""
    made = recipe(tmp_path / "labels.yaml", "classification", f"dataset: csv, files: {{train: {table}}}")
    status, said = toolkit("finetune", made)
    assert status == 0, said
    assert json.loads((tmp_path / "labels" / "parity" / "parity.json").read_text())["passed"]
    assert "PARITY" in said and "step 6/6" in said and "Echo" in (tmp_path / "labels" / "README.md").read_text()
    assert "means: sum" in (tmp_path / "labels" / "recipe.yaml").read_text()
    status, said = toolkit("predict", tmp_path / "labels", "--text", "light river")
    assert status == 0 and "probability" in said, said


def test_a_third_family_with_one_wrong_line_is_drift_at_its_module(toolkit, tree, tmp_path):
    wrong = tmp_path / "wrong"
    shutil.copytree(tree, wrong)
    port = wrong / "models" / "echo" / "modeling.py"
    right = port.read_text()
    port.write_text(right.replace("return x + self.dropout(", "return 1.0001 * x + self.dropout("))
    assert port.read_text() != right
    status, said = toolkit("parity", "--model", "echo", "--dtype", "float64", at=wrong)
    assert status == 1 and said.startswith("DRIFT") and "echo.0" in said.splitlines()[0], said


@pytest.mark.slow
def test_a_third_family_generates_is_exported_and_its_faults_are_caught(toolkit, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"the {number} rivers run to the sea, {number} by {number}" for number in range(200)))
    made = recipe(tmp_path / "text.yaml", "language_modeling", f"dataset: text, files: {{train: {text}}}")
    for arguments, wanted in (
        (("finetune", made), "perplexity"),
        (("generate", tmp_path / "text", "--prompt", "the", "--length", 4), "the"),
        (
            ("export", tmp_path / "text", "--format", "paddle", "--output", tmp_path / "out"),
            "within float32's rounding",
        ),
        (("parity", "--model", "echo", "--head", "sequence_classification", "--dtype", "all"), "PARITY"),
        (("parity", "mutants", "--model", "echo"), "17 of 17 faults caught, 17 named"),
        (("parity", "sweep", "--model", "echo", "--gates", 2), "0 false alarms in 2 gates"),
    ):
        status, said = toolkit(*arguments)
        assert status == 0 and wanted in said, said
