"""``junit.xml``: the outcome of a gate for a CI system. Made from the content of ``parity.json`` alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element, indent

from toolkit.pages.markup import element, xml_text
from toolkit.parity.report.json import with_infinities

#: (verdict, dtype) -> test cases of a suite.
Suites = dict[tuple[str, str], list[Element]]


def junit(content: Mapping[str, Any]) -> str:
    """JUnit XML.

    The first suite, ``gate``, has one test case: the verdict, which fails with the culprit in its message. Then comes a
    suite per verdict and dtype, with a test case for each compared tensor and each other finding. A tensor that is
    noise in its dtype is skipped.
    """
    suites: Suites = {}
    content = with_infinities(content)
    findings = list(content["findings"])
    for tensor in content["tensors"]:
        outcome = _tensor_outcome(tensor, findings, content.get("accepted", ()))
        _add(suites, content, _verdict_of(tensor), tensor["dtype"], tensor["name"], outcome)
    for dtype, errors in content["recomputed"].items():
        for name, error in errors.items():
            found = _take(findings, "recomputed", name, dtype)
            message = f"{found['message']}; error {error:.3g}" if found else None
            _add(suites, content, "recomputed", dtype, name, _failure(message, "recomputed"))
    for found in findings:
        outcome = _failure(found["message"], found["verdict"])
        _add(suites, content, found["verdict"], found["dtype"], found["name"], outcome)
    made = [
        _gate_suite(content),
        *(_suite(f"{verdict} {dtype}".strip(), suites[verdict, dtype]) for verdict, dtype in suites),
    ]
    counts = {key: sum(int(suite.get(key, 0)) for suite in made) for key in ("tests", "failures", "errors", "skipped")}
    root = element("testsuites", *made, name="parity", **counts, time=f"{content['seconds']['gate']:.3f}")
    indent(root, " ")
    return xml_text(root)


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
        **{f"seconds.{what}": f"{seconds:.3f}" for what, seconds in content["seconds"].items()},
        **{f"versions.{side}.{name}": v for side, found in content["versions"].items() for name, v in found.items()},
    }
    properties = [element("property", name=name, value=value) for name, value in facts.items() if value is not None]
    outcome = _failure(content["summary"] if culprit else None, culprit["verdict"] if culprit else "")
    case = element("testcase", outcome, classname=f"parity.{content['model']}", name="verdict")
    return _suite("gate", [case], element("properties", *properties))


def _suite(name: str, cases: list[Element], properties: Element | None = None) -> Element:
    failures, skipped = (sum(case.find(tag) is not None for case in cases) for tag in ("failure", "skipped"))
    return element(
        "testsuite", properties, *cases, name=name, tests=len(cases), failures=failures, errors=0, skipped=skipped
    )


def _add(
    suites: Suites, content: Mapping[str, Any], verdict: str, dtype: str, name: str, outcome: Element | None
) -> None:
    classname = ".".join(filter(None, ["parity", content["model"], verdict, dtype]))
    suites.setdefault((verdict, dtype), []).append(element("testcase", outcome, classname=classname, name=name))


def _verdict_of(tensor: Mapping[str, Any]) -> str:
    """The verdict on a tensor: in float64 semantics (is it the same?), else rounding (is it as accurate?)."""
    return tensor.get("verdict") or ("semantics" if tensor["dtype"] == "float64" else "rounding")


def _tensor_outcome(
    tensor: Mapping[str, Any], findings: list[dict[str, Any]], accepted: Sequence[Mapping[str, Any]]
) -> Element | None:
    """None if a tensor passed, skipped if its difference is accepted; else its finding, taken from ``findings``."""
    verdict = _verdict_of(tensor)
    if not tensor["informative"]:
        is_lowered = tensor["dtype"] == "bfloat16"
        of, decides = ("bfloat16", "others decide") if is_lowered else ("float32", "float64 alone decides")
        reason = f"the reference's own {of} error is {_share(tensor)} of the tensor; {decides}"
        return element("skipped", message=reason)
    if tensor["passed"]:
        return None
    found = _take(findings, verdict, tensor["name"], tensor["dtype"])
    for one in accepted:
        if (one["finding"]["name"], one["finding"]["dtype"]) == (tensor["name"], tensor["dtype"]):
            return element("skipped", message=f"accepted: {one['why']}; {one['finding']['message']}")
    figures = (
        f"error {tensor['error']:.3g}, bound {tensor['bound']:.3g}; "
        f"largest {tensor['error_max']:.3g}, bound {tensor['bound_max']:.3g}; margin {tensor['margin']:.3g}"
    )
    return _failure(f"{found['message']}; {figures}" if found else figures, verdict)


def _share(tensor: Mapping[str, Any]) -> str:
    noise = tensor.get("noise_bfloat16", tensor["noise"])
    return f"{noise / tensor['rms']:.1e}" if tensor["rms"] else "more than all"


def _take(findings: list[dict[str, Any]], verdict: str, name: str, dtype: str) -> dict[str, Any] | None:
    """Remove a verdict's finding on a tensor from ``findings`` and return it, or None."""
    wanted = (verdict, name, dtype)
    for index, found in enumerate(findings):
        if (found["verdict"], found["name"], found["dtype"]) == wanted:
            return findings.pop(index)
    return None


def _failure(message: str | None, kind: str) -> Element | None:
    return element("failure", message=message, type=kind) if message else None
