"""Which function of a user's port is wrong, if the fault lies between two modules.

Modules have counterparts, functions have none: a port may compute an attention in another order, with other functions.
But what it computes on the way is, mostly, something that the reference computes, too. So each result of the port is
looked up among all of the reference's, by its fingerprint. A result that is found is right, and so is all that it is
computed from. The first that is not right is the function at fault. If all are right and a module is given other
numbers than the reference's, its input is at fault. What the reference computes within the kernel of a loss has no
counterpart, so there only a fault on a single line is named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from enum import Enum

from toolkit.parity.job.results import Fingerprints, ForcedInputDtype, FunctionCall
from toolkit.parity.measure.fingerprint import Fingerprint, distance
from toolkit.parity.measure.naming import TensorName

#: A result is found if it is closer than this part of the wrong tensor's own error, within the bounds.
PART = 1e-3
LEAST, MOST = 1e-12, 1e-5
#: Repetitions of right numbers: the reference may broadcast in their place, and then has no such result.
REPEATING = {"tile", "expand", "expand_as", "broadcast_to", "repeat_interleave"}
#: What names the input of a module instead of a function.
INPUT = "the input"


class Found(Enum):
    """How a result is found in the reference."""

    AS_IT_IS = 1
    IN_ANOTHER_ORDER = 2
    #: In its shape, the reference has the same numbers in another order alone.
    MISPLACED = 3
    NOT = 4
    SAYS_NOTHING = 5


def function_at_fault(
    name: str, ours: ForcedInputDtype, theirs: Fingerprints, error: float | None, resized_outputs: Collection[str] = ()
) -> FunctionCall | None:
    """Return the call of a function that makes a tensor of the port wrong; None if that is the module itself, or not
    known.

    Args:
        name: of the wrong tensor.
        error: how far it is off, relative to its size; None if it has another shape.
        resized_outputs: names of outputs that hold the right numbers in another shape, such as texts with padding. The
            reference has no counterpart of what the port computes in that shape.
    """
    last = ours.computed_by.get(name)
    if last is None:
        return None
    within = MOST if error is None else min(MOST, max(LEAST, PART * error))
    origins = _origins(ours.calls, last)
    result_matches = _found(ours.calls, origins, theirs.results, within)
    other_shapes = [ours.calls[ours.computed_by[one]] for one in resized_outputs if one in ours.computed_by]
    leading = {call.result.shape[:-1] for call in other_shapes if call.result is not None}
    for number in origins:
        result = ours.calls[number].result
        if result_matches[number] is Found.NOT and result is not None and result.shape[:-1] in leading:
            result_matches[number] = Found.SAYS_NOTHING
    right = {number for number in origins if result_matches[number] not in (Found.NOT, Found.SAYS_NOTHING)}
    for number in reversed(origins):
        if number in right:
            right.update(ours.calls[number].inputs)
    not_right = [number for number in origins if number not in right]
    if TensorName.parse(name).kind in ("loss", "losses"):
        hidden_calls = _hidden_in_loss(ours.calls, not_right, result_matches, theirs, within)
    else:
        hidden_calls = []
    wrong = next(
        (number for number in not_right if result_matches[number] is Found.NOT and number not in hidden_calls), None
    )
    if wrong is None and last in hidden_calls:
        is_on_one_line = len({ours.calls[number].where for number in hidden_calls}) == 1
        return ours.calls[hidden_calls[0]] if is_on_one_line else None
    if wrong is None and last in not_right:  # what is wrong is one number throughout, as zeros are
        wrong = not_right[0]
    module = TensorName.parse(name).module
    if (entry := _wrong_input(name, ours, theirs, origins, wrong, within)) is not None:
        return entry
    if wrong is not None and (ours.calls[wrong].layer != module or not module):
        misplaced_call = _first_misplaced(ours.calls, result_matches, wrong)
        return ours.calls[_completed(ours.calls, not_right, wrong) if misplaced_call is None else misplaced_call]
    moved = _moved(ours.calls, result_matches, [last] if wrong is None else ours.calls[wrong].inputs)
    moved = moved if moved is not None and moved.layer != module else None
    module_input, expected_input = _given(ours.calls, origins, module), theirs.inputs.get(module)
    if (
        module_input is None
        or module_input.result is None
        or expected_input is None
        or module_input.result.size != expected_input.size
    ):
        return moved
    in_order, apart = distance(module_input.result, expected_input)
    if in_order <= within:
        return None  # the module is wrong itself
    return moved or (module_input if apart <= within else None)


def leads_to_right_numbers(name: str, ours: ForcedInputDtype, theirs: Fingerprints) -> bool:
    """Return whether the port computes other numbers from a tensor that the reference computes, too, in their order.

    Args:
        name: of a tensor of the port.
    """
    first_call = ours.computed_by.get(name)
    if first_call is None or (value := ours.calls[first_call].result) is None:
        return False
    users = {first_call}
    for number, call in enumerate(ours.calls):
        if number > first_call and call.result is not None and users.intersection(call.inputs):
            users.add(number)
    others = []
    for number in sorted(users - {first_call}):
        result = ours.calls[number].result
        if result is not None and (result.size != value.size or min(distance(result, value)) > MOST):
            others.append(number)
    result_matches = _found(ours.calls, others, theirs.results, MOST)
    return Found.AS_IT_IS in result_matches.values()


def _wrong_input(
    name: str,
    ours: ForcedInputDtype,
    theirs: Fingerprints,
    origins: Sequence[int],
    wrong: int | None,
    within: float,
) -> FunctionCall | None:
    """Return a call at the line that calls the module, if only the module's input is wrong.

    Args:
        name: name of the module's output.
        origins: numbers of the calls that the output is computed from.
        wrong: number of the first call whose result is wrong; None if there is none.
        within: largest relative distance of equal results.
    """
    tensor_name = TensorName.parse(name)
    number, expected_input = ours.computed_by.get(f"input:{tensor_name.module}"), theirs.inputs.get(tensor_name.module)
    if (
        tensor_name.kind != "output"
        or tensor_name.call
        or number is None
        or expected_input is None
        or number not in origins
    ):
        return None

    def is_entered(result: Fingerprint | None) -> bool:
        return (
            result is not None and result.size == expected_input.size and distance(result, expected_input)[1] <= within
        )

    actual_input = ours.calls[number].result
    if actual_input is None or actual_input.size != expected_input.size or wrong in _origins(ours.calls, number):
        return None
    if any(is_entered(ours.calls[one].result) for one in origins):  # the module itself computes it first
        return None
    return FunctionCall(INPUT, ours.entered_at.get(f"input:{tensor_name.module}", ""), [number], "", 1, actual_input)


def _hidden_in_loss(
    calls: Sequence[FunctionCall],
    numbers: Sequence[int],
    result_matches: dict[int, Found],
    theirs: Fingerprints,
    within: float,
) -> list[int]:
    """Return the calls whose counterparts, if there are any, lie within a kernel of the reference's loss.

    They are computed from nothing but what such a kernel takes, and have another size than its result.
    """

    def is_taken(result: Fingerprint | None) -> bool:
        return result is not None and any(
            one.size == result.size and distance(one, result)[1] <= within for one in theirs.taken_by_losses
        )

    hidden_calls: list[int] = []
    for number in numbers:
        inputs, result = calls[number].inputs, calls[number].result
        begins = bool(inputs) and all(is_taken(calls[one].result) for one in inputs) and not is_taken(result)
        is_larger = result is not None and result.size > 1
        if result_matches[number] is Found.NOT and (
            (begins and is_larger) or any(one in hidden_calls for one in inputs)
        ):
            hidden_calls.append(number)
    return hidden_calls


def _first_misplaced(calls: Sequence[FunctionCall], result_matches: dict[int, Found], number: int) -> int | None:
    """Return the call that has put the numbers of a call's input in other places; None if no input has them so.

    What follows it one element after another, as a division by a number does, has them in these places, too.
    """
    first = None
    while (number := next((one for one in calls[number].inputs if result_matches[one] is Found.MISPLACED), -1)) >= 0:
        first = number
    return first


def _completed(calls: Sequence[FunctionCall], not_right: Sequence[int], number: int) -> int:
    """Return the call that completes a constant which a call begins; the call itself if it begins none.

    The reference may keep the constant, as it does the inverse frequencies of rotary positions. Then it has none of the
    values on the way, and only the last can be wrong.
    """

    def takes_only(user: int, made: int | None) -> bool:
        others = [calls[one] for one in calls[user].inputs if one != made]
        numbers = (one.taken == 0 and (one.result is None or one.result.size == 1) for one in others)
        return calls[user].taken == len(calls[user].inputs) and all(numbers)

    made = completed = number
    users = [number] if takes_only(number, None) else []
    while len(users) == 1:
        before, made = made, users[0]
        one, other = calls[before].result, calls[made].result
        if one is None or other is None or one.size != other.size or distance(one, other)[1] > MOST:
            completed = made  # another shape alone completes nothing
        users = [one for one in not_right if made in calls[one].inputs and takes_only(one, made)]
    return completed


def _given(calls: Sequence[FunctionCall], origins: Sequence[int], module: str) -> FunctionCall | None:
    """Return the call that computes the input of a module of Paddle's own; None if that is not known."""
    inside = next((number for number in origins if calls[number].layer == module), None)
    return None if inside is None or not calls[inside].inputs else calls[calls[inside].inputs[0]]


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

    def looked_up(call: FunctionCall) -> Found:
        result = call.result
        if result is None:
            return Found.SAYS_NOTHING
        alike = {
            (one.shape == result.shape, in_order <= within)
            for one in by_size[result.size]
            for in_order, apart in [distance(result, one)]
            if apart <= within
        }
        if not alike:
            is_alone = result.is_mask and not any(one.is_mask for one in by_size[result.size])
            return Found.SAYS_NOTHING if is_alone or call.function in REPEATING else Found.NOT
        if (True, False) in alike and (True, True) not in alike:
            return Found.MISPLACED
        return Found.AS_IT_IS if any(in_order for _, in_order in alike) else Found.IN_ANOTHER_ORDER

    return {number: looked_up(calls[number]) for number in numbers}


def _moved(
    calls: Sequence[FunctionCall], result_matches: dict[int, Found], numbers: Sequence[int]
) -> FunctionCall | None:
    """The first call that orders right numbers as the reference nowhere has them; None if there is none."""
    left, moved, seen = list(numbers), [], set()
    while left:
        number = left.pop()
        if number not in seen and result_matches[number] in (
            Found.IN_ANOTHER_ORDER,
            Found.MISPLACED,
            Found.SAYS_NOTHING,
        ):
            seen.add(number)
            left += calls[number].inputs
            moved += [number] if result_matches[number] is not Found.SAYS_NOTHING else []
    return calls[min(moved)] if moved else None
