"""An interrupted run goes on with what it was begun with, or says what has changed."""

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


def write(folder: Path, split: str, rows: list[dict], indent: int | None = None) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows) if indent is None else json.dumps(rows, indent=indent)
    (folder / f"{split}.jsonl").write_text(text)


def weights_in(folder: Path, seed: int) -> None:
    from safetensors.numpy import save_file

    from models.reformer import schema, weights

    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    save_file(weights.initial_weights(schema.resolve(CONFIG), "masked_lm", seed), folder / "model.safetensors")


def pieces_in(folder: Path, text: str) -> None:
    from models.reformer.tokenizer import train_sentencepiece

    train_sentencepiece([f"{text} {index}" for index in range(30)], 26, folder)


class Stopped(Exception):
    """In the place of a kill: nothing of the run is done after it."""


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory) -> Path:
    """A folder with a recipe, its files, and a run that stopped after a checkpoint."""
    folder = tmp_path_factory.mktemp("identity")
    for split in ("train", "validation", "test"):
        write(folder, split, ROWS)
    weights_in(folder / "weights", 0)
    pieces_in(folder / "pieces", "text number")
    (folder / "x.yaml").write_text(RECIPE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        kept = Checkpoints.save

        def save_and_stop(self, *arguments, **named):
            kept(self, *arguments, **named)
            raise Stopped

        patch.setattr(Checkpoints, "save", save_and_stop)
        with pytest.raises(Stopped):
            go_on(folder)
    assert list(folder.glob("run/checkpoints/step-*")) and (folder / "run/identity.json").is_file()
    return folder


def go_on(folder: Path) -> str:
    """The same command; what it said."""
    said = io.StringIO()
    finetune(load_recipe(folder / "x.yaml"), "a test", Console(file=said, width=200))
    return said.getvalue()


@pytest.fixture
def begun(interrupted, tmp_path, monkeypatch) -> Path:
    """A copy of the interrupted run and its files, as the current folder."""
    folder = Path(shutil.copytree(interrupted, tmp_path / "x"))
    for name in ("recipe.yaml", "identity.json"):  # they hold absolute paths
        file = folder / "run" / name
        file.write_text(file.read_text().replace(str(interrupted), str(folder)))
    monkeypatch.chdir(folder)
    return folder


def swap_labels(folder: Path) -> None:
    write(folder, "train", [{**row, "label": {"no": "yes", "yes": "no"}[row["label"]]} for row in ROWS])


@pytest.mark.parametrize(
    ("change", "said"),
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
def test_what_changed_since_a_run_began_is_named_and_nothing_goes_on(begun, change, said):
    before = {path: path.read_bytes() for path in (begun / "run").rglob("*") if path.is_file()}
    change(begun)
    with pytest.raises(UserError, match=rf"x\.yaml:1: train\.output_dir: .*since it began {said}.*put back") as raised:
        go_on(begun)
    assert "\n" not in str(raised.value)
    assert {path: path.read_bytes() for path in (begun / "run").rglob("*") if path.is_file()} == before


def test_a_run_whose_files_are_the_same_goes_on(begun):
    assert "resuming run after step" in go_on(begun)


def test_a_file_of_the_same_rows_has_not_changed(begun):
    write(begun, "train", ROWS, indent=1)
    assert "resuming run after step" in go_on(begun)


def test_a_run_of_before_goes_on_with_a_note_and_is_written_down(begun):
    identity = (begun / "run/identity.json").read_bytes()
    (begun / "run/identity.json").unlink()
    said = go_on(begun)
    assert "note   run has no identity.json, so later changes of its data" in said and "resuming run after step" in said
    assert (begun / "run/identity.json").read_bytes() == identity


@pytest.mark.parametrize("damaged", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_what_a_run_was_begun_with_cannot_be_read(begun, damaged):
    (begun / "run/identity.json").write_bytes(damaged)
    with pytest.raises(UserError, match=r"run/identity\.json: cannot be read .* remove that file"):
        go_on(begun)


def test_a_run_without_a_checkpoint_begins_with_what_is_there_now(begun):
    shutil.rmtree(begun / "run/checkpoints")
    swap_labels(begun)
    go_on(begun)
    written = json.loads((begun / "run/identity.json").read_text())
    assert written == assemble(load_recipe(begun / "x.yaml")).identity


@pytest.fixture(scope="module")
def finished(interrupted, tmp_path_factory) -> Path:
    """A copy of the run, resumed to its end."""
    folder = Path(shutil.copytree(interrupted, tmp_path_factory.mktemp("finished") / "x"))
    for name in ("recipe.yaml", "identity.json"):
        file = folder / "run" / name
        file.write_text(file.read_text().replace(str(interrupted), str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        go_on(folder)
    return folder


def test_a_run_measured_on_other_data_says_so(finished, monkeypatch):
    monkeypatch.chdir(finished)
    run, said = finished / "run", io.StringIO()
    evaluate(run, Console(file=said, width=300), "validation")
    assert "SHA-256" not in said.getvalue()
    assert "data_changed" not in json.loads((run / "evaluation.json").read_text())["validation"]
    write(finished, "validation", [{**row, "text": row["text"].upper()} for row in ROWS])
    evaluate(run, Console(file=said, width=300), "validation")
    assert "note: the validation split is not the one of the run (SHA-256 " in said.getvalue()
    assert json.loads((run / "evaluation.json").read_text())["validation"]["data_changed"] is True
    evaluate(run, Console(file=(test := io.StringIO()), width=300), "test")
    assert "SHA-256" not in test.getvalue()
    (run / "predictions-validation.csv").unlink()
    with pytest.raises(UserError, match=r"lacks predictions-validation\.csv, and the validation split is not"):
        remake_report(run, Console(file=io.StringIO()))
    write(finished, "validation", ROWS, indent=1)  # the same rows in another layout
    remake_report(run, Console(file=io.StringIO()))
