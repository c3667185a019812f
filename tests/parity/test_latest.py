"""Test that a tensor equal to the previous tensor is measured, written and read once, and that no other tensor is."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from toolkit.parity.exchange.tensor_file import TensorFile, TensorWriter, are_one
from toolkit.parity.measure.latest import LastMeasurement
from toolkit.parity.reference.recorder import Draws, Recorder


class Wrapper(torch.nn.Module):
    """Return the child's output, changed in place or not."""

    def __init__(self, is_changed: bool) -> None:
        super().__init__()
        self.child = torch.nn.Linear(2, 2)
        self.is_changed = is_changed

    def forward(self, x):
        output = self.child(x)
        return output.add_(1) if self.is_changed else output


class Model(torch.nn.Module):
    def __init__(self, is_changed: bool) -> None:
        super().__init__()
        self.wrapped = Wrapper(is_changed)

    def forward(self, x):
        return self.wrapped(x) * 2


@pytest.mark.parametrize("is_changed", [False, True])
def test_the_reference_reuses_values_only_if_nothing_has_changed_them(is_changed):
    values, model = [], Model(is_changed)
    copies = {}

    def record_value(name, value):
        values.append(value)
        copies[name] = value.copy()

    with torch.no_grad(), Recorder(model, Draws(0), record_value).watch():
        model(torch.ones(1, 2))
    assert list(copies) == ["output:wrapped.child", "output:wrapped"]
    assert (values[0] is values[1]) is not is_changed
    np.testing.assert_array_equal(copies["output:wrapped"], copies["output:wrapped.child"] + is_changed)


def test_only_the_identical_previous_object_is_not_measured_again():
    measured_names = []

    def measure(name, value):
        measured_names.append(name)
        return float(value.sum())

    value, equal = np.ones(3), np.ones(3)
    measure_or_reuse = LastMeasurement(measure, lambda first, second: (first, second) != ("d", "e"))
    names = {"a": value, "b": value, "c": equal, "d": value, "e": value}
    assert [measure_or_reuse(name, tensor) for name, tensor in names.items()] == [3.0] * 5
    assert measured_names == ["a", "c", "d", "e"]


@pytest.mark.parametrize("shape", [(3,), (300, 100)])
def test_an_array_changed_behind_the_framework_is_measured_again(shape):
    measure_or_reuse, value = LastMeasurement(lambda name, value: float(value.sum())), np.ones(shape)
    assert measure_or_reuse("a", value) == value.size
    value *= 2
    assert measure_or_reuse("b", value) == 2 * value.size
    value[:] = np.nan
    assert np.isnan(measure_or_reuse("c", value)) and np.isnan(measure_or_reuse("d", value))


def test_a_repeated_tensor_is_written_once_and_read_under_both_names(tmp_path):
    path, value = tmp_path / "tensors.safetensors", np.arange(6.0).reshape(2, 3)
    with TensorWriter(path, 8) as writer:  # too small a buffer, so that the file is assembled again
        writer.add("child", value)
        writer.repeat("parent", "child")
        writer.add("equal", value)
        for existing_name in ("child", "parent"):
            with pytest.raises(ValueError, match="two tensors have the name"):
                writer.add(existing_name, value)
            with pytest.raises(ValueError, match="two tensors have the name"):
                writer.repeat(existing_name, "equal")
    read = TensorFile(path)
    assert list(read) == ["child", "equal", "parent"]
    for name in read:
        np.testing.assert_array_equal(read[name], value, strict=True)
    assert load_file(path).keys() == {"child", "equal"}
    assert are_one(read, "child", "parent") and not are_one(read, "child", "equal")
    assert not are_one(read, "gone", "gone too") and not are_one(dict(read), "child", "parent")


@pytest.mark.parametrize("repeats", ['{"b": "gone"}', '{"a": "a"}'])
def test_a_file_with_invalid_repetitions_is_rejected(repeats, tmp_path):
    save_file({"a": np.ones(3)}, tmp_path / "a.safetensors", metadata={"repeats": repeats})
    with pytest.raises(ValueError, match=r"a\.safetensors: says that . is (a|gone) once more, which cannot be"):
        TensorFile(tmp_path / "a.safetensors")
