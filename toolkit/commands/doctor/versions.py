"""Check the installed versions against the required ranges and against the versions that were tested together."""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

from toolkit.commands.doctor.finding import Finding, reinstall_command
from toolkit.machine.install import CHECKOUT, DISTRIBUTION
from toolkit.machine.runtime import distribution_version

#: Distributions whose exact version can change the results of a run.
PINNED_DISTRIBUTIONS = (
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
    """Check versions against the ranges that installed distributions require, and against the pins if they exist."""
    check = "versions"
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        metadata = importlib.metadata.metadata(DISTRIBUTION).json
    except importlib.metadata.PackageNotFoundError:
        yield Finding(check, "fault", "toolkit is not installed, only its source is here", reinstall_command())
        return
    from packaging.specifiers import SpecifierSet

    python_range = str(metadata.get("requires_python", ""))
    if python not in SpecifierSet(python_range):
        yield Finding(
            check, "fault", f"Python is {python}, but must be {python_range}", "make install PYTHON=python3.11"
        )
    if other := distribution_version("toolkit"):
        description = f"the distribution toolkit {other} is installed, which overwrites files of {DISTRIBUTION}"
        yield Finding(check, "fault", description, f"pip uninstall -y toolkit, then {reinstall_command()}")
    num_examined, faults = find_unfit_distributions(DISTRIBUTION)
    for fault in faults:
        yield Finding(check, "fault", fault.description, fault.remedy)
    differences = [
        f"{name} {version} (pin {pins[name]})"
        for pins in [read_pins(CHECKOUT / "constraints.txt")]
        for name in PINNED_DISTRIBUTIONS
        if name in pins and (version := distribution_version(name)) and version.partition("+")[0] != pins[name]
    ]
    if differences:
        description = f"not the versions that were tested together: {', '.join(differences)}"
        yield Finding(check, "warn", description, reinstall_command())
    elif not faults:
        yield Finding(check, "ok", f"Python {python}, {num_examined} distributions fit together")


def find_unfit_distributions(root: str) -> tuple[int, list[Finding]]:
    """Return the number of distributions that ``root`` requires, and a finding for each missing or unfit distribution.

    Requirements are followed recursively. Extras of ``root`` count as far as they are installed.
    """
    from packaging.requirements import Requirement

    faults: dict[str, Finding] = {}
    seen_extras: set[tuple[str, str]] = set()
    pending = [(root, "")]
    while pending:
        name, extra = pending.pop()
        if (name, extra) in seen_extras:
            continue
        seen_extras.add((name, extra))
        for line in importlib.metadata.requires(name) or ():
            requirement = Requirement(line)
            is_unconditional = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            is_optional = name == root and not is_unconditional
            if not is_unconditional and not (is_optional and requirement.marker and "extra" in str(requirement.marker)):
                continue
            version = distribution_version(requirement.name)
            remedy = f"pip install '{requirement.name}{requirement.specifier}'"
            if version is None:
                if not is_optional:
                    description = f"{requirement.name}, which {name} needs, is not installed"
                    faults.setdefault(requirement.name, Finding("versions", "fault", description, remedy))
            elif not requirement.specifier.contains(version, prereleases=True):
                description = f"{requirement.name} is {version}, and {name} needs {requirement.specifier}"
                faults.setdefault(requirement.name, Finding("versions", "fault", description, remedy))
            else:
                pending += [(requirement.name, extra_name) for extra_name in ("", *requirement.extras)]
    return len({name for name, _ in seen_extras}), list(faults.values())


def read_pins(constraints: Path) -> dict[str, str]:
    """Return distribution -> version of a constraints file; empty if the file does not exist.

    Lines whose markers do not apply to this system are left out.
    """
    if not constraints.is_file():
        return {}
    from packaging.requirements import Requirement

    pins = {}
    for line in constraints.read_text(encoding="utf-8").splitlines():
        if line.partition("#")[0].strip():
            requirement = Requirement(line.partition("#")[0])
            if requirement.marker is None or requirement.marker.evaluate():
                pins[requirement.name] = str(requirement.specifier).removeprefix("==")
    return pins
