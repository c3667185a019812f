"""Test tensors on disk: the safetensors library can read them, and its files can be read, completely or not at all."""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from toolkit.parity.exchange.tensor_file import MIN_MAPPED_BYTES, SpilledTensors, TensorFile, TensorWriter

TENSORS = {
    "loss": np.float64(0.5),
    "gradient:a/ü": np.arange(6.0, dtype=np.float32).reshape(2, 3),
    "mask": np.array([[1, 0]], np.uint8),
    "ids": np.array([-1, 2**40]),
    "empty": np.zeros((0, 3)),
}


@pytest.mark.parametrize("room", [2**20, 8])
def test_tensors_written_one_by_one_are_read_by_the_library(tmp_path, room):
    path = tmp_path / "tensors.safetensors"
    with TensorWriter(path, room) as writer:
        for name, value in TENSORS.items():
            writer.add(name, value)
        assert not path.exists()
    read = load_file(path)
    assert read.keys() == TENSORS.keys()
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(read[name], value, strict=True)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_file_of_the_library_is_read_one_by_one(tmp_path):
    path = tmp_path / "tensors.safetensors"
    save_file({name: np.asarray(value) for name, value in TENSORS.items()}, path, metadata={"made": "by a test"})
    read = TensorFile(path)
    assert set(read) == set(TENSORS) and len(read) == len(TENSORS) and "gone" not in read
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(read[name], value, strict=True)


def test_a_truncated_file_is_rejected(tmp_path):
    path = tmp_path / "tensors.safetensors"
    save_file({"a": np.arange(6.0)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match=r"tensors\.safetensors: ends within a tensor"):
        TensorFile(path)["a"]


@pytest.mark.parametrize("longer", [True, False])
def test_an_overwritten_file_keeps_no_old_content(longer, tmp_path):
    path, spare = tmp_path / "tensors.safetensors", tmp_path / "spare"
    value = np.arange(100.0)
    with TensorWriter(tmp_path / "alone.safetensors", 256) as writer:
        writer.add("a", value)
    spare.write_bytes(b"\xff" * (10_000 if longer else 10))
    with TensorWriter(path, 256, replaced_file=spare) as writer:
        assert not spare.exists()
        writer.add("a", value)
    assert path.read_bytes() == (tmp_path / "alone.safetensors").read_bytes()
    with TensorWriter(path, 256, replaced_file=spare) as writer:  # the file does not exist now
        writer.add("b", value)
    assert load_file(path).keys() == {"b"}


def test_tensors_remain_valid_when_their_file_is_deleted(tmp_path):
    path, matrix = tmp_path / "tensors.safetensors", np.arange(2.0 * MIN_MAPPED_BYTES).reshape(-1, 4)
    save_file({"matrix": matrix}, path)
    read = TensorFile(path)
    path.unlink()
    np.testing.assert_array_equal(read.rows("matrix", 1, 3), matrix[1:3])
    np.testing.assert_array_equal(read.rows("matrix", 7, len(matrix) + 5), matrix[7:])


def test_a_large_tensor_is_written_and_read_in_parts(tmp_path):
    path, matrix = tmp_path / "tensors.safetensors", np.arange(35.0).reshape(7, 5)
    with TensorWriter(path) as writer:
        writer.add("before", np.ones(3, np.float32))
        writer.begin("matrix", "float64", matrix.shape)
        for start in range(0, 7, 3):
            writer.extend(matrix[start : start + 3])
        writer.add("after", np.zeros(2, np.uint8))
    np.testing.assert_array_equal(load_file(path)["matrix"], matrix, strict=True)
    read = TensorFile(path)
    assert read.shape("matrix") == (7, 5) and read["after"].tolist() == [0, 0]
    np.testing.assert_array_equal(read.rows("matrix", 2, 5), matrix[2:5], strict=True)
    np.testing.assert_array_equal(read.rows("matrix", 6, 9), matrix[6:], strict=True)
    assert [piece.tolist() for piece in read.pieces("before", 2)] == [[1, 1], [1]]
    assert [len(piece) for piece in read.pieces("matrix", 15)] == [15, 15, 5]
    np.testing.assert_array_equal(np.concatenate(list(read.pieces("matrix", 15))), matrix.ravel(), strict=True)


def test_a_repeated_name_is_rejected_and_leaves_no_file(tmp_path):
    with pytest.raises(ValueError, match="two tensors have the name a"), TensorWriter(tmp_path / "t") as writer:
        writer.add("a", np.zeros(2))
        writer.add("a", np.ones(2))
    assert list(tmp_path.iterdir()) == []


def test_spilled_tensors_are_read_before_and_after_they_become_a_file(tmp_path):
    path = tmp_path / "tensors.safetensors"
    spilled_tensors = SpilledTensors()
    for name, value in TENSORS.items():
        spilled_tensors[name] = np.asarray(value)
        np.testing.assert_array_equal(spilled_tensors[name], value, strict=True)
    np.testing.assert_array_equal(spilled_tensors["loss"], TENSORS["loss"], strict=True)
    with pytest.raises(ValueError, match="two tensors have the name loss"):
        spilled_tensors["loss"] = np.zeros(1)
    spilled_tensors.write(path)
    read = load_file(path)
    assert (
        set(spilled_tensors) == set(read) == set(TENSORS)
        and len(spilled_tensors) == len(TENSORS)
        and "gone" not in spilled_tensors
    )
    for name, value in TENSORS.items():
        np.testing.assert_array_equal(read[name], value, strict=True)
        np.testing.assert_array_equal(spilled_tensors[name], value, strict=True)
    with pytest.raises(ValueError, match="late: the file is written"):
        spilled_tensors["late"] = np.zeros(1)


@pytest.mark.parametrize("num_bytes_before", [8, 3], ids=["in line", "out of line"])
def test_a_large_tensor_is_read_exactly_and_changes_to_it_change_no_file(tmp_path, num_bytes_before):
    """A tensor whose offset is not a multiple of its element size is not mapped, because sums of it would be slow."""
    path, large = tmp_path / "tensors.safetensors", np.arange(2.0 * MIN_MAPPED_BYTES / 8).reshape(2, -1)
    with TensorWriter(path) as writer:
        writer.add("mask", np.ones(num_bytes_before, np.uint8))
        writer.add("large", large)
    file = TensorFile(path)
    read = file["large"]
    assert read.flags.aligned and type(read) is np.ndarray
    np.testing.assert_array_equal(read, large, strict=True)
    read[:] = 0
    np.testing.assert_array_equal(file["large"], large, strict=True)
    np.testing.assert_array_equal(load_file(path)["large"], large, strict=True)
