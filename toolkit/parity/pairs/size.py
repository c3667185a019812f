"""What the gate of a pair takes of memory, and whether less is compared for it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from toolkit.errors import Inconclusive
from toolkit.machine.memory import gigabytes
from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.stretch import IDLE, most_memory

#: From so many parameters on, a pair is large: less of it is compared (:attr:`.job.Job.brief`), one process after the
#: other, without all gradients at once.
LARGE_ABOVE = 3 * 10**7
#: Bytes of each parameter: of a large pair in the larger process, which holds it in float32 and float64 at once while
#: it is built (2.0 GB seen with 1.0 * 10^8 of them); else in both together (5.6 GB seen with 4.6 * 10^7).
OF_LARGE, OF_BOTH = 14, 126


def memory_of(parameters: int, is_large: bool) -> float:
    """About how many bytes a pair's gate takes besides what its model computes on the batch."""
    return IDLE + OF_LARGE * parameters if is_large else 2 * IDLE + OF_BOTH * parameters


def is_large(parameters: Iterable[ParameterFacts], request: GateRequest) -> bool:
    """Whether a pair is large, or so large for the memory.

    Raises:
        Inconclusive: it does not fit the memory.
    """
    count, room = sum(math.prod(one.shape) for one in parameters), most_memory(request)
    assert request.pair is not None
    large = request.pair.small or count > LARGE_ABOVE or (room is not None and memory_of(count, False) > room)
    if room is not None and (needed := memory_of(count, large)) > room:
        raise Inconclusive(
            f"the gate of a model of {count:,} parameters takes about {gigabytes(needed)} of memory besides its "
            f"activations; it may take {gigabytes(room)} (--max-memory). A larger machine can record the reference "
            "(toolkit parity record)"
        )
    return large
