"""The compiled loops (:mod:`.loops`, :mod:`.decoder_loops`) as operations on Paddle's tensors: float32, on a CPU, where
Numba is installed and ``TOOLKIT_KERNELS`` does not say otherwise. Their gradients are in :mod:`models.operations.ops`.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import paddle

from models.operations import kernels

#: The loops that round, forward and backward, by what each computes.
LOOPS = {
    "attention": "attention of chunks to their neighbours",
    "softmax": "attention's softmax",
    "cross_entropy": "the cross entropy of rows of scores",
    "layer_norm": "layer normalisation",
    "keys": "LSH's keys of unit mean square",
    "dropout": "what dropout keeps, scaled",
    "bias": "a bias added to rows",
    "axial_positions": "the axial position table with columns dropped",
    "streams": "the sums of residual streams",
}

#: Positions for which a decoder's cache gets room at a time.
ROOM = 64

_left_out: Collection[str] = ()
_asked: Counter[str] = Counter()


@contextmanager
def composed(loops: Collection[str]) -> Iterator[Counter[str]]:
    """Compose these of :data:`LOOPS` of Paddle's operations inside the ``with`` block, as without Numba. Yields how
    often each loop would have run."""
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
    """Whether a compiled loop, one of :data:`LOOPS` or "" for one that rounds nothing, or to the same bits
    as Paddle's operations, can work on all of these."""
    can = is_chosen() and all(x.dtype == dtype and x.place.is_cpu_place() and numel(x) for x in tensors)
    if not (can and _left_out):
        return can
    _asked[loop] += 1
    return loop not in _left_out


def _run(loop: str, numbers: int, length: int, *given: paddle.Tensor | int | float) -> None:
    """Run a loop (:func:`.loop_code.run`): of each tensor, it takes the address of the contiguous numbers."""
    from models.operations import loop_code

    held, plain = [], []  # tensors are held until the loop has run
    for value in given:
        if isinstance(value, paddle.Tensor):
            held.append(value.contiguous())
            plain.append(held[-1].data_ptr())
        else:
            plain.append(value)
    loop_code.run(loop, numbers, length, *plain)


def random_mask(threshold: int, shape: Sequence[int]) -> paddle.Tensor:
    """bool: which 16-bit random numbers are at least ``threshold``. A draw from Paddle's generator seeds them."""
    seed = int(paddle.randint(-(2**31), 2**31 - 1, [2], "int32").numpy().view("int64")[0])
    kept = paddle.empty(shape, "bool")
    count = math.prod(shape)
    if count:
        _run("draw_mask", count, count, kept, seed, threshold)
    return kept


def keep(x: paddle.Tensor, kept: paddle.Tensor, scale: float) -> paddle.Tensor:
    """``x * kept * scale``; ``kept`` is bool, of the same shape."""
    out = paddle.empty_like(x)
    _run("keep", numel(x), numel(x), x, kept, out, scale)
    return out


def relu(x: paddle.Tensor) -> paddle.Tensor:
    """The larger of ``x`` and 0."""
    out = paddle.empty_like(x)
    _run("rectify", numel(x), numel(x), x, x, out)
    return out


def relu_backward(grad: paddle.Tensor, rectified: paddle.Tensor) -> paddle.Tensor:
    """The gradient of ``x``, given that of :func:`relu`, and its result."""
    out = paddle.empty_like(grad)
    _run("rectify", numel(grad), numel(grad), grad, rectified, out)
    return out


def square_sums(*tensors: paddle.Tensor) -> paddle.Tensor:
    """Sums of squares of :data:`.kernels.BLOCK_COLUMNS` numbers each, or of what is left of a tensor, in any order of
    its axes: float64 (blocks,)."""
    blocks = sum(-(-numel(x) // kernels.BLOCK_COLUMNS) for x in tensors)
    out = paddle.empty([blocks], "float64")
    sized = [value for x in tensors for value in (x, numel(x))]
    _run("square_sums", sum(map(numel, tensors)), blocks, out, len(tensors), *sized)
    return out


def adamw_(
    rates: Sequence[float],
    decays: Sequence[float],
    beta1: float,
    beta2: float,
    epsilon: float,
    factor: float,
    *tensors: paddle.Tensor,
) -> tuple[paddle.Tensor, ...]:
    """A step of AdamW (Loshchilov and Hutter 2019, algorithm 2) for several parameters, in place: with beta1 and beta2
    in float32, as Paddle's.

    Args:
        rates, decays: of each parameter; a decay is multiplied by the rate.
        factor: what gradients are multiplied by.
        tensors: six of each parameter, contiguous: itself, its gradient, its moments, and the powers of beta1 and
            beta2, one number each, which are beta1 and beta2 in the first step.

    Returns:
        ``tensors``.
    """
    parameters = list(zip(rates, decays, *(tensors[kind::6] for kind in range(6)), strict=True))
    given = [value for rate, decay, *of in parameters for value in (*of, numel(of[0]), float(rate), float(decay))]
    numbers = sum(map(numel, tensors[::6]))
    settings = map(float, (beta1, beta2, epsilon, factor))
    _run("adamw", numbers, numbers, *settings, len(parameters), *given)
    return tensors


def add_row_(x: paddle.Tensor, row: paddle.Tensor) -> paddle.Tensor:
    """Add (width,) to ``x`` (..., width), which must be contiguous, in place."""
    _run("add_row", numel(x), numel(x) // x.shape[-1], x, row, x.shape[-1])
    return x


def gather_rows(x: paddle.Tensor, index: paddle.Tensor) -> paddle.Tensor:
    """Rows of ``x`` (., width) by int64 ``index`` (rows,), or (rounds, rows), which adds up a row per round: (rows,
    width)."""
    rows, width = index.shape[-1], x.shape[-1]
    out = paddle.empty([rows, width], x.dtype)
    _run("gather_rows", numel(index) * width, rows, x, index, out, width, numel(index) // rows)
    return out


def scale_columns(table: paddle.Tensor, factors: paddle.Tensor) -> paddle.Tensor:
    """(rows, columns, width) times (B, columns): (B, rows, columns, width)."""
    (rows, columns, width), batch = table.shape, factors.shape[0]
    out = paddle.empty([batch, rows, columns, width], table.dtype)
    _run("scale_columns", numel(out), batch * rows * columns, table, factors, out, rows * columns, columns, width)
    return out


def scale_columns_backward(grad: paddle.Tensor, factors: paddle.Tensor) -> paddle.Tensor:
    """The gradient of the table."""
    batch, rows, columns, width = grad.shape
    out = paddle.empty([rows, columns, width], grad.dtype)
    _run("scale_columns_backward", numel(grad), rows * columns, grad, factors, out, batch, columns, width)
    return out


def layer_norm(x: paddle.Tensor, gain: paddle.Tensor, bias: paddle.Tensor, epsilon: float) -> paddle.Tensor:
    """As :func:`models.operations.ops.layer_norm`."""
    out, width = paddle.empty_like(x), x.shape[-1]
    _run("norm_rows", numel(x), numel(x) // width, x, gain, bias, out, width, float(epsilon))
    return out


def layer_norm_backward(
    grad: paddle.Tensor, x: paddle.Tensor, gain: paddle.Tensor, epsilon: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return the gradient of ``x``, and those of gain and bias side by side, (blocks, 2 * width), unsummed."""
    width = x.shape[-1]
    rows = numel(x) // width
    blocks = -(-rows // kernels.BLOCK_ROWS)
    out, sums = paddle.empty_like(x), paddle.empty([blocks, 2 * width], x.dtype)
    _run("norm_rows_backward", numel(x), blocks, rows, grad, x, gain, out, sums, width, float(epsilon))
    return out, sums


def add_on_grid(
    exact: paddle.Tensor, update: paddle.Tensor, rounder: float, sign: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Add ``exact`` (float64) and ``sign`` * ``update`` (float32, rounded to the grid); the sum, also in float32."""
    out, value = paddle.empty_like(exact), paddle.empty_like(update)
    _run("add_on_grid", numel(update), numel(update), exact, update, out, value, float(rounder), float(sign))
    return out, value


def softmax(scores: paddle.Tensor, divisor: float = 1.0, bias: paddle.Tensor | None = None) -> paddle.Tensor:
    """Softmax over the last axis of scores / divisor + bias: (B, heads, T, K), and (T, K) or (B, 1 or heads, T, K).
    Without a bias, scores may have any axes."""
    out, width = paddle.empty_like(scores), scores.shape[-1]
    rows = group = numel(scores) // width
    queries = 1 if bias is None else bias.shape[-2]
    if bias is not None:
        group //= math.prod(bias.shape[:-2])
    _run("softmax_rows", numel(scores), rows, scores, out, width, float(divisor), _or_zero(bias), queries, group)
    return out


def softmax_backward(grad: paddle.Tensor, probabilities: paddle.Tensor, divisor: float = 1.0) -> paddle.Tensor:
    """The gradient of the scores."""
    out, width = paddle.empty_like(grad), grad.shape[-1]
    _run("softmax_rows_backward", numel(grad), numel(grad) // width, grad, probabilities, out, width, float(divisor))
    return out


def cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """As :func:`models.operations.ops.cross_entropy`; and per row what the backward needs, (N, 2). Raises IndexError if
    a label is no class."""
    rows, width = logits.shape
    _refuse_beyond(labels, width, "label {} is none of {} classes")
    losses, normalisers = paddle.empty([rows], logits.dtype), paddle.empty([rows, 2], logits.dtype)
    _run("cross_entropy_rows", numel(logits), rows, logits, labels, losses, normalisers, width)
    return losses, normalisers


def cross_entropy_backward(
    grad: paddle.Tensor, logits: paddle.Tensor, labels: paddle.Tensor, normalisers: paddle.Tensor
) -> paddle.Tensor:
    """The gradient of the logits."""
    rows, width = logits.shape
    out = paddle.empty_like(logits)
    _run("cross_entropy_rows_backward", numel(logits), rows, grad, logits, labels, normalisers, out, width)
    return out


def keys(x: paddle.Tensor, epsilon: float, factor: float) -> paddle.Tensor:
    """Scale rows of ``x`` (..., D) by ``factor`` / sqrt(mean square + epsilon)."""
    out, width = paddle.empty_like(x), x.shape[-1]
    _run("key_rows", numel(x), numel(x) // width, x, out, width, float(epsilon), float(factor))
    return out


def keys_backward(grad: paddle.Tensor, x: paddle.Tensor, epsilon: float, factor: float) -> paddle.Tensor:
    """The gradient of ``x``."""
    out, width = paddle.empty_like(x), x.shape[-1]
    _run("key_rows_backward", numel(x), numel(x) // width, grad, x, out, width, float(epsilon), float(factor))
    return out


def nearest_axes(x: paddle.Tensor) -> paddle.Tensor:
    """The index of the largest in each row of [x, -x], the first of several: (..., width) -> int64 (...)."""
    out, width = paddle.empty(x.shape[:-1], "int64"), x.shape[-1]
    _run("nearest_axes", numel(x), numel(x) // width, x, out, width)
    return out


def attend_chunks(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, *given: Any
) -> tuple[paddle.Tensor, paddle.Tensor | None]:
    """As :func:`models.operations.chunk_attention.chunk_attention`; ``given``: the fields of
    :class:`~models.operations.chunk_attention.Masks`, and whether the normaliser is wanted."""
    *masks, with_normaliser = given
    out = paddle.empty_like(query)
    normaliser = paddle.empty([*query.shape[:-1], 1], query.dtype) if with_normaliser else None
    shared = _attention(query, key, value, normaliser, *masks)
    _run("attend_chunks", numel(query) * masks[0].shape[1], query.shape[0], *shared, out)
    return out, normaliser


def attend_chunks_backward(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, *given: Any
) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
    """The gradients of query, key and value; ``given``: the fields, and the gradients of the output and of the
    normaliser, or None."""
    *masks, grad, grad_normaliser = given
    found = paddle.empty_like(query), paddle.empty_like(key), paddle.empty_like(value)
    shared = _attention(query, key, value, None, *masks)
    work = numel(query) * masks[0].shape[1]
    _run("attend_chunks_backward", work, query.shape[0], *shared, grad, _or_zero(grad_normaliser), *found)
    return found


def _refuse_beyond(indices: paddle.Tensor, count: int, words: str) -> None:
    """Raise IndexError if one is not below ``count``: a loop would read and write outside of the array."""
    numbers = indices.numpy()
    if numbers.min() < 0 or numbers.max() >= count:
        raise IndexError(words.format(numbers[(numbers < 0) | (numbers >= count)][0], count))


def _or_zero(tensor: paddle.Tensor | int | None) -> paddle.Tensor | int:
    """What a loop is given for a tensor that it may do without."""
    return 0 if tensor is None else tensor


def _attention(
    query: paddle.Tensor,
    key: paddle.Tensor,
    value: paddle.Tensor,
    normaliser: paddle.Tensor | None,
    order: paddle.Tensor,
    places: paddle.Tensor | None,
    kept: paddle.Tensor | None,
    causal: bool,
    itself: bool,
    masked: float,
    self_masked: float,
    drawn: paddle.Tensor | None,
    rate: float,
) -> list[paddle.Tensor | int | float]:
    """What the loop and its backward are given alike."""
    _, chunks, size, depth = query.shape
    asks = [int(causal and places is not None), int(itself and places is not None)]
    sizes = [chunks, size, order.shape[1], depth, *asks, float(masked), float(self_masked)]
    optional = [_or_zero(one) for one in (places, kept, normaliser)]
    return [query, key, value, *optional, order, *sizes, _or_zero(drawn), 1.0 / (1.0 - rate)]


class ReversibleLayer(NamedTuple):
    """A layer of :func:`reversible_step`, of B texts. All tensors are contiguous.

    Attributes:
        keys, values: (B, heads, room, depth), with room for more positions.
        buckets: of positions, int64 (B, heads, rounds, room), and ``order``: how these sort them; None for local
            attention, and where nothing is hashed.
        rotations: (heads, depth, rounds, axes); ``factors`` of the bucket count: int64, half of whose sum are the axes.
            Without axes, the next position's buckets are there already.
        parameters: gain and bias of a norm; weights (width, heads * depth) of query, key (None: the query is the key)
            and value; weight (in, out) or gain, and bias or None, of dense, norm, inner, outer.
    """

    keys: paddle.Tensor
    values: paddle.Tensor
    buckets: paddle.Tensor | None
    order: paddle.Tensor | None
    rotations: paddle.Tensor | None
    factors: paddle.Tensor | None
    axes: int
    rounds: int
    chunk_length: int
    chunks_before: int
    parameters: Sequence[paddle.Tensor | None]


class DecoderLayers(list[Any]):
    """A decoder's layers: of each a sequence of tensors and sizes. Addresses are looked up once: no tensor may be
    replaced."""

    @functools.cached_property
    def numbers(self) -> paddle.Tensor:
        """Addresses, 0 for what is left out, and sizes, in order: int64."""
        given = [_or_zero(one) for layer in self for part in layer for one in (part if _is_list(part) else [part])]
        return paddle.to_tensor([one if isinstance(one, int) else one.data_ptr() for one in given], "int64")


def _is_list(given: Any) -> bool:
    return isinstance(given, (list, tuple))


def decoder_step(
    tokens: paddle.Tensor,
    embedding: paddle.Tensor,
    places: paddle.Tensor,
    layers: Sequence[Sequence[paddle.Tensor]],
    norm: Sequence[paddle.Tensor],
    head: Sequence[paddle.Tensor],
    bias: paddle.Tensor | None,
    past: int,
    epsilon: float,
    last_epsilon: float,
) -> tuple[paddle.Tensor, ...]:
    """A pre-norm decoder with ReLU at one position of a few texts, whose keys and values are put behind those of the
    ``past`` ones, in place. Embeddings are scaled by the root of their width.

    Args:
        tokens: int64, B of them.
        embedding: (vocabulary, width); ``places``: what is added to it by position, (``past + 1`` or more, width).
        layers: of each, contiguous, keys and values, (B, heads, room, depth), with room for ``past + 1`` positions at
            least; and gain or weight (in, out), and bias, of: norm, query, key, value, dense, norm, inner, outer.
        norm: gain and bias of the last one.
        head: weight (classes, width) and bias of the scores.
        bias: added to attention's scores, (B, past + 1).
        epsilon, last_epsilon: of the layers' norms, and of the last one.

    Returns:
        Scores (B, classes), and the keys and values of each layer.

    Raises:
        IndexError: a token is not in the vocabulary.
    """
    (rows, heads, room, depth), inner, classes = layers[0][0].shape, layers[0][14].shape[1], head[0].shape[0]
    _refuse_beyond(tokens, embedding.shape[0], "token {} is none of {}")
    if not isinstance(layers, DecoderLayers):
        layers = DecoderLayers(layers)
    out = paddle.empty([rows, classes], "float32")
    scratch = paddle.empty([rows * (6 * heads * depth + inner + heads * (past + 1))], "float32")
    tensors = [tokens, embedding, places, _or_zero(bias), *norm, *head, out, scratch]
    sizes = [classes, heads, depth, room, past + 1, inner, float(epsilon), float(last_epsilon), len(layers)]
    work = rows * heads * depth * (inner * len(layers) + classes)
    _run("decoder_step", work, rows, *tensors, *sizes, layers.numbers)
    return out, *(held for layer in layers for held in layer[:2])


def reversible_step(
    tokens: paddle.Tensor,
    embedding: paddle.Tensor,
    place: paddle.Tensor,
    layers: Sequence[Any],
    norm: Sequence[paddle.Tensor],
    head: Sequence[paddle.Tensor],
    past: int,
    padded: int,
    epsilon: float,
    key_epsilon: float,
    self_masked: float,
) -> tuple[paddle.Tensor, ...]:
    """A pre-norm decoder of two residual streams with ReLU at one position of texts, whose keys, values and buckets are
    put behind those of the ``past`` ones, in place.

    Args:
        tokens: int64, B of them.
        embedding: (vocabulary, width); ``place``: what is added to it, (width,).
        layers: the fields of a :class:`ReversibleLayer` each, with room for ``past + 1`` positions at least.
        norm: gain and bias of the last one, of both streams side by side.
        head: weight (2 * width, classes) and bias of the scores.
        padded: the length of a hash round, or of a text.
        epsilon: of the norms; ``key_epsilon``: of the mean square of keys that are queries.
        self_masked: added to such a key's score for itself.

    Returns:
        Scores (B, classes), and the keys, values, buckets and order of each layer.

    Raises:
        IndexError: a token is not in the vocabulary.
    """
    _refuse_beyond(tokens, embedding.shape[0], "token {} is none of {}")
    if not isinstance(layers, DecoderLayers):
        layers = DecoderLayers(ReversibleLayer(*layer) for layer in layers)
    (rows, heads, room, depth), inner = layers[0].keys.shape, layers[0].parameters[9].shape[1]
    width, classes = embedding.shape[1], head[0].shape[1]
    most = max(layer.rounds * layer.chunk_length * (layer.chunks_before + 1) for layer in layers)
    axes = max(layer.axes for layer in layers)
    out = paddle.empty([rows, classes], "float32")
    scratch = paddle.empty([rows * (6 * width + 3 * heads * depth + inner)], "float32")
    tensors = [tokens, embedding, place, *norm, *head, out, scratch]
    sizes = [width, classes, heads, depth, room, past + 1, padded, inner, most, axes]
    scalars = [float(epsilon), float(key_epsilon), float(self_masked)]
    work = rows * width * (inner * len(layers) + classes)
    _run("reversible_step", work, rows, *tensors, *sizes, *scalars, len(layers), layers.numbers)
    return out, *(held for layer in layers for held in layer[:4] if held is not None)
