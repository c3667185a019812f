"""``junit.xml``: the outcome of a gate for a CI system, created only from the content of ``parity.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element, indent, tostring

from toolkit.parity.report.json import with_infinities
from toolkit.terminal.escape import visible

#: Test cases of each suite, by verdict and dtype.
Suites = dict[tuple[str, str], list[Element]]


def build_junit(content: Mapping[str, Any]) -> str:
    """Return the JUnit XML of a gate.

    The first suite, ``gate``, has a single test case, the verdict, with the culprit in its message if it fails. A suite
    for each verdict and dtype follows, with a test case for each compared tensor and each other finding. A tensor that
    is noise in its dtype is skipped.
    """
    suites: Suites = {}
    content = with_infinities(content)
    findings = list(content["findings"])
    for tensor in content["tensors"]:
        outcome = _tensor_outcome(tensor, findings, content.get("accepted", ()))
        _add_case(suites, content, _verdict_of(tensor), tensor["dtype"], tensor["name"], outcome)
    for dtype, errors in content["recomputed"].items():
        for name, error in errors.items():
            finding = _take_finding(findings, "recomputed", name, dtype)
            message = f"{finding['message']}; error {error:.3g}" if finding else None
            _add_case(suites, content, "recomputed", dtype, name, _build_failure(message, "recomputed"))
    for finding in findings:
        outcome = _build_failure(finding["message"], finding["verdict"])
        _add_case(suites, content, finding["verdict"], finding["dtype"], finding["name"], outcome)
    parts = [
        _gate_suite(content),
        *(_build_suite(f"{verdict} {dtype}".strip(), suites[verdict, dtype]) for verdict, dtype in suites),
    ]
    counts = {key: sum(int(suite.get(key, 0)) for suite in parts) for key in ("tests", "failures", "errors", "skipped")}
    root = element("testsuites", *parts, name="parity", **counts, time=f"{content['seconds']['gate']:.3f}")
    indent(root, " ")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + tostring(root, encoding="unicode") + "\n"


def element(tag: str, *children: Element | None, **attributes: object) -> Element:
    """Return an element of XML with children and attributes; None values are skipped."""
    new_element = Element(tag, {key: visible(str(value)) for key, value in attributes.items() if value is not None})
    new_element.extend(child for child in children if child is not None)
    return new_element


def _gate_suite(content: Mapping[str, Any]) -> Element:
    """Return the suite of the verdict, with the run's facts as properties."""
    culprit = content["culprit"]
    facts = {
        "model": content["model"],
        "head": content["head"],
        "device": content["device"],
        "seed": content["seed"],
        "culprit": culprit and culprit["place"],
        "culprit.tensor": culprit and culprit["name"],
        **{f"seconds.{stage}": f"{seconds:.3f}" for stage, seconds in content["seconds"].items()},
        **{f"versions.{side}.{name}": v for side, group in content["versions"].items() for name, v in group.items()},
    }
    properties = [element("property", name=name, value=value) for name, value in facts.items() if value is not None]
    outcome = _build_failure(content["summary"] if culprit else None, culprit["verdict"] if culprit else "")
    case = element("testcase", outcome, classname=f"parity.{content['model']}", name="verdict")
    return _build_suite("gate", [case], element("properties", *properties))


def _build_suite(name: str, cases: list[Element], properties: Element | None = None) -> Element:
    """Return the element ``testsuite`` of JUnit with its cases and their counts."""
    failures, skips = (sum(case.find(tag) is not None for case in cases) for tag in ("failure", "skipped"))
    return element(
        "testsuite", properties, *cases, name=name, tests=len(cases), failures=failures, errors=0, skipped=skips
    )


def _add_case(
    suites: Suites, content: Mapping[str, Any], verdict: str, dtype: str, name: str, outcome: Element | None
) -> None:
    """Add a test case to the suite of its verdict and dtype.

    Args:
        suites: cases of each suite, changed in place.
        content: content of ``parity.json``.
        verdict: name of the verdict.
        dtype: dtype of the run; empty for a verdict that has none.
        name: name of the case, such as a tensor.
        outcome: element ``failure`` or ``skipped``; None if the case passed.
    """
    classname = ".".join(filter(None, ["parity", content["model"], verdict, dtype]))
    suites.setdefault((verdict, dtype), []).append(element("testcase", outcome, classname=classname, name=name))


def _verdict_of(tensor_result: Mapping[str, Any]) -> str:
    """Return the verdict that a tensor belongs to: ``semantics`` in float64, otherwise ``rounding``."""
    return tensor_result.get("verdict") or ("semantics" if tensor_result["dtype"] == "float64" else "rounding")


def _tensor_outcome(
    tensor_result: Mapping[str, Any], findings: list[dict[str, Any]], accepted_findings: Sequence[Mapping[str, Any]]
) -> Element | None:
    """Return the outcome of a tensor: None if it passed, skipped if it is noise or accepted, otherwise a failure.

    The tensor's finding is removed from ``findings``.
    """
    verdict = _verdict_of(tensor_result)
    if not tensor_result["informative"]:
        is_lowered = tensor_result["dtype"] == "bfloat16"
        noisy_dtype, decides = ("bfloat16", "others decide") if is_lowered else ("float32", "float64 alone decides")
        reason = f"the reference's own {noisy_dtype} error is {_describe_noise(tensor_result)} of the tensor; {decides}"
        return element("skipped", message=reason)
    if tensor_result["passed"]:
        return None
    finding = _take_finding(findings, verdict, tensor_result["name"], tensor_result["dtype"])
    for accepted in accepted_findings:
        if (accepted["finding"]["name"], accepted["finding"]["dtype"]) == (
            tensor_result["name"],
            tensor_result["dtype"],
        ):
            return element("skipped", message=f"accepted: {accepted['why']}; {accepted['finding']['message']}")
    figures = (
        f"error {tensor_result['error']:.3g}, bound {tensor_result['bound']:.3g}; "
        f"largest {tensor_result['error_max']:.3g}, bound {tensor_result['bound_max']:.3g}; "
        f"margin {tensor_result['margin']:.3g}"
    )
    return _build_failure(f"{finding['message']}; {figures}" if finding else figures, verdict)


def _describe_noise(tensor_result: Mapping[str, Any]) -> str:
    """Return the rounding noise of a tensor relative to its size, as text."""
    noise = tensor_result.get("noise_bfloat16", tensor_result["noise"])
    return f"{noise / tensor_result['rms']:.1e}" if tensor_result["rms"] else "more than all"


def _take_finding(findings: list[dict[str, Any]], verdict: str, name: str, dtype: str) -> dict[str, Any] | None:
    """Remove a verdict's finding about a tensor from ``findings``, and return it; None without a finding."""
    key = (verdict, name, dtype)
    for index, finding in enumerate(findings):
        if (finding["verdict"], finding["name"], finding["dtype"]) == key:
            return findings.pop(index)
    return None


def _build_failure(message: str | None, kind: str) -> Element | None:
    """Return the element ``failure`` of JUnit, or None without a message."""
    return element("failure", message=message, type=kind) if message else None
