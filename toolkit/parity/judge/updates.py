"""Describe in a line which optimizer update leaves which parameters wrong."""

from __future__ import annotations

from collections.abc import Collection

from toolkit.parity.judge.verdict import Finding, Verdict
from toolkit.parity.measure.naming import TensorName


def number_of(name: TensorName) -> int:
    """Number, from 1, of the update before a parameter's value, its moment or a loss."""
    repeated = int(name.call.removeprefix("#") or 1)
    return repeated if name.kind in ("updated", "moment") else repeated - 1


def wrong_parameters(finding: Finding, verdict: Verdict, decayed: Collection[str]) -> str:
    """Describe how many parameters a finding's update leaves wrong, and whether they are of one kind.

    Args:
        finding: on a parameter after the first update that leaves one wrong.
        decayed: the parameters that weight decay applies to.
    """
    found = TensorName.parse(finding.name)
    number, of = number_of(found), "parameters" if found.kind == "updated" else "moments"

    def after_it(name: str, dtype: str) -> bool:
        parsed = TensorName.parse(name)
        return dtype == finding.dtype and parsed.kind == found.kind and number_of(parsed) == number

    wrong = {TensorName.parse(f.name).module for f in verdict.findings if after_it(f.name, f.dtype)}
    compared = {TensorName.parse(c.name).module for c in verdict.comparisons if after_it(c.name, c.dtype)} | wrong
    text = f"{'all ' if wrong == compared else ''}{len(wrong)} of {len(compared)} {of} are wrong"
    kinds = {"those that weight decay applies to": compared & set(decayed), "those it spares": compared - set(decayed)}
    kind = next((said for said, names in kinds.items() if wrong == names != compared), None)
    return ", ".join(filter(None, [text, kind, "none after the update before" if number > 1 else None]))
