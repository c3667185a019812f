"""Estimate the memory of a pair's gate, and decide whether less is compared to save memory."""

from __future__ import annotations

import math
from collections.abc import Iterable

from toolkit.errors import Inconclusive
from toolkit.machine.memory import format_gigabytes
from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.request.request import GateRequest
from toolkit.parity.request.stretch import IDLE, most_memory

#: A pair with at least this many parameters is large: less of it is compared
#: (:attr:`~toolkit.parity.job.job.Job.brief`), one process after the other, without all gradients at once.
LARGE_ABOVE = 3 * 10**7
#: Bytes of each parameter: of a large pair in the larger process, which holds it in float32 and float64 at once while
#: it is built (2.0 GB seen with 1.0 * 10^8 of them); else in both together (5.6 GB seen with 4.6 * 10^7).
OF_LARGE, OF_BOTH = 14, 126


def memory_of(parameters: int, is_large: bool) -> float:
    """Return the approximate number of bytes of a pair's gate, without the activations of its model."""
    return IDLE + OF_LARGE * parameters if is_large else 2 * IDLE + OF_BOTH * parameters


def is_large(parameters: Iterable[ParameterFacts], request: GateRequest) -> bool:
    """Return whether a pair counts as large, by its number of parameters or compared with the memory.

    Raises:
        Inconclusive: it does not fit the memory.
    """
    count, max_bytes = sum(math.prod(one.shape) for one in parameters), most_memory(request)
    assert request.pair is not None
    is_large_pair = (
        request.pair.small or count > LARGE_ABOVE or (max_bytes is not None and memory_of(count, False) > max_bytes)
    )
    if max_bytes is not None and (needed_bytes := memory_of(count, is_large_pair)) > max_bytes:
        raise Inconclusive(
            f"the gate of a model of {count:,} parameters takes about {format_gigabytes(needed_bytes)} of memory "
            f"besides its activations; it may take {format_gigabytes(max_bytes)} (--max-memory). A larger machine can "
            "record the reference (toolkit parity record)"
        )
    return is_large_pair
