"""Mixed precision, operation by operation: what is to stay in float32 must be that accurate.

In a free run the rounding of bfloat16's products hides everything else: a softmax or a layer norm in bfloat16 adds no
more than is already there. On R64's own input (:mod:`.trace`) only the products show their rounding, and every other
operation is judged by itself: the reference's is off by float32's rounding there, 2^16 times less than bfloat16's. So
is LSH's hashing: float32 puts R64's vectors into R64's buckets, unless the two best are within float32's rounding of
each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.parity.followup.remeasure import NEAR_BOUND
from toolkit.parity.followup.trace import LOWERED, OperationTrace
from toolkit.parity.judge.verdict import Verdict

#: The dtype whose operations are judged one by one.
DTYPE = LOWERED


def is_judged(dtypes: Sequence[str]) -> bool:
    """Whether a gate in these dtypes judges mixed precision, and so always takes the trace."""
    return DTYPE in dtypes


def judge_operations(verdict: Verdict, found: OperationTrace | None) -> None:
    """Add the operations that are wrong by themselves in bfloat16, beyond the luck of few runs."""
    if found is None or found.problem is not None:
        verdict.note("operations-unseen", why=found.problem if found and found.problem else "no trace was taken")
        return
    for operation in found.faulty:
        if operation.dtype == DTYPE and operation.margin > NEAR_BOUND:
            verdict.find("precision", operation.name, operation.message, DTYPE)
