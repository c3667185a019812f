"""Kernels that the port can take from the reference, and the messages that its process sends to request them.

The frameworks run in separate processes. The port's process sends the name of a kernel, options and arrays through a
pipe; the reference's process answers with arrays. A message is a JSON header, then the bytes of each array that is not
empty.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

#: Description of each kind of kernels, by its name on the command line and in the report. Both frameworks round all
#: other operations of the ports (sums of two tensors, products, quotients, roots, gathers) correctly.
KINDS = {
    "matmul": "matrix products, with or without a bias",
    "layer_norm": "layer normalization",
    "softmax": "softmax, exp(x - logsumexp(x)) and logsumexp",
    "activation": "gelu, silu, tanh, sigmoid",
    "sum": "sums and means along an axis",
    "rsqrt": "1 / sqrt(x)",
    "loss": "cross entropy and the other losses",
}
#: Names of the dtypes that a message may contain.
DTYPES = ("float32", "float64", "int64", "bool")
#: Returns a new, C-contiguous array of a shape and a dtype, whose content is filled later.
Allocate = Callable[[tuple[int, ...], str], np.ndarray]


def send(connection: Connection, message: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
    """Send a message with arrays to the other process.

    Args:
        connection: open pipe to the other process.
        message: JSON of the message.
        arrays: arrays with dtypes of :data:`DTYPES`.
    """
    arrays = [np.asarray(array, order="C") for array in arrays]
    header = {**message, "arrays": [[str(array.dtype), list(array.shape)] for array in arrays]}
    connection.send_bytes(json.dumps(header).encode())
    for array in arrays:
        if array.size:
            connection.send_bytes(array.reshape(-1).view(np.uint8).data)


def receive(connection: Connection, allocate: Allocate = np.empty) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Wait for the next message of the other process, and return its JSON and its arrays.

    Args:
        connection: open pipe to the other process.
        allocate: returns the memory of each array.

    Raises:
        EOFError: the other process has closed the connection.
        ValueError: an array has a dtype that is not in :data:`DTYPES`.
    """
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
