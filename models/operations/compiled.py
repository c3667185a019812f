"""The compiled loops (:mod:`models.operations.loops`) as operations on Paddle's tensors: float32, on a CPU, where Numba
is installed and ``TOOLKIT_KERNELS`` does not say otherwise. Their gradients are in :mod:`models.operations.ops`.

Each makes its tensors contiguous.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import paddle

from models.operations import kernels

#: The loops that round, forward and backward, by what each computes.
LOOPS = {
    "softmax": "attention's softmax with its masks and normaliser",
    "cross_entropy": "the cross entropy of rows of scores",
    "layer_norm": "layer normalisation",
    "keys": "LSH's keys of unit mean square",
    "dropout": "what dropout keeps, scaled",
    "bias": "a bias added to rows",
    "axial_positions": "the axial position table with columns dropped",
    "streams": "the sums of residual streams",
}

_left_out: Collection[str] = ()
_asked: Counter[str] = Counter()


@contextmanager
def composed(loops: Collection[str]) -> Iterator[Counter[str]]:
    """Compose these of :data:`LOOPS` of Paddle's operations inside the ``with`` block, as without Numba.

    Yields:
        How often each loop would have run.
    """
    global _left_out, _asked
    before, _left_out, _asked = (_left_out, _asked), loops, Counter()
    try:
        yield _asked
    finally:
        _left_out, _asked = before


def is_chosen() -> bool:
    """Whether compiled loops are used for tensors on a CPU; never in a static graph."""
    return paddle.in_dynamic_mode() and kernels.chosen() == kernels.COMPILED


def numel(x: paddle.Tensor) -> int:
    """Number of elements of a tensor; its own ``size`` asks NumPy and takes several times as long."""
    return math.prod(x.shape)


def suits(*tensors: paddle.Tensor, loop: str = "", dtype: paddle.dtype = paddle.float32) -> bool:
    """Whether a compiled loop can work on all of these.

    Args:
        loop: one of :data:`LOOPS`; "" for one that does not round.
    """
    can = is_chosen() and all(x.dtype == dtype and x.place.is_cpu_place() and numel(x) for x in tensors)
    if not (can and _left_out):
        return can
    _asked[loop] += 1
    return loop not in _left_out


def random_mask(threshold: int, shape: Sequence[int]) -> paddle.Tensor:
    """bool: which 16-bit random numbers are at least ``threshold``. A draw from Paddle's generator seeds them."""
    from models.operations import loop_code

    seed = int(paddle.randint(-(2**31), 2**31 - 1, [2], "int32").numpy().view("int64")[0])
    kept = paddle.empty(shape, "bool")
    count = math.prod(shape)
    if count:
        loop_code.run("draw_mask", count, count, kept.data_ptr(), seed, threshold)
    return kept


def keep(x: paddle.Tensor, kept: paddle.Tensor, scale: float) -> paddle.Tensor:
    """``x * kept * scale``; ``kept`` is bool, of the same shape."""
    from models.operations import loop_code

    x, kept = x.contiguous(), kept.contiguous()
    out = paddle.empty_like(x)
    loop_code.run("keep", numel(x), numel(x), x.data_ptr(), kept.data_ptr(), out.data_ptr(), scale)
    return out


def add_row(x: paddle.Tensor, row: paddle.Tensor) -> paddle.Tensor:
    """(..., width) plus (width,)."""
    from models.operations import loop_code

    x, row, width = x.contiguous(), row.contiguous(), x.shape[-1]
    out = paddle.empty_like(x)
    loop_code.run("add_row", numel(x), numel(x) // width, x.data_ptr(), row.data_ptr(), out.data_ptr(), width)
    return out


def scale_columns(table: paddle.Tensor, factors: paddle.Tensor) -> paddle.Tensor:
    """(rows, columns, width) times (B, columns): (B, rows, columns, width)."""
    from models.operations import loop_code

    table, factors = table.contiguous(), factors.contiguous()
    (rows, columns, width), batch = table.shape, factors.shape[0]
    out = paddle.empty([batch, rows, columns, width], table.dtype)
    given = [tensor.data_ptr() for tensor in (table, factors, out)]
    loop_code.run("scale_columns", numel(out), batch * rows * columns, *given, rows * columns, columns, width)
    return out


def scale_columns_backward(grad: paddle.Tensor, factors: paddle.Tensor) -> paddle.Tensor:
    """The gradient of the table."""
    from models.operations import loop_code

    grad, factors = grad.contiguous(), factors.contiguous()
    batch, rows, columns, width = grad.shape
    out = paddle.empty([rows, columns, width], grad.dtype)
    given = [tensor.data_ptr() for tensor in (grad, factors, out)]
    loop_code.run("scale_columns_backward", numel(grad), rows * columns, *given, batch, columns, width)
    return out


def layer_norm(x: paddle.Tensor, gain: paddle.Tensor, bias: paddle.Tensor, epsilon: float) -> paddle.Tensor:
    """As :func:`models.operations.ops.layer_norm`."""
    from models.operations import loop_code

    x, gain, bias, width = x.contiguous(), gain.contiguous(), bias.contiguous(), x.shape[-1]
    out = paddle.empty_like(x)
    given = [tensor.data_ptr() for tensor in (x, gain, bias, out)]
    loop_code.run("norm_rows", numel(x), numel(x) // width, *given, width, float(epsilon))
    return out


def layer_norm_backward(
    grad: paddle.Tensor, x: paddle.Tensor, gain: paddle.Tensor, epsilon: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return the gradient of ``x``, and those of gain and bias side by side, (blocks, 2 * width), unsummed."""
    from models.operations import loop_code

    grad, x, gain, width = grad.contiguous(), x.contiguous(), gain.contiguous(), x.shape[-1]
    rows = numel(x) // width
    blocks = -(-rows // kernels.BLOCK_ROWS)
    out, sums = paddle.empty_like(x), paddle.empty([blocks, 2 * width], x.dtype)
    given = [tensor.data_ptr() for tensor in (grad, x, gain, out, sums)]
    loop_code.run("norm_rows_backward", numel(x), blocks, rows, *given, width, float(epsilon))
    return out, sums


def add_on_grid(
    exact: paddle.Tensor, update: paddle.Tensor, rounder: float, sign: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Add ``exact`` (float64) and ``sign`` * ``update`` (float32, rounded to the grid); the sum, also in float32."""
    from models.operations import loop_code

    exact, update = exact.contiguous(), update.contiguous()
    out, value = paddle.empty_like(exact), paddle.empty_like(update)
    given = [tensor.data_ptr() for tensor in (exact, update, out, value)]
    loop_code.run("add_on_grid", numel(update), numel(update), *given, float(rounder), float(sign))
    return out, value


#: A mask as a loop takes it: address, rows that share a mask row, number of mask rows, value.
Put = tuple[int, int, int, float]


def _puts(masks: Sequence[tuple[paddle.Tensor, float]], shape: Sequence[int]) -> tuple[list, list[paddle.Tensor]]:
    """Return the masks over scores of ``shape`` (..., C, K) for a loop; and their tensors, which must outlive the run.

    A mask may broadcast over C and over the first axes; other broadcasts are expanded.
    """
    flat: list[int | float] = []
    held = []
    for kept, value in masks:
        if kept.ndim != len(shape) or kept.shape[-1] != shape[-1]:
            kept = kept.expand(shape)
        group = shape[-2] if kept.shape[-2] == 1 else 1
        own = list(kept.shape[:-2])
        alike = 0
        while alike < len(own) and own[alike] == 1:
            alike += 1
        if own[alike:] != list(shape[alike:-2]) or (group == 1 and kept.shape[-2] != shape[-2]):
            kept, group = kept.expand(shape), 1
        kept = kept.contiguous()
        held.append(kept)
        flat += [kept.data_ptr(), group, numel(kept) // shape[-1], float(value)]
    return flat, held


def softmax(
    scores: paddle.Tensor, masks: Sequence[tuple[paddle.Tensor, float]], with_normaliser: bool
) -> tuple[paddle.Tensor, paddle.Tensor | None]:
    """As :func:`models.operations.ops.masked_softmax`; the normaliser is (..., 1), or None."""
    from models.operations import loop_code

    scores, width = scores.contiguous(), scores.shape[-1]
    out = paddle.empty_like(scores)
    normaliser = paddle.empty([*scores.shape[:-1], 1], scores.dtype) if with_normaliser else None
    puts, _held = _puts(masks, scores.shape)
    given = [scores.data_ptr(), out.data_ptr(), 0 if normaliser is None else normaliser.data_ptr(), width, len(masks)]
    loop_code.run("softmax_rows", numel(scores), numel(scores) // width, *given, *puts)
    return out, normaliser


def softmax_backward(
    grad: paddle.Tensor,
    probabilities: paddle.Tensor,
    masks: Sequence[paddle.Tensor],
    grad_normaliser: paddle.Tensor | None,
) -> paddle.Tensor:
    """The gradient of the scores."""
    from models.operations import loop_code

    grad, probabilities, width = grad.contiguous(), probabilities.contiguous(), grad.shape[-1]
    out = paddle.empty_like(grad)
    beside = None if grad_normaliser is None else grad_normaliser.contiguous()
    puts, _held = _puts([(kept, 0.0) for kept in masks], grad.shape)
    given = [grad.data_ptr(), probabilities.data_ptr(), out.data_ptr(), 0 if beside is None else beside.data_ptr()]
    loop_code.run("softmax_rows_backward", numel(grad), numel(grad) // width, *given, width, len(masks), *puts)
    return out


def cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """As :func:`models.operations.ops.cross_entropy`; and per row what the backward needs, (N, 2).

    Raises:
        IndexError: a label is no class.
    """
    from models.operations import loop_code

    logits, labels = logits.contiguous(), labels.contiguous()
    rows, width = logits.shape
    numbers = labels.numpy()  # a loop would read and write outside of the array
    if numbers.min() < 0 or numbers.max() >= width:
        wrong = numbers[(numbers < 0) | (numbers >= width)][0]
        raise IndexError(f"label {wrong} is none of {width} classes")
    losses, normalisers = paddle.empty([rows], logits.dtype), paddle.empty([rows, 2], logits.dtype)
    given = [tensor.data_ptr() for tensor in (logits, labels, losses, normalisers)]
    loop_code.run("cross_entropy_rows", numel(logits), rows, *given, width)
    return losses, normalisers


def cross_entropy_backward(
    grad: paddle.Tensor, logits: paddle.Tensor, labels: paddle.Tensor, normalisers: paddle.Tensor
) -> paddle.Tensor:
    """The gradient of the logits."""
    from models.operations import loop_code

    grad, logits, labels = grad.contiguous(), logits.contiguous(), labels.contiguous()
    rows, width = logits.shape
    out = paddle.empty_like(logits)
    given = [tensor.data_ptr() for tensor in (grad, logits, labels, normalisers, out)]
    loop_code.run("cross_entropy_rows_backward", numel(logits), rows, *given, width)
    return out


def compare_places(place: paddle.Tensor, seen: paddle.Tensor, at_least: bool) -> paddle.Tensor:
    """int64 (., n, C) and (., n, K) -> bool (., n, C, K): ``place >= seen``, or ``place != seen``."""
    from models.operations import loop_code

    place, seen = place.contiguous(), seen.contiguous()
    size, width = place.shape[-1], seen.shape[-1]
    out = paddle.empty([*place.shape, width], "bool")
    given = [tensor.data_ptr() for tensor in (place, seen, out)]
    loop_code.run("compare_places", numel(out), numel(place) // size, *given, size, width, int(at_least))
    return out


def keys(x: paddle.Tensor, epsilon: float, factor: float) -> paddle.Tensor:
    """Scale rows of ``x`` (..., D) by ``factor`` / sqrt(mean square + epsilon)."""
    from models.operations import loop_code

    x, width = x.contiguous(), x.shape[-1]
    out = paddle.empty_like(x)
    given = [x.data_ptr(), out.data_ptr(), width, float(epsilon), float(factor)]
    loop_code.run("key_rows", numel(x), numel(x) // width, *given)
    return out


def keys_backward(grad: paddle.Tensor, x: paddle.Tensor, epsilon: float, factor: float) -> paddle.Tensor:
    """The gradient of ``x``."""
    from models.operations import loop_code

    grad, x, width = grad.contiguous(), x.contiguous(), x.shape[-1]
    out = paddle.empty_like(x)
    given = [tensor.data_ptr() for tensor in (grad, x, out)]
    loop_code.run("key_rows_backward", numel(x), numel(x) // width, *given, width, float(epsilon), float(factor))
    return out
