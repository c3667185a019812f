"""Judgment of mixed precision, operation by operation.

Operations that must stay in float32 must have its accuracy. In a free run the rounding of bfloat16's products hides all
other errors: a softmax or a layer norm in bfloat16 adds no more error than the products. On R64's own input
(:mod:`.trace`) only the products show their rounding, and every other operation is judged in isolation. There the
reference has the error of float32, which is 2^16 times smaller than the error of bfloat16. The hashing of LSH is judged
in the same way: in float32 it puts R64's vectors into R64's buckets, unless the two best buckets are within float32's
rounding of each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.parity.followup.remeasure import NEAR_BOUND
from toolkit.parity.followup.trace import MIXED_PRECISION_DTYPE, OperationTrace
from toolkit.parity.judge.findings import Verdict

#: The dtype whose operations are judged in isolation.
DTYPE = MIXED_PRECISION_DTYPE


def is_judged(dtypes: Sequence[str]) -> bool:
    """Return whether a gate in these dtypes judges mixed precision, and so always needs the operation trace."""
    return DTYPE in dtypes


def judge_operations(verdict: Verdict, operation_trace: OperationTrace | None) -> None:
    """Add a finding to a verdict for each operation that is wrong in isolation in bfloat16.

    Its error must exceed :data:`.remeasure.NEAR_BOUND` times its bound, since a smaller error may be luck of few runs.
    Without a trace, a note is added.

    Args:
        verdict: verdict of the gate, which is changed.
        operation_trace: trace of the port; None without a trace.
    """
    if operation_trace is None or operation_trace.problem is not None:
        verdict.note(
            "operations-unseen",
            why=operation_trace.problem if operation_trace and operation_trace.problem else "no trace was taken",
        )
        return
    for operation in operation_trace.faulty:
        if operation.dtype == DTYPE and operation.margin > NEAR_BOUND:
            verdict.find("precision", operation.name, operation.message, DTYPE)
