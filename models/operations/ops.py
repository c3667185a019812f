"""Operations that Paddle computes slowly on a CPU, composed of operations that it computes fast.

Paddle's own kernel is used on a GPU, wherever it is as good, and where :mod:`models.operations.kernels` asks for it.
The slow ones, measured on 2 cores with 4 million float32 (forward and backward): dropout 52 ms against 7 here,
``where`` plus softmax 56 against 26, layer norm 16 against 5 on 1 million, adding a bias 4 against 0.5. Each operation
has a plain twin in tests/models/test_ops.py, to which it must be equal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer

from models.operations import compiled, kernels
from models.operations.precision import is_lowered
from models.operations.trace import at, takes_apart

#: Paddle's CPU softmax clips max - x at this value.
NARROW = 64.0
#: Below this, exp no longer has all its digits (at -87.34 and -708.4), and Paddle's CPU kernel never ends.
END_OF_EXP = {paddle.float32: -87.0, paddle.float64: -708.0}
#: Columns and rows that are summed at a time.
BLOCK = 4096
ROWS = 128


def is_on_cpu(x: paddle.Tensor) -> bool:
    """Whether it is in the host's memory; never in a static graph, which has no place yet."""
    return paddle.in_dynamic_mode() and x.place.is_cpu_place()


def is_composed(x: paddle.Tensor) -> bool:
    """Whether operations on it are composed here: on a CPU, where that is faster and keeps more digits, unless
    :mod:`models.operations.kernels` says otherwise; never in a static graph, which has no gradient."""
    return is_on_cpu(x) and kernels.chosen() != kernels.PADDLE


def nearest_axes(x: paddle.Tensor) -> paddle.Tensor:
    """The index of the largest in each row of [x, -x], the first of several: (..., width) -> int64 (...)."""
    return compiled.nearest_axes(x) if compiled.suits(x) else paddle.concat([x, -x], -1).argmax(-1)


def _column_sums(matrix: paddle.Tensor) -> paddle.Tensor:
    """(N, width) -> (width,), by products with a row of ones: 25 times faster than Paddle's sum over axis 0.

    In one product over 131,072 rows, float32 sums are off by 4e-6 of their size; block by block, by 2e-7.
    """
    rows, width = matrix.shape
    if rows <= ROWS:
        return paddle.matmul(paddle.ones([1, rows], matrix.dtype), matrix).flatten()
    whole = rows // ROWS * ROWS
    blocks = (matrix if whole == rows else matrix[:whole]).reshape([-1, ROWS, width])
    sums = _column_sums(paddle.matmul(paddle.ones([1, ROWS], matrix.dtype), blocks).reshape([-1, width]))
    return sums if whole == rows else sums + _column_sums(matrix[whole:])


def _wanted(*tensors: paddle.Tensor) -> list[bool]:
    """Which inputs need a gradient: for any other, the backward must return None to Paddle."""
    return [not tensor.stop_gradient for tensor in tensors]


class _Keys(PyLayer):
    @staticmethod
    def forward(ctx, x, epsilon, factor):
        ctx.save_for_backward(x)
        ctx.epsilon, ctx.factor = epsilon, factor
        return compiled.keys(x, epsilon, factor)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensor()
        return compiled.keys_backward(grad, x, ctx.epsilon, ctx.factor)


def unit_mean_square(x: paddle.Tensor, epsilon: float, divisor: float) -> paddle.Tensor:
    """Divide ``x`` (..., D) by the root of its mean square over D plus epsilon, and by ``divisor``."""
    if compiled.suits(x, loop="keys") and not takes_apart():
        return _Keys.apply(x, epsilon, 1.0 / divisor)
    mean_square = at("mean_square", (x * x).mean(-1, keepdim=True))
    return x * paddle.rsqrt(mean_square + epsilon) / divisor


class _ReLU(PyLayer):
    @staticmethod
    def forward(ctx, x):
        rectified = compiled.relu(x)
        ctx.save_for_backward(rectified)
        return rectified

    @staticmethod
    def backward(ctx, grad):
        return compiled.relu_backward(grad, *ctx.saved_tensor())


class ReLU(nn.ReLU):
    """The larger of a number and 0."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Any shape."""
        return _ReLU.apply(x) if compiled.suits(x) else F.relu(x)


class _AddBias(PyLayer):
    @staticmethod
    def forward(ctx, x, bias):
        ctx.wanted = _wanted(x, bias)
        if not compiled.suits(x, bias, loop="bias"):
            return x + bias
        # A view: for Paddle, the tensor itself would be one that its own operation has changed in place.
        return compiled.add_row_(x.detach().contiguous().view(x.shape), bias)

    @staticmethod
    def backward(ctx, grad):
        of_x, of_bias = ctx.wanted
        return grad if of_x else None, _column_sums(grad.reshape([-1, grad.shape[-1]])) if of_bias else None


def add_bias(x: paddle.Tensor, bias: paddle.Tensor) -> paddle.Tensor:
    """(..., width) plus (width,). It may be added in place: nothing else may need ``x``."""
    return _AddBias.apply(x, bias) if is_composed(x) else x + bias


class _AxialTable(PyLayer):
    @staticmethod
    def forward(ctx, of_rows, of_columns):
        ctx.widths = of_rows.shape[2], of_columns.shape[2]
        ctx.wanted = _wanted(of_rows, of_columns)
        rows, columns = of_rows.shape[0], of_columns.shape[1]
        return paddle.concat([of_rows.expand([rows, columns, -1]), of_columns.expand([rows, columns, -1])], axis=-1)

    @staticmethod
    def backward(ctx, grad):
        rows, columns, _ = grad.shape
        by_row, by_column = grad.split(ctx.widths, axis=-1)
        of_rows, of_columns = ctx.wanted
        return (
            paddle.matmul(paddle.ones([1, columns], grad.dtype), by_row) if of_rows else None,
            _column_sums(by_column.reshape([rows, -1])).reshape([1, columns, -1]) if of_columns else None,
        )


def axial_table(of_rows: paddle.Tensor, of_columns: paddle.Tensor) -> paddle.Tensor:
    """Concatenate (rows, 1, a) and (1, columns, b) at every place: (rows, columns, a + b)."""
    if compiled.suits(of_rows, of_columns, loop="axial_positions"):
        return _AxialTable.apply(of_rows, of_columns)
    places = [of_rows.shape[0], of_columns.shape[1], -1]
    return paddle.concat([of_rows.expand(places), of_columns.expand(places)], axis=-1)


class _ScaleColumns(PyLayer):
    @staticmethod
    def forward(ctx, table, factors):
        ctx.factors = factors
        return compiled.scale_columns(table, factors)

    @staticmethod
    def backward(ctx, grad):
        return compiled.scale_columns_backward(grad, ctx.factors)


def scale_columns(table: paddle.Tensor, factors: paddle.Tensor) -> paddle.Tensor:
    """Copy a table (rows, columns, width) per example, times the column factors (B, columns), which get no
    gradient: (B, rows, columns, width). For compiled loops only."""
    return _ScaleColumns.apply(table, factors)


class _Rounded(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return x.astype("bfloat16").astype(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        return grad.astype("bfloat16").astype(grad.dtype)


def product(x: paddle.Tensor, y: paddle.Tensor, kind: str = "attention", transpose_y: bool = False) -> paddle.Tensor:
    """Multiply two matrices, or stacks of them, in bfloat16 if the kind is lowered.

    Paddle 3.3.1 has no CPU kernel for that, so a CPU gets float32 numbers rounded to bfloat16: a product of two such
    numbers is exact, and is summed in float32 as on a GPU.

    Args:
        kind: of :data:`models.operations.precision.PRODUCTS`.
    """
    if not is_lowered(kind):
        return paddle.matmul(x, y, transpose_y=transpose_y)
    if is_on_cpu(x):
        return _Rounded.apply(paddle.matmul(_Rounded.apply(x), _Rounded.apply(y), transpose_y=transpose_y))
    return paddle.matmul(x.astype("bfloat16"), y.astype("bfloat16"), transpose_y=transpose_y).astype(x.dtype)


def linear(
    x: paddle.Tensor, weight: paddle.Tensor, bias: paddle.Tensor | None, transposed: bool = False
) -> paddle.Tensor:
    """x W + b, with the bias's gradient as a matrix product. The bias is added in the precision of ``x``.

    Args:
        x: (..., in).
        weight: (in, out), or, ``transposed``, (out, in).
        bias: (out,), or None.

    Returns:
        (..., out).
    """
    if not (transposed or is_lowered("linear")) and (bias is None or not is_composed(x)):
        return F.linear(x, weight, bias)
    mapped = product(x, weight, "linear", transposed)
    return mapped if bias is None else add_bias(mapped, bias)


class Linear(nn.Linear):
    """:func:`linear` as a layer."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """(..., in) -> (..., out)."""
        return linear(x, self.weight, self.bias)


def _normed(x: paddle.Tensor, epsilon: float) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Normalise ``x`` to mean 0 and variance 1 over its last axis; return it and its scale."""
    centred = x - x.mean(-1, keepdim=True)
    scale = paddle.rsqrt((centred * centred).mean(-1, keepdim=True) + epsilon)
    return centred * scale, scale


class _LayerNorm(PyLayer):
    @staticmethod
    def forward(ctx, x, gain, bias, epsilon):
        ctx.save_for_backward(x, gain)
        ctx.epsilon = epsilon
        ctx.wanted = _wanted(x, gain, bias)
        if x.dtype == paddle.float64:  # Paddle's kernel rounds epsilon to float32: 1e-5 becomes 9.9999997e-6
            return _normed(x, epsilon)[0] * gain + bias
        if compiled.suits(x, gain, bias, loop="layer_norm"):
            return compiled.layer_norm(x, gain, bias, epsilon)
        return F.layer_norm(x, x.shape[-1:], gain, bias, epsilon)

    @staticmethod
    def backward(ctx, grad):
        x, gain = ctx.saved_tensor()
        of_x, of_gain, of_bias = ctx.wanted
        if compiled.suits(grad, x, gain, loop="layer_norm"):
            grad_x, sums = compiled.layer_norm_backward(grad, x, gain, ctx.epsilon)
            grad_gain, grad_bias = _column_sums(sums).split(2)
            return grad_x if of_x else None, grad_gain if of_gain else None, grad_bias if of_bias else None
        normed, scale = _normed(x, ctx.epsilon)
        inner = grad * gain
        along = (inner * normed).mean(-1, keepdim=True)
        flat = [-1, x.shape[-1]]
        return (
            (inner - inner.mean(-1, keepdim=True) - normed * along) * scale if of_x else None,
            _column_sums((grad * normed).reshape(flat)) if of_gain else None,
            _column_sums(grad.reshape(flat)) if of_bias else None,
        )


def _is_double(x: paddle.Tensor) -> bool:
    return paddle.in_dynamic_mode() and x.dtype == paddle.float64


def layer_norm(x: paddle.Tensor, gain: paddle.Tensor, bias: paddle.Tensor, epsilon: float) -> paddle.Tensor:
    """Layer normalisation over the last axis (Ba et al. 2016): (..., width), gain and bias (width,).

    In float64, the gate's yardstick, it is composed on every device: Paddle's takes its epsilon in float32. The
    backward of Paddle's CPU kernel leaves out a gain without a gradient, so such a gain is applied apart.
    """
    if not (is_composed(x) or _is_double(x)):
        if gain.stop_gradient and is_on_cpu(x):
            return F.layer_norm(x, x.shape[-1:], epsilon=epsilon) * gain + bias
        return F.layer_norm(x, x.shape[-1:], gain, bias, epsilon)
    return _LayerNorm.apply(x, gain, bias, epsilon)


class LayerNorm(nn.LayerNorm):
    """:func:`layer_norm` as a layer."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Any shape whose last axis is the normalised one."""
        return layer_norm(x, self.weight, self.bias, self._epsilon)


def _exp(x: paddle.Tensor) -> paddle.Tensor:
    """exp, down to the smallest number and 0: Paddle's CPU kernel returns 3e-39 and 6e-309 for anything smaller, and
    so gradients of 1e-305 where there are none. In float64, Paddle's digits are kept where they are right."""
    end = END_OF_EXP.get(x.dtype)
    if not is_composed(x) or end is None or float(x.detach().min()) >= end:
        return paddle.exp(x)
    half = paddle.exp(0.5 * x)
    square = half * half
    return paddle.where(x < end, square, paddle.exp(x)) if x.dtype == paddle.float64 else square


def _suits_the_kernel(scores: paddle.Tensor, spread: float = NARROW) -> bool:
    """Whether Paddle's CPU softmax is as good as :func:`_softmax` for these unmasked scores: whether they lie within
    ``spread`` of one another.

    Paddle's CPU kernel clips smaller numbers to exp(-64): no weight is below 1e-28. With saturated attention,
    gradients are smaller than that (1e-35 was seen in float32) but come out as 1e-23: noise, which Adam turns into
    whole updates. The kernel is three times as fast, and is used where no weight that counts is that small, and in
    mixed precision.
    """
    if scores.dtype in (paddle.float32, paddle.float64):
        scores = scores.detach()
        return scores.dtype == paddle.float32 and float(scores.max() - scores.min()) < spread
    return True


def _softmax(scores: paddle.Tensor) -> paddle.Tensor:
    """Softmax of the rows of (N, K), without clipping small weights."""
    weights = _exp(scores - scores.max(-1, keepdim=True))
    return weights / _row_sums(weights)


def _masked(scores: paddle.Tensor, masks: Sequence[tuple[paddle.Tensor, float]]) -> paddle.Tensor:
    """Put each mask's value where it is False, in turn."""
    for kept, value in masks:
        scores = at("masked_scores", paddle.where(kept, scores, paddle.full([1], value, scores.dtype)))
    return scores


class _CompiledSoftmax(PyLayer):
    @staticmethod
    def forward(ctx, scores, divisor, bias):
        probabilities = compiled.softmax(scores, divisor, bias)
        ctx.save_for_backward(probabilities)
        ctx.divisor, ctx.of_bias = divisor, bias is not None
        return probabilities

    @staticmethod
    def backward(ctx, grad):
        (probabilities,) = ctx.saved_tensor()
        of_scores = compiled.softmax_backward(grad, probabilities, ctx.divisor)
        return (of_scores, None) if ctx.of_bias else of_scores


class _MaskedSoftmax(PyLayer):
    @staticmethod
    def forward(ctx, scores, masks, with_normaliser, suits_the_kernel):
        scores = _masked(scores, masks)
        flat = scores.reshape([-1, scores.shape[-1]])
        probabilities = F.softmax(flat) if suits_the_kernel else _softmax(flat)
        ctx.masks = [kept for kept, _ in masks]
        ctx.with_normaliser = with_normaliser
        ctx.save_for_backward(probabilities)
        shaped = probabilities.reshape(scores.shape)
        if not with_normaliser:
            return shaped
        # log(sum(exp(s))) is s - log(softmax(s)) at every position; the largest is the best conditioned.
        normaliser = flat.max(-1, keepdim=True) - paddle.log(probabilities.max(-1, keepdim=True))
        return shaped, normaliser.reshape([*scores.shape[:-1], 1])

    @staticmethod
    def backward(ctx, grad, grad_normaliser=None):
        (probabilities,) = ctx.saved_tensor()
        width = probabilities.shape[-1]
        flat = grad.reshape([-1, width])
        flat = flat - _row_sums(flat * probabilities)
        if flat.dtype == paddle.float32:
            # If one probability is nearly 1, its difference loses its digits: the residual mean still has them.
            # If it is 1, float64 loses them too and gives 0.
            left = _row_sums(flat * probabilities)
            flat = flat - left * (probabilities.max(-1, keepdim=True) < 1).astype(left.dtype)
        if ctx.with_normaliser:
            flat = flat + grad_normaliser.reshape([-1, 1])
        grad_scores = (probabilities * flat).reshape(grad.shape)
        for kept in ctx.masks:
            grad_scores = paddle.where(kept, grad_scores, paddle.zeros([1], grad.dtype))
        return grad_scores


def masked_softmax(
    scores: paddle.Tensor, masks: Sequence[tuple[paddle.Tensor, float]], with_normaliser: bool = False
) -> paddle.Tensor | tuple[paddle.Tensor, paddle.Tensor]:
    """Softmax over the last axis, after putting each mask's value where it is False, in turn.

    Args:
        scores: (..., K).
        masks: pairs of a bool tensor that broadcasts to ``scores`` and the value where it is False.
        with_normaliser: also return log(sum(exp(scores))) over the last axis, (..., 1).
    """
    if is_composed(scores):
        return _MaskedSoftmax.apply(scores, masks, with_normaliser, _suits_the_kernel(scores))
    scores = _masked(scores, masks)
    probabilities = F.softmax(scores)
    return (probabilities, paddle.logsumexp(scores, -1, keepdim=True)) if with_normaliser else probabilities


def softmax(scores: paddle.Tensor, unmasked: paddle.Tensor | None = None) -> paddle.Tensor:
    """Softmax over the last axis.

    Args:
        unmasked: the scores before masking, which decide how to compute it. Paddle's kernel gives masked scores the
            weight exp(-64) and a gradient; half of that distance keeps it 1e-14 below all that count.
    """
    if compiled.suits(scores, loop="softmax"):
        return _CompiledSoftmax.apply(scores, 1.0, None)
    if not is_composed(scores):
        return F.softmax(scores)
    near = _suits_the_kernel(scores) if unmasked is None else _suits_the_kernel(unmasked, NARROW / 2)
    return _MaskedSoftmax.apply(scores, (), False, near)


def biased_softmax(scores: paddle.Tensor, divisor: float, bias: paddle.Tensor | None) -> paddle.Tensor:
    """Softmax over the last axis of scores (B, heads, T, K) / divisor + bias, which has (T, K) or (B, 1, T, K) and gets
    no gradient, in one pass over memory. For a compiled loop only."""
    return _CompiledSoftmax.apply(scores, divisor, bias)


def softmax_over(scores: paddle.Tensor, axis: int) -> paddle.Tensor:
    """Softmax over any axis that is short enough for sums to keep their digits. :func:`_suits_the_kernel` says why
    Paddle's kernel is not used."""
    weights = _exp(scores - scores.max(axis, keepdim=True).detach())
    return weights / weights.sum(axis, keepdim=True)


def _row_sums(matrix: paddle.Tensor) -> paddle.Tensor:
    """(N, width) -> (N, 1), block by block: longer plain sums lose more digits."""
    width = matrix.shape[1]
    if width <= BLOCK:  # split would copy it, which takes ten times as long as the sum
        return paddle.matmul(matrix, paddle.ones([width, 1], matrix.dtype))
    parts = matrix.split([min(BLOCK, width - start) for start in range(0, width, BLOCK)], axis=1)
    return paddle.concat([_row_sums(part) for part in parts], axis=1).sum(-1, keepdim=True)


class _CompiledCrossEntropy(PyLayer):
    @staticmethod
    def forward(ctx, logits, labels):
        losses, normalisers = compiled.cross_entropy(logits, labels)
        ctx.save_for_backward(logits, labels, normalisers)
        return losses

    @staticmethod
    def backward(ctx, grad):
        return compiled.cross_entropy_backward(grad, *ctx.saved_tensor())


class _CrossEntropy(PyLayer):
    @staticmethod
    def forward(ctx, logits, labels):
        largest = logits.max(-1, keepdim=True)
        weights = _exp(logits - largest)
        total = _row_sums(weights)
        ctx.save_for_backward(weights, total, labels)
        # In this order a loss of 1e-15 keeps its digits beside logits of 30.
        return (paddle.log(total) + (largest - paddle.take_along_axis(logits, labels, 1, broadcast=False))).flatten()

    @staticmethod
    def backward(ctx, grad):
        weights, total, labels = ctx.saved_tensor()
        grad = grad.unsqueeze(-1)
        grad_logits = weights * (grad / total)
        return paddle.put_along_axis(grad_logits, labels, -grad, 1, reduce="add", broadcast=False)


def cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """-log softmax(logits)[label] of every row.

    Paddle's CPU kernel sums the normaliser term by term. Over CTRL's vocabulary of 246,534 that makes it wrong by
    2.5e-5 in float32 and 1.2e-14 in float64, and with it the gradient of everything below.

    Args:
        logits: (N, classes).
        labels: int64 (N,), each a class.

    Returns:
        (N,).
    """
    if compiled.suits(logits, loop="cross_entropy"):
        return _CompiledCrossEntropy.apply(logits, labels.astype("int64"))
    if is_composed(logits):
        return _CrossEntropy.apply(logits, labels.unsqueeze(-1))
    return F.cross_entropy(logits, labels, reduction="none")


def _fits_a_mask(x: paddle.Tensor, kept: paddle.Tensor) -> bool:
    """Whether a compiled loop can apply this dropout mask."""
    return kept.shape == x.shape and kept.dtype == paddle.bool and compiled.suits(x, loop="dropout")


class _Keep(PyLayer):
    @staticmethod
    def forward(ctx, x, kept, scale):
        ctx.kept, ctx.scale = kept, scale
        if _fits_a_mask(x, kept):
            return compiled.keep(x, kept, scale)
        return x * kept.astype(x.dtype) * scale

    @staticmethod
    def backward(ctx, grad):
        if _fits_a_mask(grad, ctx.kept):
            return compiled.keep(grad, ctx.kept, ctx.scale)
        return grad * ctx.kept.astype(grad.dtype) * ctx.scale


def keep(x: paddle.Tensor, kept: paddle.Tensor, p: float) -> paddle.Tensor:
    """Dropout with a given mask: what is not kept becomes 0, the rest is scaled by 1/(1-p).

    Args:
        kept: bool, of a shape that broadcasts to that of ``x``.
        p: the fraction of cells that such masks drop.
    """
    return _Keep.apply(x, kept, 1.0 / (1.0 - p))


def random_mask(p: float, shape: Sequence[int]) -> paddle.Tensor:
    """Draw a dropout mask: bool, each True with probability 1 - p, from Paddle's generator.

    A cell takes 16 random bits, so that the rate is ``p`` to within 2^-17.
    """
    if compiled.is_chosen() and paddle.get_device() == "cpu":
        return compiled.random_mask(round(p * 2**16), shape)
    count = math.prod(shape)
    bits = paddle.randint(-(2**31), 2**31 - 1, [-(-count // 2)], "int32").view("int16")[:count].reshape(shape)
    return bits >= round(p * 2**16) - 2**15
