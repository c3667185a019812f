"""Known differences of a user's pair: findings that its map accepts by tensor name, up to a bound.

The map is the pair's file of corresponding parameters and modules. An accepted finding does not stop the port.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase

from toolkit.parity.exchange.results import Note
from toolkit.parity.job.pair import KnownDifference
from toolkit.parity.judge.findings import AcceptedFinding, Verdict


def pattern_of(name: str, patterns: Iterable[str]) -> str | None:
    """Return the first pattern that a tensor's name matches, such as ``output:*.norm``; None if there is none.

    Args:
        name: name of the tensor.
        patterns: shell patterns of names (``*``, ``?``).
    """
    return next((pattern for pattern in patterns if fnmatchcase(name, pattern)), None)


def accept(verdict: Verdict, known_differences: Mapping[str, KnownDifference], tensor_names: Iterable[str]) -> None:
    """Move accepted findings out of a verdict's findings, and note each pattern with its largest relative error.

    A finding beyond the bound of its pattern remains a finding. So does each finding without a numeric difference of a
    tensor: a missing parameter, another shape, a draw.

    Args:
        verdict: verdict to change.
        known_differences: accepted differences by pattern of tensor names.
        tensor_names: names of all compared tensors.
    """
    sizes = {(one.name, one.dtype): one.relative for one in verdict.comparisons}
    accepted_findings = {}
    for finding in verdict.findings:
        pattern, relative = pattern_of(finding.name, known_differences), sizes.get((finding.name, finding.dtype))
        if pattern is not None and relative is not None and relative <= known_differences[pattern].within:
            accepted_findings[finding] = AcceptedFinding(
                finding, relative, pattern, known_differences[pattern].why, known_differences[pattern].within
            )
    verdict.accepted = list(accepted_findings.values())
    verdict.findings = [finding for finding in verdict.findings if finding not in accepted_findings]
    patterns_beyond_bound = {pattern_of(finding.name, known_differences) for finding in verdict.findings}
    verdict.notes += _notes(verdict.accepted, known_differences, patterns_beyond_bound, list(tensor_names))


def _notes(
    accepted_findings: list[AcceptedFinding],
    known_differences: Mapping[str, KnownDifference],
    patterns_beyond_bound: set,
    tensor_names: list[str],
) -> Iterator[Note]:
    """Yield a note for each pattern: its accepted findings, or that it is not needed or names no tensor.

    Args:
        accepted_findings: findings that the map accepts.
        known_differences: accepted differences by pattern of tensor names.
        patterns_beyond_bound: patterns with a finding beyond their bound; these get no note without an accepted
            finding.
        tensor_names: names of all compared tensors.
    """
    for pattern, difference in known_differences.items():
        data = {"pattern": pattern, "why": difference.why}
        if relative_errors := [one.relative for one in accepted_findings if one.pattern == pattern]:
            yield Note(
                "accepted",
                {**data, "count": len(relative_errors), "worst": max(relative_errors), "within": difference.within},
            )
        elif pattern not in patterns_beyond_bound:
            yield Note("accepted-unused" if pattern_of_any(pattern, tensor_names) else "accepted-unknown", data)


def pattern_of_any(pattern: str, names: Iterable[str]) -> bool:
    """Return whether any of the names matches a pattern."""
    return any(fnmatchcase(name, pattern) for name in names)
