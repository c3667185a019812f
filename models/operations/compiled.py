"""The compiled loops (:mod:`.loops`, :mod:`.decoder_loops`) as operations on Paddle's tensors.

They work on float32 tensors in the memory of a CPU, if Numba is installed and ``TOOLKIT_KERNELS`` allows it. Their
gradients are in :mod:`models.operations.ops`.
"""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import paddle
from paddle.autograd import PyLayer

from models.operations import kernels
from models.operations.loop_arguments import DECLARED, Table

#: The loops that round, forward and backward, with a description of each.
LOOPS = {
    "attention": "attention of chunks to their neighbors",
    "softmax": "attention's softmax",
    "cross_entropy": "the cross entropy of rows of scores",
    "layer_norm": "layer normalization",
    "keys": "LSH's keys of unit mean square",
    "dropout": "what dropout keeps, scaled",
    "bias": "a bias added to rows",
    "axial_positions": "the axial position table with columns dropped",
    "streams": "the sums of residual streams",
}

#: Number of positions by which a decoder's cache grows.
CACHE_GROWTH = 64

_composed_loops: Collection[str] = ()
_num_composed: Counter[str] = Counter()


@contextmanager
def compose_loops(loops: Collection[str]) -> Iterator[Counter[str]]:
    """Compose these loops of Paddle's operations inside the ``with`` block, as without Numba.

    Args:
        loops: keys of :data:`LOOPS`.

    Yields:
        How often each loop would have run.
    """
    global _composed_loops, _num_composed
    previous, _composed_loops, _num_composed = (_composed_loops, _num_composed), loops, Counter()
    try:
        yield _num_composed
    finally:
        _composed_loops, _num_composed = previous


def is_chosen() -> bool:
    """Return whether compiled loops are used for tensors on a CPU; never in a static graph."""
    return paddle.in_dynamic_mode() and kernels.chosen_kernels() == kernels.COMPILED


def count_numbers(x: paddle.Tensor) -> int:
    """Return the number of elements of a tensor; its own ``size`` asks NumPy, which takes several times as long."""
    return math.prod(x.shape)


def supports_compiled(*tensors: paddle.Tensor, loop: str = "", dtype: paddle.dtype = paddle.float32) -> bool:
    """Return whether a compiled loop is to work on these tensors.

    Args:
        tensors: inputs of the loop.
        loop: key of :data:`LOOPS`; "" for a loop that does not round, or rounds to the same bits as Paddle's
            operations.
        dtype: dtype that all tensors need.
    """
    is_possible = is_chosen() and all(x.dtype == dtype and x.place.is_cpu_place() and count_numbers(x) for x in tensors)
    if not (is_possible and _composed_loops):
        return is_possible
    _num_composed[loop] += 1
    return loop not in _composed_loops


def _run_loop(loop: str, *, work: int = 0, **arguments: Any) -> dict[str, paddle.Tensor]:
    """Run a loop on the arguments that :data:`.DECLARATIONS` declares for it.

    Args:
        loop: name of the loop.
        work: approximate number of numbers that it computes; 0 for the size of the largest tensor.
        arguments: tensors, numbers, tables and sizes of axes, by name, for :meth:`.Fields.pack`.

    Returns:
        The tensors by name, including those that were allocated because ``arguments`` did not contain them.
    """
    from models.operations import loop_code

    packed_arguments, tensors = DECLARED[loop].pack(arguments)
    loop_code.run_loop(loop, packed_arguments, work or max(map(count_numbers, tensors.values())))
    return tensors


def random_mask(threshold: int, shape: Sequence[int]) -> paddle.Tensor:
    """Draw a bool mask: whether 16-bit random numbers are at least ``threshold``. Paddle's generator seeds them."""
    seed = int(paddle.randint(-(2**31), 2**31 - 1, [2], "int32").numpy().view("int64")[0])
    mask = paddle.empty(shape, "bool")
    if math.prod(shape):
        _run_loop("draw_mask", mask=mask, seed=seed, threshold=threshold)
    return mask


def keep(x: paddle.Tensor, keep_mask: paddle.Tensor, scale: float) -> paddle.Tensor:
    """Return ``x * keep_mask * scale``; the mask is bool and has the shape of ``x``.

    Args:
        x: input of any shape.
        keep_mask: whether dropout keeps each number, bool of the shape of ``x``.
        scale: factor of the numbers that are kept, 1 / (1 - dropout rate).
    """
    return _run_loop("keep", x=x, keep_mask=keep_mask, scale=scale)["out"]


def relu(x: paddle.Tensor) -> paddle.Tensor:
    """Return the larger of ``x`` and 0."""
    return _run_loop("rectify", x=x, gate=x)["out"]


def relu_backward(grad: paddle.Tensor, output: paddle.Tensor) -> paddle.Tensor:
    """Return the gradient of ``x``, from the gradient and the output of :func:`relu`."""
    return _run_loop("rectify", x=grad, gate=output)["out"]


def square_sums(*tensors: paddle.Tensor) -> paddle.Tensor:
    """Return the sum of squares of each block of :data:`.kernels.BLOCK_COLUMNS` numbers: float64 (blocks,).

    The last block of each tensor may be shorter. The order of the numbers in a tensor does not matter.
    """
    blocks = sum(-(-count_numbers(x) // kernels.BLOCK_COLUMNS) for x in tensors)
    table = Table("squared_tensor", [[x] for x in tensors])
    return _run_loop("square_sums", work=sum(map(count_numbers, tensors)), tensors=table, blocks=blocks)["sums"]


def adamw_(
    rates: Sequence[float],
    decays: Sequence[float],
    beta1: float,
    beta2: float,
    epsilon: float,
    factor: float,
    *tensors: paddle.Tensor,
) -> tuple[paddle.Tensor, ...]:
    """Update several parameters by a step of AdamW (Loshchilov and Hutter 2019, algorithm 2), in place.

    As in Paddle's kernel, beta1 and beta2 are float32.

    Args:
        rates: learning rate of each parameter.
        decays: weight decay of each parameter, which is multiplied by its rate.
        beta1: decay rate of the first moments.
        beta2: decay rate of the second moments.
        epsilon: number that is added to the roots of the second moments.
        factor: number by which the gradients are multiplied.
        tensors: six contiguous tensors of each parameter: the parameter, its gradient, its first and second moment,
            and the powers of beta1 and beta2, one number each, which are beta1 and beta2 in the first step.

    Returns:
        ``tensors``.
    """
    parameters = zip(*(tensors[kind::6] for kind in range(6)), rates, decays, strict=True)
    table = Table("adamw_parameter", parameters)
    work = sum(map(count_numbers, tensors[::6]))
    _run_loop("adamw", work=work, beta1=beta1, beta2=beta2, epsilon=epsilon, factor=factor, parameters=table)
    return tensors


def add_row_(x: paddle.Tensor, row: paddle.Tensor) -> paddle.Tensor:
    """Add a row (width,) to ``x`` (..., width), which must be contiguous, in place."""
    _run_loop("add_row", x=x, row=row)
    return x


def gather_rows(x: paddle.Tensor, index: paddle.Tensor) -> paddle.Tensor:
    """Gather rows of a matrix, and add the rows of several rounds.

    Args:
        x: matrix, (source rows, width).
        index: source row of each row, int64 (rows,) or (rounds, rows).

    Returns:
        The sum over the rounds, (rows, width).
    """
    return _run_loop("gather_rows", x=x, index=index)["out"]


def scale_columns(table: paddle.Tensor, factors: paddle.Tensor) -> paddle.Tensor:
    """Multiply (rows, columns, width) by column factors (B, columns): (B, rows, columns, width)."""
    return _run_loop("scale_columns", table=table, factors=factors)["out"]


def scale_columns_backward(grad: paddle.Tensor, factors: paddle.Tensor) -> paddle.Tensor:
    """Return the gradient of the table of :func:`scale_columns`."""
    return _run_loop("scale_columns_backward", grad=grad, factors=factors)["out"]


def layer_norm(x: paddle.Tensor, gain: paddle.Tensor, bias: paddle.Tensor, epsilon: float) -> paddle.Tensor:
    """Compute :func:`models.operations.ops.layer_norm` of (..., width).

    Args:
        x: input, (..., width).
        gain: factors of the features, (width,).
        bias: bias of the features, (width,).
        epsilon: number added to the variance or the mean square.
    """
    return _run_loop("norm_rows", x=x, gain=gain, bias=bias, epsilon=epsilon)["out"]


def layer_norm_backward(
    grad: paddle.Tensor, x: paddle.Tensor, gain: paddle.Tensor, epsilon: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return the gradient of ``x``, and sums whose total over axis 0 is the gradients of gain and bias.

    The sums are of blocks of :data:`.kernels.BLOCK_ROWS` rows, (blocks, 2 * width).

    Args:
        grad: gradient of the output.
        x: input, (..., width).
        gain: factors of the features, (width,).
        epsilon: number added to the variance or the mean square.
    """
    rows = count_numbers(x) // x.shape[-1]
    blocks = -(-rows // kernels.BLOCK_ROWS)
    results = _run_loop("norm_rows_backward", grad=grad, x=x, gain=gain, epsilon=epsilon, blocks=blocks)
    return results["out"], results["sums"].flatten(1)


def add_on_grid(
    exact: paddle.Tensor, update: paddle.Tensor, rounder: float, sign: float
) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Add an update to an exact residual stream.

    Args:
        exact: stream, float64.
        update: update, float32 of the same shape, which is rounded to the grid first.
        rounder: number whose addition and subtraction rounds to the grid.
        sign: 1 or -1, by which the rounded update is multiplied.

    Returns:
        The sum in float64, and in float32.
    """
    results = _run_loop("add_on_grid", exact=exact, update=update, rounder=rounder, sign=sign)
    return results["out"], results["rounded_out"]


def softmax(scores: paddle.Tensor, divisor: float = 1.0, bias: paddle.Tensor | None = None) -> paddle.Tensor:
    """Compute the softmax of scores / divisor + bias over the last axis.

    Args:
        scores: scores, (B, heads, T, K); of any shape without a bias.
        divisor: divisor of the scores.
        bias: bias, (T, K) or (B, 1 or heads, T, K).
    """
    return _run_loop("softmax_rows", scores=scores, bias=bias, divisor=divisor)["out"]


def softmax_backward(grad: paddle.Tensor, probabilities: paddle.Tensor, divisor: float = 1.0) -> paddle.Tensor:
    """Return the gradient of the scores of :func:`softmax`.

    Args:
        grad: gradient of the output.
        probabilities: result of :func:`softmax`.
        divisor: divisor of the scores.
    """
    return _run_loop("softmax_rows_backward", grad=grad, probabilities=probabilities, divisor=divisor)["out"]


def cross_entropy(logits: paddle.Tensor, labels: paddle.Tensor) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Compute :func:`models.operations.ops.cross_entropy`.

    Returns:
        The losses (N,), and the normalizers (N, 2) for :func:`cross_entropy_backward`.

    Raises:
        IndexError: a label is not a class.
    """
    _check_indices(labels, logits.shape[1], "label {} is none of {} classes")
    results = _run_loop("cross_entropy_rows", logits=logits, labels=labels)
    return results["losses"], results["normalizers"]


def cross_entropy_backward(
    grad: paddle.Tensor, logits: paddle.Tensor, labels: paddle.Tensor, normalizers: paddle.Tensor
) -> paddle.Tensor:
    """Return the gradient of the logits of :func:`cross_entropy`.

    Args:
        grad: gradient of each loss, (N,).
        logits: logits, (N, classes).
        labels: class of each row, (N,).
        normalizers: normalizers of :func:`cross_entropy`, (N, 2).
    """
    arguments = {"grad": grad, "logits": logits, "labels": labels, "normalizers": normalizers}
    return _run_loop("cross_entropy_rows_backward", **arguments)["out"]


def keys(x: paddle.Tensor, epsilon: float, factor: float) -> paddle.Tensor:
    """Scale rows of ``x`` (..., D) by ``factor`` / sqrt(mean square + epsilon).

    Args:
        x: rows to scale, (..., D).
        epsilon: number that is added to the mean square of each row.
        factor: root of the mean square of each result row, if epsilon is 0.
    """
    return _run_loop("key_rows", x=x, epsilon=epsilon, factor=factor)["out"]


def keys_backward(grad: paddle.Tensor, x: paddle.Tensor, epsilon: float, factor: float) -> paddle.Tensor:
    """Return the gradient of the input of :func:`keys`.

    Args:
        grad: gradient of the output.
        x: input, (..., width).
        epsilon: number added to the variance or the mean square.
        factor: factor of the output.
    """
    return _run_loop("key_rows_backward", grad=grad, x=x, epsilon=epsilon, factor=factor)["out"]


def nearest_axes(x: paddle.Tensor) -> paddle.Tensor:
    """Return the index of the first largest number of [x, -x] in each row: (..., width) -> int64 (...)."""
    return _run_loop("nearest_axes", x=x, out=paddle.empty(x.shape[:-1], "int64"))["out"]


class Masks(NamedTuple):
    """The keys that each query sees, for N rows of n chunks of C positions; the queries of a chunk see K keys.

    Attributes:
        order: chunks whose keys each chunk sees, int64 (n, K / C).
        positions: position in the text of each query and key, int64 (N, n, C); None if no mask needs it.
        token_mask: whether each key is a token and not padding, bool (N, n, C); None without padding.
        is_causal: whether keys of later positions are masked.
        hides_itself: whether the key of the query's own position is masked.
        masked_score: score of padding and of later keys.
        own_score: score of a masked key of the query's own position, even if it is padding.
        keep_mask: which weights dropout keeps, bool (N, n, C, K); None if it keeps all.
        rate: fraction of weights that dropout drops.
    """

    order: paddle.Tensor
    positions: paddle.Tensor | None
    token_mask: paddle.Tensor | None
    is_causal: bool
    hides_itself: bool
    masked_score: float
    own_score: float
    keep_mask: paddle.Tensor | None
    rate: float


def attend_chunks(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, *masks_and_flag: Any
) -> tuple[paddle.Tensor, paddle.Tensor | None]:
    """Compute :func:`chunk_attention`.

    Args:
        query: queries, (N, n, C, D).
        key: keys, of the same shape.
        value: values, of the same shape.
        masks_and_flag: the fields of :class:`Masks`, and whether the logs of the
            normalizers are returned.
    """
    *masks, returns_normalizer = masks_and_flag
    log_normalizer = paddle.empty([*query.shape[:-1], 1], query.dtype) if returns_normalizer else None
    arguments = {"query": query, "key": key, "value": value, "log_normalizer": log_normalizer}
    arguments |= dict(zip(Masks._fields, masks, strict=True))
    results = _run_loop("attend_chunks", work=count_numbers(query) * masks[0].shape[1], **arguments)
    return results["out"], log_normalizer


def attend_chunks_backward(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, *masks_and_grads: Any
) -> tuple[paddle.Tensor, paddle.Tensor, paddle.Tensor]:
    """Return the gradients of query, key and value of :func:`attend_chunks`.

    Args:
        query: queries, (N, n, C, D).
        key: keys, of the same shape.
        value: values, of the same shape.
        masks_and_grads: the fields of :class:`Masks`, and the gradients of the
            output and of the logs of the normalizers, or None.
    """
    *masks, grad, grad_log_normalizer = masks_and_grads
    arguments = {"query": query, "key": key, "value": value, "grad": grad, "grad_log_normalizer": grad_log_normalizer}
    arguments |= dict(zip(Masks._fields, masks, strict=True))
    results = _run_loop("attend_chunks_backward", work=count_numbers(query) * masks[0].shape[1], **arguments)
    return results["grad_query"], results["grad_key"], results["grad_value"]


class _ChunkAttention(PyLayer):
    """Attention whose scores never leave the caches of the CPU.

    The backward computes them again (Dao et al. 2022, section 3.1).
    """

    @staticmethod
    def forward(ctx, query, key, value, masks, returns_normalizer):
        """Return the attention output by :func:`attend_chunks`, and the log-normalizer if ``returns_normalizer``.

        Args:
            ctx: autograd's context of this call.
            query: queries, (N, n, C, D).
            key: keys, of the same shape.
            value: values, of the same shape.
            masks: keys that each query sees, :class:`Masks`.
            returns_normalizer: whether the logs of the softmax normalizers, (N, n, C, 1), are returned, too.
        """
        context, log_normalizer = attend_chunks(query, key, value, *masks, returns_normalizer)
        ctx.masks = masks
        ctx.needs_gradient = [not tensor.stop_gradient for tensor in (query, key, value)]
        ctx.save_for_backward(query, key, value)
        return (context, log_normalizer) if returns_normalizer else context

    @staticmethod
    def backward(ctx, grad, grad_log_normalizer=None):
        """Return the gradients of query, key and value; None for a tensor that needs no gradient.

        Args:
            ctx: autograd's context of the forward.
            grad: gradient of the attention output.
            grad_log_normalizer: gradient of the log-normalizer; None if forward did not return it.
        """
        grads = attend_chunks_backward(*ctx.saved_tensor(), *ctx.masks, grad, grad_log_normalizer)
        return tuple(grad if is_needed else None for grad, is_needed in zip(grads, ctx.needs_gradient, strict=True))


def chunk_attention(
    query: paddle.Tensor, key: paddle.Tensor, value: paddle.Tensor, masks: Masks, returns_normalizer: bool
) -> tuple[paddle.Tensor, paddle.Tensor | None]:
    """Compute the attention of each chunk to the chunks that it sees, by a compiled loop.

    Args:
        query: queries, (N, n, C, D).
        key: keys, (N, n, C, D), already scaled.
        value: values, (N, n, C, D).
        masks: the keys that each query sees.
        returns_normalizer: whether the log of each query's normalizer is returned.

    Returns:
        The attention output, (N, n, C, D), and the log of each query's normalizer, (N, n, C, 1), or None.
    """
    result = _ChunkAttention.apply(query, key, value, masks, returns_normalizer)
    return result if returns_normalizer else (result, None)


def _check_indices(indices: paddle.Tensor, count: int, message: str) -> None:
    """Raise IndexError if an index is not below ``count``: a loop would read and write outside of the array.

    Args:
        indices: indices to check.
        count: number of rows of the array.
        message: text of the error.
    """
    numbers = indices.numpy()
    if numbers.min() < 0 or numbers.max() >= count:
        raise IndexError(message.format(numbers[(numbers < 0) | (numbers >= count)][0], count))


class ReversibleLayer(NamedTuple):
    """A layer of :func:`reversible_step`, for B texts. All tensors are contiguous.

    Attributes:
        keys: keys of the earlier positions, (B, heads, capacity, depth), with room for more positions.
        values: values of the earlier positions, of the same shape.
        buckets: buckets of the positions, int64 (B, heads, rounds, capacity); None if the layer does not hash.
        order: positions sorted by bucket, of the same shape as ``buckets``.
        rotations: random rotations, (heads, depth, rounds, axes).
        factors: factors of the bucket count, int64; half of their sum is the number of axes.
        axes: number of axes; 0 if ``buckets`` already contains the next position.
        rounds: number of hash rounds.
        chunk_length: positions of a chunk.
        chunks_before: number of earlier chunks that a chunk sees.
        parameters: gain and bias of a norm; weights (width, heads * depth) of query, key (None: the query is the key)
            and value; weight (in, out) or gain, and bias or None, of dense, second norm, inner, outer.
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

    def record(self) -> list[Any]:
        """Return the fields of the record ``reversible_layer``, in order."""
        return [*self[:4], self.rotations if self.axes else None, self.factors, *self[8:10], *self.parameters]


class DecoderLayers(list[Any]):
    """The layers of a decoder: each a :class:`ReversibleLayer`, or the fields of the record ``decoder_layer`` in order.

    Their addresses are looked up once, so no tensor may be replaced.
    """

    @functools.cached_property
    def table(self) -> Table:
        """The packed layers."""
        if isinstance(self[0], ReversibleLayer):
            return Table("reversible_layer", [layer.record() for layer in self])
        return Table("decoder_layer", self)


def decoder_step(
    tokens: paddle.Tensor,
    embedding: paddle.Tensor,
    position_table: paddle.Tensor,
    layers: Sequence[Sequence[paddle.Tensor]],
    norm: Sequence[paddle.Tensor],
    head: Sequence[paddle.Tensor],
    score_bias: paddle.Tensor | None,
    num_earlier: int,
    epsilon: float,
    last_epsilon: float,
) -> tuple[paddle.Tensor, ...]:
    """Compute a pre-norm decoder with ReLU at one position of a few texts.

    The keys and values of the position are appended to the caches, in place. Embeddings are scaled by the root of their
    width.

    Args:
        tokens: token of each text, int64 with B numbers.
        embedding: token embedding, (vocabulary, width).
        position_table: vector of each position, (``num_earlier + 1`` or more, width).
        layers: contiguous tensors of each layer: keys and values, (B, heads, capacity, depth), with room for this
            position; and gain or weight (in, out), and bias, of norm, query, key, value, dense, second norm, inner,
            outer.
        norm: gain and bias of the last norm.
        head: weight (classes, width) and bias of the scores.
        score_bias: bias of the attention's scores, (B, ``num_earlier + 1``).
        num_earlier: number of earlier positions.
        epsilon: epsilon of the layers' norms.
        last_epsilon: epsilon of the last norm.

    Returns:
        Scores (B, classes), and the keys and values of each layer.

    Raises:
        IndexError: a token is not in the vocabulary.
    """
    (rows, heads, _, _), inner, classes = layers[0][0].shape, layers[0][14].shape[1], head[0].shape[0]
    _check_indices(tokens, embedding.shape[0], "token {} is none of {}")
    if not isinstance(layers, DecoderLayers):
        layers = DecoderLayers(layers)
    arguments = {"tokens": tokens, "embedding": embedding, "position_table": position_table, "score_bias": score_bias}
    arguments |= {"norm_gain": norm[0], "norm_bias": norm[1], "head_weight": head[0], "head_bias": head[1]}
    arguments |= {"epsilon": epsilon, "last_epsilon": last_epsilon, "layers": layers.table}
    arguments |= {"heads": heads, "positions": num_earlier + 1, "inner": inner}
    work = rows * embedding.shape[1] * (inner * len(layers) + classes)
    out = _run_loop("decoder_step", work=work, **arguments)["out"]
    return out, *(cache for layer in layers for cache in layer[:2])


def reversible_step(
    tokens: paddle.Tensor,
    embedding: paddle.Tensor,
    position: paddle.Tensor,
    layers: Sequence[Any],
    norm: Sequence[paddle.Tensor],
    head: Sequence[paddle.Tensor],
    num_earlier: int,
    padded_length: int,
    epsilon: float,
    key_epsilon: float,
    own_score: float,
) -> tuple[paddle.Tensor, ...]:
    """Compute a pre-norm decoder of two residual streams with ReLU at one position of texts.

    The keys, values and buckets of the position are appended to the caches, in place.

    Args:
        tokens: token of each text, int64 with B numbers.
        embedding: token embedding, (vocabulary, width).
        position: vector of the position, (width,).
        layers: the fields of a :class:`ReversibleLayer` each, with room for this position.
        norm: gain and bias of the last norm, (2 * width,), which normalizes both streams together.
        head: weight (2 * width, classes) and bias of the scores.
        num_earlier: number of earlier positions.
        padded_length: length of a hash round, or of a text, with its padding.
        epsilon: epsilon of the norms.
        key_epsilon: epsilon of the mean square of keys that are queries.
        own_score: number that is added to the score of such a key for its own position.

    Returns:
        Scores (B, classes), and the keys, values, buckets and order of each layer.

    Raises:
        IndexError: a token is not in the vocabulary.
    """
    _check_indices(tokens, embedding.shape[0], "token {} is none of {}")
    if not isinstance(layers, DecoderLayers):
        layers = DecoderLayers(ReversibleLayer(*layer) for layer in layers)
    (rows, heads, _, depth), inner = layers[0].keys.shape, layers[0].parameters[9].shape[1]
    max_visible = max(layer.rounds * layer.chunk_length * (layer.chunks_before + 1) for layer in layers)
    arguments = {"tokens": tokens, "embedding": embedding, "position": position, "layers": layers.table}
    arguments |= {"norm_gain": norm[0], "norm_bias": norm[1], "head_weight": head[0], "head_bias": head[1]}
    arguments |= {"epsilon": epsilon, "key_epsilon": key_epsilon, "own_score": own_score}
    arguments |= {"num_positions": num_earlier + 1, "padded_length": padded_length, "max_visible": max_visible}
    arguments |= {"max_axes": max(layer.axes for layer in layers), "attention_width": heads * depth, "inner": inner}
    work = rows * embedding.shape[1] * (inner * len(layers) + head[0].shape[1])
    out = _run_loop("reversible_step", work=work, **arguments)["out"]
    return out, *(cache for layer in layers for cache in layer[:4] if cache is not None)
