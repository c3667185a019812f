"""Test the hashes of the inputs of both sides, which are computed while the workers run."""

from __future__ import annotations

import hashlib
import time

import pytest

from toolkit.parity.exchange import hashes
from toolkit.parity.exchange.hashes import hash_job_files


def sha256_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def hashed_paths(monkeypatch) -> list:
    """Return a list that records the path of each hashed file."""
    paths, sha256 = [], hashes.files.file_sha256
    monkeypatch.setattr(hashes, "EVERY", 0.01)
    monkeypatch.setattr(hashes.files, "file_sha256", lambda path: paths.append(path.name) or sha256(path))
    return paths


def wait_until(paths: list, count: int) -> None:
    end = time.monotonic() + 60
    while len(paths) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_each_file_is_hashed_once_before_all_files_exist(tmp_path, hashed_paths):
    for folder in ("reference/truth", "reference/state"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "weights.safetensors").write_bytes(b"w")
    with hash_job_files(tmp_path) as file_hashes:
        wait_until(hashed_paths, 1)
        (tmp_path / "reference" / "draws.safetensors").write_bytes(b"d")
        wait_until(hashed_paths, 2)
        for name in ("truth/a.safetensors", "state/a.safetensors", "b.safetensors.partial", "result.json"):
            (tmp_path / "reference" / name).write_bytes(b"x")
    assert file_hashes.all() == {"reference/draws.safetensors": sha256_of(b"d"), "weights.safetensors": sha256_of(b"w")}
    assert hashed_paths == ["weights.safetensors", "draws.safetensors"]


def test_a_late_file_is_hashed_and_a_changed_file_is_hashed_again(tmp_path, hashed_paths):
    (tmp_path / "a.safetensors").write_bytes(b"half of ")
    with hash_job_files(tmp_path) as file_hashes:
        wait_until(hashed_paths, 1)
    (tmp_path / "a.safetensors").write_bytes(b"half of it and the rest")
    (tmp_path / "b.safetensors").write_bytes(b"b")
    assert file_hashes.all() == {
        "a.safetensors": sha256_of(b"half of it and the rest"),
        "b.safetensors": sha256_of(b"b"),
    }


def test_a_stopped_gate_hashes_no_more_files(tmp_path, hashed_paths):
    with pytest.raises(KeyboardInterrupt), hash_job_files(tmp_path):
        raise KeyboardInterrupt
    time.sleep(0.1)
    (tmp_path / "a.safetensors").write_bytes(b"a")
    time.sleep(0.1)
    assert hashed_paths == []
