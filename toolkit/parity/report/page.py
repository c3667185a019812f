"""``parity.html``: the outcome of a gate on a page that loads no other files, created only from ``parity.json``.

The page has the verdict, the curves of the error over depth, the findings, all tensors, and the conditions of the
measurement.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from toolkit.pages.elements import Section, hide_folders, name, render_macro, render_page, table
from toolkit.parity.followup.trace import describe_operation
from toolkit.parity.judge.culprit import is_of_part
from toolkit.parity.judge.findings import Finding
from toolkit.parity.report.curves import draw_error_chart, draw_margin_chart, points_of
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
MARGIN_CAPTION = (
    "Each row is a part of the comparison. The dot is the tensor that is farthest from R64, with its number at the "
    "right; the thick bar is the middle half of the tensors. Beyond the dashed line a tensor fails."
)
#: Heading of the section on single operations.
OPERATIONS = "Operation by operation, each on the reference's own input"
#: Pictures of errors: heading, title, the kinds of tensors that are drawn, and what comes before the first layer and
#: after the last one.
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
    culprit = content["culprit"]
    where = content["summary"].partition(": ")[2] if culprit is None else culprit["place"]
    what = culprit and (f"{culprit['verdict']} {culprit['dtype']}".strip(), hide_folders(culprit["headline"]))
    facts = [content["model"], content["head"], content["device"], ", ".join(content["dtypes"])]
    facts += [f"seed {content['seed']}", f"{content['seconds']['gate']:.1f} s"]
    facts += ["cached"] if content["cached"] else []
    tensors = sorted(content["tensors"], key=lambda tensor: (not tensor["informative"], -tensor["margin"]))
    sections = [
        *_summary(content["tensors"]),
        *training_section(content["training"]),
        *_curves(content["tensors"]),
        *_operations(content),
        *_findings(content),
        *_notes(content),
        _tensors(tensors),
        *_facts(content),
    ]
    return render_page(
        "parity/report/parity.html",
        title=f"{_verdict(content)}: {content['model']} {content['head']}, parity with the reference",
        verdict=_verdict(content),
        where=hide_folders(where),
        what=what,
        facts="; ".join(facts),
        sections=sections,
    )


def _verdict(content: Mapping[str, Any]) -> str:
    """Return the word for the result of the gate, by its exit status."""
    return {0: "PARITY", 1: "DRIFT", 3: "INCONCLUSIVE"}[content["exit_status"]]


def _summary(tensor_results: Sequence[Mapping[str, Any]]) -> Iterable[Section]:
    """Yield the section with the legend in words, and all distances over their bounds."""
    margins: dict[str, list[float]] = {}
    for heading, _, belongs, _ in CURVES:
        for tensor in tensor_results:
            if belongs(tensor["kind"]) and tensor["informative"]:
                part = heading.replace(":", " ").split()[0]
                margins.setdefault(f"{part}, {tensor['dtype']}", []).append(tensor["margin"])
    if margins:
        legend = render_macro("parity/report/elements.html", "legend_in_words")
        yield Section("Distance over bound", [legend, draw_margin_chart(margins), MARGIN_CAPTION])


def _curves(tensor_results: Sequence[Mapping[str, Any]]) -> Iterable[Section]:
    """Yield the sections with charts of the errors over the depth of the model."""
    sections = []
    for heading, title, belongs, outer in CURVES:
        if points := points_of(tensor for tensor in tensor_results if belongs(tensor["kind"])):
            ordered_points = points if outer[0] == "embedding" else points[::-1]
            sections.append(Section(heading, [draw_error_chart(ordered_points, title, outer)]))
    if sections:
        yield Section("Distance over depth", [CAPTION])
    yield from sections


def _operations(content: Mapping[str, Any]) -> Iterable[Section]:
    """Which operations are wrong by themselves."""
    trace = content["trace"]
    if trace is None:
        return
    if trace["problem"] is not None:
        yield Section(OPERATIONS, [f"Operation trace unavailable: {trace['problem']}."])
        return
    faulty = trace["faulty"]
    worst = f"; the worst of the others stands at {trace['worst']:.2g} of its bound"
    cause = _part_at_fault(content)
    follows = f", which may follow from {cause}" if faulty and cause else ""
    parts: list[Markup | str] = [
        f"{len(faulty)} of {trace['compared']} operations and gradients are wrong{follows}{worst}."
    ]
    if faulty and not cause:
        rows = [
            (name(describe_operation(op["name"])), op["dtype"], name(hide_folders(op["where"])), op["message"])
            for op in faulty
        ]
        titles = ("in the order of execution", "dtype", "line", "what")
        parts.append(table(titles, rows[:FINDINGS_SHOWN], class_="cards"))
    yield Section(OPERATIONS, parts)


def _part_at_fault(content: Mapping[str, Any]) -> str:
    """Return the name of the parameter or draw that is the culprit; empty if another finding is."""
    culprit = content["culprit"]
    if culprit is None:
        return ""
    finding = Finding(**{key: culprit[key] for key in ("verdict", "name", "message", "dtype")})
    return finding.name if is_of_part(finding) else ""


def _findings(content: Mapping[str, Any]) -> Iterable[Section]:
    """List the findings: the culprit, then those on no compared tensor, which the table below lacks."""
    if not content["findings"]:
        return
    compared_keys = {(tensor["name"], tensor["dtype"]) for tensor in content["tensors"]}
    culprit = content["culprit"]

    def sort_key(finding: Mapping[str, Any]) -> tuple[bool, bool]:
        return culprit is None or any(culprit[key] != value for key, value in finding.items()), (
            finding["name"],
            finding["dtype"],
        ) in compared_keys

    found = sorted(content["findings"], key=sort_key)
    rows = [(name(f["name"]), f["verdict"], f["dtype"], hide_folders(f["message"])) for f in found[:FINDINGS_SHOWN]]
    parts: list[Markup | str] = [table(("where", "verdict", "dtype", "what"), rows, class_="findings cards")]
    if len(found) > FINDINGS_SHOWN:
        parts.append(f"and {len(found) - FINDINGS_SHOWN} more, in the table of tensors and in parity.json")
    yield Section(f"Findings: {len(found)}", parts)


def _notes(content: Mapping[str, Any]) -> Iterable[Section]:
    """Yield the section with the notes of the report, if there are any."""
    notes = [*(note["text"] for note in content["notes"]), *_recomputing_notes(content)]
    if content["not_compared"]:
        notes.append(f"buffers that are not compared: {', '.join(content['not_compared'])}")
    if notes:
        yield Section("Notes", [render_macro("pages/elements.html", "bullets", map(hide_folders, notes))])


def _recomputing_notes(content: Mapping[str, Any]) -> Iterable[str]:
    """Yield a note on how far gradients of recomputed layers are from the gradients of plain autograd."""
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


def _tensors(tensor_results: Sequence[Mapping[str, Any]]) -> Section:
    """Return the section with all compared tensors, the largest margin first."""
    choices = {key: list(dict.fromkeys(tensor[key] for tensor in tensor_results)) for key in ("kind", "dtype")}
    choices["result"] = list(dict.fromkeys(_result(tensor) for tensor in tensor_results))
    rows = [(tensor, _result(tensor)) for tensor in tensor_results]
    explanation = "The margin is the error in units of its bound, the larger of RMS and maximum: above 1 it fails."
    compared = render_macro("parity/report/elements.html", "tensor_table", COLUMNS, choices, rows)
    return Section(f"Tensors compared: {len(tensor_results)}", [explanation, compared])


def _result(tensor_result: Mapping[str, Any]) -> str:
    """Return the word for a tensor's result: ``passed``, ``failed``, or that the dtype is noise."""
    if not tensor_result["informative"]:
        return "bfloat16 is noise" if tensor_result["dtype"] == "bfloat16" else "float32 is noise"
    return "passed" if tensor_result["passed"] else "failed"


def _facts(content: Mapping[str, Any]) -> Iterable[Section]:
    """Yield the sections with the conditions of the measurement."""
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
    tables = [
        table(("side", "seconds", "peak memory"), costs),
        table(("what", "value"), [(key, hide_folders(value)) for key, value in conditions]),
        table(("version of", *sides), [[hide_folders(cell) for cell in row] for row in rows]),
        table(("flag", "value"), [(key, hide_folders(str(value))) for key, value in content["flags"].items()]),
    ]
    yield Section("Measured with", [render_macro("pages/elements.html", "facts", tables)])
    config = hide_folders(json.dumps(content["config"], indent=1))
    yield Section("Configuration", [render_macro("pages/elements.html", "preformatted", config)])
    hashes = [(hide_folders(file), name(value)) for file, value in content["hashes"].items()]
    yield Section("SHA-256 of what both sides were given", [table(("file", "hash"), hashes)])


def _gigabytes(num_bytes: float | None) -> str:
    """Return a size in bytes as text in GB; empty for None."""
    return "" if num_bytes is None else f"{num_bytes / 1e9:.2f} GB"
