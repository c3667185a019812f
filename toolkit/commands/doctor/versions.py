"""Check installed versions against the required ranges and those tested together."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

from toolkit.commands.doctor.finding import Finding, reinstall
from toolkit.machine.install import CHECKOUT, DISTRIBUTION
from toolkit.machine.runtime import version_of

#: Distributions whose exact version decides what a run computes.
PINNED = (
    "paddlepaddle",
    "paddlepaddle-gpu",
    "paddlenlp",
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "safetensors",
)


def check_versions() -> Iterator[Finding]:
    """Check versions against the ranges that installed distributions require, and the pins if they are here."""
    name = "versions"
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        own = importlib.metadata.metadata(DISTRIBUTION).json
    except importlib.metadata.PackageNotFoundError:
        yield Finding(name, "fault", "toolkit is not installed, only its source is here", reinstall())
        return
    from packaging.specifiers import SpecifierSet

    wanted = str(own.get("requires_python", ""))
    if python not in SpecifierSet(wanted):
        yield Finding(name, "fault", f"Python is {python}, but must be {wanted}", "make install PYTHON=python3.11")
    if other := version_of("toolkit"):
        what = f"the distribution toolkit {other} is installed, which overwrites files of {DISTRIBUTION}"
        yield Finding(name, "fault", what, f"pip uninstall -y toolkit, then {reinstall()}")
    examined, faults = unfit_distributions(DISTRIBUTION)
    for wrong in faults:
        yield Finding(name, "fault", wrong.what, wrong.mend)
    differing = [
        f"{pinned} {version} (pin {pins[pinned]})"
        for pins in [read_pins(CHECKOUT / "constraints.txt")]
        for pinned in PINNED
        if pinned in pins and (version := version_of(pinned)) and version.partition("+")[0] != pins[pinned]
    ]
    if differing:
        what = f"not the versions that were tested together: {', '.join(differing)}"
        yield Finding(name, "warn", what, reinstall())
    elif not faults:
        yield Finding(name, "ok", f"Python {python}, {examined} distributions fit together")


def unfit_distributions(root: str) -> tuple[int, list[Finding]]:
    """How many distributions one needs, its installed extras included, and what is wrong with them."""
    from packaging.requirements import Requirement

    faults: dict[str, Finding] = {}
    examined: set[tuple[str, str]] = set()
    left = [(root, "")]
    while left:
        name, extra = left.pop()
        if (name, extra) in examined:
            continue
        examined.add((name, extra))
        for line in importlib.metadata.requires(name) or ():
            wanted = Requirement(line)
            plain = wanted.marker is None or wanted.marker.evaluate({"extra": extra})
            optional = name == root and not plain
            if not plain and not (optional and wanted.marker and "extra" in str(wanted.marker)):
                continue
            version = version_of(wanted.name)
            mend = f"pip install '{wanted.name}{wanted.specifier}'"
            if version is None:
                if not optional:
                    what = f"{wanted.name}, which {name} needs, is not installed"
                    faults.setdefault(wanted.name, Finding("versions", "fault", what, mend))
            elif not wanted.specifier.contains(version, prereleases=True):
                what = f"{wanted.name} is {version}, and {name} needs {wanted.specifier}"
                faults.setdefault(wanted.name, Finding("versions", "fault", what, mend))
            else:
                left += [(wanted.name, one) for one in ("", *wanted.extras)]
    return len({name for name, _ in examined}), list(faults.values())


def read_pins(constraints: Path) -> dict[str, str]:
    """Return name -> version of a constraints file, where markers hold here; empty if there is no file."""
    if not constraints.is_file():
        return {}
    from packaging.requirements import Requirement

    pins = {}
    for line in constraints.read_text(encoding="utf-8").splitlines():
        if line.partition("#")[0].strip():
            wanted = Requirement(line.partition("#")[0])
            if wanted.marker is None or wanted.marker.evaluate():
                pins[wanted.name] = str(wanted.specifier).removeprefix("==")
    return pins
