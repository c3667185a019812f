"""Mixed precision, operation by operation: what is to stay in float32 must be as accurate as that.

In a free run the rounding of bfloat16's products is all there is to be seen: a softmax or a layer norm in bfloat16 adds
no more to it than it is long already. On R64's own input (:mod:`.trace`) the products' rounding is that of the products
alone, and each of the others stands by itself: the reference's is off by float32's rounding there, 2^16 times less than
bfloat16's. So does LSH's hashing: of R64's vectors float32 makes R64's buckets, but where the two best are as near to
each other as float32's rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.parity.followup.remeasure import NEAR_BOUND
from toolkit.parity.followup.trace import LOWERED, OperationTrace
from toolkit.parity.judge.verdict import Verdict

#: The dtype whose operations are judged one by one.
DTYPE = LOWERED


def is_judged(dtypes: Sequence[str]) -> bool:
    """Whether a gate in these dtypes judges mixed precision, and so takes the trace whatever the step shows."""
    return DTYPE in dtypes


def judge_operations(verdict: Verdict, found: OperationTrace | None) -> None:
    """Take in the operations that are wrong by themselves in bfloat16, beyond what may be luck of few runs."""
    if found is None or found.problem is not None:
        verdict.note("operations-unseen", why=found.problem if found and found.problem else "no trace was taken")
        return
    for operation in found.faulty:
        if operation.dtype == DTYPE and operation.margin > NEAR_BOUND:
            verdict.find("precision", operation.name, operation.message, DTYPE)
