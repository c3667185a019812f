"""The outcome of a gate: for a person on the terminal (the verdict first, then where), for machines as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolkit.parity.followup import attribution, trace
from toolkit.parity.job.request import GateRequest
from toolkit.parity.judge.bounds import Comparison, is_measured
from toolkit.parity.judge.verdict import Finding, Verdict
from toolkit.parity.report.depth import depth_rows, depth_table

#: Of ``parity.json``. 2: each tensor has ``kind``, ``rms`` and ``noise`` (see :func:`as_json`); 1 had not.
REPORT_SCHEMA = 2
#: The report for a person, beside ``parity.json``.
PAGE = "parity.html"
FINDINGS_SHOWN = 8
WORST_SHOWN = 5


@dataclass
class Report:
    """The outcome of a gate. ``parity.json`` holds the same.

    Attributes:
        verdict: what was compared, what was found.
        culprit: the finding nearest to the cause, None where all passed.
        places: for each module of the port, its class and source line.
        cached: whether the measurements are those of an earlier, equal gate.
        attribution: what the reference's kernels restore, kind by kind, where float32 alone drifts.
        trace: which operations are wrong by themselves (see :func:`.trace.follow`).
    """

    request: GateRequest
    verdict: Verdict
    culprit: Finding | None
    places: Mapping[str, Mapping[str, str]]
    reference: Mapping[str, Any]
    candidate: Mapping[str, Any]
    stirred: int
    seconds: float
    hashes: Mapping[str, str] = field(default_factory=dict)
    cached: bool = False
    attribution: Sequence[Mapping[str, Any]] = ()
    trace: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return self.verdict.passed

    @property
    def exit_status(self) -> int:
        return 0 if self.passed else 3 if self.verdict.inconclusive else 1

    def culprit_place(self) -> str:
        """The module at fault with its class and source line, as far as one can be named."""
        if self.culprit is None:
            return ""
        if self.culprit.verdict == "reference":
            return self.culprit.name
        module = self.culprit.name.partition(":")[2].split("#")[0].split("@")[0]
        while module and module not in self.places:
            module = module.rpartition(".")[0]
        place = self.places.get(module)
        return f"{module} ({place['class']}, {place['where']})" if place else self.culprit.name

    def summary(self) -> str:
        """One line: the verdict, and where it fails."""
        if self.passed:
            counted = len(self.verdict.comparisons)
            return f"parity: {counted} tensors of the port agree with the reference ({', '.join(self.request.dtypes)})"
        if self.verdict.inconclusive:
            return f"inconclusive: {self.culprit.message}: {self.culprit.name}"
        return f"drift: {self.culprit.verdict}: {self.culprit_place()}: {self.culprit.message}"


def print_report(report: Report, page: Path, console: Console) -> None:
    """Print the verdict, the place of a fault, the findings and a table of the nearest tensors of each dtype.

    Args:
        page: where all of it can be looked at.
    """
    verdict = report.verdict
    if report.passed:
        console.print(f"[bold green]PARITY[/] {escape(report.summary().partition(': ')[2])}", highlight=False)
    elif verdict.inconclusive:
        _print_reference_faults(report, console)
    else:
        console.print(f"[bold red]DRIFT[/] {escape(report.culprit_place())}", highlight=False, soft_wrap=True)
        _say(console, f"{report.culprit.verdict} {report.culprit.dtype}: {report.culprit.message}")
    for line in trace.lines(report.trace):
        _say(console, line)
    if not (report.passed or verdict.inconclusive):
        _print_findings(report, console)
        for line in attribution.lines(report.attribution):
            _say(console, line)
    console.print(_table(report))
    if rows := depth_rows(report.reference, report.candidate):
        console.print(depth_table(rows))
    for line in _recomputed_lines(report):
        _say(console, line)
    for note in summarise_notes(verdict.notes):
        _say(console, f"note: {note}")
    _say(console, _facts(report))
    _say(console, f"curves and all tensors: {_short_path(page)}")


def _short_path(path: Path) -> Path:
    """From where the user is, if it lies below."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _say(console: Console, text: str) -> None:
    console.print(f"  {escape(text)}", highlight=False, soft_wrap=True)


def _print_reference_faults(report: Report, console: Console) -> None:
    verdict = report.verdict
    first, *others = verdict.reference_faults or verdict.findings
    title = f"{first.message}: {first.name}"
    console.print(f"[bold yellow]INCONCLUSIVE[/] {escape(title)}", highlight=False, soft_wrap=True)
    for fault in others:
        _say(console, f"also {fault.message}: {fault.name}")
    if verdict.reference_faults:
        what = f"{len(verdict.findings)} comparisons with it fail, and say nothing about the port; all are in"
        _say(console, f"{what} parity.json")
    else:
        counts = {dtype: sum(c.dtype == dtype for c in verdict.comparisons) for dtype in report.request.dtypes}
        compared = ", ".join(f"{count} in {dtype}" for dtype, count in counts.items())
        _say(console, f"where the reference is finite, the port agrees with it: {compared}")


def _print_findings(report: Report, console: Console) -> None:
    others = [finding for finding in report.verdict.findings if finding is not report.culprit]
    for finding in others[:FINDINGS_SHOWN]:
        dtype = f" {finding.dtype}" if finding.dtype else ""
        _say(console, f"also {finding.verdict}{dtype}: {short_name(finding.name)}: {finding.message}")
    if len(others) > FINDINGS_SHOWN:
        _say(console, f"and {len(others) - FINDINGS_SHOWN} more, in parity.json")


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tensor, nearest its bound first", overflow="fold")
    for title in ("dtype", "error / size", "error / bound"):
        table.add_column(title, justify="right", no_wrap=True)
    for dtype in report.request.dtypes:
        for row in report.verdict.worst(dtype, WORST_SHOWN):
            figures = (dtype, f"{row.relative:.1e}", f"{row.margin:.2g}")
            table.add_row(escape(short_name(row.name)), *figures, style="" if row.passed else "red")
    return table


def short_name(name: str) -> str:
    """A tensor's name without what all of them share."""
    return name.replace("reformer.encoder.layers.", "layers.").replace("reformer.", "").replace("transformer.", "")


def _recomputed_lines(report: Report) -> list[str]:
    """How far backwards that compute layers again lie from plain autograd at the worst: the port's, the reference's if
    asked."""
    lines = []
    theirs = report.reference["own_backward"]
    what = {"reformer": "reversible backward", "ctrl": "recomputed layers"}[report.request.model]
    for dtype, ours in report.candidate["dtypes"].items():
        if not ours["recomputed"]:
            continue
        text = f"{what}, {dtype}: the port's gradients within {max(ours['recomputed'].values()):.1e}"
        if dtype in theirs:
            text += f", the reference's own within {max(theirs[dtype].values()):.1e}"
        lines.append(f"{text} of plain autograd's")
    return lines


def summarise_notes(notes: list[str]) -> list[str]:
    """The notes, with those that say the same of many tensors joined into one."""
    silent = [note.split(":")[1] for note in notes if "carries no information" in note]
    rest = [note for note in notes if "carries no information" not in note]
    if silent:
        rest.append(
            f"float32 carries no information in {len(silent)} tensors (the reference's own error exceeds a tenth of "
            f"them), the first of them {silent[0].strip()}; there float64 alone decided"
        )
    return rest


def _facts(report: Report) -> str:
    versions = {**report.candidate["versions"], **report.reference["versions"]}
    paddle = versions.get("paddlepaddle") or versions.get("paddlepaddle-gpu")
    texts = len(report.reference["tokens"] or [])
    parts = [
        f"paddle {paddle} against torch {versions['torch']}, transformers {versions['transformers']}",
        f"{report.request.device}",
        f"{texts} texts tokenized alike" if texts and report.passed else "",
        f"{report.stirred} constant parameters stirred" if report.stirred else "",
        f"{report.seconds:.1f} s" + (", as measured before" if report.cached else ""),
    ]
    return "; ".join(part for part in parts if part)


def as_json(report: Report) -> dict[str, Any]:
    """The content of ``parity.json``, by the schema :data:`REPORT_SCHEMA`.

    ``tensors`` has a record per tensor and dtype, float64 first, each in the order in which the reference computes them
    (gradients: in the order of the parameters): what :class:`.bounds.Comparison` has, whether it ``passed``, its
    ``margin``, and

    - ``kind``: output, stream, gradient, logits, loss, ...;
    - ``rms``: RMS of R64;
    - ``noise``: err(R32), RMS, the largest of the reference's float32 runs, whatever the record's dtype; null where one
      of them is not finite.

    ``page`` and ``junit`` need nothing but this content.
    """
    verdict = report.verdict
    return {
        "schema": REPORT_SCHEMA,
        "passed": report.passed,
        "exit_status": report.exit_status,
        "summary": report.summary(),
        "culprit": None if report.culprit is None else {**vars(report.culprit), "place": report.culprit_place()},
        "model": report.request.model,
        "head": report.request.head,
        "config": dict(report.request.config),
        "device": report.request.device,
        "dtypes": list(report.request.dtypes),
        "seed": report.request.seed,
        "stirred_parameters": report.stirred,
        "findings": [vars(finding) for finding in verdict.findings],
        "reference_faults": [vars(fault) for fault in verdict.reference_faults],
        "notes": verdict.notes,
        "attribution": [dict(substitution) for substitution in report.attribution],
        "trace": dict(report.trace),
        "depth": depth_rows(report.reference, report.candidate),
        "tensors": [_tensor(comparison, report.reference) for comparison in verdict.comparisons],
        "recomputed": {dtype: ours["recomputed"] for dtype, ours in report.candidate["dtypes"].items()},
        "reference_own_backward": report.reference["own_backward"],
        "generators": report.candidate.get("generators", {}),
        "not_compared": report.reference["buffers"],
        "texts_tokenized": len(report.reference["tokens"] or []),
        "versions": {"reference": report.reference["versions"], "candidate": report.candidate["versions"]},
        "flags": report.candidate["flags"],
        "seconds": {
            "gate": report.seconds,
            "reference": report.reference["seconds"],
            "candidate": report.candidate["seconds"],
        },
        "peak_bytes": {"reference": report.reference["peak_bytes"], "candidate": report.candidate["peak_bytes"]},
        "hashes": dict(report.hashes),
        "cached": report.cached,
    }


def _tensor(comparison: Comparison, reference: Mapping[str, Any]) -> dict[str, Any]:
    theirs = reference["tensors"][comparison.name]
    return {
        **vars(comparison),
        "kind": comparison.name.partition(":")[0],
        "rms": theirs["rms"],
        "noise": max(theirs["noise"]["float32"]) if is_measured(theirs, "float32") else None,
        "passed": comparison.passed,
        "margin": comparison.margin,
    }
