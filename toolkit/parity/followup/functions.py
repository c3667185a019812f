"""Search for the wrong function of a user's port if the fault lies between two modules.

Modules have counterparts, but functions do not: a port may compute an attention in another order, with other functions.
But most of its intermediate results are also computed by the reference. So each result of the port is looked up by its
fingerprint among all results of the reference. If the reference has the result, it is right, and so is everything that
it is computed from. The first result that is not right is at fault. If all are right and a module receives other
numbers than in the reference, its input is at fault. Results within the reference's kernel of a loss have no
counterpart, so a fault there is named only if it lies on a single line.

Three kinds of results need care. A chain of constants is named at its last call. Functions that repeat numbers are
never at fault. A mask is at fault only if the reference has a mask of its size.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from enum import Enum

from toolkit.parity.exchange.results import Fingerprints, ForcedInputDtype, FunctionCall
from toolkit.parity.measure.fingerprint import Fingerprint, find_distance
from toolkit.parity.measure.naming import TensorName

#: Largest relative distance of two equal results, as a share of the wrong tensor's own error.
ERROR_SHARE = 1e-3
#: Minimum and maximum of this largest relative distance.
MIN_DISTANCE, MAX_DISTANCE = 1e-12, 1e-5
#: Names of functions that repeat numbers. The reference may broadcast instead, and then has no such result.
REPEATING = {"tile", "expand", "expand_as", "broadcast_to", "repeat_interleave"}
#: Value of :attr:`.FunctionCall.function` for the wrong input of a module, instead of the name of a function.
INPUT = "the input"


class ResultMatch(Enum):
    """Relation of a port's result to the most similar results of the reference.

    ``AS_IT_IS``: the reference has the same numbers in the same order. ``IN_ANOTHER_ORDER``: it has them only in
    another order and shape. ``ABSENT``: it does not have them. ``UNDECIDED``: the reference may lack such a result
    although the port is right.
    """

    AS_IT_IS = 1
    IN_ANOTHER_ORDER = 2
    #: The reference has the numbers in this shape only in another order.
    MISPLACED = 3
    ABSENT = 4
    UNDECIDED = 5


def find_faulty_function(
    name: str,
    ours: ForcedInputDtype,
    theirs: Fingerprints,
    relative_error: float | None,
    resized_outputs: Collection[str] = (),
) -> FunctionCall | None:
    """Return the call of a function that makes a tensor of the port wrong.

    Return None if the module itself is wrong, or if the function is not known.

    Args:
        name: name of the wrong tensor.
        ours: calls of the port, with the fingerprints of their results.
        theirs: fingerprints of the reference's results.
        relative_error: relative error of the tensor; None if it has another shape.
        resized_outputs: names of outputs that hold the right numbers in another shape, such as texts with padding. The
            reference has no counterpart of the port's results in that shape.
    """
    last = ours.computed_by.get(name)
    if last is None:
        return None
    max_distance = MAX_DISTANCE
    if relative_error is not None:
        max_distance = min(MAX_DISTANCE, max(MIN_DISTANCE, ERROR_SHARE * relative_error))
    origins = _find_origins(ours.calls, last)
    result_matches = _match_results(ours.calls, origins, theirs.results, max_distance)
    other_shapes = [ours.calls[ours.computed_by[one]] for one in resized_outputs if one in ours.computed_by]
    leading = {call.result.shape[:-1] for call in other_shapes if call.result is not None}
    for number in origins:
        result = ours.calls[number].result
        if result_matches[number] is ResultMatch.ABSENT and result is not None and result.shape[:-1] in leading:
            result_matches[number] = ResultMatch.UNDECIDED
    right = {number for number in origins if result_matches[number] not in (ResultMatch.ABSENT, ResultMatch.UNDECIDED)}
    for number in reversed(origins):
        if number in right:
            right.update(ours.calls[number].inputs)
    not_right = [number for number in origins if number not in right]
    if TensorName.parse(name).kind in ("loss", "losses"):
        hidden_calls = _find_calls_in_loss(ours.calls, not_right, result_matches, theirs, max_distance)
    else:
        hidden_calls = []
    wrong = next(
        (number for number in not_right if result_matches[number] is ResultMatch.ABSENT and number not in hidden_calls),
        None,
    )
    if wrong is None and last in hidden_calls:
        is_on_one_line = len({ours.calls[number].where for number in hidden_calls}) == 1
        return ours.calls[hidden_calls[0]] if is_on_one_line else None
    if wrong is None and last in not_right:  # all wrong results consist of one number, such as zeros
        wrong = not_right[0]
    module = TensorName.parse(name).module
    if (entry := _wrong_input(name, ours, theirs, origins, wrong, max_distance)) is not None:
        return entry
    if wrong is not None and (ours.calls[wrong].layer != module or not module):
        misplaced_call = _first_misplaced(ours.calls, result_matches, wrong)
        return ours.calls[
            _find_completing_call(ours.calls, not_right, wrong) if misplaced_call is None else misplaced_call
        ]
    reordering_call = _find_reordering_call(
        ours.calls, result_matches, [last] if wrong is None else ours.calls[wrong].inputs
    )
    reordering_call = reordering_call if reordering_call is not None and reordering_call.layer != module else None
    module_input, expected_input = _find_input_call(ours.calls, origins, module), theirs.inputs.get(module)
    if (
        module_input is None
        or module_input.result is None
        or expected_input is None
        or module_input.result.size != expected_input.size
    ):
        return reordering_call
    in_order, apart = find_distance(module_input.result, expected_input)
    if in_order <= max_distance:
        return None  # the module is wrong itself
    return reordering_call or (module_input if apart <= max_distance else None)


def leads_to_right_numbers(name: str, ours: ForcedInputDtype, theirs: Fingerprints) -> bool:
    """Return whether the port computes a result of the reference, in the same order, from a given tensor.

    Args:
        name: name of a tensor of the port.
        ours: calls of the port, with the fingerprints of their results.
        theirs: fingerprints of the reference's results.
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
        if result is not None and (result.size != value.size or min(find_distance(result, value)) > MAX_DISTANCE):
            others.append(number)
    result_matches = _match_results(ours.calls, others, theirs.results, MAX_DISTANCE)
    return ResultMatch.AS_IT_IS in result_matches.values()


def _wrong_input(
    name: str,
    ours: ForcedInputDtype,
    theirs: Fingerprints,
    origins: Sequence[int],
    wrong: int | None,
    max_distance: float,
) -> FunctionCall | None:
    """Return a call that stands for a module's wrong input at the calling line; None if the input is right.

    The result is also None if the fault is known to lie before or within the computation of the input.

    Args:
        name: name of the module's output.
        ours: calls of the port, with the fingerprints of their results.
        theirs: fingerprints of the reference's results.
        origins: numbers of the calls that the output is computed from.
        wrong: number of the first call whose result is wrong; None if there is none.
        max_distance: largest relative distance of equal results.
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
        """Return whether a result has the numbers of the module's input in the reference, in any order."""
        return (
            result is not None
            and result.size == expected_input.size
            and find_distance(result, expected_input)[1] <= max_distance
        )

    actual_input = ours.calls[number].result
    if actual_input is None or actual_input.size != expected_input.size or wrong in _find_origins(ours.calls, number):
        return None
    if any(is_entered(ours.calls[one].result) for one in origins):  # the module itself computes it first
        return None
    return FunctionCall(INPUT, ours.entered_at.get(f"input:{tensor_name.module}", ""), [number], "", 1, actual_input)


def _find_calls_in_loss(
    calls: Sequence[FunctionCall],
    call_numbers: Sequence[int],
    result_matches: dict[int, ResultMatch],
    theirs: Fingerprints,
    max_distance: float,
) -> list[int]:
    """Return the numbers of the calls whose counterparts may lie within a kernel of the reference's loss.

    They are computed only from the inputs of such a kernel, and have another size than its result.

    Args:
        calls: calls of the port.
        call_numbers: numbers of the calls to consider, in execution order.
        result_matches: relation of each call's result to the reference's results, by the call's number.
        theirs: fingerprints of the reference's results.
        max_distance: largest relative distance of equal results.
    """

    def is_taken(result: Fingerprint | None) -> bool:
        """Return whether a result has the numbers of an input of a kernel in the reference's loss."""
        return result is not None and any(
            one.size == result.size and find_distance(one, result)[1] <= max_distance for one in theirs.taken_by_losses
        )

    hidden_calls: list[int] = []
    for number in call_numbers:
        inputs, result = calls[number].inputs, calls[number].result
        begins = bool(inputs) and all(is_taken(calls[one].result) for one in inputs) and not is_taken(result)
        is_larger = result is not None and result.size > 1
        if result_matches[number] is ResultMatch.ABSENT and (
            (begins and is_larger) or any(one in hidden_calls for one in inputs)
        ):
            hidden_calls.append(number)
    return hidden_calls


def _first_misplaced(calls: Sequence[FunctionCall], result_matches: dict[int, ResultMatch], number: int) -> int | None:
    """Return the number of the call that first moves the numbers of a call's input to other positions.

    The result is None if no input is misplaced. The results of elementwise operations on misplaced numbers, such as a
    division by a number, are misplaced, too.

    Args:
        calls: calls of the port.
        result_matches: relation of each call's result to the reference's results, by the call's number.
        number: number of the call with a wrong result.
    """
    first = None
    while (
        number := next((one for one in calls[number].inputs if result_matches[one] is ResultMatch.MISPLACED), -1)
    ) >= 0:
        first = number
    return first


def _find_completing_call(calls: Sequence[FunctionCall], not_right: Sequence[int], number: int) -> int:
    """Return the number of the last call in a chain that computes a constant from a call's result.

    The reference may store the constant, such as the inverse frequencies of rotary positions. Then it has none of the
    intermediate values, and only the last value can be compared. If the call does not start such a chain, its own
    number is returned.

    Args:
        calls: calls of the port.
        not_right: numbers of the calls whose results are not known to be right.
        number: number of the call with a wrong result.
    """

    def takes_only(user: int, current: int | None) -> bool:
        """Return whether a call has no tensor inputs except the current call's result and single constants."""
        others = [calls[one] for one in calls[user].inputs if one != current]
        numbers = (one.taken == 0 and (one.result is None or one.result.size == 1) for one in others)
        return calls[user].taken == len(calls[user].inputs) and all(numbers)

    current = completing = number
    users = [number] if takes_only(number, None) else []
    while len(users) == 1:
        previous, current = current, users[0]
        one, other = calls[previous].result, calls[current].result
        if one is None or other is None or one.size != other.size or find_distance(one, other)[1] > MAX_DISTANCE:
            completing = current  # a call that only changes the shape does not complete the constant
        users = [one for one in not_right if current in calls[one].inputs and takes_only(one, current)]
    return completing


def _find_input_call(calls: Sequence[FunctionCall], origins: Sequence[int], module: str) -> FunctionCall | None:
    """Return the call that computes the input of one of Paddle's own modules; None if it is not known.

    Args:
        calls: calls of the port.
        origins: numbers of the calls that the module's output is computed from.
        module: path of the module.
    """
    inside = next((number for number in origins if calls[number].layer == module), None)
    return None if inside is None or not calls[inside].inputs else calls[calls[inside].inputs[0]]


def _find_origins(calls: Sequence[FunctionCall], last: int) -> list[int]:
    """Return the numbers of the calls that a result is computed from, including its own call, in execution order.

    Args:
        calls: calls of the port.
        last: number of the call with the result.
    """
    call_numbers: set[int] = set()
    remaining = [last]
    while remaining:
        if (number := remaining.pop()) not in call_numbers:
            call_numbers.add(number)
            remaining += calls[number].inputs
    return sorted(call_numbers)


def _match_results(
    calls: Sequence[FunctionCall], call_numbers: Iterable[int], theirs: Sequence[Fingerprint], max_distance: float
) -> dict[int, ResultMatch]:
    """Return the relation of calls' results to the reference's results, by the call's number.

    Args:
        calls: calls of the port.
        call_numbers: numbers of the calls to match.
        theirs: fingerprints of the reference's results.
        max_distance: largest relative distance of equal results.
    """
    by_size: dict[int, list[Fingerprint]] = defaultdict(list)
    for one in theirs:
        by_size[one.size].append(one)

    def match_result(call: FunctionCall) -> ResultMatch:
        """Return the relation of a call's result to the reference's results of the same size."""
        result = call.result
        if result is None:
            return ResultMatch.UNDECIDED
        similar_results = {
            (one.shape == result.shape, in_order <= max_distance)
            for one in by_size[result.size]
            for in_order, apart in [find_distance(result, one)]
            if apart <= max_distance
        }
        if not similar_results:
            is_alone = result.is_mask and not any(one.is_mask for one in by_size[result.size])
            return ResultMatch.UNDECIDED if is_alone or call.function in REPEATING else ResultMatch.ABSENT
        if (True, False) in similar_results and (True, True) not in similar_results:
            return ResultMatch.MISPLACED
        return (
            ResultMatch.AS_IT_IS if any(in_order for _, in_order in similar_results) else ResultMatch.IN_ANOTHER_ORDER
        )

    return {number: match_result(calls[number]) for number in call_numbers}


def _find_reordering_call(
    calls: Sequence[FunctionCall], result_matches: dict[int, ResultMatch], call_numbers: Sequence[int]
) -> FunctionCall | None:
    """Return the first call that puts right numbers into an order which the reference never has.

    The result is None without such a call.

    Args:
        calls: calls of the port.
        result_matches: relation of each call's result to the reference's results, by the call's number.
        call_numbers: numbers of the calls that the search starts with. It then continues with their inputs.
    """
    remaining, reordering, visited_numbers = list(call_numbers), [], set()
    while remaining:
        number = remaining.pop()
        if number not in visited_numbers and result_matches[number] in (
            ResultMatch.IN_ANOTHER_ORDER,
            ResultMatch.MISPLACED,
            ResultMatch.UNDECIDED,
        ):
            visited_numbers.add(number)
            remaining += calls[number].inputs
            reordering += [number] if result_matches[number] is not ResultMatch.UNDECIDED else []
    return calls[min(reordering)] if reordering else None
