"""Decide whether less of a pair is compared to save memory."""

from __future__ import annotations

import math
from collections.abc import Iterable

from toolkit.errors import Inconclusive
from toolkit.machine.model_memory import MAX_PAIR_PARAMETERS, pair_memory_bytes
from toolkit.machine.sizes import format_gigabytes
from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.request.request import GateRequest
from toolkit.parity.request.stretch import most_memory


def is_large(parameters: Iterable[ParameterFacts], request: GateRequest) -> bool:
    """Return whether a pair counts as large, by its number of parameters or compared with the memory.

    Raises:
        Inconclusive: it does not fit the memory.
    """
    count, max_bytes = sum(math.prod(one.shape) for one in parameters), most_memory(request)
    assert request.pair is not None
    fits = max_bytes is None or pair_memory_bytes(count, is_large=False) <= max_bytes
    is_large_pair = request.pair.small or count > MAX_PAIR_PARAMETERS or not fits
    if max_bytes is not None and (needed_bytes := pair_memory_bytes(count, is_large=is_large_pair)) > max_bytes:
        raise Inconclusive(
            f"the gate of a model of {count:,} parameters takes about {format_gigabytes(needed_bytes)} of memory "
            f"besides its activations; it may take {format_gigabytes(max_bytes)} (--max-memory). A larger machine can "
            "record the reference (toolkit parity record)"
        )
    return is_large_pair
