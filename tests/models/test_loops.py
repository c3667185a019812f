"""The compiled loops against the same operations composed of Paddle's in float64, and what they promise beside that."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import paddle
import pytest
from test_ops import values_and_gradients

from models.ctrl.config import CTRLConfig
from models.ctrl.layers import MultiHeadAttention, attention_bias
from models.operations import compiled, kernels, ops, randomness
from models.operations.rows import adjacent_chunks, reorder
from models.reformer import reversible
from models.reformer.attention import LocalSelfAttention, LSHSelfAttention
from models.reformer.config import ReformerConfig

pytestmark = pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")

#: Of the largest number: some roundings of float32.
CLOSE = 1e-6


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(0)


def assert_equals_the_composed_one(monkeypatch, function, *inputs: np.ndarray) -> None:
    """Values and gradients, compiled in float32, against those composed in float64."""
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    ours = values_and_gradients(function, *(value.astype("float32") for value in inputs))
    monkeypatch.setenv("TOOLKIT_KERNELS", "composed")
    exact = values_and_gradients(function, *(value.astype("float32").astype("float64") for value in inputs))
    for our, truth in zip(ours, exact, strict=True):
        assert our.dtype == np.float32 and our.shape == truth.shape
        np.testing.assert_allclose(our, truth, rtol=0, atol=CLOSE * np.abs(truth).max())


@pytest.mark.parametrize("shape", [(1, 5), (2, 3, 64), (300, 256), (129, 127)])
def test_layer_norm(draw, monkeypatch, shape):
    inputs = [3.0 + draw.standard_normal(shape), draw.standard_normal(shape[-1]), draw.standard_normal(shape[-1])]
    assert_equals_the_composed_one(monkeypatch, lambda x, g, b: ops.layer_norm(x, g, b, 1e-6), *inputs)


@pytest.mark.parametrize("kind", ["local", "lsh"])
@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("before, after, chunks", [(1, 0, 4), (1, 1, 2), (2, 1, 5), (0, 0, 3), (1, 0, 1)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention_of_chunks(draw, monkeypatch, kind, is_decoder, before, after, chunks, masked):
    config = ReformerConfig(num_attention_heads=2, attention_head_size=7, is_decoder=is_decoder)
    layer = {"local": LocalSelfAttention, "lsh": LSHSelfAttention}[kind](config)
    layer.num_chunks_before, layer.num_chunks_after = before, after
    rows = [6, chunks, 5]
    place = paddle.to_tensor(draw.integers(0, 20, rows))
    kept = paddle.to_tensor(draw.random(rows) < 0.7) if masked else None
    if kind == "local" and not is_decoder:
        place = None
    seen = 5 * (before + 1 + after if chunks > 1 else 1)
    drawn = paddle.to_tensor(draw.random([*rows, seen]) < 0.9) if masked else None
    layer.draw_keep_mask = lambda *sizes: drawn

    def attend(query, key, value):
        return layer.attend(query, key, value, place, kept, num_texts=3, with_normalizer=True)

    calls, whole = [], compiled.attend_chunks
    monkeypatch.setattr(compiled, "attend_chunks", lambda *given: calls.append(1) or whole(*given))
    assert_equals_the_composed_one(monkeypatch, attend, *(draw.standard_normal([*rows, 7]) for _ in range(3)))
    assert len(calls) == 1


@pytest.mark.parametrize("masked", [False, True])
def test_softmax_of_scaled_scores_with_a_bias(draw, monkeypatch, masked):
    attention = MultiHeadAttention(CTRLConfig(n_embd=30, n_head=3))
    mask = paddle.to_tensor(np.array([[0, 0, 1, 1, 1, 1, 0], [1] * 7])) if masked else None

    def weights(scores):
        bias = attention_bias(2, 5, mask, str(scores.dtype).rsplit(".", 1)[-1])
        return attention._attention_probabilities(scores, bias)

    biases, whole = [], compiled.softmax
    monkeypatch.setattr(compiled, "softmax", lambda *given: biases.append(given[2]) or whole(*given))
    assert_equals_the_composed_one(monkeypatch, weights, 3.0 * draw.standard_normal((2, 3, 5, 7)))
    assert len(biases) == 1 and biases[0] is not None


def test_a_softmax_keeps_what_is_no_number(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    for bad in (np.nan, -np.nan, np.inf):
        given = paddle.to_tensor(np.array([[0.0, bad, 1.0], [0.0, 0.0, 0.0]], "float32"))
        found = ops.softmax(given).numpy()
        assert np.isnan(found[0]).any() and np.isfinite(found[1]).all()


def test_weights_have_their_digits_down_to_the_smallest_number(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    scores = np.stack([np.zeros(20_001), np.linspace(-110, 0, 20_001)], axis=1).astype("float32")
    exact = np.exp(scores.astype("float64"))
    exact /= exact.sum(1, keepdims=True)
    np.testing.assert_allclose(ops.softmax(paddle.to_tensor(scores)).numpy(), exact, rtol=3e-7, atol=1.5e-45)


@pytest.mark.parametrize("shape", [(1, 2), (7, 33), (300, 4096), (5, 20_003)])
def test_cross_entropy(draw, monkeypatch, shape):
    """With a row that nothing depends on, whose gradient is 0."""
    labels = paddle.to_tensor(draw.integers(0, shape[1], shape[0]))
    weights = draw.standard_normal(shape[0])
    weights[-1] = 0.0

    def weighed(logits):
        return ops.cross_entropy(logits, labels) * paddle.to_tensor(weights).astype(logits.dtype)

    assert_equals_the_composed_one(monkeypatch, weighed, 5 * draw.standard_normal(shape))


def test_a_small_loss_keeps_its_digits_and_one_of_no_number_is_none(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    logits = np.array([[30.0, 20.0, 20.0], [0.0, np.nan, 1.0], [80.0, -80.0, 0.0], [np.inf, 0.0, 0.0]], "float32")
    found = ops.cross_entropy(paddle.to_tensor(logits), paddle.to_tensor([0, 0, 1, 0])).numpy()
    np.testing.assert_allclose(found[0], np.log1p(2 * np.exp(-10.0)), rtol=1.5e-3)  # float32 sums up 1 and 9e-5
    assert found[2] == 160.0 and np.isnan(found[[1, 3]]).all()


def test_labels_of_32_bits_are_those_of_64(draw, monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    logits, labels = paddle.to_tensor(draw.standard_normal((6, 9)).astype("float32")), draw.integers(1, 9, 6)
    found = [ops.cross_entropy(logits, paddle.to_tensor(labels.astype(kind))).numpy() for kind in ("int32", "int64")]
    np.testing.assert_array_equal(*found)


def test_a_label_that_is_no_class_is_refused_before_anything_is_read(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    for wrong in (-1, 4):
        with pytest.raises(IndexError, match=f"label {wrong} is none of 4 classes"):
            ops.cross_entropy(paddle.ones([2, 4]), paddle.to_tensor([0, wrong]))


@pytest.mark.parametrize("width", [1, 64, 70])
def test_rows_are_gathered_and_their_gradients_added_to_the_last_bit(draw, monkeypatch, width):
    """Each chunk is seen by four."""
    order = adjacent_chunks(3, 90, 2, 1)
    values = draw.standard_normal((270, width)).astype("float32")
    found = []
    for kernel in ("compiled", "composed"):
        monkeypatch.setenv("TOOLKIT_KERNELS", kernel)
        found.append(values_and_gradients(lambda x: reorder(x, order), values))
    for our, theirs in zip(*found, strict=True):
        np.testing.assert_array_equal(our, theirs)


def test_keys_of_unit_mean_square(draw, monkeypatch):
    rows = draw.standard_normal((70, 48)) * np.exp(draw.standard_normal((70, 1)))
    assert_equals_the_composed_one(monkeypatch, lambda x: ops.unit_mean_square(x, 1e-6, np.sqrt(48)), rows)


def test_a_rectified_number_is_the_larger_and_one_that_is_none_stays_so(draw, monkeypatch):
    assert_equals_the_composed_one(monkeypatch, ops.ReLU(), draw.standard_normal((40, 30)))
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    x = paddle.to_tensor([-1.0, -0.0, 0.0, 2.0, np.nan, np.inf, -np.inf], stop_gradient=False)
    rectified = ops.ReLU()(x)
    rectified.sum().backward()
    np.testing.assert_array_equal(rectified.numpy(), [0, 0, 0, 2, np.nan, np.inf, 0])
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0, 0, 1, 1, 1, 0])


def test_a_bias_and_dropout(draw, monkeypatch):
    kept = paddle.to_tensor(draw.random((40, 30)) < 0.8)
    inputs = [draw.standard_normal((40, 30)), draw.standard_normal(30)]
    assert_equals_the_composed_one(monkeypatch, lambda x, b: ops.keep_masked(ops.add_bias(x, b), kept, 0.2), *inputs)


def test_the_axial_table_with_whole_columns_dropped(draw, monkeypatch):
    factors = (draw.random((3, 6)) < 0.7) / 0.7

    def table(rows, columns):
        if rows.dtype == paddle.float32:
            return ops.scale_columns(ops.axial_table(rows, columns), paddle.to_tensor(factors.astype("float32")))
        return ops.axial_table(rows, columns).unsqueeze(0) * paddle.to_tensor(factors.reshape([3, 1, 6, 1]))

    assert_equals_the_composed_one(monkeypatch, table, draw.standard_normal((5, 1, 4)), draw.standard_normal((1, 6, 7)))


def test_a_stream_adds_on_its_grid_to_the_last_bit_and_back(draw, monkeypatch):
    x, update = (paddle.to_tensor(draw.standard_normal((3, 7, 5)).astype("float32")) for _ in range(2))
    found = {}
    for kind in ("compiled", "composed"):
        monkeypatch.setenv("TOOLKIT_KERNELS", kind)
        begun = reversible.open_stream(x, "wide")
        after = begun.plus(100 * update)
        back = after.minus(100 * update)
        np.testing.assert_array_equal(back.exact.numpy(), begun.exact.numpy())
        found[kind] = after
    np.testing.assert_array_equal(found["compiled"].exact.numpy(), found["composed"].exact.numpy())
    np.testing.assert_array_equal(found["compiled"].value.numpy(), found["composed"].value.numpy())


def test_a_masks_cell_depends_on_its_seed_and_place_alone(monkeypatch):
    """Not on how many threads share the mask, and whether its size is a multiple of anything."""
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")

    def mask(shape):
        paddle.seed(3)
        return ops.random_mask(0.3, shape).numpy().ravel()

    whole = mask([90_001])
    assert whole.dtype == bool and abs(whole.mean() - 0.7) < 5 * np.sqrt(0.21 / whole.size)
    for count in (0, 1, 2, 3, 5, 1000, 70_003):
        np.testing.assert_array_equal(mask([count]), whole[:count])


def test_a_rate_of_0_keeps_all_and_one_of_1_nothing(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    assert ops.random_mask(0.0, [1001]).numpy().all() and not ops.random_mask(1.0, [1001]).numpy().any()


def test_what_has_gaps_in_memory_is_computed_alike(draw, monkeypatch):
    x = draw.standard_normal((6, 5)).astype("float32")
    found = {}
    for kind in ("compiled", "composed"):
        monkeypatch.setenv("TOOLKIT_KERNELS", kind)
        given = paddle.to_tensor(x).transpose([1, 0])
        kept = paddle.to_tensor(x > 0).transpose([1, 0])
        found[kind] = ops.keep_masked(given, kept, 0.5).numpy()
    np.testing.assert_array_equal(found["compiled"], found["composed"])


def test_loops_are_for_float32_and_for_tensors_that_hold_something(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    assert compiled.supports_compiled(paddle.ones([2]))
    assert not compiled.supports_compiled(paddle.ones([2], "float64"))
    assert not compiled.supports_compiled(paddle.ones([0, 3]))
    x = paddle.ones([0, 3])
    assert randomness.dropout(x, 0.5, True).shape == [0, 3]


THREADS_BESIDE_TORCH = """
import torch
from toolkit.machine import runtime
runtime.configure_paddle("cpu", num_threads=2)
import numpy as np, paddle
from models.operations import compiled
draw = np.random.default_rng(0)
grad, x = (draw.standard_normal((4096, 64)).astype("float32") for _ in range(2))
_, sums = compiled.layer_norm_backward(paddle.to_tensor(grad), paddle.to_tensor(x), paddle.ones([64]), 1e-6)
found = sums.numpy().reshape([-1, 2, 64])[:, 1]
np.testing.assert_allclose(found, grad.reshape([-1, 128, 64]).sum(1), rtol=0, atol=1e-4)
"""


@pytest.mark.slow
def test_threads_share_the_work_where_torch_has_brought_an_openmp_of_its_own():
    """Asked how many it has, that one would say one, and every thread would add up everything."""
    given = {**os.environ, "TOOLKIT_KERNELS": "compiled"}
    done = subprocess.run([sys.executable, "-c", THREADS_BESIDE_TORCH], env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


KEPT_CODE = """
import sys
from toolkit.machine import runtime
runtime.configure_paddle("cpu")
import paddle
from models.operations import compiled, loop_code
loop_code._folders = lambda: [__import__("pathlib").Path(place) for place in sys.argv[1:]]
assert compiled.add_row_(paddle.ones([3, 2]), paddle.to_tensor([1.0, 2.0])).numpy().tolist() == [[2.0, 3.0]] * 3
print("numba" in sys.modules)
"""


def compiles(*folders: object) -> bool:
    """Whether a new process has to compile the loop that it runs, where code is kept in these folders."""
    given = {**os.environ, "TOOLKIT_KERNELS": "compiled"}
    command = [sys.executable, "-W", "ignore", "-c", KEPT_CODE, *map(str, folders)]
    done = subprocess.run(command, env=given, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[-1] == "True"


def test_what_was_compiled_once_is_loaded_without_numba_and_made_anew_where_it_is_damaged(tmp_path):
    folder = tmp_path / "kept"
    assert compiles(folder)
    (kept,) = folder.iterdir()
    assert kept.name.startswith("add_row-") and not compiles(folder)
    whole = kept.read_bytes()
    for damaged in (whole[:-100], whole[:-1] + bytes([whole[-1] ^ 1]), b""):
        kept.write_bytes(damaged)
        assert compiles(folder) and kept.read_bytes() != damaged


@pytest.mark.parametrize("loop", ["decoder_step", "reversible_step"])
def test_stored_code_of_a_decoder_is_loaded_without_numba(loop):
    program = f"""
import sys
from models.operations import loop_code
loop_code._address("{loop}")
print("numba" in sys.modules)
"""
    command = [sys.executable, "-W", "ignore", "-c", program]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "False"


def test_code_is_kept_in_the_first_folder_that_can_be_written(tmp_path):
    beside, users = tmp_path / "a file", tmp_path / "cache"
    beside.write_text("")
    assert compiles(beside, users) and not compiles(beside, users)
    assert compiles(beside)  # kept nowhere; it runs all the same


def test_other_loops_or_another_compiler_have_other_code(monkeypatch):
    from models.operations import loop_code

    def key() -> str:
        loop_code.code_key.cache_clear()
        return loop_code.code_key()

    first = key()
    versions = loop_code.importlib.metadata.version
    monkeypatch.setattr(loop_code.importlib.metadata, "version", lambda name: versions(name) + ".1")
    assert key() != first
    monkeypatch.undo()
    monkeypatch.setattr(loop_code.llvm, "get_host_cpu_name", lambda: "another")
    assert key() != first
    monkeypatch.undo()
    assert key() == first


def test_a_tensor_that_does_not_fit_the_declaration_of_a_loop_is_rejected():
    x, row = paddle.ones([3, 2]), paddle.ones([2])
    with pytest.raises(ValueError, match=r"row is .*float32 \[3\]; the loop needs float32 \(width=2\)"):
        compiled.add_row_(x, paddle.ones([3]))
    with pytest.raises(ValueError, match=r"row is .*float64 \[2\]; the loop needs float32 \(width=2\)"):
        compiled.add_row_(x, row.astype("float64"))
