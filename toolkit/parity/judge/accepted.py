"""Known differences of a user's pair: findings on tensors that the map accepts by name, within a bound of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from toolkit.parity.job.pair import KnownDifference
from toolkit.parity.job.results import Note

if TYPE_CHECKING:
    from toolkit.parity.judge.verdict import Finding, Verdict


@dataclass(frozen=True)
class AcceptedFinding:
    """A finding that is accepted.

    Attributes:
        relative: error over the size of the tensor.
        pattern: of the map, with what it says.
    """

    finding: Finding
    relative: float
    pattern: str
    why: str
    within: float


def pattern_of(name: str, known: Iterable[str]) -> str | None:
    """Return the first pattern that a tensor's name matches."""
    return next((pattern for pattern in known if fnmatchcase(name, pattern)), None)


def accept(verdict: Verdict, known: Mapping[str, KnownDifference], tensors: Iterable[str]) -> None:
    """Move accepted findings out of a verdict's findings, and note each pattern with the largest figure.

    A finding beyond its pattern's bound stays one, and so does all that is no difference of a tensor's numbers: a
    missing parameter, another shape, a draw.

    Args:
        tensors: names of all that is compared.
    """
    sizes = {(one.name, one.dtype): one.relative for one in verdict.comparisons}
    found = {}
    for finding in verdict.findings:
        pattern, relative = pattern_of(finding.name, known), sizes.get((finding.name, finding.dtype))
        if pattern is not None and relative is not None and relative <= known[pattern].within:
            found[finding] = AcceptedFinding(finding, relative, pattern, known[pattern].why, known[pattern].within)
    verdict.accepted = list(found.values())
    verdict.findings = [finding for finding in verdict.findings if finding not in found]
    beyond = {pattern_of(finding.name, known) for finding in verdict.findings}
    verdict.notes += _notes(verdict.accepted, known, beyond, list(tensors))


def _notes(
    accepted: list[AcceptedFinding], known: Mapping[str, KnownDifference], beyond: set, tensors: list[str]
) -> Iterator[Note]:
    for pattern, told in known.items():
        data = {"pattern": pattern, "why": told.why}
        if of_pattern := [one.relative for one in accepted if one.pattern == pattern]:
            yield Note("accepted", {**data, "count": len(of_pattern), "worst": max(of_pattern), "within": told.within})
        elif pattern not in beyond:
            yield Note("accepted-unused" if pattern_of_any(pattern, tensors) else "accepted-unknown", data)


def pattern_of_any(pattern: str, names: Iterable[str]) -> bool:
    """Whether any name matches a pattern."""
    return any(fnmatchcase(name, pattern) for name in names)
