"""Description, in one line, of the parameters that are wrong after an optimizer update."""

from __future__ import annotations

from collections.abc import Collection

from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.measure.naming import TensorName


def update_number(name: TensorName) -> int:
    """Return the number, from 1, of the last update before a parameter's value, its moment or a loss.

    Example: ``updated:NAME#2`` -> 2; ``loss#2`` -> 1.
    """
    call_number = int(name.call.removeprefix("#") or 1)
    return call_number if name.kind in ("updated", "moment") else call_number - 1


def describe_wrong_parameters(finding: Finding, verdict: Verdict, decayed_parameters: Collection[str]) -> str:
    """Describe the number of parameters that are wrong after an update, and whether weight decay separates them.

    Example: ``12 of 40 parameters are wrong, those that weight decay applies to``.

    Args:
        finding: finding on a parameter after the first update with a wrong parameter.
        verdict: verdict with all findings and comparisons.
        decayed_parameters: names of the parameters that weight decay applies to.
    """
    tensor_name = TensorName.parse(finding.name)
    number, kind_of_value = update_number(tensor_name), "parameters" if tensor_name.kind == "updated" else "moments"

    def is_of_update(name: str, dtype: str) -> bool:
        """Return whether a tensor belongs to the finding's update, kind and dtype."""
        other_name = TensorName.parse(name)
        return dtype == finding.dtype and other_name.kind == tensor_name.kind and update_number(other_name) == number

    wrong_names = {TensorName.parse(f.name).module for f in verdict.findings if is_of_update(f.name, f.dtype)}
    compared_names = {
        TensorName.parse(c.name).module for c in verdict.comparisons if is_of_update(c.name, c.dtype)
    } | wrong_names
    count = f"{'all ' if wrong_names == compared_names else ''}{len(wrong_names)} of {len(compared_names)}"
    text = f"{count} {kind_of_value} are wrong"
    kinds = {
        "those that weight decay applies to": compared_names & set(decayed_parameters),
        "those it spares": compared_names - set(decayed_parameters),
    }
    kind = next((description for description, names in kinds.items() if wrong_names == names != compared_names), None)
    return ", ".join(filter(None, [text, kind, "none after the update before" if number > 1 else None]))
