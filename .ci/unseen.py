"""Print what this machine could not show: the tests that were skipped, by the reason that each gives; and what no test
shows on any machine.

    python .ci/unseen.py JUNIT...

Reads the junit.xml of the lanes of `make ci`. Nothing that is skipped here counts as shown.
"""

from __future__ import annotations

import sys
import textwrap
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree

#: A file with more tests of one reason is counted, and not told test by test.
TOLD = 8
WIDTH = 116
#: What `make ci` shows nowhere, with all tests run.
UNTESTED = (
    "several machines (--ips): that they meet over a network, and share a run folder and TOOLKIT_CACHE on one disk",
    "more than two GPUs, and a GPU or NCCL that hangs: a run ends when one of its processes does",
    "what a run takes of a GPU's memory, alone or shared by sharding, beside what `toolkit recipe check` estimates",
    "the published CTRL on GPUs (recipes/ctrl_lm_salesforce.yaml); in bfloat16 the gate of a model that large compares "
    "nothing, and products as long as its own are in no test",
    "a sharded run that goes on after a kill: it is refused, its optimizer's state is nowhere as a whole",
)


def skipped(reports: Sequence[Path]) -> Iterator[tuple[str, str, str]]:
    """Of each skipped test the reason, the file and the function. What is expected to fail was run, and is none."""
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            skip = case.find("skipped")
            if skip is not None and skip.get("type") == "pytest.skip":
                file = str(case.get("classname")).rpartition(".")[2]
                yield str(skip.get("message")), file, str(case.get("name")).partition("[")[0]


def table(reports: Sequence[Path]) -> str:
    """A paragraph for each reason, with how many tests of which file it has kept from running."""
    reasons: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for reason, file, test in skipped(reports):
        reasons[reason][file].append(test)
    lines = ["What this machine could not show:" if reasons else "This machine has run every test."]
    for reason, files in sorted(reasons.items()):
        lines += ["", *textwrap.wrap(reason, WIDTH)]
        for file, tests in sorted(files.items()):
            names = list(dict.fromkeys(tests))
            lines.append(f"  {file:<28} {len(tests):>4} {'test' if len(tests) == 1 else 'tests'}")
            if len(names) <= TOLD:
                lines += [f"    {name.removeprefix('test_').replace('_', ' ')}" for name in names]
    lines += ["", "What no test shows, on any machine:"]
    for what in UNTESTED:
        lines += textwrap.wrap(what, WIDTH, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table([Path(name) for name in sys.argv[1:]]))
