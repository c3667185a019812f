"""Test damaged files: one line names the file; nothing crashes, hangs or stays behind.

Each kind of input file (data, tokenizers, checkpoints) is tested with each damage of :mod:`damages`.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from damages import DAMAGES, UNREADABLE, damage
from safetensors.numpy import save_file

from models import families
from toolkit.commands.recipe_check import check_data
from toolkit.data.load import build_tokenizer
from toolkit.errors import ToolkitError
from toolkit.finetune.assembly import first_weights
from toolkit.finetune.model_config import check_model
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe

HEAD = "train: {epochs: 1, learning_rate: 1e-3}\n"
ROWS = [{"text": f"text number {index}, of {index % 7}", "label": ["no", "yes"][index % 2]} for index in range(40)]
SMALL = {
    "attn_layers": ["local"],
    "hidden_size": 8,
    "num_attention_heads": 1,
    "attention_head_size": 8,
    "feed_forward_size": 8,
    "local_attn_chunk_length": 16,
    "axial_pos_shape": [4, 8],
    "axial_pos_embds_dim": [4, 4],
    "vocab_size": 258,
    "local_num_chunks_after": 1,
}
SMALL_CTRL = {"n_layer": 1, "n_embd": 8, "n_head": 1, "dff": 8, "n_positions": 32}


@dataclass(frozen=True)
class Kind:
    """A kind of file.

    Attributes:
        file: its name in the folder of `make`.
        make: function that writes valid files.
        load: function that reads the files in a folder like a command.
    """

    file: str
    make: Callable[[Path], None]
    load: Callable[[Path], object]


def recipe_in(folder: Path, text: str) -> Recipe:
    (folder / "x.yaml").write_text(HEAD + text)
    return load_recipe(folder / "x.yaml")


# -- data -----------------------------------------------------------------------------------------------------------


def rows_as(folder: Path, name: str) -> None:
    import datasets

    rows = datasets.Dataset.from_list(ROWS)
    if name.endswith("arrow"):
        rows.save_to_disk(folder / "saved")
        shutil.copy(next((folder / "saved").glob("*.arrow")), folder / name)
        shutil.rmtree(folder / "saved")
        return
    writers = {".csv": rows.to_csv, ".json": rows.to_json, ".jsonl": rows.to_json, ".parquet": rows.to_parquet}
    writers[Path(name).suffix](folder / name)


def squad_in(folder: Path) -> None:
    paragraphs = [
        {
            "context": f"The city number {index} lies in the north.",
            "qas": [{"id": str(index), "question": "where?", "answers": [{"text": "north", "answer_start": 0}]}],
        }
        for index in range(6)
    ]
    for paragraph in paragraphs:
        paragraph["qas"][0]["answers"][0]["answer_start"] = paragraph["context"].index("north")
    (folder / "train.json").write_text(json.dumps({"data": [{"title": "x", "paragraphs": paragraphs}]}))


def load_rows(kind: str, file: str) -> Callable[[Path], object]:
    text = f"model: {{config: {{axial_pos_shape: [4, 8]}}}}\ndata: {{dataset: {kind}, max_length: 32, " + (
        f"files: {{train: {file}}}, validation_fraction: 0.5}}\n"
    )
    return lambda folder: check_data(recipe_in(folder, text))


def load_folder(folder: Path) -> object:
    text = f"model: {{config: {{axial_pos_shape: [4, 8]}}}}\ndata: {{dataset: {folder}, max_length: 32, "
    return check_data(recipe_in(folder, text + "validation_fraction: 0.5}\n"))


def load_squad(folder: Path) -> object:
    text = "task: question_answering\nmodel: {config: {axial_pos_shape: [4, 8]}}\n"
    more = "data: {dataset: json, max_length: 32, stride: 4, files: {train: train.json}, validation_fraction: 0.5}\n"
    return check_data(recipe_in(folder, text + more))


def load_documents(folder: Path) -> object:
    text = "task: language_modeling\nmodel: {name: ctrl}\ntokenizer: {vocab_size: 24}\n"
    more = "data: {dataset: text, max_length: 32, sources: {Books: b.txt}, validation_fraction: 0.5}\n"
    return check_data(recipe_in(folder, text + more))


def documents_in(folder: Path) -> None:
    (folder / "b.txt").write_text("\n\n".join(f"Paragraph {index}. " + "words " * 700 for index in range(6)))


# -- tokenizers and checkpoints -------------------------------------------------------------------------------------


def pieces_in(folder: Path) -> None:
    from models.reformer.tokenizer import train_sentencepiece

    train_sentencepiece([row["text"] for row in ROWS], 30, folder)
    (folder / "weights").mkdir(exist_ok=True)
    for name in ("spiece.model", "tokenizer_config.json"):
        shutil.copy(folder / name, folder / "weights" / name)


def bpe_in(folder: Path) -> None:
    from models.ctrl.tokenizer import train_bpe

    train_bpe([row["text"] for row in ROWS], 50, folder / "pieces")


def load_pieces(folder: Path) -> object:
    text = "data: {dataset: csv, max_length: 32, files: {train: t.csv}}\n"
    return build_tokenizer(recipe_in(folder, text + "tokenizer: {kind: sentencepiece, path: spiece.model}\n"))


def load_pieces_of_checkpoint(folder: Path) -> object:
    text = "data: {dataset: csv, max_length: 32, files: {train: t.csv}}\nmodel: {weights: weights}\n"
    return build_tokenizer(recipe_in(folder, text + "tokenizer: {kind: checkpoint}\n"))


def load_bpe(folder: Path) -> object:
    text = "data: {dataset: csv, max_length: 32, files: {train: t.csv}}\nmodel: {name: ctrl}\n"
    return build_tokenizer(recipe_in(folder, text + "tokenizer: {path: pieces}\n"))


def checkpoint_in(name: str, keys: dict, shards: int) -> Callable[[Path], None]:
    """Return a function that writes a small checkpoint into `weights`."""

    def make(folder: Path) -> None:
        weights = folder / "weights"
        weights.mkdir()
        schema, part = families.part(name, "schema"), families.part(name, "weights")
        (weights / "config.json").write_text(json.dumps({**keys, "model_type": name}))
        tensors = part.initial_weights(schema.resolve(keys), "sequence_classification", 0)
        names = [list(tensors)[start::shards] for start in range(shards)]
        files = ["model.safetensors"] if shards == 1 else [f"model-{number}.safetensors" for number in range(shards)]
        for file, names_in_file in zip(files, names, strict=True):
            save_file({key: tensors[key] for key in names_in_file}, weights / file)
        if shards > 1:
            index = {key: file for file, names_in_file in zip(files, names, strict=True) for key in names_in_file}
            (weights / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))

    return make


def load_checkpoint(name: str) -> Callable[[Path], object]:
    def load(folder: Path) -> object:
        text = "data: {dataset: csv, max_length: 32, files: {train: t.csv}}\n"
        text += f"model: {{name: {name}, weights: weights}}\n"
        recipe = recipe_in(folder, text + ("tokenizer: {vocab_size: 50}\n" if name == "ctrl" else ""))
        check_model(recipe)
        stored_config = json.loads((folder / "weights" / "config.json").read_text(encoding="utf-8-sig"))
        config = families.part(name, "schema").resolve(stored_config)
        weights, _ = first_weights(recipe, config, folder / "weights")
        assert all(np.isfinite(value).all() for value in weights.values())
        return weights

    return load


REFORMER, CTRL = "reformer", "ctrl"
KINDS = {
    "csv": Kind("t.csv", lambda folder: rows_as(folder, "t.csv"), load_rows("csv", "t.csv")),
    "json lines": Kind("t.jsonl", lambda folder: rows_as(folder, "t.jsonl"), load_rows("json", "t.jsonl")),
    "parquet": Kind("t.parquet", lambda folder: rows_as(folder, "t.parquet"), load_rows("parquet", "t.parquet")),
    "arrow": Kind("t.arrow", lambda folder: rows_as(folder, "t.arrow"), load_rows("arrow", "t.arrow")),
    "a folder's csv": Kind("train.csv", lambda folder: rows_as(folder, "train.csv"), load_folder),
    "SQuAD": Kind("train.json", squad_in, load_squad),
    "text": Kind("b.txt", documents_in, load_documents),
    "pieces": Kind("spiece.model", pieces_in, load_pieces),
    "a checkpoint's pieces": Kind("weights/spiece.model", pieces_in, load_pieces_of_checkpoint),
    "a tokenizer's settings": Kind("weights/tokenizer_config.json", pieces_in, load_pieces_of_checkpoint),
    "a vocabulary": Kind("pieces/vocab.json", bpe_in, load_bpe),
    "merges": Kind("pieces/merges.txt", bpe_in, load_bpe),
    "settings of CTRL's": Kind("pieces/tokenizer_config.json", bpe_in, load_bpe),
    "Reformer's config": Kind("weights/config.json", checkpoint_in(REFORMER, SMALL, 1), load_checkpoint(REFORMER)),
    "CTRL's config": Kind("weights/config.json", checkpoint_in(CTRL, SMALL_CTRL | {"vocab_size": 60}, 1),
                          load_checkpoint(CTRL)),
    "weights": Kind("weights/model.safetensors", checkpoint_in(REFORMER, SMALL, 1), load_checkpoint(REFORMER)),
    "an index": Kind("weights/model.safetensors.index.json", checkpoint_in(REFORMER, SMALL, 2),
                     load_checkpoint(REFORMER)),
    "a shard": Kind("weights/model-1.safetensors", checkpoint_in(REFORMER, SMALL, 2), load_checkpoint(REFORMER)),
}  # fmt: skip

#: Damages after which some kinds stay valid: the file may be absent, or any text is valid.
HARMLESS = {
    ("a tokenizer's settings", "nothing"),
    ("settings of CTRL's", "nothing"),
    ("text", "only zeros"),
    ("merges", "only zeros"),
}


@pytest.fixture(scope="module")
def valid_files(tmp_path_factory) -> Callable[[str], Path]:
    """Return a function that gives the folder of valid files of a kind, written once."""
    folders: dict[str, Path] = {}

    def of(kind: str) -> Path:
        if kind not in folders:
            folders[kind] = tmp_path_factory.mktemp("good")
            KINDS[kind].make(folders[kind])
        return folders[kind]

    return of


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """Fail the test if a reader waits forever."""

    def late(*_: object) -> None:
        raise AssertionError("reading takes longer than 30 seconds")

    previous_handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous_handler)


def error_of_load(load: Callable[[Path], object], folder: Path) -> str | None:
    """Return the error message for the files in a folder, or None if they load."""
    try:
        load(folder)
    except ToolkitError as problem:
        return str(problem)
    finally:
        cache = Path(os.environ["TOOLKIT_CACHE"])
        partial_files = [
            path for path in cache.rglob("*") if path.name.startswith(".unfinished") or path.name == "scratch"
        ]
        assert not partial_files
    return None


@pytest.mark.parametrize("kind", KINDS)
def test_a_good_file_loads(valid_files, tmp_path, kind):
    folder = Path(shutil.copytree(valid_files(kind), tmp_path / "x"))
    assert error_of_load(KINDS[kind].load, folder) is None


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_bad_file_is_named_in_one_line(valid_files, tmp_path, capfd, kind, name):
    folder = Path(shutil.copytree(valid_files(kind), tmp_path / "x"))
    damage(folder / KINDS[kind].file, name)
    capfd.readouterr()  # `datasets` shows a progress bar on its first write
    message = error_of_load(KINDS[kind].load, folder)
    if message is None:
        assert name not in UNREADABLE or (kind, name) in HARMLESS
        return
    assert message.startswith(f"{folder / 'x.yaml'}:")
    assert "\n" not in message and len(message) < 1000
    streams = capfd.readouterr()
    assert streams.out == streams.err == ""


@pytest.mark.parametrize("place", ["../secret.safetensors", "/etc/secret.safetensors", "a/b.safetensors", "x.bin", 3])
def test_an_index_may_not_name_files_outside_its_folder(valid_files, tmp_path, place):
    folder = Path(shutil.copytree(valid_files("an index"), tmp_path / "x"))
    save_file({"a": np.zeros(1, np.float32)}, tmp_path / "x" / "secret.safetensors")
    (folder / KINDS["an index"].file).write_text(json.dumps({"weight_map": {"classifier.dense.weight": place}}))
    message = error_of_load(KINDS["an index"].load, folder)
    assert message is not None and "it should be a .safetensors file of the same folder" in message
