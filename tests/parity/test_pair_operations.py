"""Pairs of one operation each: float64 is float64 on both sides, and a constant that Paddle rounds is no fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

PAIR = Path(__file__).parents[1] / "pairs" / "operations"
#: Operations of which Paddle's kernel holds a constant in float32.
ROUNDED = ("elu", "pow", "hardtanh", "average", "interpolate")
#: Those in which one side or the other would compute in float32, and layers that need care.
IN_DOUBLE = ("noise", "ramp", "rotary", "group", "lstm")
FAST = ("elu", "rotary")
#: What the headline may name: the layer itself, or the one after an operation that is in none.
NAMED = {"group": "layer (GroupNorm", "lstm": "layer (LSTM"}


def in_lanes(names: tuple[str, ...]) -> list:
    return [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in names]


def gated(command_line, tmp_path, *pairs: str) -> tuple[int, dict, str]:
    sides = ("--port", PAIR / "port.py", "--reference-model", PAIR / "reference.py")
    status, out, _ = command_line("parity", *sides, *pairs, "--output", tmp_path)
    return status, json.loads((tmp_path / "cpu" / "parity.json").read_text()), out


@pytest.mark.parametrize("op", in_lanes((*ROUNDED, *IN_DOUBLE)))
def test_a_right_port_passes_and_a_rounded_constant_is_said(op, command_line, tmp_path):
    status, report, out = gated(command_line, tmp_path, f"op={op}")
    assert status == 0 and report["passed"], out
    said = [note for note in report["notes"] if note["kind"] == "constants-rounded"]
    assert len(said) == (op in ROUNDED)
    if said:
        assert said[0]["data"]["worst"] < 1e-6 and "reference.py:" in said[0]["data"]["constants"]
        assert "which is what rounding the reference's constants to float32 moves" in out


@pytest.mark.parametrize("op", in_lanes((*ROUNDED, *IN_DOUBLE)))
def test_another_constant_is_a_fault(op, command_line, tmp_path):
    status, _, out = gated(command_line, tmp_path, f"op={op}", "wrong=true")
    named = NAMED.get(op, "last (Linear")
    assert status == 1 and out.startswith(f"DRIFT {named}"), out
