"""Test a terminal of 80 columns: no number is divided, and no name is divided within a word."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console
from rich.table import Table
from test_reports import make_report

from toolkit.parity.report.terminal import print_report
from toolkit.terminal import progress
from toolkit.terminal.console import LiteralConsole
from toolkit.terminal.dotted_text import DottedText
from toolkit.terminal.progress import ProgressBar

LONG = "updated:transformer.layers.0.self_attention.output_projection.weight#4"


def draw_bar(width: int, seconds: float, monkeypatch, busy: str = "") -> str:
    """Return the last line of a progress bar over 10,400 steps, after 96 steps in `seconds`."""
    monkeypatch.setattr(progress.Task, "elapsed", property(lambda _: seconds))
    monkeypatch.setattr(progress.Task, "time_remaining", property(lambda _: 107.3 * seconds))
    console = LiteralConsole(file=(out := io.StringIO()), width=width, force_terminal=True)
    with ProgressBar(console, "train", 10400) as bar:
        bar.update(96, loss=0.245612, **{"best accuracy": 0.92512}, lr=0.00147123)
        if busy:
            bar.busy(busy)
        bar._progress.refresh()
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", out.getvalue()).replace("\r", "\n").split("\n")
    return next(line for line in reversed(lines) if line.strip())


@pytest.mark.parametrize(
    ("width", "seconds", "busy", "expected_line"),
    [
        (80, 4.0, "", r"train \S+ +96/10400 loss 0\.2456  best accuracy 0\.9251 0:04 passed, 7:09 left"),
        (80, 40.0, "", r"train \S+ +96/10400 loss 0\.2456 0:40 passed, 1:11:32 left"),
        (80, 40.0, "validation 120/1000", r"validation 120/1000 \S+ +96/10400 loss 0\.2456 0:40 passed, 1:11:32 left"),
        (60, 4.0, "", r"train \S+ +96/10400 loss 0\.2456 0:04 passed, 7:09 left"),
        (56, 4000.0, "", r"train \S+ +96/10400 +1:06:40 passed, 119:13:20 left"),
        (
            120,
            40.0,
            "",
            r"train \S+ +96/10400 loss 0\.2456  best accuracy 0\.9251  lr 0\.001471 0:40 passed, 1:11:32 left",
        ),
    ],
)
def test_the_progress_line_is_complete_and_names_its_times(width, seconds, busy, expected_line, monkeypatch):
    line = draw_bar(width, seconds, monkeypatch, busy)
    assert re.fullmatch(expected_line, line.strip()) and len(line) <= width


def test_a_name_too_long_for_its_column_is_divided_after_a_dot():
    table = Table("tensor", "figure", box=None, pad_edge=False)
    table.add_row(DottedText(LONG), "1.0e-06")
    table.add_row(DottedText("h.0.ffn models/ctrl/modeling.py:12"), "2.0e-06")
    console = LiteralConsole(file=(out := io.StringIO()), width=48)
    console.print(table)
    cells = [line[:39].strip() for line in out.getvalue().splitlines()[1:]]
    assert cells == [
        "updated:transformer.layers.0.",
        "self_attention.output_projection.",
        "weight#4",
        "h.0.ffn models/ctrl/modeling.py:12",
    ]
    console = LiteralConsole(file=(out := io.StringIO()), width=200)
    console.print(table)
    assert LONG in out.getvalue()


def test_the_gates_table_divides_no_name_within_a_word(tmp_path):
    names = ("logits", "loss", LONG)
    out = io.StringIO()
    print_report(make_report(names=names), tmp_path / "parity.html", Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    first_line = next(index for index, line in enumerate(lines) if line.startswith("updated:"))
    assert lines[first_line].split()[0] == "updated:layers.0.self_attention."
    assert lines[first_line + 1].strip() == "output_projection.weight#4"
