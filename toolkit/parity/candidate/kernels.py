"""Replacement of Paddle's kernels in the port by the reference's kernels, forward and backward.

Kernels are replaced by kind, such as ``matmul``. A replacement computes nothing itself: it calls the kernel of the
reference that corresponds to the port's operation. Only float32 is replaced; other dtypes use Paddle's kernels.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
import paddle.nn.functional as F
from paddle.autograd import PyLayer

from models.operations import activations, compiled, losses, ops
from toolkit.parity.candidate.kernel_client import KernelClient


@dataclass(frozen=True)
class _Request:
    """A call of a kernel of the reference, without the differentiable inputs.

    Attributes:
        client: client of the reference's kernels.
        kernel: name of the kernel.
        options: keyword options of the kernel.
        rest: inputs that have no gradient, such as labels; they follow the differentiable inputs.
    """

    client: KernelClient
    kernel: str
    options: dict[str, Any]
    rest: tuple[np.ndarray, ...]


class _ReferenceKernel(PyLayer):
    """An operation of Paddle whose forward and backward call a kernel of the reference."""

    @staticmethod
    def forward(ctx, request, *inputs):
        """Return the outputs of a kernel of the reference as Paddle tensors, a tuple if there are several.

        Args:
            ctx: context that keeps the request for the backward.
            request: name and options of the kernel, and the client of the process that runs it.
            *inputs: input tensors of the kernel.
        """
        ctx.request = request
        ctx.input_indices = [index for index, x in enumerate(inputs) if not x.stop_gradient]
        ctx.save_for_backward(*inputs)
        arrays = [*(x.numpy() for x in inputs), *request.rest]
        outputs = request.client.forward(request.kernel, request.options, arrays)
        tensors = tuple(paddle.to_tensor(value) for value in outputs)
        return tensors if len(tensors) > 1 else tensors[0]

    @staticmethod
    def backward(ctx, *gradients):
        """Return the gradients of the inputs; None for an input that needs no gradient."""
        request, inputs = ctx.request, ctx.saved_tensor()
        arrays = [*(x.numpy() for x in inputs), *request.rest]
        output_gradients = [gradient.numpy() for gradient in gradients]
        input_gradients = request.client.backward(
            request.kernel, request.options, arrays, output_gradients, ctx.input_indices
        )
        by_input = dict(zip(ctx.input_indices, input_gradients, strict=True))
        all_gradients = tuple(paddle.to_tensor(by_input[i]) if i in by_input else None for i in range(len(inputs)))
        return all_gradients if len(all_gradients) > 1 else all_gradients[0]


#: Function that calls a kernel of the reference: ``serve(kernel, *inputs, rest=(), **options)``. ``inputs`` are the
#: differentiable tensors, ``rest`` the other arrays. It returns the kernel's outputs.
Serve = Callable[..., Any]
#: Function of the port or of Paddle that computes an operation.
Operation = Callable[..., Any]
#: Function that returns the replacement of an operation, given the function that calls the reference's kernels.
Maker = Callable[[Serve], Operation]


# Each function ``_NAME(serve)`` below returns the replacement of the operation ``NAME`` of the port or of Paddle. The
# replacement calls a kernel of the reference by ``serve``.
def _linear(serve: Serve) -> Operation:
    """Return a replacement of Linear's operation that asks the reference's kernel."""

    def linear(x, weight, bias=None, is_transposed=False):
        """Return x W + b (:func:`models.operations.ops.linear`) by the reference's kernel."""
        inputs = [x, weight] if bias is None else [x, weight, bias]
        return serve("linear", *inputs, is_transposed=is_transposed, parted=getattr(x, "parted", False))

    return linear


def _matmul(serve: Serve) -> Operation:
    """Return a replacement of the matrix product that asks the reference's kernel."""

    def matmul(x, y, transpose_x=False, transpose_y=False, name=None):
        """Return a matrix product (:func:`paddle.matmul`) by the reference's kernel."""
        return serve("matmul", x, y, transpose_x=transpose_x, transpose_y=transpose_y)

    return matmul


def _tensor_split(serve: Serve) -> Operation:
    """Return a replacement of :meth:`paddle.Tensor.split` that marks the parts of a split.

    A split needs no kernel: Paddle copies the parts, and the reference makes views of them. The reference computes with
    a non-contiguous part in another way; see ``linear`` in :mod:`toolkit.parity.reference.kernel_server`.
    """
    tensor_split = paddle.Tensor.split

    def split_and_mark(x, num_or_sections, axis=0, name=None):
        """Split a tensor with Paddle, and mark each part of a longer sequence."""
        parts = tensor_split(x, num_or_sections, axis)
        for part in parts:
            part.parted = axis == 1 and x.shape[0] > 1 and part.shape != x.shape
        return parts

    return split_and_mark


def _layer_norm(serve: Serve) -> Operation:
    """Return a replacement of :func:`models.operations.ops.layer_norm`."""
    return lambda x, gain, bias, epsilon: serve("layer_norm", x, gain, bias, epsilon=epsilon)


def _softmax(serve: Serve) -> Operation:
    """Return a replacement of :func:`models.operations.ops.softmax`."""
    return lambda scores, unmasked=None: serve("softmax", scores)


def _masked_softmax(serve: Serve) -> Operation:
    """Return a replacement of the masked softmax that asks the reference's kernel."""

    def masked_softmax(scores, masks, with_normalizer=False):
        """Return the softmax of masked scores by the reference's kernel (:func:`models.operations.ops.masked_softmax`).

        The replaced operation has the same arguments.
        """
        for keep_mask, value in masks:
            scores = paddle.where(keep_mask, scores, paddle.full([1], value, scores.dtype))
        weights, normalizer = serve("attention_weights", scores, dim=-1)
        return (weights, normalizer) if with_normalizer else weights

    return masked_softmax


def _softmax_over(serve: Serve) -> Operation:
    """Return a replacement of ``softmax_over``, which weighs Reformer's hash rounds by exp(x - logsumexp(x))."""
    return lambda scores, axis: serve("attention_weights", scores, dim=axis)[0]


def _activation(kernel: str) -> Maker:
    """Return a function that makes the replacement of an activation function.

    Args:
        kernel: name of the activation in the reference's configuration, such as ``gelu_new``.
    """
    return lambda serve: lambda x, *inplace_and_name, **keywords: serve("activation", x, name=kernel)


# Return a function that makes the replacement of a reduction along an axis; ``kernel`` is ``sum`` or ``mean``.
def _reduction(kernel: str) -> Maker:
    """Return a maker of replacements of a sum or mean, given the name of the reference's kernel."""

    def make(serve: Serve) -> Operation:
        def reduce(x, axis=None, keepdim=False, **others):
            """Return the sum or mean along an axis by the reference's kernel."""
            return serve(kernel, x, dim=axis, keepdim=keepdim)

        return reduce

    return make


def _cross_entropy(serve: Serve) -> Operation:
    """Return a replacement of the cross-entropy loss that asks the reference's kernel."""

    def cross_entropy(logits, labels, ignored_label=losses.IGNORED_LABEL):
        """Return the loss (:func:`models.operations.losses.cross_entropy`) by the reference's kernel."""
        return serve("cross_entropy", logits, rest=[labels.numpy()], ignored_label=ignored_label)

    return cross_entropy


def _loss(kernel: str) -> Maker:
    """Return a function that makes the replacement of a loss of logits and labels.

    Args:
        kernel: name of the reference's kernel, such as ``mse_loss``.
    """
    return lambda serve: lambda logits, labels: serve(kernel, logits, rest=[labels.numpy()])


#: Kind of :data:`toolkit.parity.exchange.kernel_messages.KINDS` -> operations of that kind. Each is given as the module
#: or class that has the operation, the operation's name in it, and the function that makes its replacement.
REPLACEMENTS: dict[str, list[tuple[Any, str, Maker]]] = {
    "matmul": [(ops, "linear", _linear), (paddle, "matmul", _matmul), (paddle.Tensor, "split", _tensor_split)],
    "layer_norm": [(ops, "layer_norm", _layer_norm)],
    "softmax": [
        (ops, "softmax", _softmax),
        (ops, "masked_softmax", _masked_softmax),
        (ops, "softmax_over", _softmax_over),
    ],
    "activation": [
        (F, "gelu", _activation("gelu")),
        (activations, "tanh_gelu", _activation("gelu_new")),
        (activations, "silu", _activation("silu")),
        (activations, "tanh", _activation("tanh")),
        (F, "sigmoid", _activation("sigmoid")),
    ],
    "sum": [(paddle.Tensor, "sum", _reduction("sum")), (paddle.Tensor, "mean", _reduction("mean"))],
    "rsqrt": [(paddle, "rsqrt", lambda serve: lambda x, name=None: serve("rsqrt", x))],
    "loss": [
        (losses, "cross_entropy", _cross_entropy),
        (F, "mse_loss", _loss("mse_loss")),
        (F, "binary_cross_entropy_with_logits", _loss("binary_cross_entropy")),
    ],
}


#: Kind of kernel -> compiled loops that contain such operations. To replace the operations, the loops must be composed
#: of Paddle's operations.
COMPILED_OF = {"matmul": ["attention"], "softmax": ["attention", "softmax"], "sum": ["keys"], "rsqrt": ["keys"]}


@contextlib.contextmanager
def reference_kernels(client: KernelClient, kinds: Sequence[str]) -> Iterator[None]:
    """Inside the ``with`` block, the port's float32 operations of these kinds call the reference's kernels.

    Args:
        client: client of the reference's kernels.
        kinds: kinds of kernels, of :data:`toolkit.parity.exchange.kernel_messages.KINDS`.
    """

    def serve(kernel: str, *inputs: paddle.Tensor, rest: Sequence[np.ndarray] = (), **options: Any) -> Any:
        """Call a kernel of the reference; see :data:`Serve`."""
        return _ReferenceKernel.apply(_Request(client, kernel, options, tuple(rest)), *inputs)

    with contextlib.ExitStack() as undo:
        undo.enter_context(compiled.compose_loops({loop for kind in kinds for loop in COMPILED_OF.get(kind, ())}))
        for kind in kinds:
            for owner, name, make in REPLACEMENTS[kind]:
                original = getattr(owner, name)
                replacement = _for_float32(make(serve), original)
                for holder in _holders(owner, name, original):
                    setattr(holder, name, replacement)
                    undo.callback(setattr, holder, name, original)
        yield


# Return a function that calls ``replacement`` if its first argument is float32, and ``original`` otherwise.
def _for_float32(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls the replacement for float32 tensors, and the original for other tensors."""

    def dispatch(x, *arguments, **keywords):
        """Call the replacement or the original, by the dtype of the first argument."""
        return (replacement if x.dtype == paddle.float32 else original)(x, *arguments, **keywords)

    return dispatch


def _holders(owner: Any, name: str, original: Any) -> list[Any]:
    """Return ``owner`` and the modules of the port that imported the operation under the same name.

    Args:
        owner: module or class that has the operation.
        name: name of the operation in it.
        original: the operation itself.
    """
    port = [module for path, module in sys.modules.items() if path.startswith("models.") and module is not owner]
    return [owner, *(module for module in port if vars(module).get(name) is original)]
