"""Test the compiled loops against the same operations composed of Paddle's in float64, and their other properties."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import paddle
import pytest
from test_ops import compute_values_and_gradients

from models.ctrl.config import CTRLConfig
from models.ctrl.layers import MultiHeadAttention, attention_bias
from models.operations import compiled, kernels, ops, randomness
from models.operations.rows import adjacent_chunks, reorder
from models.reformer import reversible
from models.reformer.attention import LocalSelfAttention, LSHSelfAttention
from models.reformer.config import ReformerConfig

pytestmark = pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")

#: Tolerance relative to the largest number: a few roundings of float32.
TOLERANCE = 1e-6


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(0)


def assert_equals_composed(monkeypatch, function, *inputs: np.ndarray) -> None:
    """Compare values and gradients, compiled in float32, with the composed operation in float64."""
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    ours = compute_values_and_gradients(function, *(value.astype("float32") for value in inputs))
    monkeypatch.setenv("TOOLKIT_KERNELS", "composed")
    exact = compute_values_and_gradients(function, *(value.astype("float32").astype("float64") for value in inputs))
    for our, truth in zip(ours, exact, strict=True):
        assert our.dtype == np.float32 and our.shape == truth.shape
        np.testing.assert_allclose(our, truth, rtol=0, atol=TOLERANCE * np.abs(truth).max())


@pytest.mark.parametrize("shape", [(1, 5), (2, 3, 64), (300, 256), (129, 127)])
def test_layer_norm(draw, monkeypatch, shape):
    inputs = [3.0 + draw.standard_normal(shape), draw.standard_normal(shape[-1]), draw.standard_normal(shape[-1])]
    assert_equals_composed(monkeypatch, lambda x, g, b: ops.layer_norm(x, g, b, 1e-6), *inputs)


@pytest.mark.parametrize("kind", ["local", "lsh"])
@pytest.mark.parametrize("is_decoder", [False, True])
@pytest.mark.parametrize("chunks_before, chunks_after, chunks", [(1, 0, 4), (1, 1, 2), (2, 1, 5), (0, 0, 3), (1, 0, 1)])
@pytest.mark.parametrize("has_masks", [False, True])
def test_attention_of_chunks(draw, monkeypatch, kind, is_decoder, chunks_before, chunks_after, chunks, has_masks):
    config = ReformerConfig(num_attention_heads=2, attention_head_size=7, is_decoder=is_decoder)
    layer = {"local": LocalSelfAttention, "lsh": LSHSelfAttention}[kind](config)
    layer.num_chunks_before, layer.num_chunks_after = chunks_before, chunks_after
    rows = [6, chunks, 5]
    positions = paddle.to_tensor(draw.integers(0, 20, rows))
    key_mask = paddle.to_tensor(draw.random(rows) < 0.7) if has_masks else None
    if kind == "local" and not is_decoder:
        positions = None
    num_keys = 5 * (chunks_before + 1 + chunks_after if chunks > 1 else 1)
    keep_mask = paddle.to_tensor(draw.random([*rows, num_keys]) < 0.9) if has_masks else None
    layer.draw_keep_mask = lambda *sizes: keep_mask

    def attend(query, key, value):
        return layer.attend(query, key, value, positions, key_mask, num_texts=3, with_normalizer=True)

    calls, original_attend = [], compiled.attend_chunks
    monkeypatch.setattr(compiled, "attend_chunks", lambda *arguments: calls.append(1) or original_attend(*arguments))
    assert_equals_composed(monkeypatch, attend, *(draw.standard_normal([*rows, 7]) for _ in range(3)))
    assert len(calls) == 1


@pytest.mark.parametrize("has_mask", [False, True])
def test_softmax_of_scaled_scores_with_a_bias(draw, monkeypatch, has_mask):
    attention = MultiHeadAttention(CTRLConfig(n_embd=30, n_head=3))
    mask = paddle.to_tensor(np.array([[0, 0, 1, 1, 1, 1, 0], [1] * 7])) if has_mask else None

    def weights(scores):
        bias = attention_bias(2, 5, mask, str(scores.dtype).rsplit(".", 1)[-1])
        return attention._attention_probabilities(scores, bias)

    biases, original_softmax = [], compiled.softmax
    monkeypatch.setattr(
        compiled, "softmax", lambda *arguments: biases.append(arguments[2]) or original_softmax(*arguments)
    )
    assert_equals_composed(monkeypatch, weights, 3.0 * draw.standard_normal((2, 3, 5, 7)))
    assert len(biases) == 1 and biases[0] is not None


def test_a_softmax_keeps_nan(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    for bad in (np.nan, -np.nan, np.inf):
        scores = paddle.to_tensor(np.array([[0.0, bad, 1.0], [0.0, 0.0, 0.0]], "float32"))
        probabilities = ops.softmax(scores).numpy()
        assert np.isnan(probabilities[0]).any() and np.isfinite(probabilities[1]).all()


def test_softmax_is_accurate_down_to_the_smallest_number(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    scores = np.stack([np.zeros(20_001), np.linspace(-110, 0, 20_001)], axis=1).astype("float32")
    exact = np.exp(scores.astype("float64"))
    exact /= exact.sum(1, keepdims=True)
    np.testing.assert_allclose(ops.softmax(paddle.to_tensor(scores)).numpy(), exact, rtol=3e-7, atol=1.5e-45)


@pytest.mark.parametrize("shape", [(1, 2), (7, 33), (300, 4096), (5, 20_003)])
def test_cross_entropy(draw, monkeypatch, shape):
    """Include a row whose loss is weighted with 0, so that its gradient is 0."""
    labels = paddle.to_tensor(draw.integers(0, shape[1], shape[0]))
    weights = draw.standard_normal(shape[0])
    weights[-1] = 0.0

    def weighted_loss(logits):
        return ops.cross_entropy(logits, labels) * paddle.to_tensor(weights).astype(logits.dtype)

    assert_equals_composed(monkeypatch, weighted_loss, 5 * draw.standard_normal(shape))


def test_a_small_loss_is_accurate_and_nan_stays_nan(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    logits = np.array([[30.0, 20.0, 20.0], [0.0, np.nan, 1.0], [80.0, -80.0, 0.0], [np.inf, 0.0, 0.0]], "float32")
    losses = ops.cross_entropy(paddle.to_tensor(logits), paddle.to_tensor([0, 0, 1, 0])).numpy()
    np.testing.assert_allclose(losses[0], np.log1p(2 * np.exp(-10.0)), rtol=1.5e-3)  # float32 adds 1 and 9e-5
    assert losses[2] == 160.0 and np.isnan(losses[[1, 3]]).all()


def test_labels_of_32_and_64_bits_give_the_same_loss(draw, monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    logits, labels = paddle.to_tensor(draw.standard_normal((6, 9)).astype("float32")), draw.integers(1, 9, 6)
    losses = [ops.cross_entropy(logits, paddle.to_tensor(labels.astype(kind))).numpy() for kind in ("int32", "int64")]
    np.testing.assert_array_equal(*losses)


def test_an_invalid_label_is_rejected_before_memory_is_read(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    for label in (-1, 4):
        with pytest.raises(IndexError, match=f"label {label} is none of 4 classes"):
            ops.cross_entropy(paddle.ones([2, 4]), paddle.to_tensor([0, label]))


@pytest.mark.parametrize("width", [1, 64, 70])
def test_rows_are_gathered_and_their_gradients_added_to_the_last_bit(draw, monkeypatch, width):
    """Each chunk is seen by four others."""
    order = adjacent_chunks(3, 90, 2, 1)
    values = draw.standard_normal((270, width)).astype("float32")
    results = []
    for kernel in ("compiled", "composed"):
        monkeypatch.setenv("TOOLKIT_KERNELS", kernel)
        results.append(compute_values_and_gradients(lambda x: reorder(x, order), values))
    for our, theirs in zip(*results, strict=True):
        np.testing.assert_array_equal(our, theirs)


def test_keys_of_unit_mean_square(draw, monkeypatch):
    rows = draw.standard_normal((70, 48)) * np.exp(draw.standard_normal((70, 1)))
    assert_equals_composed(monkeypatch, lambda x: ops.unit_mean_square(x, 1e-6, np.sqrt(48)), rows)


def test_relu_returns_the_maximum_and_keeps_nan(draw, monkeypatch):
    assert_equals_composed(monkeypatch, ops.ReLU(), draw.standard_normal((40, 30)))
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    x = paddle.to_tensor([-1.0, -0.0, 0.0, 2.0, np.nan, np.inf, -np.inf], stop_gradient=False)
    output = ops.ReLU()(x)
    output.sum().backward()
    np.testing.assert_array_equal(output.numpy(), [0, 0, 0, 2, np.nan, np.inf, 0])
    np.testing.assert_array_equal(x.grad.numpy(), [0, 0, 0, 1, 1, 1, 0])


def test_a_bias_and_dropout(draw, monkeypatch):
    keep_mask = paddle.to_tensor(draw.random((40, 30)) < 0.8)
    inputs = [draw.standard_normal((40, 30)), draw.standard_normal(30)]
    assert_equals_composed(monkeypatch, lambda x, b: ops.keep_masked(ops.add_bias(x, b), keep_mask, 0.2), *inputs)


def test_the_axial_table_with_whole_columns_dropped(draw, monkeypatch):
    factors = (draw.random((3, 6)) < 0.7) / 0.7

    def table(rows, columns):
        if rows.dtype == paddle.float32:
            return ops.scale_columns(ops.axial_table(rows, columns), paddle.to_tensor(factors.astype("float32")))
        return ops.axial_table(rows, columns).unsqueeze(0) * paddle.to_tensor(factors.reshape([3, 1, 6, 1]))

    assert_equals_composed(monkeypatch, table, draw.standard_normal((5, 1, 4)), draw.standard_normal((1, 6, 7)))


def test_a_stream_adds_on_its_grid_to_the_last_bit_and_back(draw, monkeypatch):
    x, update = (paddle.to_tensor(draw.standard_normal((3, 7, 5)).astype("float32")) for _ in range(2))
    results = {}
    for kind in ("compiled", "composed"):
        monkeypatch.setenv("TOOLKIT_KERNELS", kind)
        stream = reversible.open_stream(x, "wide")
        updated_stream = stream.plus(100 * update)
        back = updated_stream.minus(100 * update)
        np.testing.assert_array_equal(back.exact.numpy(), stream.exact.numpy())
        results[kind] = updated_stream
    np.testing.assert_array_equal(results["compiled"].exact.numpy(), results["composed"].exact.numpy())
    np.testing.assert_array_equal(results["compiled"].value.numpy(), results["composed"].value.numpy())


def test_a_mask_depends_only_on_seed_and_position(monkeypatch):
    """The mask does not depend on the number of threads or on the size of the tensor."""
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")

    def mask(shape):
        paddle.seed(3)
        return ops.random_mask(0.3, shape).numpy().ravel()

    full_mask = mask([90_001])
    assert full_mask.dtype == bool and abs(full_mask.mean() - 0.7) < 5 * np.sqrt(0.21 / full_mask.size)
    for count in (0, 1, 2, 3, 5, 1000, 70_003):
        np.testing.assert_array_equal(mask([count]), full_mask[:count])


def test_a_rate_of_0_keeps_all_cells_and_a_rate_of_1_none(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    assert ops.random_mask(0.0, [1001]).numpy().all() and not ops.random_mask(1.0, [1001]).numpy().any()


def test_strided_inputs_give_the_same_results(draw, monkeypatch):
    x = draw.standard_normal((6, 5)).astype("float32")
    results = {}
    for kind in ("compiled", "composed"):
        monkeypatch.setenv("TOOLKIT_KERNELS", kind)
        strided_input = paddle.to_tensor(x).transpose([1, 0])
        keep_mask = paddle.to_tensor(x > 0).transpose([1, 0])
        results[kind] = ops.keep_masked(strided_input, keep_mask, 0.5).numpy()
    np.testing.assert_array_equal(results["compiled"], results["composed"])


def test_loops_are_for_float32_and_nonempty_tensors(monkeypatch):
    monkeypatch.setenv("TOOLKIT_KERNELS", "compiled")
    assert compiled.supports_compiled(paddle.ones([2]))
    assert not compiled.supports_compiled(paddle.ones([2], "float64"))
    assert not compiled.supports_compiled(paddle.ones([0, 3]))
    x = paddle.ones([0, 3])
    assert randomness.dropout(x, 0.5, True).shape == [0, 3]


THREADS_WITH_TORCH = """
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
def test_threads_share_the_work_next_to_torchs_openmp():
    """torch's OpenMP reports one thread, and then every thread would add up everything."""
    environment = {**os.environ, "TOOLKIT_KERNELS": "compiled"}
    process = subprocess.run(
        [sys.executable, "-c", THREADS_WITH_TORCH], env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr


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


def has_to_compile(*folders: object) -> bool:
    """Return whether a new process has to compile its loop if code is cached in these folders."""
    environment = {**os.environ, "TOOLKIT_KERNELS": "compiled"}
    command = [sys.executable, "-W", "ignore", "-c", KEPT_CODE, *map(str, folders)]
    process = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    return process.stdout.split()[-1] == "True"


def test_cached_code_is_loaded_without_numba_and_rebuilt_if_damaged(tmp_path):
    folder = tmp_path / "kept"
    assert has_to_compile(folder)
    (code_file,) = folder.iterdir()
    assert code_file.name.startswith("add_row-") and not has_to_compile(folder)
    full_content = code_file.read_bytes()
    for content in (full_content[:-100], full_content[:-1] + bytes([full_content[-1] ^ 1]), b""):
        code_file.write_bytes(content)
        assert has_to_compile(folder) and code_file.read_bytes() != content


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
        process = subprocess.run(command, capture_output=True, text=True)
        assert process.returncode == 0, process.stderr
    assert process.stdout.split()[-1] == "False"


def test_code_is_cached_in_the_first_writable_folder(tmp_path):
    unwritable_dir, user_cache = tmp_path / "a file", tmp_path / "cache"
    unwritable_dir.write_text("")
    assert has_to_compile(unwritable_dir, user_cache) and not has_to_compile(unwritable_dir, user_cache)
    assert has_to_compile(unwritable_dir)  # kept nowhere; it runs all the same


def test_the_cache_key_depends_on_the_loops_and_the_compiler(monkeypatch):
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
