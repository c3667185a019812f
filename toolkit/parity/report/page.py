"""``parity.html``: the outcome of a gate on a page that loads no other files, created only from ``parity.json``.

The page has the verdict, the curves of the error over depth, the findings, all tensors, and the conditions of the
measurement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from xml.etree.ElementTree import Element

from toolkit.pages.document import document, name, scrolled, table
from toolkit.pages.markup import element
from toolkit.parity.followup.trace import describe_operation
from toolkit.parity.judge.culprit import is_of_part
from toolkit.parity.judge.findings import Finding
from toolkit.parity.report.assets import SCRIPT, STYLE
from toolkit.parity.report.curves import SERIES, Point, draw_chart, points_of
from toolkit.parity.report.json import with_infinities
from toolkit.parity.report.training import training_section

#: Largest number of findings to show: after an early drift, nearly each tensor is a finding.
FINDINGS_SHOWN = 200
CAPTION = (
    "RMS of the distance from R64, the reference in float64, over the RMS of the tensor. A right port has P32 near R32 "
    "and P64 below the dotted line: R32 times what float64 is finer, with a margin. Hollow marks: tensors that are "
    "noise in float32, such as gradients that are 0 by cancellation. Full red marks: beyond the bound. Point at a "
    "place to see the tensor's name."
)
#: Charts of errors: heading, title, test of the kinds of tensors to draw, and labels before the first layer and after
#: the last layer.
CURVES: tuple[tuple[str, str, Callable[[str], bool], tuple[str, str]], ...] = (
    (
        "Forward: every module's output in execution order",
        "Errors of the outputs over the layers",
        ("output", "stream", "logits", "start_logits", "end_logits", "loss").__contains__,
        ("embedding", "head"),
    ),
    (
        "Backward: every gradient from the last layer to the first",
        "Errors of the gradients over the layers",
        "gradient".__eq__,
        ("head", "embedding"),
    ),
    (
        "Evaluation mode: every output on the batch, on shorter ones, without padding, and with a cache",
        "Errors of the outputs in evaluation mode",
        lambda kind: "/" in kind,
        ("embedding", "head"),
    ),
    (
        "Training: every parameter after each update, learning rates, and the loss that follows",
        "Errors of the parameters after the updates",
        ("trained", "accumulated", "updated", "moment", "updated loss", "learning_rate").__contains__,
        ("embedding", "head"),
    ),
)
#: Columns of the table of tensors: title and order of sorting.
COLUMNS = (
    ("tensor", "text"),
    ("kind", "text"),
    ("dtype", "text"),
    ("RMS error", "number"),
    ("its bound", "number"),
    ("largest error", "number"),
    ("its bound", "number"),
    ("error / size", "number"),
    ("margin", "number"),
    ("result", "text"),
)


def build_page(content: Mapping[str, Any]) -> str:
    """Return the HTML of the page."""
    content = with_infinities(content)
    title = f"{_verdict(content)}: {content['model']} {content['head']}, parity with the reference"
    body = element(
        "body",
        _header(content),
        element(
            "main",
            *training_section(content["training"]),
            *_curves(content["tensors"]),
            *_operations(content),
            *_findings(content),
            *_notes(content),
            *_tensors(content),
        ),
        element("footer", *_facts(content)),
        element("script", SCRIPT),
    )
    return document(title, STYLE, body)


def _verdict(content: Mapping[str, Any]) -> str:
    return {0: "PARITY", 1: "DRIFT", 3: "INCONCLUSIVE"}[content["exit_status"]]


def _header(content: Mapping[str, Any]) -> Element:
    """Return the header with the verdict and the place at fault, in the words of the terminal."""
    culprit = content["culprit"]
    place = content["summary"].partition(": ")[2] if culprit is None else culprit["place"]
    finding = None
    if culprit is not None:
        finding = element(
            "p", element("strong", f"{culprit['verdict']} {culprit['dtype']}".strip()), f": {culprit['headline']}"
        )
    facts = [content["model"], content["head"], content["device"], ", ".join(content["dtypes"])]
    facts += [f"seed {content['seed']}", f"{content['seconds']['gate']:.1f} s"]
    facts += ["cached"] if content["cached"] else []
    return element(
        "header",
        element("h1", element("span", _verdict(content), class_="verdict"), f" {place}"),
        finding,
        element("p", "; ".join(facts), class_="soft"),
        class_=_verdict(content).lower(),
    )


def _curves(tensors: Sequence[Mapping[str, Any]]) -> Iterable[Element]:
    points_by_curve = [
        points_of(tensor for tensor in tensors if belongs(tensor["kind"])) for _, _, belongs, _ in CURVES
    ]
    for (heading, title, _, outer), points in zip(CURVES, points_by_curve, strict=True):
        if points:
            yield element("h2", heading)
            yield _figure(points if outer[0] == "embedding" else points[::-1], title, outer)
    if any(points_by_curve):
        yield element("p", CAPTION, class_="soft")


def _figure(points: Sequence[Point], title: str, outer: tuple[str, str]) -> Element:
    series_names = {series for point in points for series in point.errors}
    legend = element("ul", *(_legend(series) for series in SERIES if series in series_names), class_="legend")
    return element("figure", legend, element("div", draw_chart(points, title, outer), class_="wide"))


def _legend(series: str) -> Element:
    line = element("path", d="M1 5H35", class_=f"curve {series}")
    return element("li", element("svg", line, viewBox="0 0 36 10", aria_hidden="true"), SERIES[series])


def _operations(content: Mapping[str, Any]) -> Iterable[Element]:
    """Yield the section on the operations that are wrong in isolation."""
    trace = content["trace"]
    if trace is None:
        return
    yield element("h2", "Operation by operation, each on the reference's own input")
    if trace["problem"] is not None:
        yield element("p", f"Operation trace unavailable: {trace['problem']}.")
        return
    faulty = trace["faulty"]
    worst = f"; the worst of the others stands at {trace['worst']:.2g} of its bound"
    cause = _part_at_fault(content)
    follows = f", which may follow from {cause}" if faulty and cause else ""
    yield element("p", f"{len(faulty)} of {trace['compared']} operations and gradients are wrong{follows}{worst}.")
    if faulty and not cause:
        rows = [(name(describe_operation(op["name"])), op["dtype"], name(op["where"]), op["message"]) for op in faulty]
        yield table(("in the order of execution", "dtype", "line", "what"), rows[:FINDINGS_SHOWN])


def _part_at_fault(content: Mapping[str, Any]) -> str:
    """Return the name of the parameter or draw that is the culprit; empty if another finding is."""
    culprit = content["culprit"]
    if culprit is None:
        return ""
    finding = Finding(**{key: culprit[key] for key in ("verdict", "name", "message", "dtype")})
    return finding.name if is_of_part(finding) else ""


def _findings(content: Mapping[str, Any]) -> Iterable[Element]:
    """Yield the section of findings: the culprit, then findings that the table of tensors lacks, then all others."""
    if not content["findings"]:
        return
    compared_keys = {(tensor["name"], tensor["dtype"]) for tensor in content["tensors"]}
    culprit = content["culprit"]

    def sort_key(finding: Mapping[str, Any]) -> tuple[bool, bool]:
        return culprit is None or any(culprit[key] != value for key, value in finding.items()), (
            finding["name"],
            finding["dtype"],
        ) in compared_keys

    findings = sorted(content["findings"], key=sort_key)
    rows = [
        (name(finding["name"]), finding["verdict"], finding["dtype"], finding["message"])
        for finding in findings[:FINDINGS_SHOWN]
    ]
    yield element("h2", f"Findings: {len(findings)}", id="findings")
    yield scrolled(table(("where", "verdict", "dtype", "what"), rows, class_="findings"), "findings")
    if len(findings) > FINDINGS_SHOWN:
        yield element("p", f"and {len(findings) - FINDINGS_SHOWN} more, in the table of tensors and in parity.json")


def _notes(content: Mapping[str, Any]) -> Iterable[Element]:
    notes = [*(note["text"] for note in content["notes"]), *_recomputing_notes(content)]
    if content["not_compared"]:
        notes.append(f"buffers that are not compared: {', '.join(content['not_compared'])}")
    if notes:
        yield element("h2", "Notes")
        yield element("ul", *(element("li", note) for note in notes))


def _recomputing_notes(content: Mapping[str, Any]) -> Iterable[str]:
    sides = {"the port's": content["recomputed"], "the reference's own": content["reference_own_backward"]}
    for side, by_dtype in sides.items():
        for dtype, errors in by_dtype.items():
            if errors:
                worst = max(errors, key=errors.get)
                place = f" ({worst})" if errors[worst] else ""
                yield (
                    f"{dtype}: the gradients of {side} backward that computes layers again lie within "
                    f"{errors[worst]:.1e} of plain autograd's{place}"
                )


def _tensors(content: Mapping[str, Any]) -> Iterable[Element]:
    """Yield the table of all compared tensors, in descending order of their margins."""
    tensors = sorted(content["tensors"], key=lambda tensor: (not tensor["informative"], -tensor["margin"]))
    choices = {key: dict.fromkeys(tensor[key] for tensor in tensors) for key in ("kind", "dtype")}
    choices["result"] = dict.fromkeys(_result(tensor) for tensor in tensors)
    heads = [
        element("th", element("button", title, type="button"), scope="col", data_sort=sort) for title, sort in COLUMNS
    ]
    heads[8].set("aria-sort", "descending")
    rows = [_row(tensor) for tensor in tensors]
    tensor_table = element("table", element("thead", element("tr", *heads)), element("tbody", *rows), id="tensors")
    yield element("h2", f"Tensors compared: {len(tensors)}", id="compared")
    yield element(
        "p", "The margin is the error in units of its bound, the larger of RMS and maximum: above 1 it fails."
    )
    yield _controls(choices)
    yield scrolled(tensor_table, "compared", "scroll")


def _row(tensor: Mapping[str, Any]) -> Element:
    figures = (tensor[key] for key in ("error", "bound", "error_max", "bound_max", "relative"))
    cells = [tensor["kind"], tensor["dtype"], *(f"{figure:.2e}" for figure in figures), f"{tensor['margin']:.3g}"]
    result = _result(tensor)
    style = {"failed": "failed-row", "passed": None}.get(result, "skipped-row")
    name = element("th", tensor["name"], scope="row", class_="name")
    row = element("tr", name, *(element("td", cell) for cell in [*cells, result]), class_=style)
    row.tail = "\n"
    return row


def _result(tensor: Mapping[str, Any]) -> str:
    if not tensor["informative"]:
        return "bfloat16 is noise" if tensor["dtype"] == "bfloat16" else "float32 is noise"
    return "passed" if tensor["passed"] else "failed"


def _controls(choices: Mapping[str, Iterable[str]]) -> Element:
    controls = [element("label", "name has ", element("input", type="search", name="text"))]
    for key, values in choices.items():
        options = [element("option", value) for value in values]
        select = element("select", element("option", "all", value=""), *options, name=key)
        controls.append(element("label", f"{key} ", select))
    return element("form", *controls, element("output", name="count"))


def _facts(content: Mapping[str, Any]) -> Iterable[Element]:
    """Yield the conditions of the measurement."""
    versions = content["versions"]
    names = dict.fromkeys(name for side in versions.values() for name in side)
    sides = list(versions)
    rows = [(name, *(versions[side].get(name, "") for side in sides)) for name in names]
    workers = [side for side in content["seconds"] if side != "gate"]
    costs = [(side, f"{content['seconds'][side]:.1f}", _gigabytes(content["peak_bytes"].get(side))) for side in workers]
    costs.append(("gate, in all", f"{content['seconds']['gate']:.1f}", ""))
    conditions = [
        *([("checkpoint", content["checkpoint"])] if content.get("checkpoint") else []),
        ("seed", str(content["seed"])),
        ("device", content["device"]),
        ("constant parameters randomized", str(content["randomized_parameters"])),
        ("texts tokenized", str(content["texts_tokenized"])),
        ("measurements", "of an earlier, equal gate" if content["cached"] else "of this gate"),
        ("schema of parity.json", str(content["schema"])),
    ]
    yield element("h2", "Measured with")
    yield element(
        "div",
        table(("side", "seconds", "peak memory"), costs),
        table(("what", "value"), conditions),
        table(("version of", *sides), rows),
        table(("flag", "value"), [(name, str(value)) for name, value in content["flags"].items()]),
        class_="facts",
    )
    yield element("h2", "Configuration")
    yield element("pre", json.dumps(content["config"], indent=1))
    hashes = [(file, name(value)) for file, value in content["hashes"].items()]
    yield element("h2", "SHA-256 of what both sides were given")
    yield table(("file", "hash"), hashes)


def _gigabytes(num_bytes: float | None) -> str:
    return "" if num_bytes is None else f"{num_bytes / 1e9:.2f} GB"
