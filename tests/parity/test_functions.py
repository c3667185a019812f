"""Which function between two modules is wrong: what the reference computes somewhere is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from toolkit.parity.exchange.results import Fingerprints, ForcedInputDtype, FunctionCall
from toolkit.parity.followup.functions import INPUT, find_faulty_function
from toolkit.parity.measure.fingerprint import MINUS_INFINITY, find_distance, take_fingerprint

DRAWN = np.random.default_rng(0).standard_normal((6, 8, 10))
MOVED = DRAWN.transpose(1, 0, 2)


def call(
    function: str, value: np.ndarray, inputs: tuple[int, ...] = (), layer: str = "", taken: int | None = None
) -> FunctionCall:
    taken = max(1, len(inputs)) if taken is None else taken
    return FunctionCall(function, f"port.py:{function}", list(inputs), layer, taken, take_fingerprint(value))


def at_fault(
    calls: list[FunctionCall], *reference: np.ndarray, error: float | None = 0.1, given: np.ndarray = DRAWN
) -> str | None:
    ours = ForcedInputDtype({}, {}, {}, calls=calls, computed_by={"output:out": len(calls) - 1})
    theirs = [found for value in reference if (found := take_fingerprint(value))]
    inputs = {"out": found} if (found := take_fingerprint(given)) else {}
    found = find_faulty_function("output:out", ours, Fingerprints(theirs, inputs), error)
    return found and found.function


def test_a_fingerprint_tells_other_numbers_from_another_order():
    moved, rounded, other = (take_fingerprint(one) for one in (MOVED, DRAWN * (1 + 1e-9), DRAWN + 1e-3))
    here = take_fingerprint(DRAWN)
    assert here and moved and rounded and other
    assert find_distance(here, moved)[0] > 0.1 and find_distance(here, moved)[1] < 1e-12
    assert max(find_distance(here, rounded)) < 1e-8 and min(find_distance(here, other)) > 1e-5


SILENT = [np.full(5, 0.5), np.zeros((2, 0)), np.array([True, True]), np.array(2.0)]


@pytest.mark.parametrize("value", SILENT)
def test_what_says_nothing_has_no_fingerprint(value):
    assert take_fingerprint(value) is None


def test_nan_is_like_nothing_and_zeros_are_told_by_where_they_come_from():
    nan = np.where(DRAWN > 2, np.nan, DRAWN)
    assert (
        at_fault([call("scale", DRAWN), call("log", nan, (0,)), call("linear", nan, (1,), "out")], DRAWN, nan) == "log"
    )
    zeros = np.zeros(9)
    calls = [call("scale", DRAWN), call("relu", zeros, (0,)), call("mean", zeros, (1,))]
    assert at_fault(calls, DRAWN) == "relu"


def test_a_single_number_is_told_from_another():
    one, near, other = (take_fingerprint(np.array(value)) for value in (0.3, 0.3 + 1e-12, 0.31))
    assert one and near and other
    assert max(find_distance(one, near)) < 1e-10 and min(find_distance(one, other)) > 1e-3


def test_what_a_mask_puts_in_place_of_minus_infinity_does_not_matter():
    masked = [take_fingerprint(np.where(DRAWN > 0, DRAWN, low)) for low in (-np.inf, -1e9, 2 * MINUS_INFINITY)]
    assert masked[0] is not None and masked == [masked[0]] * 3


@pytest.mark.parametrize("low", [-np.inf, -1e4, -1000.0, -100.0])
def test_hidden_scores_do_not_outweigh_the_others(low):
    scores = 0.02 * DRAWN
    here, near = (take_fingerprint(np.where(DRAWN[0, 0, 0] < DRAWN, one, low)) for one in (scores, scores * 1.01))
    assert here and near and find_distance(here, near)[0] > 1e-3


def test_a_mask_is_one_with_its_negation_and_with_what_is_added_for_it():
    hidden = DRAWN[0] > 0
    masks = [hidden, ~hidden, hidden.astype(np.float64), np.where(hidden, -1e9, 0.0), np.where(hidden, 0.0, -np.inf)]
    found = [take_fingerprint(mask) for mask in masks]
    assert found[0] is not None and found[0].is_mask and found == [found[0]] * len(masks)


def test_a_mask_is_at_fault_only_where_the_reference_has_one_of_its_size():
    hidden, other = DRAWN > 0, DRAWN > 1
    calls = [call("greater", other), call("where", np.where(other, 0.0, DRAWN), (0,)), call("exp", DRAWN + 1, (1,))]
    assert at_fault(calls, DRAWN, hidden) == "greater"
    assert at_fault(calls, DRAWN) == "where"


def test_the_input_of_a_module_is_at_fault_if_all_before_it_is_right():
    calls = [call("scale", DRAWN), call("square", DRAWN**2, (0,)), call("multiply", DRAWN**3, (1,))]
    numbers = {"output:out": 2, "input:out": 0}
    ours = ForcedInputDtype({}, {}, {}, calls=calls, computed_by=numbers, entered_at={"input:out": "port.py:7"})
    seen = [found for one in (DRAWN, 2 * DRAWN) if (found := take_fingerprint(one))]
    found = find_faulty_function("output:out", ours, Fingerprints(seen, {"out": seen[1]}), 0.1)
    assert found and (found.function, found.where) == (INPUT, "port.py:7")
    found = find_faulty_function("output:out", ours, Fingerprints(seen, {"out": seen[0]}), 0.1)
    assert found and found.function == "square"


def test_what_lies_within_the_kernel_of_a_loss_is_named_only_on_one_line():
    labels = np.arange(60.0)
    taken = [found for one in (DRAWN[0], labels[:8]) if (found := take_fingerprint(one))]
    calls = [call("scores", DRAWN[0]), call("gather", DRAWN[0, :, 3], (0,)), call("mean", np.array(0.3), (1,))]
    ours = ForcedInputDtype({}, {}, {}, calls=calls, computed_by={"loss": 2})
    theirs = Fingerprints(taken, {}, taken)
    assert find_faulty_function("loss", ours, theirs, 0.1) is None
    calls[2] = replace(calls[2], where=calls[1].where)
    found = find_faulty_function("loss", ours, theirs, 0.1)
    assert found and found.function == "gather"


@pytest.mark.parametrize("size", [3, 2**14 + 1, 2**16])
def test_a_large_tensor_is_told_from_one_with_another_element(size):
    one = np.random.default_rng(1).standard_normal(size)
    other = one.copy()
    other[size // 2] += 5.0
    here, there = take_fingerprint(one), take_fingerprint(other)
    assert here and there and min(find_distance(here, there)) > 1e-4


def test_the_first_function_whose_result_the_reference_lacks_is_named():
    right, wrong = call("scale", DRAWN * 2), call("shift", DRAWN * 2 + 1, (0,))
    last = call("linear", np.sin(DRAWN * 2 + 1), (1,), "out")
    assert at_fault([right, wrong, last], DRAWN * 2, DRAWN * 3, np.sin(DRAWN * 3)) == "shift"


def test_what_leads_to_a_right_result_is_right_though_the_reference_never_computes_it():
    own_way = [call("square", DRAWN**2), call("sum", DRAWN**2 + DRAWN, (0,))]
    wrong, last = call("shift", DRAWN + 1, (1,)), call("linear", DRAWN + 2, (2,), "out")
    assert at_fault([*own_way, wrong, last], DRAWN**2 + DRAWN) == "shift"


def test_what_the_wrong_tensor_is_not_computed_from_is_not_named():
    assert at_fault([call("other", DRAWN + 5), call("shift", DRAWN + 1)], DRAWN) == "shift"


def test_a_module_that_is_wrong_by_itself_is_no_function():
    assert at_fault([call("scale", DRAWN), call("linear", DRAWN + 1, (0,), "out")], DRAWN) is None
    assert at_fault([call("scale", DRAWN), call("act", DRAWN + 1, (0,), "act")], DRAWN) == "act"


def test_right_numbers_in_the_wrong_order_are_named_by_what_moved_them():
    moving = [call("scale", DRAWN), call("transpose", MOVED, (0,)), call("reshape", MOVED.reshape(8, 60), (1,))]
    assert at_fault([*moving, call("linear", MOVED + 1, (2,), "out")], DRAWN, DRAWN + 1) == "transpose"
    back = [*moving, call("tanh", np.tanh(DRAWN), (2,)), call("linear", MOVED + 1, (3,), "out")]
    assert at_fault(back, DRAWN, np.tanh(DRAWN)) is None


def test_a_shape_in_which_the_reference_has_another_order_is_named_before_what_is_computed_from_it():
    split = call("reshape", DRAWN.reshape(6, 10, 8), (0,))
    calls = [call("scale", DRAWN), split, call("matmul", DRAWN + 2, (1,)), call("linear", DRAWN + 3, (2,), "out")]
    assert at_fault(calls, DRAWN, DRAWN.transpose(0, 2, 1)) == "reshape"
    assert at_fault(calls, DRAWN, DRAWN.reshape(6, 10, 8)) == "matmul"


def test_what_puts_numbers_in_other_places_is_named_before_what_follows_element_by_element():
    """Swin's windows that are rolled the wrong way, and then dropped and scaled: the roll is wrong."""
    rolled, there = np.roll(DRAWN, 2, 1), np.roll(DRAWN, -2, 1)
    calls = [call("merge", DRAWN), call("roll", rolled, (0,)), call("scale", 2 * rolled, (1,))]
    calls.append(call("add", 2 * rolled + DRAWN, (2, 0)))
    assert at_fault(calls, DRAWN, there, 2 * there, 2 * there + DRAWN) == "roll"
    assert at_fault(calls, DRAWN, rolled, 3 * there, 3 * there + DRAWN) == "scale"


def test_an_order_that_the_reference_has_elsewhere_is_wrong_as_a_modules_input():
    calls = [call("reshape", MOVED.reshape(6, 8, 10)), call("linear", MOVED + 1, (0,), "out")]
    assert at_fault(calls, MOVED, DRAWN) == "reshape"
    assert at_fault(calls, MOVED, DRAWN, given=MOVED) is None


def test_a_constant_is_named_where_it_is_complete_for_the_reference_may_keep_it():
    counted = np.arange(1.0, 9.0)
    begun = [call("full", np.array(8.0), taken=0), call("arange", counted, (0,))]
    made = [call("power", 3**counted, (1,)), call("column", 3 ** counted[:, None], (2,))]
    product = call("multiply", 3 ** counted[:, None] * DRAWN[0], (3,), taken=2)
    used = [product, call("linear", DRAWN + 1, (4,), "out")]
    assert at_fault([*begun, *made, *used], DRAWN, 2**counted) == "power"
    given = [begun[0], call("scale", counted, taken=1)]
    assert at_fault([*given, *made, *used], DRAWN, 2**counted) == "scale"


def test_a_repetition_is_not_wrong_for_the_reference_may_broadcast():
    column = DRAWN[:, :1]
    calls = [call("scale", column), call("tile", column.repeat(8, 1), (0,)), call("exp", DRAWN + 1, (1,))]
    assert at_fault([*calls, call("linear", DRAWN + 2, (2,), "out")], column) == "exp"
    wrong = [calls[0], call("tile", DRAWN.reshape(8, 6, 10), (0,)), calls[2], call("linear", DRAWN + 2, (2,), "out")]
    assert at_fault(wrong, column, MOVED) == "tile"


def test_a_small_error_is_found_where_the_function_is_off_by_little():
    calls = [call("scale", DRAWN * (1 + 1e-8)), call("linear", DRAWN + 1, (0,), "out")]
    assert at_fault(calls, DRAWN, error=1e-8) == "scale"
    assert at_fault(calls, DRAWN, error=None) is None


def test_a_tensor_that_no_call_computed_has_no_function():
    assert find_faulty_function("output:out", ForcedInputDtype({}, {}, {}), Fingerprints(), 0.1) is None
