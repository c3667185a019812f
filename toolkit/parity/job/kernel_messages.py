"""Basic kernels that the port can take from the reference, and the words in which its process asks for them.

The two frameworks' processes stay apart. The port's sends the name of a kernel, options and arrays through a socket;
the reference's answers with arrays. A message is the length of a JSON header (8 bytes, little endian), the header, and
the arrays' bytes one after another.
"""

from __future__ import annotations

import json
import math
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.errors import UserError

#: The kinds of kernels, as the command line and the report name them, and what each is. Everything else that the ports
#: compute with (sums of two tensors, products, quotients, roots, gathers) is rounded correctly by both frameworks.
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
_LENGTH = struct.Struct("<Q")
#: Gives a new, C-contiguous array of a shape and dtype, to be filled.
Allocate = Callable[[tuple[int, ...], str], np.ndarray]


def chosen_kinds(ops: str) -> list[str]:
    """The kinds that the command line's ``--ops`` means: ``reference`` is all of them, ``reference:KIND[,KIND]`` some.

    Raises:
        UserError: anything else.
    """
    source, colon, names = ops.partition(":")
    if source != "reference":
        raise UserError(f"--ops {ops}: expected reference or reference:KIND[,KIND], the kinds being {', '.join(KINDS)}")
    kinds = names.split(",") if colon else list(KINDS)
    for kind in kinds:
        if kind not in KINDS:
            raise UserError(f"--ops {ops}: {kind or 'nothing'} is no kind of kernel; there are {', '.join(KINDS)}")
    return list(dict.fromkeys(kinds))


def send(connection: socket.socket, words: Mapping[str, Any], arrays: Sequence[np.ndarray]) -> None:
    """One message: ``words`` (JSON) and the arrays, of one of :data:`DTYPES` each."""
    arrays = [np.asarray(array, order="C") for array in arrays]
    header = {**words, "arrays": [[str(array.dtype), list(array.shape)] for array in arrays]}
    encoded = json.dumps(header).encode()
    connection.sendall(_LENGTH.pack(len(encoded)) + encoded)
    for array in arrays:
        if array.size:
            connection.sendall(memoryview(array).cast("B") if array.ndim else array.tobytes())


def receive(connection: socket.socket, allocate: Allocate = np.empty) -> tuple[dict[str, Any], list[np.ndarray]] | None:
    """The other side's next message; None where it has closed the connection.

    Raises:
        ConnectionError: it closed the connection within a message.
        ValueError: an array of a dtype that is none of :data:`DTYPES`.
    """
    length = bytearray(_LENGTH.size)
    if not _fill(connection, memoryview(length), may_end=True):
        return None
    encoded = bytearray(_LENGTH.unpack(length)[0])
    _fill(connection, memoryview(encoded))
    words = json.loads(encoded)
    arrays = []
    for dtype, shape in words.pop("arrays"):
        if dtype not in DTYPES:
            raise ValueError(f"arrays of {dtype} are not sent")
        array = allocate(tuple(shape), dtype)
        if math.prod(shape):
            _fill(connection, memoryview(array.reshape(-1)).cast("B"))
        arrays.append(array)
    return words, arrays


def _fill(connection: socket.socket, memory: memoryview, may_end: bool = False) -> bool:
    """Fill ``memory`` from the connection; False where that has ended before the first byte, and may."""
    filled = 0
    while filled < len(memory):
        count = connection.recv_into(memory[filled:])
        if not count:
            if may_end and not filled:
                return False
            raise ConnectionError("the other side has closed the connection within a message")
        filled += count
    return True
