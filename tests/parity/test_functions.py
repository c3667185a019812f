"""Test which function between two modules is named as faulty.

A value that the reference computes anywhere counts as correct.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from toolkit.parity.exchange.results import Fingerprints, ForcedInputDtype, FunctionCall
from toolkit.parity.followup.functions import INPUT, find_faulty_function
from toolkit.parity.measure.fingerprint import MINUS_INFINITY, find_distance, take_fingerprint

VALUES = np.random.default_rng(0).standard_normal((6, 8, 10))
TRANSPOSED_VALUES = VALUES.transpose(1, 0, 2)


def make_call(
    function: str,
    value: np.ndarray,
    inputs: tuple[int, ...] = (),
    layer: str = "",
    num_tensor_inputs: int | None = None,
) -> FunctionCall:
    num_tensor_inputs = max(1, len(inputs)) if num_tensor_inputs is None else num_tensor_inputs
    return FunctionCall(
        function, f"port.py:{function}", list(inputs), layer, num_tensor_inputs, take_fingerprint(value)
    )


def find_fault(
    calls: list[FunctionCall], *reference: np.ndarray, error: float | None = 0.1, module_input: np.ndarray = VALUES
) -> str | None:
    ours = ForcedInputDtype({}, {}, {}, calls=calls, computed_by={"output:out": len(calls) - 1})
    theirs = [fingerprint for value in reference if (fingerprint := take_fingerprint(value))]
    inputs = {"out": fingerprint} if (fingerprint := take_fingerprint(module_input)) else {}
    fingerprint = find_faulty_function("output:out", ours, Fingerprints(theirs, inputs), error)
    return fingerprint and fingerprint.function


def test_a_fingerprint_distinguishes_values_and_orders():
    transposed_print, near_print, other_print = (
        take_fingerprint(value) for value in (TRANSPOSED_VALUES, VALUES * (1 + 1e-9), VALUES + 1e-3)
    )
    original_print = take_fingerprint(VALUES)
    assert original_print and transposed_print and near_print and other_print
    assert (
        find_distance(original_print, transposed_print)[0] > 0.1
        and find_distance(original_print, transposed_print)[1] < 1e-12
    )
    assert (
        max(find_distance(original_print, near_print)) < 1e-8 and min(find_distance(original_print, other_print)) > 1e-5
    )


UNINFORMATIVE = [np.full(5, 0.5), np.zeros((2, 0)), np.array([True, True]), np.array(2.0)]


@pytest.mark.parametrize("value", UNINFORMATIVE)
def test_uninformative_tensors_have_no_fingerprint(value):
    assert take_fingerprint(value) is None


def test_nan_matches_nothing_and_zeros_are_identified_by_their_inputs():
    nan = np.where(VALUES > 2, np.nan, VALUES)
    assert (
        find_fault(
            [make_call("scale", VALUES), make_call("log", nan, (0,)), make_call("linear", nan, (1,), "out")],
            VALUES,
            nan,
        )
        == "log"
    )
    zeros = np.zeros(9)
    calls = [make_call("scale", VALUES), make_call("relu", zeros, (0,)), make_call("mean", zeros, (1,))]
    assert find_fault(calls, VALUES) == "relu"


def test_single_numbers_are_distinguished():
    number, near_number, other_number = (take_fingerprint(np.array(value)) for value in (0.3, 0.3 + 1e-12, 0.31))
    assert number and near_number and other_number
    assert max(find_distance(number, near_number)) < 1e-10 and min(find_distance(number, other_number)) > 1e-3


def test_all_stand_ins_for_minus_infinity_match():
    fingerprints = [take_fingerprint(np.where(VALUES > 0, VALUES, low)) for low in (-np.inf, -1e9, 2 * MINUS_INFINITY)]
    assert fingerprints[0] is not None and fingerprints == [fingerprints[0]] * 3


@pytest.mark.parametrize("low", [-np.inf, -1e4, -1000.0, -100.0])
def test_hidden_scores_do_not_outweigh_the_others(low):
    scores = 0.02 * VALUES
    original_print, scaled_print = (
        take_fingerprint(np.where(VALUES[0, 0, 0] < VALUES, value, low)) for value in (scores, scores * 1.01)
    )
    assert original_print and scaled_print and find_distance(original_print, scaled_print)[0] > 1e-3


def test_a_mask_matches_its_negation_and_its_additive_form():
    is_hidden = VALUES[0] > 0
    masks = [
        is_hidden,
        ~is_hidden,
        is_hidden.astype(np.float64),
        np.where(is_hidden, -1e9, 0.0),
        np.where(is_hidden, 0.0, -np.inf),
    ]
    fingerprints = [take_fingerprint(mask) for mask in masks]
    assert fingerprints[0] is not None and fingerprints[0].is_mask and fingerprints == [fingerprints[0]] * len(masks)


def test_a_mask_is_faulty_only_if_the_reference_has_a_mask_of_its_size():
    reference_mask, port_mask = VALUES > 0, VALUES > 1
    calls = [
        make_call("greater", port_mask),
        make_call("where", np.where(port_mask, 0.0, VALUES), (0,)),
        make_call("exp", VALUES + 1, (1,)),
    ]
    assert find_fault(calls, VALUES, reference_mask) == "greater"
    assert find_fault(calls, VALUES) == "where"


def test_the_input_of_a_module_is_faulty_if_all_earlier_values_are_correct():
    calls = [make_call("scale", VALUES), make_call("square", VALUES**2, (0,)), make_call("multiply", VALUES**3, (1,))]
    numbers = {"output:out": 2, "input:out": 0}
    ours = ForcedInputDtype({}, {}, {}, calls=calls, computed_by=numbers, entered_at={"input:out": "port.py:7"})
    fingerprints = [result for value in (VALUES, 2 * VALUES) if (result := take_fingerprint(value))]
    result = find_faulty_function("output:out", ours, Fingerprints(fingerprints, {"out": fingerprints[1]}), 0.1)
    assert result and (result.function, result.where) == (INPUT, "port.py:7")
    result = find_faulty_function("output:out", ours, Fingerprints(fingerprints, {"out": fingerprints[0]}), 0.1)
    assert result and result.function == "square"


def test_a_function_inside_a_loss_kernel_is_named_only_if_the_loss_is_one_line():
    labels = np.arange(60.0)
    fingerprints = [result for value in (VALUES[0], labels[:8]) if (result := take_fingerprint(value))]
    calls = [
        make_call("scores", VALUES[0]),
        make_call("gather", VALUES[0, :, 3], (0,)),
        make_call("mean", np.array(0.3), (1,)),
    ]
    ours = ForcedInputDtype({}, {}, {}, calls=calls, computed_by={"loss": 2})
    theirs = Fingerprints(fingerprints, {}, fingerprints)
    assert find_faulty_function("loss", ours, theirs, 0.1) is None
    calls[2] = replace(calls[2], where=calls[1].where)
    result = find_faulty_function("loss", ours, theirs, 0.1)
    assert result and result.function == "gather"


@pytest.mark.parametrize("size", [3, 2**14 + 1, 2**16])
def test_one_different_element_of_a_large_tensor_is_noticed(size):
    tensor = np.random.default_rng(1).standard_normal(size)
    changed_tensor = tensor.copy()
    changed_tensor[size // 2] += 5.0
    original_print, changed_print = take_fingerprint(tensor), take_fingerprint(changed_tensor)
    assert original_print and changed_print and min(find_distance(original_print, changed_print)) > 1e-4


def test_the_first_function_with_a_result_unknown_to_the_reference_is_named():
    correct_call, wrong_call = make_call("scale", VALUES * 2), make_call("shift", VALUES * 2 + 1, (0,))
    last = make_call("linear", np.sin(VALUES * 2 + 1), (1,), "out")
    assert find_fault([correct_call, wrong_call, last], VALUES * 2, VALUES * 3, np.sin(VALUES * 3)) == "shift"


def test_functions_that_lead_to_a_correct_result_are_correct():
    own_way = [make_call("square", VALUES**2), make_call("sum", VALUES**2 + VALUES, (0,))]
    unknown_call, last_call = make_call("shift", VALUES + 1, (1,)), make_call("linear", VALUES + 2, (2,), "out")
    assert find_fault([*own_way, unknown_call, last_call], VALUES**2 + VALUES) == "shift"


def test_only_inputs_of_the_wrong_tensor_are_named():
    assert find_fault([make_call("other", VALUES + 5), make_call("shift", VALUES + 1)], VALUES) == "shift"


def test_a_wrong_module_is_not_named_as_a_function():
    assert find_fault([make_call("scale", VALUES), make_call("linear", VALUES + 1, (0,), "out")], VALUES) is None
    assert find_fault([make_call("scale", VALUES), make_call("act", VALUES + 1, (0,), "act")], VALUES) == "act"


def test_correct_numbers_in_a_wrong_order_blame_the_function_that_moved_them():
    moving = [
        make_call("scale", VALUES),
        make_call("transpose", TRANSPOSED_VALUES, (0,)),
        make_call("reshape", TRANSPOSED_VALUES.reshape(8, 60), (1,)),
    ]
    assert (
        find_fault([*moving, make_call("linear", TRANSPOSED_VALUES + 1, (2,), "out")], VALUES, VALUES + 1)
        == "transpose"
    )
    back = [*moving, make_call("tanh", np.tanh(VALUES), (2,)), make_call("linear", TRANSPOSED_VALUES + 1, (3,), "out")]
    assert find_fault(back, VALUES, np.tanh(VALUES)) is None


def test_a_wrong_reshape_is_named_before_its_consumers():
    reshape = make_call("reshape", VALUES.reshape(6, 10, 8), (0,))
    calls = [
        make_call("scale", VALUES),
        reshape,
        make_call("matmul", VALUES + 2, (1,)),
        make_call("linear", VALUES + 3, (2,), "out"),
    ]
    assert find_fault(calls, VALUES, VALUES.transpose(0, 2, 1)) == "reshape"
    assert find_fault(calls, VALUES, VALUES.reshape(6, 10, 8)) == "matmul"


def test_a_wrong_permutation_is_named_before_elementwise_functions():
    """In Swin with windows rolled the wrong way, then dropped out and scaled, the roll is wrong."""
    port_roll, reference_roll = np.roll(VALUES, 2, 1), np.roll(VALUES, -2, 1)
    calls = [make_call("merge", VALUES), make_call("roll", port_roll, (0,)), make_call("scale", 2 * port_roll, (1,))]
    calls.append(make_call("add", 2 * port_roll + VALUES, (2, 0)))
    assert find_fault(calls, VALUES, reference_roll, 2 * reference_roll, 2 * reference_roll + VALUES) == "roll"
    assert find_fault(calls, VALUES, port_roll, 3 * reference_roll, 3 * reference_roll + VALUES) == "scale"


def test_an_order_known_from_another_tensor_is_wrong_as_a_module_input():
    calls = [
        make_call("reshape", TRANSPOSED_VALUES.reshape(6, 8, 10)),
        make_call("linear", TRANSPOSED_VALUES + 1, (0,), "out"),
    ]
    assert find_fault(calls, TRANSPOSED_VALUES, VALUES) == "reshape"
    assert find_fault(calls, TRANSPOSED_VALUES, VALUES, module_input=TRANSPOSED_VALUES) is None


def test_a_wrong_constant_is_named_where_it_is_complete():
    numbers = np.arange(1.0, 9.0)
    creation = [make_call("full", np.array(8.0), num_tensor_inputs=0), make_call("arange", numbers, (0,))]
    powers = [make_call("power", 3**numbers, (1,)), make_call("column", 3 ** numbers[:, None], (2,))]
    product = make_call("multiply", 3 ** numbers[:, None] * VALUES[0], (3,), num_tensor_inputs=2)
    consumers = [product, make_call("linear", VALUES + 1, (4,), "out")]
    assert find_fault([*creation, *powers, *consumers], VALUES, 2**numbers) == "power"
    scaled_numbers = [creation[0], make_call("scale", numbers, num_tensor_inputs=1)]
    assert find_fault([*scaled_numbers, *powers, *consumers], VALUES, 2**numbers) == "scale"


def test_a_repetition_is_not_blamed_if_the_reference_broadcasts():
    column = VALUES[:, :1]
    calls = [
        make_call("scale", column),
        make_call("tile", column.repeat(8, 1), (0,)),
        make_call("exp", VALUES + 1, (1,)),
    ]
    assert find_fault([*calls, make_call("linear", VALUES + 2, (2,), "out")], column) == "exp"
    wrong_calls = [
        calls[0],
        make_call("tile", VALUES.reshape(8, 6, 10), (0,)),
        calls[2],
        make_call("linear", VALUES + 2, (2,), "out"),
    ]
    assert find_fault(wrong_calls, column, TRANSPOSED_VALUES) == "tile"


def test_a_small_error_is_found():
    calls = [make_call("scale", VALUES * (1 + 1e-8)), make_call("linear", VALUES + 1, (0,), "out")]
    assert find_fault(calls, VALUES, error=1e-8) == "scale"
    assert find_fault(calls, VALUES, error=None) is None


def test_a_tensor_without_a_call_has_no_function():
    assert find_faulty_function("output:out", ForcedInputDtype({}, {}, {}), Fingerprints(), 0.1) is None
