"""``python -m toolkit.parity.reference.kernel_server JOB PIPE``: the reference's basic kernels as a server.

The server uses the reference's settings. It answers requests (:mod:`toolkit.parity.exchange.kernel_messages`) on the
open pipe with this number until the other side closes the pipe. It keeps no state between requests. Autograd computes
the backward of a kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from transformers.activations import ACT2FN

from toolkit.parity.exchange import files
from toolkit.parity.exchange.kernel_messages import receive, send
from toolkit.parity.reference.environment import set_up
from toolkit.parity.reference.float64_checks import ExactNormalizer


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, is_transposed: bool, parted: bool
) -> torch.Tensor:
    """Return x W + b, with the weight in torch's layout (out, in), which determines the order of the sum.

    Args:
        x: input, (..., in).
        weight: weight, (in, out), or (out, in) if ``is_transposed``.
        bias: bias, (out,); None without a bias.
        is_transposed: whether the weight is (out, in).
        parted: whether ``x`` is part of a longer sequence, so that its rows are not adjacent in memory. The reference
            then adds the bias to the rounded product, otherwise inside the product.
    """
    if parted:
        x = torch.cat([x, x], 1)[:, : x.shape[1]]
    return functional.linear(x, weight if is_transposed else weight.t().contiguous(), bias)


def matmul(x: torch.Tensor, y: torch.Tensor, *, transpose_x: bool, transpose_y: bool) -> torch.Tensor:
    """Return the product of two batches of matrices, each with its last two axes transposed if requested.

    Args:
        x: input.
        y: second input.
        transpose_x: whether ``x`` is transposed.
        transpose_y: whether ``y`` is transposed.
    """
    return torch.matmul(x.transpose(-1, -2) if transpose_x else x, y.transpose(-1, -2) if transpose_y else y)


def layer_norm(x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, *, epsilon: float) -> torch.Tensor:
    """Return the layer norm of ``x`` over its last axis.

    Args:
        x: input.
        gain: factors of the last axis, (D,).
        bias: bias of the last axis, (D,).
        epsilon: number added to the variance.
    """
    return functional.layer_norm(x, x.shape[-1:], gain, bias, epsilon)


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of ``x`` over its last axis."""
    return torch.softmax(x, dim=-1)


def attention_weights(scores: torch.Tensor, *, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the softmax of Reformer's attention scores, and their logsumexp, as the reference computes them.

    Args:
        scores: attention scores.
        dim: axis of the softmax.
    """
    with ExactNormalizer(lambda: False):
        normalizer = torch.logsumexp(scores, dim=dim, keepdim=True)
        return torch.exp(scores - normalizer), normalizer


def activation(x: torch.Tensor, *, name: str) -> torch.Tensor:
    """Return an activation function of ``x``.

    Args:
        x: input of the activation.
        name: name of the activation in a configuration, such as ``gelu``.
    """
    return ACT2FN[name](x)


def total(x: torch.Tensor, *, dim: int | None, keepdim: bool) -> torch.Tensor:
    """Return the sum of ``x`` along an axis; None sums all elements.

    Args:
        x: input.
        dim: axis; None for all elements.
        keepdim: whether the axis stays, with length 1.
    """
    return torch.sum(x, dim=dim, keepdim=keepdim)


def mean(x: torch.Tensor, *, dim: int | None, keepdim: bool) -> torch.Tensor:
    """Return the mean of ``x`` along an axis; None averages all elements.

    Args:
        x: input.
        dim: axis; None for all elements.
        keepdim: whether the axis stays, with length 1.
    """
    return torch.mean(x, dim=dim, keepdim=keepdim)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *, ignored_label: int) -> torch.Tensor:
    """Return the mean cross entropy over the rows whose label is not ``ignored_label``."""
    return functional.cross_entropy(logits, labels, ignore_index=ignored_label)


#: Kernel functions by their names in requests. Each gets tensors and keyword options, and returns a tensor or a tuple
#: of tensors.
KERNELS: dict[str, Callable] = {
    "linear": linear,
    "matmul": matmul,
    "layer_norm": layer_norm,
    "softmax": softmax,
    "attention_weights": attention_weights,
    "activation": activation,
    "sum": total,
    "mean": mean,
    "rsqrt": torch.rsqrt,
    "cross_entropy": cross_entropy,
    "mse_loss": functional.mse_loss,
    "binary_cross_entropy": functional.binary_cross_entropy_with_logits,
}


def forward(kernel: str, kernel_options: dict, kernel_inputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the outputs of a kernel, without autograd.

    Args:
        kernel: name of the kernel, a key of :data:`KERNELS`.
        kernel_options: keyword options of the kernel.
        kernel_inputs: the input tensors of the kernel.
    """
    with torch.no_grad():
        return as_list(KERNELS[kernel](*kernel_inputs, **kernel_options))


def backward(
    kernel: str, kernel_options: dict, kernel_inputs: list[torch.Tensor], input_indices: list[int]
) -> list[torch.Tensor]:
    """Return the gradients of some inputs of a kernel.

    Args:
        kernel: name of the kernel, a key of :data:`KERNELS`.
        kernel_options: keyword options of the kernel.
        kernel_inputs: the inputs of the kernel, then the gradient of each output.
        input_indices: indices of the inputs whose gradients are returned.
    """
    inputs = list(kernel_inputs)
    for index in input_indices:
        inputs[index].requires_grad_()
    num_inputs = len(inputs) - (2 if kernel == "attention_weights" else 1)  # the outputs
    with torch.enable_grad():
        outputs = as_list(KERNELS[kernel](*inputs[:num_inputs], **kernel_options))
    return list(torch.autograd.grad(outputs, [inputs[index] for index in input_indices], inputs[num_inputs:]))


def as_list(kernel_result: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Return the outputs of a kernel, a tensor or a tuple of tensors, as a list."""
    return [kernel_result] if isinstance(kernel_result, torch.Tensor) else list(kernel_result)


def allocate(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return a new NumPy array in memory from torch, which is aligned as the memory of the reference's tensors."""
    return torch.empty(shape, dtype=getattr(torch, dtype)).numpy()


def serve(connection: Connection) -> None:
    """Answer requests for kernels until the other side closes the connection.

    The answer to a failed request is its error, as text under ``failed``.
    """
    while True:
        try:
            words, arrays = receive(connection, allocate)
        except EOFError:
            return
        tensors = [torch.from_numpy(array) for array in arrays]
        try:
            results = (backward if "input_indices" in words else forward)(kernel_inputs=tensors, **words)
        except Exception as error:
            send(connection, {"failed": f"{words['kernel']}: {type(error).__name__}: {error}"}, [])
        else:
            send(connection, {}, [tensor.detach().numpy() for tensor in results])


if __name__ == "__main__":
    set_up(files.read_job(Path(sys.argv[1])).threads)
    with Connection(int(sys.argv[2])) as theirs:
        serve(theirs)
