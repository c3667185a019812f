"""Which function of a user's port is wrong, if the fault lies between two modules.

Modules have counterparts, functions have none: a port may compute an attention in another order, with other functions.
But what it computes on the way is, mostly, something that the reference computes, too. So each result of the port is
looked up among all of the reference's, by its fingerprint. A result that is found is right, and so is all that it is
computed from. The first that is not right is the function at fault.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from enum import Enum

from toolkit.parity.job.results import ForcedInputDtype, FunctionCall
from toolkit.parity.measure.fingerprint import Fingerprint, distance
from toolkit.parity.measure.naming import TensorName

#: A result is found if it is closer than this part of the wrong tensor's own error, within the bounds.
PART = 1e-3
LEAST, MOST = 1e-12, 1e-5


class Found(Enum):
    """How a result is found in the reference."""

    AS_IT_IS = 1
    IN_ANOTHER_ORDER = 2
    NOT = 3
    SAYS_NOTHING = 4


def function_at_fault(
    name: str, ours: ForcedInputDtype, theirs: Sequence[Fingerprint], error: float | None
) -> FunctionCall | None:
    """Return the call of a function that makes a tensor of the port wrong; None if that is the module itself, or not
    known.

    Args:
        name: of the wrong tensor.
        theirs: of the reference's results.
        error: how far it is off, relative to its size; None if it has another shape.
    """
    last = ours.computed_by.get(name)
    if last is None:
        return None
    within = MOST if error is None else min(MOST, max(LEAST, PART * error))
    origins = _origins(ours.calls, last)
    found = _found(ours.calls, origins, theirs, within)
    right = {number for number in origins if found[number] in (Found.AS_IT_IS, Found.IN_ANOTHER_ORDER)}
    for number in reversed(origins):
        if number in right:
            right.update(ours.calls[number].inputs)
    wrong = next((number for number in origins if found[number] is Found.NOT and number not in right), None)
    moved = _moved(ours.calls, found, [last] if wrong is None else ours.calls[wrong].inputs)
    module = TensorName.parse(name).module
    if wrong is None or ours.calls[wrong].layer == module:  # a module given its input in another order, or wrong itself
        return moved if moved is not None and moved.layer != module else None
    return ours.calls[wrong]


def _origins(calls: Sequence[FunctionCall], last: int) -> list[int]:
    """Return the calls that a result is computed from, itself included, in the order of execution."""
    seen: set[int] = set()
    left = [last]
    while left:
        if (number := left.pop()) not in seen:
            seen.add(number)
            left += calls[number].inputs
    return sorted(seen)


def _found(
    calls: Sequence[FunctionCall], numbers: Iterable[int], theirs: Sequence[Fingerprint], within: float
) -> dict[int, Found]:
    by_size: dict[int, list[Fingerprint]] = defaultdict(list)
    for one in theirs:
        by_size[one.size].append(one)

    def looked_up(result: Fingerprint | None) -> Found:
        if result is None:
            return Found.SAYS_NOTHING
        distances = [distance(result, one) for one in by_size[result.size]]
        if any(in_order <= within for in_order, _ in distances):
            return Found.AS_IT_IS
        return Found.IN_ANOTHER_ORDER if any(apart <= within for _, apart in distances) else Found.NOT

    return {number: looked_up(calls[number].result) for number in numbers}


def _moved(calls: Sequence[FunctionCall], found: dict[int, Found], numbers: Sequence[int]) -> FunctionCall | None:
    """Return the first call that puts right numbers in an order that the reference has nowhere; None if there is
    none."""
    for number in numbers:
        if found[number] in (Found.IN_ANOTHER_ORDER, Found.SAYS_NOTHING):
            earlier = _moved(calls, found, calls[number].inputs)
            if earlier is not None or found[number] is Found.IN_ANOTHER_ORDER:
                return earlier or calls[number]
    return None
