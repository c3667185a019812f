"""Test that an interrupted run resumes with its initial recipe and data, or reports the changes."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from toolkit.commands.predict import evaluate
from toolkit.commands.report import remake_report
from toolkit.errors import UserError
from toolkit.finetune.assembly import assemble
from toolkit.finetune.finetune import finetune
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.checkpoint import Checkpoints

RECIPE = """\
train: {max_steps: 6, eval_steps: 2, learning_rate: 1e-3, output_dir: run}
model:
  weights: weights
  config: {hidden_dropout_prob: 0.1}
tokenizer: {kind: sentencepiece, path: pieces/spiece.model}
data: {dataset: json, max_length: 32, files: {train: train.jsonl, validation: validation.jsonl, test: test.jsonl}}
"""
ROWS = [{"text": f"text number {index}", "label": ["no", "yes"][index % 2]} for index in range(24)]
CONFIG = {
    "attn_layers": ["local"], "hidden_size": 32, "num_attention_heads": 1, "feed_forward_size": 32,
    "axial_pos_shape": [4, 8], "axial_pos_embds_dim": [16, 16], "local_num_chunks_after": 1, "vocab_size": 64,
    "model_type": "reformer",
}  # fmt: skip


def write(folder: Path, split_name: str, rows: list[dict], indent: int | None = None) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows) if indent is None else json.dumps(rows, indent=indent)
    (folder / f"{split_name}.jsonl").write_text(text)


def weights_in(folder: Path, seed: int) -> None:
    from safetensors.numpy import save_file

    from models.reformer import schema, weights

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights.initial_weights(schema.resolve(CONFIG), "masked_lm", seed), folder / "model.safetensors")


def pieces_in(folder: Path, text: str) -> None:
    from models.reformer.tokenizer import train_sentencepiece

    train_sentencepiece([f"{text} {index}" for index in range(30)], 26, folder)


class SimulatedKill(Exception):
    """Simulate a kill: the run does nothing after this exception."""


@pytest.fixture(scope="module")
def interrupted_run(tmp_path_factory) -> Path:
    """Return a folder with a recipe, its files, and a run that stopped after a checkpoint."""
    folder = tmp_path_factory.mktemp("identity")
    for split_name in ("train", "validation", "test"):
        write(folder, split_name, ROWS)
    weights_in(folder / "weights", 0)
    pieces_in(folder / "pieces", "text number")
    (folder / "x.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        original_save = Checkpoints.save

        def save_and_stop(self, *arguments, **named):
            original_save(self, *arguments, **named)
            raise SimulatedKill

        patch.setattr(Checkpoints, "save", save_and_stop)
        with pytest.raises(SimulatedKill):
            resume(folder)
    assert list(folder.glob("run/checkpoints/step-*")) and (folder / "run/identity.json").is_file()
    return folder


def resume(folder: Path) -> str:
    """Resume the run with the same command and return its output."""
    output = io.StringIO()
    finetune(load_recipe(folder / "x.yaml"), "a test", Console(file=output, width=200))
    return output.getvalue()


@pytest.fixture
def run_copy(interrupted_run, tmp_path, monkeypatch) -> Path:
    """Return a copy of the interrupted run and its files, which becomes the current folder."""
    folder = Path(shutil.copytree(interrupted_run, tmp_path / "x"))
    for name in ("recipe.yaml", "identity.json"):  # they hold absolute paths
        file = folder / "run" / name
        file.write_text(file.read_text().replace(str(interrupted_run), str(folder)))
    monkeypatch.chdir(folder)
    return folder


def swap_labels(folder: Path) -> None:
    write(folder, "train", [{**row, "label": {"no": "yes", "yes": "no"}[row["label"]]} for row in ROWS])


@pytest.mark.parametrize(
    ("change", "expected_change"),
    [
        (swap_labels, r"the rows of train have changed \(changed: \S*/train\.jsonl\)"),
        (lambda folder: write(folder, "train", ROWS[::-1]), r"the rows of train have changed"),
        (lambda folder: write(folder, "train", ROWS[:-2]), r"the rows of train have changed"),
        (lambda folder: write(folder, "validation", ROWS[2:]), r"the rows of validation have changed"),
        (lambda folder: write(folder, "test", ROWS[2:]), r"the rows of test have changed"),
        (
            lambda folder: pieces_in(folder / "pieces", "nummer des textes"),
            r"the tokenizer has changed \(pieces/spiece",
        ),
        (lambda folder: weights_in(folder / "weights", 1), r"model\.safetensors of the starting checkpoint weights ch"),
    ],
)
def test_changes_since_the_start_of_a_run_are_named_and_prevent_resuming(run_copy, change, expected_change):
    initial_files = {path: path.read_bytes() for path in (run_copy / "run").rglob("*") if path.is_file()}
    change(run_copy)
    with pytest.raises(
        UserError, match=rf"x\.yaml:1: train\.output_dir: .*since it began {expected_change}.*put back"
    ) as error_info:
        resume(run_copy)
    assert "\n" not in str(error_info.value)
    assert {path: path.read_bytes() for path in (run_copy / "run").rglob("*") if path.is_file()} == initial_files


def test_a_run_with_unchanged_files_resumes(run_copy):
    assert "resuming run after step" in resume(run_copy)


def test_a_file_with_the_same_rows_counts_as_unchanged(run_copy):
    write(run_copy, "train", ROWS, indent=1)
    assert "resuming run after step" in resume(run_copy)


def test_a_run_without_identity_resumes_with_a_note_and_gets_one(run_copy):
    identity = (run_copy / "run/identity.json").read_bytes()
    (run_copy / "run/identity.json").unlink()
    output = resume(run_copy)
    assert (
        "note   run has no identity.json, so later changes of its data" in output
        and "resuming run after step" in output
    )
    assert (run_copy / "run/identity.json").read_bytes() == identity


@pytest.mark.parametrize("damaged_content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_damaged_identity_is_refused(run_copy, damaged_content):
    (run_copy / "run/identity.json").write_bytes(damaged_content)
    with pytest.raises(UserError, match=r"run/identity\.json: cannot be read .* remove that file"):
        resume(run_copy)


def test_a_run_without_a_checkpoint_starts_with_the_current_files(run_copy):
    shutil.rmtree(run_copy / "run/checkpoints")
    swap_labels(run_copy)
    resume(run_copy)
    identity = json.loads((run_copy / "run/identity.json").read_text())
    assert identity == assemble(load_recipe(run_copy / "x.yaml")).identity


@pytest.fixture(scope="module")
def finished_run(interrupted_run, tmp_path_factory) -> Path:
    """Return a copy of the run, resumed to its end."""
    folder = Path(shutil.copytree(interrupted_run, tmp_path_factory.mktemp("finished") / "x"))
    for name in ("recipe.yaml", "identity.json"):
        file = folder / "run" / name
        file.write_text(file.read_text().replace(str(interrupted_run), str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        resume(folder)
    return folder


def test_an_evaluation_on_other_data_prints_a_note(finished_run, monkeypatch):
    monkeypatch.chdir(finished_run)
    run, output = finished_run / "run", io.StringIO()
    evaluate(run, Console(file=output, width=300), "validation")
    assert "SHA-256" not in output.getvalue()
    assert "data_changed" not in json.loads((run / "evaluation.json").read_text())["validation"]
    write(finished_run, "validation", [{**row, "text": row["text"].upper()} for row in ROWS])
    evaluate(run, Console(file=output, width=300), "validation")
    assert "note: the validation split is not the one of the run (SHA-256 " in output.getvalue()
    assert json.loads((run / "evaluation.json").read_text())["validation"]["data_changed"] is True
    evaluate(run, Console(file=(test := io.StringIO()), width=300), "test")
    assert "SHA-256" not in test.getvalue()
    (run / "predictions-validation.csv").unlink()
    with pytest.raises(UserError, match=r"lacks predictions-validation\.csv, and the validation split is not"):
        remake_report(run, Console(file=io.StringIO()))
    write(finished_run, "validation", ROWS, indent=1)  # the same rows in another layout
    remake_report(run, Console(file=io.StringIO()))
