"""Kernels that the port can take from the reference, and the messages that its process sends to request them.

The two frameworks' processes stay apart. The port's sends the name of a kernel, options and arrays through a pipe; the
reference's answers with arrays. A message is a JSON header, then the bytes of each array that has any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

#: The kinds of kernels, as the command line and the report name them, with a description. Both frameworks round
#: everything else that the ports use (sums of two tensors, products, quotients, roots, gathers) correctly.
KINDS = {
    "matmul": "matrix products, with or without a bias",
    "layer_norm": "layer normalisation",
    "softmax": "softmax, exp(x - logsumexp(x)) and logsumexp",
    "activation": "gelu, silu, tanh, sigmoid",
    "sum": "sums and means along an axis",
    "rsqrt": "1 / sqrt(x)",
    "loss": "cross entropy and the other losses",
}
DTYPES = ("float32", "float64", "int64", "bool")
#: Gives a new, C-contiguous array of a shape and dtype, to be filled.
Allocate = Callable[[tuple[int, ...], str], np.ndarray]


def send(connection: Connection, words: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
    """Send a message: ``words`` (JSON) and arrays of :data:`DTYPES`."""
    arrays = [np.asarray(array, order="C") for array in arrays]
    header = {**words, "arrays": [[str(array.dtype), list(array.shape)] for array in arrays]}
    connection.send_bytes(json.dumps(header).encode())
    for array in arrays:
        if array.size:
            connection.send_bytes(array.reshape(-1).view(np.uint8).data)


def receive(connection: Connection, allocate: Allocate = np.empty) -> tuple[dict[str, Any], list[np.ndarray]]:
    """The other side's next message. Raises EOFError if it has closed the connection, and ValueError for an array of a
    dtype that is none of :data:`DTYPES`."""
    words = json.loads(connection.recv_bytes())
    arrays = []
    for dtype, shape in words.pop("arrays"):
        if dtype not in DTYPES:
            raise ValueError(f"arrays of {dtype} are not sent")
        array = allocate(tuple(shape), dtype)
        if math.prod(shape):
            connection.recv_bytes_into(array.reshape(-1).view(np.uint8).data)
        arrays.append(array)
    return words, arrays
