"""``python -m toolkit.parity.reference.kernel_server JOB PIPE``: the reference's basic kernels as a server.

Runs with the reference's settings and answers requests (:mod:`toolkit.parity.job.kernel_messages`) on the open pipe of
that number until the other side closes it. A request is self-contained; no state is kept between two of them. The
backward of a kernel is autograd's.
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

from toolkit.parity.job import files
from toolkit.parity.job.kernel_messages import receive, send
from toolkit.parity.reference.clean import ExactNormaliser
from toolkit.parity.reference.environment import set_up


def linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, *, transposed: bool, parted: bool
) -> torch.Tensor:
    """x W + b, with the weight laid out as in the reference, (out, in): the order of the sum depends on it.

    Args:
        x: (..., in).
        weight: (in, out), or, ``transposed``, (out, in).
        bias: (out,).
        parted: ``x`` is part of a longer sequence, its rows apart in memory. The reference then adds the bias to the
            rounded product, else inside it.
    """
    if parted:
        x = torch.cat([x, x], 1)[:, : x.shape[1]]
    return functional.linear(x, weight if transposed else weight.t().contiguous(), bias)


def matmul(x: torch.Tensor, y: torch.Tensor, *, transpose_x: bool, transpose_y: bool) -> torch.Tensor:
    return torch.matmul(x.transpose(-1, -2) if transpose_x else x, y.transpose(-1, -2) if transpose_y else y)


def layer_norm(x: torch.Tensor, gain: torch.Tensor, bias: torch.Tensor, *, epsilon: float) -> torch.Tensor:
    return functional.layer_norm(x, x.shape[-1:], gain, bias, epsilon)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, dim=-1)


def attention_weights(scores: torch.Tensor, *, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Reformer's softmax, computed by :class:`.clean.ExactNormaliser` as in the reference, and logsumexp."""
    with ExactNormaliser(lambda: False):
        normaliser = torch.logsumexp(scores, dim=dim, keepdim=True)
        return torch.exp(scores - normaliser), normaliser


def activation(x: torch.Tensor, *, name: str) -> torch.Tensor:
    """``name``: the configuration's."""
    return ACT2FN[name](x)


def total(x: torch.Tensor, *, dim: int | None, keepdim: bool) -> torch.Tensor:
    return torch.sum(x, dim=dim, keepdim=keepdim)


def mean(x: torch.Tensor, *, dim: int | None, keepdim: bool) -> torch.Tensor:
    return torch.mean(x, dim=dim, keepdim=keepdim)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, *, ignored: int) -> torch.Tensor:
    return functional.cross_entropy(logits, labels, ignore_index=ignored)


#: Called with tensors, then options; gives a tensor or several.
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


def forward(kernel: str, options: dict, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The kernel's outputs."""
    with torch.no_grad():
        return several(KERNELS[kernel](*tensors, **options))


def backward(kernel: str, options: dict, tensors: list[torch.Tensor], wanted: list[int]) -> list[torch.Tensor]:
    """Return the gradients of the inputs ``wanted``; ``tensors``: the inputs, then every output's gradient."""
    inputs = list(tensors)
    for index in wanted:
        inputs[index].requires_grad_()
    count = len(inputs) - outputs_of(kernel)
    with torch.enable_grad():
        outputs = several(KERNELS[kernel](*inputs[:count], **options))
    return list(torch.autograd.grad(outputs, [inputs[index] for index in wanted], inputs[count:]))


def outputs_of(kernel: str) -> int:
    return 2 if kernel == "attention_weights" else 1


def several(outputs: torch.Tensor | tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    return [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)


def allocate(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Allocate by torch, for the same alignment as the reference's tensors."""
    return torch.empty(shape, dtype=getattr(torch, dtype)).numpy()


def serve(connection: Connection) -> None:
    """Answer until the other side closes the connection. A failed request is answered by its error."""
    while True:
        try:
            words, arrays = receive(connection, allocate)
        except EOFError:
            return
        tensors = [torch.from_numpy(array) for array in arrays]
        try:
            answered = (backward if "wanted" in words else forward)(tensors=tensors, **words)
        except Exception as problem:
            send(connection, {"failed": f"{words['kernel']}: {type(problem).__name__}: {problem}"}, [])
        else:
            send(connection, {}, [tensor.detach().numpy() for tensor in answered])


if __name__ == "__main__":
    set_up(files.read_job(Path(sys.argv[1])).threads)
    with Connection(int(sys.argv[2])) as theirs:
        serve(theirs)
