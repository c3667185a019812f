"""Test files of tensors that are created and written one after another, which saves memory."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.files.tensor_file import LazyArrays, write_tensors

TENSORS = {
    "ä/last": np.arange(6, dtype="float32").reshape(2, 3).T,
    "a": np.float64(1.5).reshape(()),
    "empty": np.zeros((0, 4), "float32"),
    "Z": np.arange(5, dtype="int64"),
    "half": np.ones(3, "float16"),
    "flags": np.array([True, False, True]),
    **{f"of {kind}": np.arange(3).astype(kind) for kind in ("u1", "i1", "i2", "u2", "i4", "u4", "u8")},
}


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_equals_the_librarys_byte_for_byte(metadata, tmp_path):
    write_tensors(tmp_path / "ours", TENSORS, metadata)
    contiguous = {name: np.asarray(value, order="C") for name, value in TENSORS.items()}
    save_file(contiguous, tmp_path / "theirs", metadata=metadata)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def test_each_tensor_is_created_on_demand_and_not_kept(tmp_path):
    alive, max_counts = set(), []

    class CountedArray(np.ndarray):
        def __del__(self):
            alive.discard(id(self))

    def make() -> np.ndarray:
        value = np.zeros(4).view(CountedArray)
        alive.add(id(value))
        max_counts.append(len(alive))
        return value

    tensors = LazyArrays({name: make for name in "abcdef"})
    assert list(tensors) == list("abcdef") and "a" in tensors and not max_counts
    write_tensors(tmp_path / "file", tensors)
    assert len(max_counts) == 12 and max(max_counts) == 1


def test_dtypes_unknown_to_the_format_are_rejected(tmp_path):
    with pytest.raises(ValueError, match="x: complex128"):
        write_tensors(tmp_path / "file", {"x": np.zeros(2, complex)})
    assert not (tmp_path / "file").exists()
