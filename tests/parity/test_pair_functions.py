"""Test sixty functions and losses of both frameworks.

The correct port passes, a faulty function is named by its line.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from soak import some

PAIR = Path(__file__).parents[1] / "pairs" / "functions"
PORT = (PAIR / "port.py").read_text()
WRONG = re.findall(r'^    "(\w+)": ', PORT.partition("WRONG = {")[2], re.MULTILINE)
#: Code of the helper that computes the function, if the faulty function's own line only calls the helper.
INSIDE = {
    **dict.fromkeys(("interpolate", "interpolate_size", "interpolate_corners"), "F.interpolate("),
    "pixel_shuffle": "return x.reshape([b, 2, 2,",
    "causal_attention": "F.scaled_dot_product_attention(",
    "gather": "paddle.take_along_axis(",
}
FAST = ("avg_pool", "kl")
SLOW = some([name for name in WRONG if name not in FAST], 3)
OPERATIONS = PAIR.parent / "operations"


def run_pair_gate(command_line, folder: Path, *pairs: str) -> tuple[int, str]:
    sides = ("--port", PAIR / "port.py", "--reference-model", PAIR / "reference.py")
    status, out, err = command_line("parity", *sides, *pairs, "--output", folder)
    return status, out or err


@pytest.mark.slow
def test_the_correct_functions_pass(command_line, tmp_path):
    status, out = run_pair_gate(command_line, tmp_path, "op=all")
    assert status == 0 and out.startswith("PARITY "), out


@pytest.mark.parametrize("name", [*FAST, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_a_faulty_function_is_named_by_its_line(name, command_line, tmp_path):
    status, out = run_pair_gate(command_line, tmp_path, f"op={name}", "wrong=true", "--dtype", "float64")
    own = f'    "{name}": '
    places = PORT.splitlines()
    first = next(number for number, line in enumerate(places) if line.startswith("WRONG"))
    [line] = [
        number
        for number, text in enumerate(places, 1)
        if (INSIDE[name] in text if name in INSIDE else text.startswith(own) and number > first)
    ]
    assert status == 1 and f"tests/pairs/functions/port.py:{line})" in out.splitlines()[0], out


@pytest.mark.slow
@pytest.mark.parametrize(("is_wrong", "expected_output"), [("false", "agrees: loss "), ("true", "differs: loss ")])
def test_an_independent_check_agrees_with_the_gate(is_wrong, expected_output):
    sides = (OPERATIONS / "port.py", OPERATIONS / "reference.py")
    command = [sys.executable, PAIR.parent / "independent.py", *sides, "op=group", f"wrong={is_wrong}"]
    assert subprocess.run(command, capture_output=True, text=True).stdout.startswith(expected_output)
