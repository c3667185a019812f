"""Test checkpoints that are pickles.

Another process reads each once with torch's safe unpickler, and code in them never runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from models.files import hub
from models.files.plain import UnreadableFileError
from toolkit.parity.processes.pickles import safetensors_folder

#: Writes checkpoints as torch does, into the given folder.
WRITE = """
import os, pickle, sys
from collections import OrderedDict
from pathlib import Path
import torch

class Payload:
    def __init__(self, mark): self.mark = str(mark)
    def __reduce__(self): return os.system, (f"touch {self.mark}",)

here = Path(sys.argv[1])
def save(name, content, file="pytorch_model.bin", **how):
    (here / name).mkdir(exist_ok=True)
    torch.save(content, here / name / file, **how)

table = torch.arange(12.0).reshape(3, 4)
state = OrderedDict(table=table, tied=table, turned=table.t(), mask=torch.tensor(-1e9), half=table.half())
state._metadata = OrderedDict(version=1)
save("zip", state)
save("legacy", state, _use_new_zipfile_serialization=False)
save("sharded", {"a": table}, "pytorch_model-00001-of-00002.bin")
save("sharded", {"b": table + 1}, "pytorch_model-00002-of-00002.bin")
save("payload", {"a": table, "b": Payload(here / "ran")})
save("legacy-payload", {"b": Payload(here / "ran")}, _use_new_zipfile_serialization=False)
(here / "plain-payload").mkdir()
(here / "plain-payload" / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(here / "ran"), 2))
save("module", torch.nn.Linear(2, 2))
save("nested", {"model": {"a": table}})
save("list", [table])
save("sparse", {"a": table.to_sparse()})
save("empty-dict", {})
for name, source in (("cut", "zip"), ("legacy-cut", "legacy")):
    content = (here / source / "pytorch_model.bin").read_bytes()
    save(name, {})
    (here / name / "pytorch_model.bin").write_bytes(content[:-100])
"""


@pytest.fixture(scope="module")
def pickles(tmp_path_factory) -> Path:
    """Return a folder with a checkpoint per name."""
    folder = tmp_path_factory.mktemp("pickles")
    subprocess.run([sys.executable, "-c", WRITE, str(folder)], check=True, timeout=300)
    shards = {"a": "pytorch_model-00001-of-00002.bin", "b": "pytorch_model-00002-of-00002.bin"}
    (folder / "sharded" / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": shards}))
    return folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.parametrize("name", ["zip", "legacy"])
def test_pickles_of_both_formats_are_converted_to_safetensors(pickles, name):
    arrays = dict(hub.read_tensors(safetensors_folder(pickles / name)))
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert {key: value.dtype.name for key, value in arrays.items()} == {
        "table": "float32", "tied": "float32", "turned": "float32", "mask": "float32", "half": "float16",
    }  # fmt: skip
    for key, value in {"table": table, "tied": table, "turned": table.T, "mask": np.float32(-1e9)}.items():
        np.testing.assert_array_equal(arrays[key], value)


def test_a_sharded_pickle_is_read_whole(pickles):
    arrays = dict(hub.read_tensors(safetensors_folder(pickles / "sharded")))
    np.testing.assert_array_equal(arrays["b"] - arrays["a"], np.ones((3, 4), np.float32))


def test_a_pickle_is_converted_once_for_its_content_at_any_path(pickles, tmp_path, capfd, monkeypatch):
    first = safetensors_folder(pickles / "legacy")
    assert "reading pytorch_model.bin" in capfd.readouterr().err
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / "pytorch_model.bin").write_bytes((pickles / "legacy" / "pytorch_model.bin").read_bytes())
    assert safetensors_folder(tmp_path / "moved", python="/there/is/none") == first
    assert capfd.readouterr().err == ""


def test_safetensors_are_preferred_to_a_pickle_next_to_them(pickles, tmp_path):
    converted_dir = safetensors_folder(pickles / "zip")
    mixed_dir = tmp_path / "both"
    mixed_dir.mkdir()
    for file in converted_dir.glob("model*"):
        (mixed_dir / file.name).write_bytes(file.read_bytes())
    (mixed_dir / "pytorch_model.bin").write_bytes(b"not looked at")
    assert safetensors_folder(mixed_dir) == mixed_dir


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("payload", "asks for posix.system, which is code; nothing of it was run"),
        ("legacy-payload", "asks for posix.system, which is code; nothing of it was run"),
        ("plain-payload", "nothing of it was run"),
        ("module", "asks for torch.nn.modules.linear.Linear, which is code"),
        ("nested", "holds model, which is no plain tensor; save the model's state_dict() alone"),
        ("list", "holds list, not tensors by name (a state_dict)"),
        ("sparse", "holds a, which is no plain tensor"),
        ("empty-dict", "there are no tensors in it"),
        ("cut", "it may be cut short"),
        ("legacy-cut", "it may be cut short"),
    ],
)
def test_an_invalid_file_is_rejected_in_one_line_and_its_code_never_runs(pickles, cache, name, message):
    with pytest.raises(UnreadableFileError) as raised_error:
        safetensors_folder(pickles / name)
    assert str(pickles / name) in str(raised_error.value)
    assert message in str(raised_error.value)
    assert "\n" not in str(raised_error.value)
    assert not (pickles / "ran").exists()
    assert not list(cache.glob("weights/*"))


def test_the_payload_of_these_tests_runs_if_a_file_is_simply_unpickled(pickles, tmp_path):
    unpickle = "import pickle, sys; pickle.load(open(sys.argv[1], 'rb'))"
    subprocess.run([sys.executable, "-c", unpickle, str(pickles / "plain-payload" / "pytorch_model.bin")], check=True)
    assert (pickles / "ran").exists()
    (pickles / "ran").unlink()


def test_missing_torch_is_reported_with_advice(pickles, tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # -S: no installed package is found
    python.chmod(0o755)
    with pytest.raises(UnreadableFileError, match=r"--reference-python PATH; .* or a revision that holds safetensors"):
        safetensors_folder(pickles / "zip", python=str(python))


def test_an_unsafe_version_of_torch_does_not_read_the_file(pickles, tmp_path):
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("__version__ = '2.5.1'\nclass Tensor: pass\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={tmp_path} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").write_text("")
    (tmp_path / "safetensors" / "torch.py").write_text("save_file = None\n")
    with pytest.raises(UnreadableFileError, match=r"torch 2\.5\.1 does not unpickle safely; 2\.6 or newer does"):
        safetensors_folder(pickles / "zip", python=str(python))


def test_an_index_cannot_name_files_of_other_folders(pickles, tmp_path):
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "../pytorch_model.bin"}}))
    with pytest.raises(UnreadableFileError, match=r"it should be a \.bin file of the same folder"):
        safetensors_folder(tmp_path)
