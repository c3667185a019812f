"""Test sources of data: only rows are read, never code.

Files are compared by content and not by time stamp, and local data needs no network.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import datasets
import pytest

from toolkit.commands.recipe_check import check_data
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification

ROOT = Path(__file__).parents[2]
HEAD = "train: {epochs: 1, learning_rate: 1e-3}\nmodel: {config: {axial_pos_shape: [4, 8]}}\n"
ROWS = [{"text": f"text number {index}", "label": ["no", "yes"][index % 2]} for index in range(20)]


class Payload:
    """Create a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (open, (str(self.path), "w"))


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return a function that writes a recipe over a data set in an empty current folder."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def make(dataset: str, more: str = "validation_fraction: 0.5"):
        (tmp_path / "x.yaml").write_text(HEAD + f"data: {{dataset: {dataset}, max_length: 32, {more}}}\n")
        return load_recipe(tmp_path / "x.yaml")

    return make


def error_of(recipe) -> str:
    """Return the error of a check and of a run, which must be equal."""
    with pytest.raises(UserError) as check_error:
        check_data(recipe)
    with pytest.raises(UserError) as run:
        classification.load_splits(recipe)
    assert str(check_error.value) == str(run.value) and "\n" not in str(run.value)
    return str(run.value).removeprefix(str(recipe.path))


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


# -- code -----------------------------------------------------------------------------------------------------------


def test_a_pickle_in_the_current_folder_is_not_opened(recipe, tmp_path):
    ran = tmp_path / "ran"
    Path("train.pkl").write_bytes(pickle.dumps(Payload(ran)))
    assert error_of(recipe("pandas")).startswith(":3: data.dataset: pandas is not read here: only data that cannot run")
    assert not ran.exists()
    pickle.loads(Path("train.pkl").read_bytes()).close()  # the payload is a pickle
    assert ran.exists()


OTHERS = sorted(set(os.listdir(Path(datasets.__file__).parent / "packaged_modules")) - {"__init__.py", "__pycache__"})


@pytest.mark.parametrize("name", sorted(set(OTHERS) - {"csv", "json", "parquet", "arrow", "text"}))
def test_every_other_reader_of_the_library_is_refused(recipe, name):
    assert ":3: data.dataset: " in error_of(recipe(name)) and "set one of json, csv, xlsx, parquet" in error_of(
        recipe(name)
    )


@pytest.mark.parametrize(
    "name", ["hf://datasets/a/b", "https://a.b/c.csv", "a/b/c", "buckets/a", "a/b.py", "s3://x/y", "../nowhere", "/no"]
)
def test_an_invalid_name_of_a_data_set_is_refused(recipe, name):
    assert error_of(recipe(name)).startswith(f":3: data.dataset: {name} is neither a folder nor the name of a hub data")


def test_a_file_as_the_data_set_is_refused_with_its_key(recipe):
    jsonl(Path("t.jsonl"), ROWS)
    assert "t.jsonl is a file; set its kind (json, csv, xlsx, parquet, arrow, text), and" in error_of(recipe("t.jsonl"))


def test_a_folder_with_a_script_is_refused_and_the_script_not_run(recipe, tmp_path):
    Path("corpus").mkdir()
    jsonl(Path("corpus/train.jsonl"), ROWS)
    Path("corpus/corpus.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    assert "corpus.py is a script, which is not run" in error_of(recipe("corpus"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("file", ["train.png", "train.tar", "train.xml", "train.h5", "train.zip"])
def test_a_folder_of_other_files_is_refused(recipe, file):
    Path("corpus").mkdir()
    Path("corpus", file).write_bytes(b"PK\x05\x06" + bytes(18) if file.endswith("zip") else b"x")
    assert error_of(recipe("corpus")).startswith(":3: data.dataset: ")


def test_a_folder_of_pickles_is_refused_and_none_opened(recipe, tmp_path):
    Path("corpus").mkdir()
    Path("corpus/train.pkl").write_bytes(pickle.dumps(Payload(tmp_path / "ran")))
    assert error_of(recipe("corpus")).startswith(":3: data.dataset: ")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("place", ["https://example.org/train.csv", "../train.csv", "/etc/passwd"])
def test_a_folder_s_card_may_not_name_data_outside_of_it(recipe, place):
    Path("corpus").mkdir()
    jsonl(Path("corpus/train.jsonl"), ROWS)
    Path("corpus/README.md").write_text(f"---\nconfigs:\n- config_name: default\n  data_files: {place}\n---\nText\n")
    assert f"README.md names data outside of its folder: {place}" in error_of(recipe("corpus"))


def test_a_folder_s_card_may_name_its_own_files(recipe):
    Path("corpus").mkdir()
    jsonl(Path("corpus/a.jsonl"), ROWS)
    Path("corpus/README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: a.jsonl\n---\nText\n")
    assert len(classification.load_splits(recipe("corpus"))["train"]) == 10


def test_a_folder_s_csv_is_checked_like_a_file_unless_its_card_has_a_layout(recipe):
    Path("corpus").mkdir()
    rows = "".join(f"text number {index},{index % 2}\n" for index in range(20))
    Path("corpus/train.csv").write_text("text,label\n" + rows + "short\n")
    assert "corpus/train.csv:22: row 21 has 1 field and the header 2" in error_of(recipe("corpus"))
    Path("corpus/train.csv").write_text("made by hand\ntext,label\n" + rows)
    card = "configs:\n- {config_name: default, data_files: train.csv, skiprows: 1}"
    Path("corpus/README.md").write_text(f"---\n{card}\n---\nText\n")
    assert len(classification.load_splits(recipe("corpus"))["train"]) == 10


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_parquet_and_arrow_files_are_data(recipe, kind):
    rows = datasets.Dataset.from_list(ROWS)
    if kind == "parquet":
        rows.to_parquet("t.parquet")
    else:
        rows.save_to_disk("saved")
        next(Path("saved").glob("*.arrow")).rename("t.arrow")
    splits = classification.load_splits(recipe(kind, f"validation_fraction: 0.5, files: {{train: t.{kind}}}"))
    assert len(splits["train"]) == 10 and splits["train"].features["label"].names == ["no", "yes"]


# -- content --------------------------------------------------------------------------------------------------------


def test_a_file_with_new_content_and_an_old_time_stamp_is_read_again(recipe):
    loaded_recipe = recipe("json", "validation_fraction: 0.5, files: {train: t.jsonl}")
    path = jsonl(Path("t.jsonl"), ROWS * 3)
    old_stat = path.stat()
    assert len(classification.load_splits(loaded_recipe)["train"]) == 30
    jsonl(path, [{**row, "text": row["text"].upper()} for row in ROWS])
    os.utime(path, ns=(old_stat.st_atime_ns, old_stat.st_mtime_ns))
    assert path.stat().st_mtime_ns == old_stat.st_mtime_ns
    train = classification.load_splits(loaded_recipe)["train"]
    assert len(train) == 10 and train["text"][0].startswith("TEXT")


def test_a_folder_with_a_new_file_and_an_old_time_stamp_is_read_again(recipe):
    Path("corpus").mkdir()
    path = jsonl(Path("corpus/train.jsonl"), ROWS * 3)
    old_stat = path.stat()
    assert len(classification.load_splits(recipe("corpus"))["train"]) == 30
    jsonl(path, ROWS)
    os.utime(path, ns=(old_stat.st_atime_ns, old_stat.st_mtime_ns))
    assert len(classification.load_splits(recipe("corpus"))["train"]) == 10


def test_a_file_with_any_name_is_read_once(recipe, tmp_path):
    loaded_recipe = recipe("json", "files: {train: 't[1]::a*.jsonl', validation: b.jsonl}")
    jsonl(Path("t[1]::a*.jsonl"), ROWS)
    jsonl(Path("b.jsonl"), ROWS)
    assert len(classification.load_splits(loaded_recipe)["train"]) == 20
    assert len(list(Path(os.environ["TOOLKIT_CACHE"], "rows").iterdir())) == 1


def test_a_csv_row_with_more_fields_than_the_header_does_not_shift_the_columns(recipe):
    loaded_recipe = recipe("csv", "validation_fraction: 0.5, files: {train: t.csv}")
    Path("t.csv").write_text("text,label\n" + "".join(f"a{index},{index % 2},\n" for index in range(8)))
    assert set(classification.load_splits(loaded_recipe)["train"]["text"]) < {f"a{index}" for index in range(8)}
    Path("t.csv").write_text("text,label\n" + "".join(f"a{index},{index % 2},more\n" for index in range(8)))
    assert "t.csv:2: row 1 has 3 fields and the header 2; put quotes round a text that holds ','" in error_of(
        loaded_recipe
    )


# -- network --------------------------------------------------------------------------------------------------------

#: Runs first in a process: records every look-up of a name and every connection to other machines.
WATCH = """
import os, socket
real = socket.socket.connect
def note(what):
    with open(os.environ["WATCHED"], "a") as file:
        print(what, file=file)
    raise OSError(f"no network: {what}")
def connect(self, address):
    if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1"):
        note(address)
    return real(self, address)
socket.socket.connect = connect
socket.getaddrinfo = socket.gethostbyname = lambda host, *_, **__: note(host)
"""


def run_and_watch(tmp_path: Path, *arguments: object) -> tuple[int, str, str]:
    """Run a Python process with these arguments; return its exit status, its output and its network accesses."""
    (tmp_path / "watch").mkdir(exist_ok=True)
    (tmp_path / "watch" / "sitecustomize.py").write_text(WATCH)
    offline = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_UPDATE_DOWNLOAD_COUNTS")
    environment = {name: value for name, value in os.environ.items() if name not in offline}
    environment["PYTHONPATH"] = f"{tmp_path / 'watch'}{os.pathsep}{ROOT}"
    environment["WATCHED"] = str(tmp_path / "watched")
    command = [sys.executable, *map(str, arguments)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    network_log = tmp_path / "watched"
    return (
        result.returncode,
        result.stdout + result.stderr,
        network_log.read_text() if network_log.exists() else "",
    )


@pytest.mark.parametrize("dataset", ["json", "corpus"])
def test_a_check_of_local_data_uses_no_network(recipe, tmp_path, dataset):
    Path("corpus").mkdir()
    jsonl(Path("corpus/train.jsonl"), ROWS)
    files = ", files: {train: corpus/train.jsonl}" if dataset == "json" else ""
    loaded_recipe = recipe(dataset, "validation_fraction: 0.5" + files)
    status, out, err = run_and_watch(tmp_path, "-m", "toolkit", "recipe", "check", loaded_recipe.path)
    assert (status, err) == (0, "") and out.endswith(f"{loaded_recipe.path}: ok\n")


SMALL = "attn_layers: [local], hidden_size: 32, axial_pos_embds_dim: [16, 16], axial_pos_shape: [4, 8]"


@pytest.mark.slow
def test_a_run_on_local_data_and_its_evaluation_use_no_network(tmp_path):
    jsonl(tmp_path / "t.jsonl", ROWS)
    (tmp_path / "x.yaml").write_text(
        f"train: {{max_steps: 2, learning_rate: 1e-3, output_dir: {tmp_path / 'run'}}}\n"
        f"model: {{config: {{{SMALL}, num_attention_heads: 1, local_num_chunks_after: 1}}}}\n"
        f"data: {{dataset: json, max_length: 32, validation_fraction: 0.5, files: {{train: {tmp_path / 't.jsonl'}}}}}\n"
    )
    training = run_and_watch(tmp_path, "-m", "toolkit", "finetune", tmp_path / "x.yaml", "--skip-parity", "a test")
    assert (training[0], training[2]) == (0, ""), training[1]
    evaluation = run_and_watch(tmp_path, "-m", "toolkit", "evaluate", tmp_path / "run", "--split", "validation")
    assert (evaluation[0], evaluation[2]) == (0, ""), evaluation[1]


def test_the_watch_sees_look_ups_and_connections(tmp_path):
    code = """
import socket
for reach in (lambda: socket.getaddrinfo("huggingface.co", 443), lambda: socket.socket().connect(("10.0.0.1", 80))):
    try:
        reach()
    except OSError:
        pass
"""
    assert run_and_watch(tmp_path, "-c", code) == (0, "", "huggingface.co\n('10.0.0.1', 80)\n")


# -- built-in data --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recipe_file", ["reformer_cls", "reformer_qa"])
def test_a_demo_without_its_package_suggests_the_installation(monkeypatch, recipe_file):
    monkeypatch.setitem(sys.modules, "babel", None)  # simulates a missing package
    demo_recipe = load_recipe(ROOT / "recipes" / f"{recipe_file}.yaml")
    with pytest.raises(UserError, match=r"data\.dataset: cldr_\w+ is made with babel, .*; pip install .*\[demo\]'$"):
        check_data(demo_recipe)


def test_other_data_needs_no_package_of_the_demos(recipe, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "babel", None)
    jsonl(tmp_path / "t.jsonl", ROWS)
    assert check_data(recipe("json", f"files: {{train: {tmp_path}/t.jsonl}}, validation_fraction: 0.5")) is not None
