"""A tensor that is the one before it once more is measured, written and read once; any other is not taken for it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from toolkit.parity.exchange.tensor_file import TensorFile, TensorWriter, are_one
from toolkit.parity.measure.latest import LastMeasurement
from toolkit.parity.reference.recorder import Draws, Recorder


class Wrapped(torch.nn.Module):
    """Gives what its child gives, changed in place or not."""

    def __init__(self, changed: bool) -> None:
        super().__init__()
        self.child = torch.nn.Linear(2, 2)
        self.changed = changed

    def forward(self, x):
        output = self.child(x)
        return output.add_(1) if self.changed else output


class Model(torch.nn.Module):
    def __init__(self, changed: bool) -> None:
        super().__init__()
        self.wrapped = Wrapped(changed)

    def forward(self, x):
        return self.wrapped(x) * 2


@pytest.mark.parametrize("changed", [False, True])
def test_the_reference_hands_on_the_same_values_only_where_nothing_has_changed_them(changed):
    kept, model = [], Model(changed)
    copies = {}

    def keep(name, value):
        kept.append(value)
        copies[name] = value.copy()

    with torch.no_grad(), Recorder(model, Draws(0), keep).watch():
        model(torch.ones(1, 2))
    assert list(copies) == ["output:wrapped.child", "output:wrapped"]
    assert (kept[0] is kept[1]) is not changed
    np.testing.assert_array_equal(copies["output:wrapped"], copies["output:wrapped.child"] + changed)


def test_only_the_very_object_before_is_not_measured_again():
    measured = []

    def measure(name, value):
        measured.append(name)
        return float(value.sum())

    value, equal = np.ones(3), np.ones(3)
    found = LastMeasurement(measure, lambda first, second: (first, second) != ("d", "e"))
    names = {"a": value, "b": value, "c": equal, "d": value, "e": value}
    assert [found(name, one) for name, one in names.items()] == [3.0] * 5
    assert measured == ["a", "c", "d", "e"]


@pytest.mark.parametrize("shape", [(3,), (300, 100)])
def test_what_is_written_to_past_the_framework_is_measured_again(shape):
    found, value = LastMeasurement(lambda name, value: float(value.sum())), np.ones(shape)
    assert found("a", value) == value.size
    value *= 2
    assert found("b", value) == 2 * value.size
    value[:] = np.nan
    assert np.isnan(found("c", value)) and np.isnan(found("d", value))


def test_a_tensor_that_is_another_is_written_once_and_read_under_both_names(tmp_path):
    path, value = tmp_path / "tensors.safetensors", np.arange(6.0).reshape(2, 3)
    with TensorWriter(path, 8) as writer:  # too little room, so that the file is put together anew
        writer.add("child", value)
        writer.repeat("parent", "child")
        writer.add("equal", value)
        for taken in ("child", "parent"):
            with pytest.raises(ValueError, match="two tensors have the name"):
                writer.add(taken, value)
            with pytest.raises(ValueError, match="two tensors have the name"):
                writer.repeat(taken, "equal")
    read = TensorFile(path)
    assert list(read) == ["child", "equal", "parent"]
    for name in read:
        np.testing.assert_array_equal(read[name], value, strict=True)
    assert load_file(path).keys() == {"child", "equal"}
    assert are_one(read, "child", "parent") and not are_one(read, "child", "equal")
    assert not are_one(read, "gone", "gone too") and not are_one(dict(read), "child", "parent")


@pytest.mark.parametrize("repeats", ['{"b": "gone"}', '{"a": "a"}'])
def test_a_file_that_says_what_cannot_be_is_refused(repeats, tmp_path):
    save_file({"a": np.ones(3)}, tmp_path / "a.safetensors", metadata={"repeats": repeats})
    with pytest.raises(ValueError, match=r"a\.safetensors: says that . is (a|gone) once more, which cannot be"):
        TensorFile(tmp_path / "a.safetensors")
