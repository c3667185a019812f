"""Test that values and gradients of the composed operations equal Paddle's."""

from __future__ import annotations

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest

from models.operations import ops
from models.operations.kernels import COMPILED, COMPOSED, PADDLE
from models.operations.rows import adjacent_chunks, heads_first, reorder

pytestmark = pytest.mark.usefixtures("kernels")


def compute_values_and_gradients(function, *inputs: np.ndarray) -> list[np.ndarray]:
    """Return the outputs of `function` and the gradients of a weighted sum of them with respect to all inputs."""
    tensors = [paddle.to_tensor(value, stop_gradient=False) for value in inputs]
    outputs = function(*tensors)
    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    draw = np.random.default_rng(1)
    total = sum((output * paddle.to_tensor(draw.standard_normal(output.shape))).sum() for output in outputs)
    total.backward()
    return [output.numpy() for output in outputs] + [tensor.grad.numpy() for tensor in tensors]


def assert_equal_to_rounding(ours: list[np.ndarray], theirs: list[np.ndarray]) -> None:
    for our, their in zip(ours, theirs, strict=True):
        assert our.shape == their.shape
        np.testing.assert_allclose(our, their, rtol=1e-12, atol=1e-13)


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.mark.parametrize("is_transposed", [False, True])
def test_linear_has_the_gradients_of_a_plain_linear(draw, is_transposed):
    inputs = [draw.standard_normal(shape) for shape in ((2, 3, 5), (7, 5) if is_transposed else (5, 7), (7,))]
    ours = compute_values_and_gradients(lambda x, w, b: ops.linear(x, w, b, is_transposed), *inputs)
    theirs = compute_values_and_gradients(lambda x, w, b: F.linear(x, w.T if is_transposed else w, b), *inputs)
    assert_equal_to_rounding(ours, theirs)


def test_layer_norm_has_the_gradients_of_paddles_layer_norm(draw):
    inputs = [3.0 + draw.standard_normal((2, 4, 6)), draw.standard_normal(6), draw.standard_normal(6)]
    ours = compute_values_and_gradients(lambda x, g, b: ops.layer_norm(x, g, b, 1e-6), *inputs)
    theirs = compute_values_and_gradients(lambda x, g, b: F.layer_norm(x, [6], g, b, 1e-6), *inputs)
    assert_equal_to_rounding(ours, theirs)


@pytest.mark.parametrize("frozen_names", [("gain",), ("bias",), ("gain", "bias")], ids=" and ".join)
def test_layer_norm_has_its_gradient_with_a_frozen_gain(frozen_names, draw):
    """The backward of Paddle's CPU kernel computes as if a gain without a gradient were 1."""
    x, upstream = (draw.standard_normal((5, 8)).astype("float32") for _ in range(2))
    gain, bias = 3.0 + draw.standard_normal(8).astype("float32"), draw.standard_normal(8).astype("float32")
    leaf = paddle.to_tensor(x, stop_gradient=False)
    parameters = [
        paddle.to_tensor(v, stop_gradient=name in frozen_names) for name, v in (("gain", gain), ("bias", bias))
    ]
    ops.layer_norm(leaf, *parameters, 1e-6).backward(paddle.to_tensor(upstream))

    x, inner = x.astype("float64"), upstream.astype("float64") * gain
    deviations = x - x.mean(-1, keepdims=True)
    scale = 1 / np.sqrt((deviations**2).mean(-1, keepdims=True) + 1e-6)
    normalized_values = deviations * scale
    exact = (
        inner - inner.mean(-1, keepdims=True) - normalized_values * (inner * normalized_values).mean(-1, keepdims=True)
    ) * scale
    np.testing.assert_allclose(leaf.grad.numpy(), exact, atol=2e-6 * np.abs(exact).max())


def test_layer_norm_keeps_its_epsilon_in_double_precision(draw):
    """Paddle's layer norm rounds it to float32, a relative error of 2.5e-8 for 1e-5."""
    x, epsilon = 1e-3 * draw.standard_normal((3, 8)), 1e-5
    deviations = x - x.mean(-1, keepdims=True)
    exact = deviations / np.sqrt((deviations**2).mean(-1, keepdims=True) + epsilon)
    layer = ops.LayerNorm(8, epsilon=epsilon)
    layer.to(dtype="float64")
    np.testing.assert_allclose(layer(paddle.to_tensor(x)).numpy(), exact, rtol=1e-14)


@pytest.mark.parametrize(
    "rows",
    [1, 127, 128, 300, pytest.param(100_003, marks=pytest.mark.beyond_paddle("it adds rows up one after another"))],
)
def test_the_gradient_of_a_bias_is_accurate_over_many_rows(rows):
    upstream = np.random.default_rng(0).standard_normal((rows, 8)).astype("float32")
    x, bias = (paddle.to_tensor(np.zeros(shape, "float32"), stop_gradient=False) for shape in ((rows, 8), (8,)))
    ops.add_bias(x, bias).backward(paddle.to_tensor(upstream))
    size = np.sqrt((upstream.astype("float64") ** 2).sum(0))
    off = (bias.grad.numpy() - upstream.astype("float64").sum(0)) / size
    assert np.sqrt(np.mean(off**2)) < 5e-7


def test_cross_entropy_equals_paddles_if_that_is_exact(draw):
    labels = paddle.to_tensor(draw.integers(0, 7, 5))
    inputs = [draw.standard_normal((5, 7))]
    theirs = compute_values_and_gradients(lambda x: F.cross_entropy(x, labels, reduction="none"), *inputs)
    assert_equal_to_rounding(compute_values_and_gradients(lambda x: ops.cross_entropy(x, labels), *inputs), theirs)


@pytest.mark.beyond_paddle("its kernel adds up 246,534 terms one after another")
def test_cross_entropy_is_accurate_over_a_vocabulary_as_large_as_ctrls(draw):
    """Paddle's kernel is off by 2.5e-5 here: it adds up 246,534 terms one after another."""
    logits = 3 * draw.standard_normal((2, 246_534)).astype(np.float32)
    labels = np.array([5, 70_000])
    x = paddle.to_tensor(logits, stop_gradient=False)
    loss = ops.cross_entropy(x, paddle.to_tensor(labels))
    loss.sum().backward()
    exact = logits.astype(np.float64)
    exact = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    np.testing.assert_allclose(loss.numpy(), [-exact[0, 5], -exact[1, 70_000]], rtol=2e-7)
    np.testing.assert_allclose(x.grad.numpy()[:, 1], np.exp(exact[:, 1]), rtol=2e-6)


@pytest.mark.parametrize("has_normalizer", [False, True])
def test_masked_softmax_is_where_then_softmax(draw, has_normalizer):
    first = paddle.to_tensor(draw.random((3, 1, 5)) < 0.6)
    second = paddle.to_tensor(draw.random((3, 4, 5)) < 0.8)
    masks = [(first, -1e9), (second, -1e5)]

    def reference_softmax(scores):
        for keep_mask, value in masks:
            scores = paddle.where(keep_mask, scores, paddle.full([1], value, scores.dtype))
        probabilities = F.softmax(scores)
        return [probabilities, paddle.logsumexp(scores, -1, keepdim=True)] if has_normalizer else probabilities

    scores = 4 * draw.standard_normal((3, 4, 5))
    ours = compute_values_and_gradients(lambda x: ops.masked_softmax(x, masks, has_normalizer), scores)
    assert_equal_to_rounding(ours, compute_values_and_gradients(reference_softmax, scores))


@pytest.mark.beyond_paddle("its softmax takes exp(-64) for whatever is smaller")
def test_softmax_in_double_precision_has_accurate_small_weights():
    scores = np.array([[0.0, -40.0, -80.0, -88.0, -100.0, -700.0, -1e4, -1e9]])
    inputs, exact = paddle.to_tensor(scores), np.exp(scores) / np.exp(scores).sum()
    for ours in (ops.softmax(inputs).numpy(), ops.softmax_over(inputs, axis=1).numpy()):
        np.testing.assert_allclose(ours, exact, rtol=1e-15)
        assert (ours[0, -2:] == 0).all()


@pytest.mark.beyond_paddle("its softmax takes exp(-64) for whatever is smaller")
def test_softmax_in_single_precision_has_accurate_small_weights():
    """Paddle's softmax has 2e-28 for the third and fourth, its exp 1e-38 for the fourth and fifth."""
    scores = np.array([[0.0, -40.0, -80.0, -88.0, -1e9]])
    inputs, exact = paddle.to_tensor(scores.astype("float32")), np.exp(scores) / np.exp(scores).sum()
    for ours in (ops.softmax(inputs), ops.softmax_over(inputs, axis=1)):
        np.testing.assert_allclose(ours.numpy(), exact, rtol=2e-6, atol=0)


def test_masks_do_not_prevent_the_fast_softmax_for_close_scores(draw, monkeypatch, kernels):
    calls = []
    kernel = F.softmax
    monkeypatch.setattr(ops.F, "softmax", lambda x, **options: calls.append(1) or kernel(x, **options))
    keep_mask = paddle.to_tensor([[True, True, False]])
    for spread, num_fast_calls in ((10.0, 1), (100.0, 0)):
        scores = spread * np.array([[0.0, 0.4, 1.0]], "float32")
        calls.clear()
        ops.masked_softmax(paddle.to_tensor(scores), [(keep_mask, -1e9)])
        assert len(calls) == (1 if kernels == PADDLE else num_fast_calls)


@pytest.mark.parametrize(("spread", "num_fast_calls"), [(10.0, 1), (40.0, 0)])
def test_a_bias_does_not_prevent_the_fast_softmax_for_close_scores(spread, num_fast_calls, draw, monkeypatch, kernels):
    """A key that only the last query may see has this query's gradient, however many others are masked."""
    calls = []
    kernel = F.softmax
    monkeypatch.setattr(ops.F, "softmax", lambda x, **options: calls.append(1) or kernel(x, **options))
    scores = paddle.to_tensor(-spread * np.tri(64, k=0)[:, ::-1].copy().astype("float32"), stop_gradient=False)
    scores.retain_grads()
    bias = paddle.to_tensor(-1e4 * np.triu(np.ones((64, 64), "float32"), 1))
    upstream = draw.standard_normal((64, 64)).astype("float32")
    ops.softmax(scores + bias, unmasked=scores).backward(paddle.to_tensor(upstream))
    assert len(calls) == {COMPILED: 0, COMPOSED: num_fast_calls, PADDLE: 1}[kernels]
    exact = np.exp(np.float64(scores.numpy()) + bias.numpy())
    exact /= exact.sum(-1, keepdims=True)
    gradient = exact * (upstream - (exact * upstream).sum(-1, keepdims=True))
    np.testing.assert_allclose(scores.grad.numpy().sum(0), gradient.sum(0), rtol=1e-4)


@pytest.mark.beyond_paddle("it takes the difference once")
def test_the_gradient_of_a_saturated_row_is_accurate(draw):
    """g - sum(p g) is a difference of nearly equal numbers: computed once, it is off by up to 1e-3 here."""
    values = np.where(np.arange(64) % 16 == 0, 0.0, -12.0) + 0.1 * draw.standard_normal((200, 64))
    values[:, 0] += 12.0
    upstream = draw.standard_normal((200, 64)).astype("float32")
    scores = paddle.to_tensor(values.astype("float32"), stop_gradient=False)
    ops.softmax(scores).backward(paddle.to_tensor(upstream))
    exact = np.exp(np.float64(scores.numpy()))
    exact /= exact.sum(-1, keepdims=True)
    gradient = exact * (upstream - (exact * upstream).sum(-1, keepdims=True))
    error = np.sqrt(np.mean((scores.grad.numpy() - gradient) ** 2)) / np.sqrt(np.mean(gradient**2))
    assert error < 1e-5


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_gradient_of_a_row_with_one_probability_equals_float64(dtype):
    """The exact gradient of the first case is -exp(-60), but the gate's float64 reference has 0."""
    scores = paddle.to_tensor(np.array([[0.0, -60.0]]).astype(dtype), stop_gradient=False)
    ops.softmax(scores).backward(paddle.to_tensor(np.array([[1.0, 2.0]]).astype(dtype)))
    np.testing.assert_allclose(scores.grad.numpy(), [[0.0, np.exp(-60.0)]], rtol=1e-5, atol=0)


def test_cross_entropy_keeps_a_loss_much_smaller_than_the_logits():
    logits = np.array([[30.0, -4.0, -7.0]])
    loss = ops.cross_entropy(paddle.to_tensor(logits), paddle.to_tensor([0])).numpy()
    np.testing.assert_allclose(loss, np.log1p(np.exp(-34.0) + np.exp(-37.0)), rtol=0.1)  # 1.8e-15, not 0


@pytest.mark.beyond_paddle("its exp never ends in 0")
@pytest.mark.parametrize(("dtype", "below"), [("float64", -800.0), ("float32", -110.0)])
def test_cross_entropy_has_no_gradient_for_classes_without_probability(dtype, below):
    """Paddle's exp gives 1e-309 and 7e-40; compared with them, the correct gradient of the gate, 0, has no size."""
    logits = paddle.full([4, 64], below, dtype)
    logits[:, 0] = 0.0
    logits.stop_gradient = False
    ops.cross_entropy(logits, paddle.zeros([4], "int64")).sum().backward()
    assert not logits.grad.numpy().any()


def test_a_fully_masked_row_has_no_gradient():
    scores = paddle.to_tensor(np.array([[1.0, 2.0, 3.0]]), stop_gradient=False)
    nothing = paddle.zeros([1, 3], "bool")
    probabilities = ops.masked_softmax(scores, [(nothing, -1e9)])
    np.testing.assert_allclose(probabilities.numpy(), [[1 / 3] * 3])
    (probabilities * paddle.to_tensor([[1.0, 5.0, 2.0]], "float64")).sum().backward()
    assert (scores.grad.numpy() == 0).all()


def test_heads_first_is_a_transpose_with_an_inverse(draw):
    batch, length, heads, size = 2, 3, 4, 5
    x = draw.standard_normal((batch, length, heads, size))
    order = heads_first(batch, length, heads)

    def transpose_heads(value):
        return value.reshape([batch, length, heads, size]).transpose([0, 2, 1, 3]).reshape([-1, size])

    flat = x.reshape(-1, size)
    ours = compute_values_and_gradients(lambda value: reorder(value, order), flat)
    assert_equal_to_rounding(ours, compute_values_and_gradients(transpose_heads, flat))
    back = reorder(reorder(paddle.to_tensor(flat), order), order.invert())
    assert (back.numpy() == flat).all()


@pytest.mark.parametrize(("chunks_before", "chunks_after"), [(1, 0), (1, 1), (0, 2), (2, 1), (1, 7), (6, 4)])
def test_adjacent_chunks_are_shifted_copies_side_by_side(draw, chunks_before, chunks_after):
    """The reference shifts with two slices, which shift nothing beyond the length of the ring."""
    rows, chunks, width = 2, 4, 3

    def concatenate_shifted(value):
        value = value.reshape([rows, chunks, width])
        halves = [
            (value, value[:, :0]) if offset == 0 or abs(offset) > chunks else (value[:, offset:], value[:, :offset])
            for offset in range(-chunks_before, chunks_after + 1)
        ]
        parts = [paddle.concat([half for half in two if half.shape[1]], axis=1) for two in halves]
        return paddle.stack(parts, axis=2).reshape([-1, width])

    x = draw.standard_normal((rows * chunks, width))
    order = adjacent_chunks(rows, chunks, chunks_before, chunks_after)
    assert_equal_to_rounding(
        compute_values_and_gradients(lambda v: reorder(v, order), x),
        compute_values_and_gradients(concatenate_shifted, x),
    )


def apply_dropout(x, p, mask_shape):
    return ops.keep_masked(x, ops.random_mask(p, mask_shape), p)


def test_dropout_has_its_rate_and_scales_kept_cells():
    paddle.seed(0)
    x = paddle.ones([1000, 1000], "float64")
    for p in (0.05, 0.5, 0.9):
        output = apply_dropout(x, p, x.shape).numpy()
        is_kept = output != 0
        deviation = np.sqrt(p * (1 - p) / x.size)
        assert abs(is_kept.mean() - (1 - p)) < 5 * deviation
        np.testing.assert_allclose(output[is_kept], 1 / (1 - p), rtol=1e-15)


def test_dropout_of_whole_rows_drops_them_together():
    paddle.seed(0)
    output = apply_dropout(paddle.ones([64, 8, 5]), 0.5, [64, 8, 1]).numpy()
    assert ((output == 0).all(-1) | (output > 0).all(-1)).all()
    assert 0.3 < (output == 0).mean() < 0.7


def test_dropout_gives_gradients_only_to_kept_cells():
    paddle.seed(0)
    x = paddle.ones([50, 40], "float64")
    x.stop_gradient = False
    output = apply_dropout(x, 0.25, x.shape)
    output.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), output.numpy())


def test_masks_differ_from_call_to_call_and_repeat_with_the_seed():
    paddle.seed(7)
    first_mask, second_mask = (ops.random_mask(0.5, [64, 64]).numpy() for _ in range(2))
    paddle.seed(7)
    repeated_mask = ops.random_mask(0.5, [64, 64]).numpy()
    assert (first_mask == repeated_mask).all()
    assert 0.4 < (first_mask == second_mask).mean() < 0.6
