"""Ports of the pairs in `tests/pairs`, with faults put into their source, and the gate that should name them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PAIRS = Path(__file__).parent / "pairs"


class Fault(NamedTuple):
    """A fault of a port.

    Attributes:
        correct: code of the correct port, which occurs once.
        faulty: code in its place.
        line: code of the line at fault, in the faulty port; by default the last line of ``faulty``.
        near: what the headline names if that is not the line at fault: code of the line that uses what is wrong, or
            words for the module that it belongs to.
    """

    correct: str
    faulty: str
    line: str = ""
    near: str = ""

    def put_into(self, pair: str, folder: Path) -> tuple[Path, str]:
        """Write the faulty port of a pair into a folder; return its path and its source."""
        source = (PAIRS / pair / "port.py").read_text()
        assert source.count(self.correct) == 1
        port, source = folder / "port.py", source.replace(self.correct, self.faulty)
        port.write_text(source)
        return port, source


def run_gate(command_line: Callable, pair: str, port: Path, folder: Path, *options: str) -> tuple[int, str]:
    """Run the gate of a pair with one port; return the exit status and what is printed.

    Args:
        pair: name of the pair's folder, and KEY=VALUE of its configuration behind blanks.
    """
    name, *config = pair.split()
    map_path = PAIRS / name / "map.yaml"
    options += ("--map", str(map_path)) if map_path.exists() else ()
    sides = ("--port", port, "--reference-model", PAIRS / name / "reference.py")
    status, out, error = command_line("parity", *sides, *config, *options, "--output", folder / "out")
    return status, out + error


def line_number(code: str, source: str) -> int:
    """Return the number of the line in which code begins that occurs once in a source."""
    assert source.count(code) == 1
    return 1 + source[: source.index(code)].count("\n")


def named_lines(headline: str) -> set[int]:
    """Return the numbers of the port's lines that a headline names."""
    return {int(number) for number in re.findall(r"port\.py:(\d+)", headline)}
