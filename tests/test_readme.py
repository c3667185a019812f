"""The source lines in README.md's sample reports are where the gate would point today."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PLACE = r"(\w+/[\w/]+\.py):(\d+)"


def source(path: str, line: str) -> str:
    return (ROOT / path).read_text().splitlines()[int(line) - 1]


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        (rf"^DRIFT [\w.]+\.(\w+) \((\w+), {PLACE}", r"self\.{0} = {1}\(|self\.{0} = self\.\w+\("),
        (rf"\.\w+ \((\w+), \S+, class at {PLACE}", r"^class {0}\b"),
        (rf"the backward into ([\w ]+) of [\w.]+\s+\({PLACE}", r'at\("{0}"'),
    ],
    ids=["a module", "its class", "an operation"],
)
def test_a_place_in_the_readme_is_the_line_it_names(sample, expected):
    found = re.findall(sample, README, re.MULTILINE)
    assert found
    for *names, path, line in found:
        wanted = expected.format(*(name.replace(" ", "_") for name in names))
        assert re.search(wanted, source(path, line)), f"README.md: {path}:{line} is {source(path, line).strip()!r}"
