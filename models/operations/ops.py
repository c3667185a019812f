"""Operations that Paddle computes slowly on a CPU, composed of operations that it computes fast.

Paddle's own kernel is used on a GPU, if it is as fast and accurate, and if :mod:`models.operations.kernels` selects it.
Measured on 2 cores with 4 million float32 numbers, forward and backward, Paddle's kernels and these operations take:
dropout 52 and 7 ms, ``where`` plus softmax 56 and 26 ms, layer norm of 1 million numbers 16 and 5 ms, a bias 4 and
0.5 ms. tests/models/test_ops.py compares each operation with a plain implementation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer

from models.operations import compiled, kernels
from models.operations.kernels import BLOCK_COLUMNS, BLOCK_ROWS
from models.operations.precision import is_cast_to_bfloat16
from models.operations.trace import at, splits_loops

#: Paddle's CPU softmax clips max - x at this value.
MAX_KERNEL_SPREAD = 64.0
#: Below this number, exp loses digits (at -87.34 and -708.4), and Paddle's CPU kernel never reaches 0.
MIN_ACCURATE_EXPONENT = {paddle.float32: -87.0, paddle.float64: -708.0}


def is_on_cpu(x: paddle.Tensor) -> bool:
    """Return whether a tensor is in the memory of the CPU; never in a static graph, which has no device yet."""
    return paddle.in_dynamic_mode() and x.place.is_cpu_place()


def is_composed(x: paddle.Tensor) -> bool:
    """Return whether operations on a tensor are composed here: on a CPU, unless Paddle's kernels are chosen.

    They are faster there and keep more digits. A static graph never uses them, because it has no gradients.
    """
    return is_on_cpu(x) and kernels.chosen_kernels() != kernels.PADDLE


def nearest_axes(x: paddle.Tensor) -> paddle.Tensor:
    """Return the index of the first largest number of [x, -x] in each row: (..., width) -> int64 (...)."""
    return compiled.nearest_axes(x) if compiled.supports_compiled(x) else paddle.concat([x, -x], -1).argmax(-1)


def _column_sums(matrix: paddle.Tensor) -> paddle.Tensor:
    """Sum the rows by products with a row of ones, 25 times faster than Paddle's sum: (N, width) -> (width,).

    In one product over 131,072 rows, float32 sums have a relative error of 4e-6; block by block, 2e-7.
    """
    rows, width = matrix.shape
    if rows <= BLOCK_ROWS:
        return paddle.matmul(paddle.ones([1, rows], matrix.dtype), matrix).flatten()
    whole = rows // BLOCK_ROWS * BLOCK_ROWS
    blocks = (matrix if whole == rows else matrix[:whole]).reshape([-1, BLOCK_ROWS, width])
    sums = _column_sums(paddle.matmul(paddle.ones([1, BLOCK_ROWS], matrix.dtype), blocks).reshape([-1, width]))
    return sums if whole == rows else sums + _column_sums(matrix[whole:])


def _need_gradient(*tensors: paddle.Tensor) -> list[bool]:
    """Return whether each input needs a gradient; for any other, Paddle expects None from a backward."""
    return [not tensor.stop_gradient for tensor in tensors]


class _UnitMeanSquare(PyLayer):
    @staticmethod
    def forward(ctx, x, epsilon, factor):
        """Return x scaled to a mean square of 1 along the last axis, times ``factor``, by a compiled loop.

        Args:
            ctx: context that keeps tensors for the backward.
            x: input, (..., D).
            epsilon: value added to the mean square.
            factor: number that multiplies the result.
        """
        ctx.save_for_backward(x)
        ctx.epsilon, ctx.factor = epsilon, factor
        return compiled.keys(x, epsilon, factor)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient with respect to x, from the gradient of the output."""
        (x,) = ctx.saved_tensor()
        return compiled.keys_backward(grad, x, ctx.epsilon, ctx.factor)


def unit_mean_square(x: paddle.Tensor, epsilon: float, divisor: float) -> paddle.Tensor:
    """Divide ``x`` (..., D) by the root of its mean square over D plus epsilon, and by ``divisor``.

    Args:
        x: input, (..., D).
        epsilon: number that is added to the mean square of each row.
        divisor: divisor of the result.
    """
    if compiled.supports_compiled(x, loop="keys") and not splits_loops():
        return _UnitMeanSquare.apply(x, epsilon, 1.0 / divisor)
    mean_square = at("mean_square", (x * x).mean(-1, keepdim=True))
    return x * paddle.rsqrt(mean_square + epsilon) / divisor


class _ReLU(PyLayer):
    @staticmethod
    def forward(ctx, x):
        """Return max(x, 0) by a compiled loop."""
        output = compiled.relu(x)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient with respect to x, from the gradient of the output."""
        return compiled.relu_backward(grad, *ctx.saved_tensor())


class ReLU(nn.ReLU):
    """The larger of a number and 0."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return the larger of 0 and each number of ``x``, of any shape."""
        return _ReLU.apply(x) if compiled.supports_compiled(x) else F.relu(x)


class _AddBias(PyLayer):
    @staticmethod
    def forward(ctx, x, bias):
        """Return x + bias; a compiled loop overwrites the memory of x.

        Args:
            ctx: context that keeps tensors for the backward.
            x: input, (..., D).
            bias: bias, (D,).
        """
        ctx.needs_gradient = _need_gradient(x, bias)
        if not compiled.supports_compiled(x, bias, loop="bias"):
            return x + bias
        # A view: Paddle would reject x itself as a tensor that its own operation has changed in place.
        return compiled.add_row_(x.detach().contiguous().view(x.shape), bias)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x and the bias; None for one that needs no gradient."""
        for_x, for_bias = ctx.needs_gradient
        return grad if for_x else None, _column_sums(grad.reshape([-1, grad.shape[-1]])) if for_bias else None


def add_bias(x: paddle.Tensor, bias: paddle.Tensor) -> paddle.Tensor:
    """Add a bias (width,) to ``x`` (..., width), perhaps in place: no other operation may need ``x``."""
    return _AddBias.apply(x, bias) if is_composed(x) else x + bias


class _AxialTable(PyLayer):
    @staticmethod
    def forward(ctx, row_table, column_table):
        """Return the axial position table, (rows, columns, row width + column width).

        Args:
            ctx: context that keeps the widths for the backward.
            row_table: table of the rows, (rows, 1, row width).
            column_table: table of the columns, (1, columns, column width).
        """
        ctx.widths = row_table.shape[2], column_table.shape[2]
        ctx.needs_gradient = _need_gradient(row_table, column_table)
        rows, columns = row_table.shape[0], column_table.shape[1]
        return paddle.concat([row_table.expand([rows, columns, -1]), column_table.expand([rows, columns, -1])], axis=-1)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of the row table and the column table; None for one that needs no gradient."""
        rows, columns, _ = grad.shape
        row_grad, column_grad = grad.split(ctx.widths, axis=-1)
        for_rows, for_columns = ctx.needs_gradient
        return (
            paddle.matmul(paddle.ones([1, columns], grad.dtype), row_grad) if for_rows else None,
            _column_sums(column_grad.reshape([rows, -1])).reshape([1, columns, -1]) if for_columns else None,
        )


def axial_table(row_table: paddle.Tensor, column_table: paddle.Tensor) -> paddle.Tensor:
    """Concatenate (rows, 1, a) and (1, columns, b) at each row and column: (rows, columns, a + b).

    Args:
        row_table: table of the rows, (rows, 1, a).
        column_table: table of the columns, (1, columns, b).
    """
    if compiled.supports_compiled(row_table, column_table, loop="axial_positions"):
        return _AxialTable.apply(row_table, column_table)
    shape = [row_table.shape[0], column_table.shape[1], -1]
    return paddle.concat([row_table.expand(shape), column_table.expand(shape)], axis=-1)


class _ScaleColumns(PyLayer):
    @staticmethod
    def forward(ctx, table, factors):
        """Return the table with each column multiplied by its factor."""
        ctx.factors = factors
        return compiled.scale_columns(table, factors)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of the table, from the gradient of the output."""
        return compiled.scale_columns_backward(grad, ctx.factors)


def scale_columns(table: paddle.Tensor, factors: paddle.Tensor) -> paddle.Tensor:
    """Copy a table for each example, and multiply each column by a factor. Only a compiled loop does this.

    Args:
        table: table, (rows, columns, width).
        factors: factors, (B, columns), which get no gradient.

    Returns:
        The scaled copies, (B, rows, columns, width).
    """
    return _ScaleColumns.apply(table, factors)


class _RoundToBfloat16(PyLayer):
    @staticmethod
    def forward(ctx, x):
        """Return x rounded to bfloat16, in its own dtype."""
        return x.astype("bfloat16").astype(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of the output rounded to bfloat16, in its own dtype."""
        return grad.astype("bfloat16").astype(grad.dtype)


def product(x: paddle.Tensor, y: paddle.Tensor, kind: str = "attention", transpose_y: bool = False) -> paddle.Tensor:
    """Multiply two matrices, or stacks of them, in bfloat16 if the current precision casts such products.

    Paddle 3.3.1 has no CPU kernel for bfloat16. On a CPU, the factors are float32 numbers rounded to bfloat16: the
    product of two such numbers is exact, and is summed in float32 as on a GPU.

    Args:
        x: first factor, (..., n, k).
        y: second factor, (..., k, m), or (..., m, k) if ``transpose_y``.
        kind: element of :data:`models.operations.precision.PRODUCTS`.
        transpose_y: whether the last two axes of ``y`` are swapped.

    Returns:
        The product, (..., n, m).
    """
    if not is_cast_to_bfloat16(kind):
        return paddle.matmul(x, y, transpose_y=transpose_y)
    if is_on_cpu(x):
        x, y = _RoundToBfloat16.apply(x), _RoundToBfloat16.apply(y)
        return _RoundToBfloat16.apply(paddle.matmul(x, y, transpose_y=transpose_y))
    return paddle.matmul(x.astype("bfloat16"), y.astype("bfloat16"), transpose_y=transpose_y).astype(x.dtype)


def linear(
    x: paddle.Tensor, weight: paddle.Tensor, bias: paddle.Tensor | None, is_transposed: bool = False
) -> paddle.Tensor:
    """Compute x W + b. The bias is added in the precision of ``x``, and its gradient is a matrix product.

    Args:
        x: input, (..., in).
        weight: weight, (in, out), or (out, in) if ``is_transposed``.
        bias: bias, (out,), or None.
        is_transposed: whether the axes of the weight are swapped.

    Returns:
        The output, (..., out).
    """
    if not (is_transposed or is_cast_to_bfloat16("linear")) and (bias is None or not is_composed(x)):
        return F.linear(x, weight, bias)
    output = product(x, weight, "linear", is_transposed)
    return output if bias is None else add_bias(output, bias)


class Linear(nn.Linear):
    """A layer that computes :func:`linear`."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return x W + b, (..., out), for ``x`` (..., in)."""
        return linear(x, self.weight, self.bias)


def _normalize_rows(x: paddle.Tensor, epsilon: float) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return ``x`` with mean 0 and variance 1 over the last axis, and the factor that scales each row."""
    centered = x - x.mean(-1, keepdim=True)
    scale = paddle.rsqrt((centered * centered).mean(-1, keepdim=True) + epsilon)
    return centered * scale, scale


class _LayerNorm(PyLayer):
    @staticmethod
    def forward(ctx, x, gain, bias, epsilon):
        """Return the layer norm of x over the last axis.

        Args:
            ctx: context that keeps tensors for the backward.
            x: input, (..., D).
            gain: factors of the features, (D,).
            bias: bias of the features, (D,).
            epsilon: value added to the variance.
        """
        ctx.save_for_backward(x, gain)
        ctx.epsilon = epsilon
        ctx.needs_gradient = _need_gradient(x, gain, bias)
        if x.dtype == paddle.float64:  # Paddle's kernel rounds epsilon to float32: 1e-5 becomes 9.9999997e-6
            return _normalize_rows(x, epsilon)[0] * gain + bias
        if compiled.supports_compiled(x, gain, bias, loop="layer_norm"):
            return compiled.layer_norm(x, gain, bias, epsilon)
        return F.layer_norm(x, x.shape[-1:], gain, bias, epsilon)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradients of x, gain and bias; None for one that needs no gradient."""
        x, gain = ctx.saved_tensor()
        for_x, for_gain, for_bias = ctx.needs_gradient
        if compiled.supports_compiled(grad, x, gain, loop="layer_norm"):
            grad_x, sums = compiled.layer_norm_backward(grad, x, gain, ctx.epsilon)
            grad_gain, grad_bias = _column_sums(sums).split(2)
            return grad_x if for_x else None, grad_gain if for_gain else None, grad_bias if for_bias else None
        normed, scale = _normalize_rows(x, ctx.epsilon)
        inner = grad * gain
        projection = (inner * normed).mean(-1, keepdim=True)
        flat = [-1, x.shape[-1]]
        return (
            (inner - inner.mean(-1, keepdim=True) - normed * projection) * scale if for_x else None,
            _column_sums((grad * normed).reshape(flat)) if for_gain else None,
            _column_sums(grad.reshape(flat)) if for_bias else None,
        )


def layer_norm(x: paddle.Tensor, gain: paddle.Tensor, bias: paddle.Tensor, epsilon: float) -> paddle.Tensor:
    """Compute layer normalization over the last axis (Ba et al. 2016).

    In float64 it is composed on every device, because Paddle's kernel rounds epsilon to float32. The backward of
    Paddle's CPU kernel ignores a gain without a gradient, so such a gain is applied separately.

    Args:
        x: input, (..., width).
        gain: gain, (width,).
        bias: bias, (width,).
        epsilon: number that is added to the variance.
    """
    if not (is_composed(x) or (paddle.in_dynamic_mode() and x.dtype == paddle.float64)):
        if gain.stop_gradient and is_on_cpu(x):
            return F.layer_norm(x, x.shape[-1:], epsilon=epsilon) * gain + bias
        return F.layer_norm(x, x.shape[-1:], gain, bias, epsilon)
    return _LayerNorm.apply(x, gain, bias, epsilon)


class LayerNorm(nn.LayerNorm):
    """A layer that computes :func:`layer_norm`."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return the layer norm of ``x`` (..., width), with the weight and bias of this layer."""
        return layer_norm(x, self.weight, self.bias, self._epsilon)


def _exp(x: paddle.Tensor) -> paddle.Tensor:
    """Compute exp, down to the smallest number and 0.

    Paddle's CPU kernel never returns less than 3e-39 (6e-309 in float64), so gradients that are 0 become 1e-305. In
    float64, numbers that Paddle's kernel computes accurately are taken from it.
    """
    minimum = MIN_ACCURATE_EXPONENT.get(x.dtype)
    if not is_composed(x) or minimum is None or float(x.detach().min()) >= minimum:
        return paddle.exp(x)
    half = paddle.exp(0.5 * x)
    square = half * half
    return paddle.where(x < minimum, square, paddle.exp(x)) if x.dtype == paddle.float64 else square


def _supports_paddle_softmax(scores: paddle.Tensor, max_spread: float = MAX_KERNEL_SPREAD) -> bool:
    """Return whether Paddle's CPU softmax is as accurate as :func:`_softmax` for these unmasked scores.

    Paddle's CPU kernel clips smaller numbers to exp(-64), so no weight is below 1e-28. With saturated attention,
    gradients are smaller than that (1e-35 was seen in float32), but the kernel returns 1e-23. Adam turns this noise
    into whole updates. The kernel is three times as fast. It is used if no weight that matters is that small, and in
    mixed precision.

    Args:
        scores: scores of any shape.
        max_spread: upper limit of the difference of the largest and the smallest score.
    """
    if scores.dtype in (paddle.float32, paddle.float64):
        scores = scores.detach()
        return scores.dtype == paddle.float32 and float(scores.max() - scores.min()) < max_spread
    return True


def _softmax(scores: paddle.Tensor) -> paddle.Tensor:
    """Softmax of the rows of (N, K), without clipping small weights."""
    weights = _exp(scores - scores.max(-1, keepdim=True))
    return weights / _row_sums(weights)


def _apply_masks(scores: paddle.Tensor, masks: Sequence[tuple[paddle.Tensor, float]]) -> paddle.Tensor:
    """Replace scores whose mask is False by the value of the mask, one mask after another."""
    for mask, value in masks:
        scores = at("masked_scores", paddle.where(mask, scores, paddle.full([1], value, scores.dtype)))
    return scores


class _CompiledSoftmax(PyLayer):
    @staticmethod
    def forward(ctx, scores, divisor, bias):
        """Return softmax(scores / divisor + bias) over the last axis by a compiled loop; the bias may be None.

        Args:
            ctx: autograd's context of this call.
            scores: scores, (B, heads, T, K); of any shape without a bias.
            divisor: divisor of the scores.
            bias: bias, (T, K) or (B, 1 or heads, T, K), or None; it gets no gradient.
        """
        probabilities = compiled.softmax(scores, divisor, bias)
        ctx.save_for_backward(probabilities)
        ctx.divisor, ctx.has_bias = divisor, bias is not None
        return probabilities

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of the scores, and None for the bias if there is one."""
        (probabilities,) = ctx.saved_tensor()
        grad_scores = compiled.softmax_backward(grad, probabilities, ctx.divisor)
        return (grad_scores, None) if ctx.has_bias else grad_scores


class _MaskedSoftmax(PyLayer):
    @staticmethod
    def forward(ctx, scores, masks, returns_normalizer, uses_kernel):
        """Return the softmax of masked scores, and the log-normalizer if ``returns_normalizer``.

        Args:
            ctx: context that keeps tensors for the backward.
            scores: scores, (..., K).
            masks: pairs of a bool mask and the value that replaces scores whose mask is False.
            returns_normalizer: whether log(sum(exp(scores))), (..., 1), is also returned.
            uses_kernel: whether Paddle's softmax kernel is used.
        """
        scores = _apply_masks(scores, masks)
        flat = scores.reshape([-1, scores.shape[-1]])
        probabilities = F.softmax(flat) if uses_kernel else _softmax(flat)
        ctx.masks = [mask for mask, _ in masks]
        ctx.returns_normalizer = returns_normalizer
        ctx.save_for_backward(probabilities)
        if not returns_normalizer:
            return probabilities.reshape(scores.shape)
        # log(sum(exp(s))) is s - log(softmax(s)) at every position; the largest is the best conditioned.
        log_normalizer = flat.max(-1, keepdim=True) - paddle.log(probabilities.max(-1, keepdim=True))
        return probabilities.reshape(scores.shape), log_normalizer.reshape([*scores.shape[:-1], 1])

    @staticmethod
    def backward(ctx, grad, grad_log_normalizer=None):
        """Return the gradient of the scores.

        Args:
            ctx: context of the forward.
            grad: gradient of the probabilities, (..., K).
            grad_log_normalizer: gradient of the log-normalizer, (..., 1); None if forward did not return it.
        """
        (probabilities,) = ctx.saved_tensor()
        width = probabilities.shape[-1]
        flat = grad.reshape([-1, width])
        flat = flat - _row_sums(flat * probabilities)
        if flat.dtype == paddle.float32:
            # If a probability is nearly 1, its difference loses digits that the mean of the differences still has.
            # If it is 1, float64 loses them too and gives 0.
            mean = _row_sums(flat * probabilities)
            flat = flat - mean * (probabilities.max(-1, keepdim=True) < 1).astype(mean.dtype)
        if ctx.returns_normalizer:
            flat = flat + grad_log_normalizer.reshape([-1, 1])
        grad_scores = (probabilities * flat).reshape(grad.shape)
        for mask in ctx.masks:
            grad_scores = paddle.where(mask, grad_scores, paddle.zeros([1], grad.dtype))
        return grad_scores


def masked_softmax(
    scores: paddle.Tensor, masks: Sequence[tuple[paddle.Tensor, float]], returns_normalizer: bool = False
) -> paddle.Tensor | tuple[paddle.Tensor, paddle.Tensor]:
    """Compute the softmax of masked scores over the last axis.

    Args:
        scores: scores, (..., K).
        masks: pairs of a mask and the value that replaces scores whose mask is False; the last mask wins. A mask is a
            bool tensor that broadcasts to ``scores``.
        returns_normalizer: whether log(sum(exp(scores))) over the last axis, (..., 1), is also returned.
    """
    if is_composed(scores):
        return _MaskedSoftmax.apply(scores, masks, returns_normalizer, _supports_paddle_softmax(scores))
    scores = _apply_masks(scores, masks)
    probabilities = F.softmax(scores)
    return (probabilities, paddle.logsumexp(scores, -1, keepdim=True)) if returns_normalizer else probabilities


def softmax(scores: paddle.Tensor, unmasked: paddle.Tensor | None = None) -> paddle.Tensor:
    """Compute the softmax over the last axis.

    Args:
        scores: scores of any shape.
        unmasked: scores before masking, which decide whether Paddle's kernel is used. The kernel gives masked scores
            the weight exp(-64) and a gradient; half of the usual spread keeps it 1e-14 below the weights of other
            scores.
    """
    if compiled.supports_compiled(scores, loop="softmax"):
        return _CompiledSoftmax.apply(scores, 1.0, None)
    if not is_composed(scores):
        return F.softmax(scores)
    decisive_scores = scores if unmasked is None else unmasked
    max_spread = MAX_KERNEL_SPREAD if unmasked is None else MAX_KERNEL_SPREAD / 2
    return _MaskedSoftmax.apply(scores, (), False, _supports_paddle_softmax(decisive_scores, max_spread))


def biased_softmax(scores: paddle.Tensor, divisor: float, bias: paddle.Tensor | None) -> paddle.Tensor:
    """Compute the softmax of scores / divisor + bias over the last axis, by a compiled loop.

    Args:
        scores: scores, (B, heads, T, K).
        divisor: divisor of the scores.
        bias: bias, (T, K) or (B, 1, T, K), which gets no gradient.
    """
    return _CompiledSoftmax.apply(scores, divisor, bias)


def softmax_over(scores: paddle.Tensor, axis: int) -> paddle.Tensor:
    """Compute the softmax over any axis that is short enough for accurate sums.

    Paddle's kernel is not used, for the reason in :func:`_supports_paddle_softmax`.
    """
    weights = _exp(scores - scores.max(axis, keepdim=True).detach())
    return weights / weights.sum(axis, keepdim=True)


def _row_sums(matrix: paddle.Tensor) -> paddle.Tensor:
    """Sum the columns block by block, because longer plain sums lose more digits: (N, width) -> (N, 1)."""
    width = matrix.shape[1]
    if width <= BLOCK_COLUMNS:  # split would copy the matrix, which takes ten times as long as the sum
        return paddle.matmul(matrix, paddle.ones([width, 1], matrix.dtype))
    parts = matrix.split([min(BLOCK_COLUMNS, width - start) for start in range(0, width, BLOCK_COLUMNS)], axis=1)
    return paddle.concat([_row_sums(part) for part in parts], axis=1).sum(-1, keepdim=True)


class _CompiledCrossEntropy(PyLayer):
    @staticmethod
    def forward(ctx, logits, labels):
        """Return the loss of each row, (N,), by a compiled loop.

        Args:
            ctx: context that keeps tensors for the backward.
            logits: logits, (N, classes).
            labels: class of each row.
        """
        losses, normalizers = compiled.cross_entropy(logits, labels)
        ctx.save_for_backward(logits, labels, normalizers)
        return losses

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of the logits, from the gradient of each loss, (N,)."""
        return compiled.cross_entropy_backward(grad, *ctx.saved_tensor())


class _CrossEntropy(PyLayer):
    @staticmethod
    def forward(ctx, logits, labels):
        """Return the loss of each row, (N,), by Paddle's operations.

        Args:
            ctx: context that keeps tensors for the backward.
            logits: logits, (N, classes).
            labels: class of each row, (N, 1).
        """
        largest = logits.max(-1, keepdim=True)
        weights = _exp(logits - largest)
        total = _row_sums(weights)
        ctx.save_for_backward(weights, total, labels)
        # In this order, a loss of 1e-15 keeps its digits next to logits of 30.
        return (paddle.log(total) + (largest - paddle.take_along_axis(logits, labels, 1, broadcast=False))).flatten()

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient of the logits, from the gradient of each loss, (N,)."""
        weights, total, labels = ctx.saved_tensor()
        grad = grad.unsqueeze(-1)
        grad_logits = weights * (grad / total)
        return paddle.put_along_axis(grad_logits, labels, -grad, 1, reduce="add", broadcast=False)


def cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor) -> paddle.Tensor:
    """Compute -log softmax(logits)[label] of each row.

    Paddle's CPU kernel sums the normalizer term by term. Over CTRL's vocabulary of 246,534 tokens, its error is 2.5e-5
    in float32 and 1.2e-14 in float64, and all gradients inherit this error.

    Args:
        logits: scores, (N, classes).
        labels: class of each row, int64 (N,).

    Returns:
        The losses, (N,).
    """
    if compiled.supports_compiled(logits, loop="cross_entropy"):
        return _CompiledCrossEntropy.apply(logits, labels.astype("int64"))
    if is_composed(logits):
        return _CrossEntropy.apply(logits, labels.unsqueeze(-1))
    return F.cross_entropy(logits, labels, reduction="none")


def _supports_compiled_mask(x: paddle.Tensor, keep_mask: paddle.Tensor) -> bool:
    """Return whether a compiled loop can apply this dropout mask."""
    return (
        keep_mask.shape == x.shape and keep_mask.dtype == paddle.bool and compiled.supports_compiled(x, loop="dropout")
    )


class _DropoutMask(PyLayer):
    @staticmethod
    def forward(ctx, x, keep_mask, scale):
        """Return x multiplied by ``scale`` where ``keep_mask`` is True, and 0 elsewhere.

        Args:
            ctx: autograd's context of this call.
            x: input of any shape.
            keep_mask: whether dropout keeps each number, bool; its shape broadcasts to the shape of ``x``.
            scale: factor of the numbers that are kept.
        """
        ctx.keep_mask, ctx.scale = keep_mask, scale
        if _supports_compiled_mask(x, keep_mask):
            return compiled.keep(x, keep_mask, scale)
        return x * keep_mask.astype(x.dtype) * scale

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient with respect to x, from the gradient of the output."""
        if _supports_compiled_mask(grad, ctx.keep_mask):
            return compiled.keep(grad, ctx.keep_mask, ctx.scale)
        return grad * ctx.keep_mask.astype(grad.dtype) * ctx.scale


def keep_masked(x: paddle.Tensor, keep_mask: paddle.Tensor, p: float) -> paddle.Tensor:
    """Apply dropout with a mask: elements that are not kept become 0, and the others are scaled by 1/(1-p).

    Args:
        x: input of any shape.
        keep_mask: whether each element is kept, bool, of a shape that broadcasts to the shape of ``x``.
        p: fraction of elements that such masks drop.
    """
    return _DropoutMask.apply(x, keep_mask, 1.0 / (1.0 - p))


def random_mask(p: float, shape: Sequence[int]) -> paddle.Tensor:
    """Draw a dropout mask: bool, each True with probability 1 - p, from Paddle's generator.

    An element uses 16 random bits, so the rate differs from ``p`` by at most 2^-17.
    """
    if compiled.is_chosen() and paddle.get_device() == "cpu":
        return compiled.random_mask(round(p * 2**16), shape)
    count = math.prod(shape)
    bits = paddle.randint(-(2**31), 2**31 - 1, [-(-count // 2)], "int32").view("int16")[:count].reshape(shape)
    return bits >= round(p * 2**16) - 2**15
