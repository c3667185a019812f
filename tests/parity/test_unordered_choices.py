"""Test a top-k with sorted=False: the chosen scores are compared, but not their order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from toolkit.parity.comparator.choices import _in_order_of

MOE = Path(__file__).parents[1] / "pairs" / "moe"


@pytest.mark.parametrize(
    ("indices", "aligned_indices"),
    [
        ([[5, 0, 3]], [[3, 0, 5]]),
        ([[5, 3, 7]], [[3, 7, 5]]),
        ([[7, 8, 9]], [[7, 8, 9]]),
        ([[0, 5, 3]], [[3, 0, 5]]),
    ],
)
def test_indices_are_aligned_with_those_of_the_reference(indices, aligned_indices):
    assert _in_order_of(np.array([[3, 0, 5]]), np.array(indices)).tolist() == aligned_indices


def gate_experts(command_line, folder: Path, reference_topk: str, port_topk: str) -> tuple[int, str]:
    """Run the gate of a mixture of experts whose router chooses three of four experts with these calls."""
    for side, call in (("reference.py", reference_topk), ("port.py", port_topk)):
        text = (MOE / side).read_text()
        assert text.count(".topk(2, -1)") == 1
        (folder / side).write_text(text.replace(".topk(2, -1)", call))
    sides = ("--port", folder / "port.py", "--reference-model", folder / "reference.py", "--dtype", "float64")
    status, out, error = command_line("parity", *sides, "--output", folder / "out")
    return status, out + error


@pytest.mark.parametrize("port_topk", [".topk(3, -1)", ".topk(3, -1, sorted=False)"])
def test_a_correct_port_of_an_unordered_choice_passes(port_topk, command_line, tmp_path):
    status, out = gate_experts(command_line, tmp_path, ".topk(3, -1, sorted=False)", port_topk)
    assert status == 0, out


@pytest.mark.parametrize(
    ("reference_topk", "port_topk"),
    [
        (".topk(3, -1, sorted=False)", ".topk(3, -1, largest=False)"),
        (".topk(3, -1)", ".topk(3, -1, sorted=False)"),
    ],
    ids=["other experts", "order that the reference promises"],
)
def test_a_different_choice_and_a_lost_order_are_findings(reference_topk, port_topk, command_line, tmp_path):
    status, out = gate_experts(command_line, tmp_path, reference_topk, port_topk)
    assert status == 1 and out.startswith("DRIFT choice"), out
