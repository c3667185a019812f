"""Replacement of Paddle's kernels by the reference's in the port, kind by kind, forward and backward.

A replacement computes nothing itself: it names the kernel of the reference that the port's operation is. Only float32
is replaced; integers and float64 go the port's own way.
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
    """A kernel of the reference with its options, and the inputs that follow the differentiable inputs."""

    client: KernelClient
    kernel: str
    options: dict[str, Any]
    rest: tuple[np.ndarray, ...]


class _ReferenceKernel(PyLayer):
    """A kernel of the reference, and its gradient, as an operation of Paddle."""

    @staticmethod
    def forward(ctx, request, *inputs):
        ctx.request = request
        ctx.input_indices = [index for index, x in enumerate(inputs) if not x.stop_gradient]
        ctx.save_for_backward(*inputs)
        arrays = [*(x.numpy() for x in inputs), *request.rest]
        outputs = request.client.forward(request.kernel, request.options, arrays)
        tensors = tuple(paddle.to_tensor(value) for value in outputs)
        return tensors if len(tensors) > 1 else tensors[0]

    @staticmethod
    def backward(ctx, *gradients):
        request, inputs = ctx.request, ctx.saved_tensor()
        arrays = [*(x.numpy() for x in inputs), *request.rest]
        output_gradients = [gradient.numpy() for gradient in gradients]
        input_gradients = request.client.backward(
            request.kernel, request.options, arrays, output_gradients, ctx.input_indices
        )
        by_input = dict(zip(ctx.input_indices, input_gradients, strict=True))
        all_gradients = tuple(paddle.to_tensor(by_input[i]) if i in by_input else None for i in range(len(inputs)))
        return all_gradients if len(all_gradients) > 1 else all_gradients[0]


#: Called with a kernel's name, the differentiable inputs, other inputs, and options.
Serve = Callable[..., Any]
#: An operation of the port.
Operation = Callable[..., Any]
#: Makes the replacement of an operation, given how to reach the server.
Maker = Callable[[Serve], Operation]


def _linear(serve: Serve) -> Operation:
    def linear(x, weight, bias=None, transposed=False):
        inputs = [x, weight] if bias is None else [x, weight, bias]
        return serve("linear", *inputs, transposed=transposed, parted=getattr(x, "parted", False))

    return linear


def _matmul(serve: Serve) -> Operation:
    def matmul(x, y, transpose_x=False, transpose_y=False, name=None):
        return serve("matmul", x, y, transpose_x=transpose_x, transpose_y=transpose_y)

    return matmul


def _tensor_split(serve: Serve) -> Operation:
    """Mark the parts of a split.

    A split needs no kernel: Paddle copies the parts, the reference makes views of them. Work on a
    non-contiguous part takes another path there, see the server's ``linear``."""
    tensor_split = paddle.Tensor.split

    def split_and_mark(x, num_or_sections, axis=0, name=None):
        parts = tensor_split(x, num_or_sections, axis)
        for part in parts:
            part.parted = axis == 1 and x.shape[0] > 1 and part.shape != x.shape
        return parts

    return split_and_mark


def _layer_norm(serve: Serve) -> Operation:
    return lambda x, gain, bias, epsilon: serve("layer_norm", x, gain, bias, epsilon=epsilon)


def _softmax(serve: Serve) -> Operation:
    return lambda scores, unmasked=None: serve("softmax", scores)


def _masked_softmax(serve: Serve) -> Operation:
    def masked_softmax(scores, masks, with_normaliser=False):
        for keep_mask, value in masks:
            scores = paddle.where(keep_mask, scores, paddle.full([1], value, scores.dtype))
        weights, normaliser = serve("attention_weights", scores, dim=-1)
        return (weights, normaliser) if with_normaliser else weights

    return masked_softmax


def _softmax_over(serve: Serve) -> Operation:
    """Weigh Reformer's hash rounds by exp(x - logsumexp(x)), too."""
    return lambda scores, axis: serve("attention_weights", scores, dim=axis)[0]


def _activation(kernel: str) -> Maker:
    return lambda serve: lambda x, *inplace_and_name, **keywords: serve("activation", x, name=kernel)


def _reduction(kernel: str) -> Maker:
    def make(serve: Serve) -> Operation:
        def reduce(x, axis=None, keepdim=False, **others):
            return serve(kernel, x, dim=axis, keepdim=keepdim)

        return reduce

    return make


def _cross_entropy(serve: Serve) -> Operation:
    def cross_entropy(logits, labels, ignored=losses.IGNORED_LABEL):
        return serve("cross_entropy", logits, rest=[labels.numpy()], ignored=ignored)

    return cross_entropy


def _loss(kernel: str) -> Maker:
    return lambda serve: lambda logits, labels: serve(kernel, logits, rest=[labels.numpy()])


#: By kind of :mod:`toolkit.parity.job.kernel_messages`: where the port looks up an operation, and its replacement.
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


#: By kind, the compiled loops made of its operations: to replace these, the loops must be composed of them.
COMPILED_OF = {"matmul": ["attention"], "softmax": ["attention", "softmax"], "sum": ["keys"], "rsqrt": ["keys"]}


@contextlib.contextmanager
def reference_kernels(client: KernelClient, kinds: Sequence[str]) -> Iterator[None]:
    """Inside the ``with`` block the port's float32 operations of these kinds are the reference's."""

    def serve(kernel: str, *inputs: paddle.Tensor, rest: Sequence[np.ndarray] = (), **options: Any) -> Any:
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


def _for_float32(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    def dispatch(x, *arguments, **keywords):
        return (replacement if x.dtype == paddle.float32 else original)(x, *arguments, **keywords)

    return dispatch


def _holders(owner: Any, name: str, original: Any) -> list[Any]:
    """``owner``, and the port's modules that have imported the operation from it under its name."""
    port = [module for path, module in sys.modules.items() if path.startswith("models.") and module is not owner]
    return [owner, *(module for module in port if vars(module).get(name) is original)]
