"""Put faults into the ports of the pairs in `tests/pairs`, and run the gate that should name them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

PAIRS = Path(__file__).parent / "pairs"


class Fault(NamedTuple):
    """A fault of a port.

    Attributes:
        correct: code of the correct port, which occurs once. faulty: code that replaces it. line: code of the line at
        fault, in the faulty port; by default the last line of ``faulty``. near: expected part of the headline if it
        does not name the line at fault: the code that uses the wrong value, or
            the name of its module.
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
    """Run the gate of a pair with one port; return the exit status and the printed output.

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
    """Return the number of the first line of code that occurs once in a source."""
    assert source.count(code) == 1
    return 1 + source[: source.index(code)].count("\n")


def named_lines(headline: str) -> set[int]:
    """Return the numbers of the port's lines that a headline names."""
    return {int(number) for number in re.findall(r"port\.py:(\d+)", headline)}
