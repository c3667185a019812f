"""Hashes of what both sides are given, taken while the workers compute."""

from __future__ import annotations

import hashlib
import time

import pytest

from toolkit.parity.exchange import hashes
from toolkit.parity.exchange.hashes import hash_job_files


def sha(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def counted(monkeypatch) -> list:
    """The files that were hashed, one after another."""
    seen, sha256 = [], hashes.files.file_sha256
    monkeypatch.setattr(hashes, "EVERY", 0.01)
    monkeypatch.setattr(hashes.files, "file_sha256", lambda path: seen.append(path.name) or sha256(path))
    return seen


def wait_until(seen: list, count: int) -> None:
    end = time.monotonic() + 60
    while len(seen) < count:
        assert time.monotonic() < end
        time.sleep(0.01)


def test_each_file_is_hashed_once_while_others_are_still_to_come(tmp_path, counted):
    for folder in ("reference/truth", "reference/state"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "weights.safetensors").write_bytes(b"w")
    with hash_job_files(tmp_path) as found:
        wait_until(counted, 1)
        (tmp_path / "reference" / "draws.safetensors").write_bytes(b"d")
        wait_until(counted, 2)
        for name in ("truth/a.safetensors", "state/a.safetensors", "b.safetensors.partial", "result.json"):
            (tmp_path / "reference" / name).write_bytes(b"x")
    assert found.all() == {"reference/draws.safetensors": sha(b"d"), "weights.safetensors": sha(b"w")}
    assert counted == ["weights.safetensors", "draws.safetensors"]


def test_what_comes_last_is_hashed_and_what_has_changed_is_hashed_again(tmp_path, counted):
    (tmp_path / "a.safetensors").write_bytes(b"half of ")
    with hash_job_files(tmp_path) as found:
        wait_until(counted, 1)
    (tmp_path / "a.safetensors").write_bytes(b"half of it and the rest")
    (tmp_path / "b.safetensors").write_bytes(b"b")
    assert found.all() == {"a.safetensors": sha(b"half of it and the rest"), "b.safetensors": sha(b"b")}


def test_a_gate_that_was_stopped_hashes_no_more(tmp_path, counted):
    with pytest.raises(KeyboardInterrupt), hash_job_files(tmp_path):
        raise KeyboardInterrupt
    time.sleep(0.1)
    (tmp_path / "a.safetensors").write_bytes(b"a")
    time.sleep(0.1)
    assert counted == []
