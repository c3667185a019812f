"""The outcome of a gate on the terminal: the verdict, then the place at fault."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from models.operations import kernels
from toolkit.parity.followup import attribution, trace
from toolkit.parity.job.family import family
from toolkit.parity.judge import notes
from toolkit.parity.judge.culprit import is_of_part
from toolkit.parity.report.depth import depth_rows, depth_table
from toolkit.parity.report.report import Report, short_name
from toolkit.terminal.dotted_text import DottedText

FINDINGS_SHOWN = 8
NEAREST_SHOWN = 5
#: Text for kernels that are not the CPU's default.
KERNEL_TEXTS = {kernels.PADDLE: "Paddle's own kernels", kernels.COMPILED: "compiled kernels"}


def print_report(report: Report, page: Path, console: Console, *, is_brief: bool = False) -> None:
    """Print the verdict, the place at fault, the findings and a table of the tensors nearest to their bounds.

    Args:
        report: outcome of the gate.
        page: path of the HTML page.
        console: the terminal.
        is_brief: whether a gate that passes is reported in a single line.
    """
    verdict = report.verdict
    if report.culprit is None:
        details = f"; {_describe_pass(report, page)}" if is_brief and report.passed else ""
        print_verdict(console, "PARITY", "bold green", report.summary().partition(": ")[2] + details)
        if details:
            return
    elif verdict.inconclusive:
        _print_reference_faults(report, console)
    else:
        place, message = report.headline()
        print_verdict(console, "DRIFT", "bold red", place)
        verdict_in = f"{report.culprit.verdict} {report.culprit.dtype}".strip()
        print_line(console, f"{verdict_in}: {message}")
    cause = report.culprit.name if report.culprit is not None and is_of_part(report.culprit) else ""
    for line in trace.describe_trace(report.trace, cause):
        print_line(console, line)
    if not (report.passed or verdict.inconclusive):
        _print_findings(report, console)
        for line in attribution.describe_substitutions(report.attribution):
            print_line(console, line)
    console.print(_build_table(report))
    if rows := depth_rows(report.request.model, report.reference, report.candidate):
        console.print(depth_table(rows))
    for line in (*_recomputed_lines(report), *(f"note: {notes.text(note)}" for note in verdict.notes)):
        print_line(console, line)
    print_line(console, _describe_conditions(report))
    print_line(console, f"curves and all tensors: {_short_path(page)}")


def print_verdict(console: Console, word: str, style: str, text: str) -> None:
    """Print a word in a style, and a text in the same line."""
    console.print(Text.assemble((word, style), f" {text}"), soft_wrap=True)


def print_line(console: Console, text: str) -> None:
    """Print an indented line without interpreting markup."""
    console.print(Text(f"  {text}"), soft_wrap=True)


def _short_path(path: Path) -> Path:
    """Return a path relative to the working folder if it is inside, otherwise the absolute path."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _print_reference_faults(report: Report, console: Console) -> None:
    """Print why the gate is inconclusive: faults of the reference, and comparisons that cannot be judged."""
    verdict = report.verdict
    first, *others = verdict.reference_faults or verdict.findings
    title = f"{first.message}: {first.name}"
    print_verdict(console, "INCONCLUSIVE", "bold yellow", title)
    for fault in others:
        print_line(console, f"also {fault.message}: {fault.name}")
    if verdict.reference_faults:
        failed_text = f"{len(verdict.findings)} comparisons with it fail, and say nothing about the port; all are in"
        print_line(console, f"{failed_text} parity.json")
    elif any(comparison.informative and comparison.passed for comparison in verdict.comparisons):
        counts = {dtype: sum(c.dtype == dtype for c in verdict.comparisons) for dtype in report.request.dtypes}
        counts_text = ", ".join(f"{count} in {dtype}" for dtype, count in counts.items())
        print_line(console, f"where the reference is finite, the port agrees with it: {counts_text}")


def _print_findings(report: Report, console: Console) -> None:
    """Print the first findings next to the culprit, and the number of all others."""
    others = [finding for finding in report.verdict.findings if finding is not report.culprit]
    if report.culprit is not None and is_of_part(report.culprit):
        parts = [finding for finding in others if is_of_part(finding)]
        if len(others) > len(parts):
            print_line(console, f"{len(others) - len(parts)} findings may follow from it; all are in parity.json")
        others = parts
    for finding in others[:FINDINGS_SHOWN]:
        dtype = f" {finding.dtype}" if finding.dtype else ""
        print_line(console, f"also {finding.verdict}{dtype}: {short_name(finding.name)}: {finding.message}")
    if len(others) > FINDINGS_SHOWN:
        print_line(console, f"and {len(others) - FINDINGS_SHOWN} more, in parity.json")


def _build_table(report: Report) -> Table:
    """Return a table of the tensors that are nearest to their bounds, in each dtype."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tensor, nearest its bound first")
    for title in ("dtype", "error / size", "error / bound"):
        table.add_column(title, justify="right", no_wrap=True)
    for dtype in report.request.dtypes:
        for row in report.verdict.nearest(dtype, NEAREST_SHOWN):
            figures = (dtype, f"{row.relative:.1e}", f"{row.margin:.2g}")
            table.add_row(DottedText(short_name(row.name)), *figures, style="" if row.passed else "red")
    return table


def _recomputed_lines(report: Report) -> list[str]:
    """Return lines with the largest distance of each recomputing backward from plain autograd."""
    lines = []
    theirs, method = report.reference.own_backward, family(report.request.model).recomputed_parts
    for dtype in report.candidate.dtypes:
        errors = [comparison.relative for comparison in report.verdict.recomputed if comparison.dtype == dtype]
        if not (errors and method):
            continue
        worst = max(errors)
        text = f"{method}, {dtype}: the port's gradients within {worst:.1e}"
        if dtype in theirs:
            text += f", the reference's own within {max(theirs[dtype].values()):.1e}"
        lines.append(f"{text} of plain autograd's")
    return lines


def _describe_pass(report: Report, page: Path) -> str:
    """Return the largest margin, the duration and the number of notes of a gate that passes.

    Args:
        report: result of the gate.
        page: path of the HTML page.
    """
    nearest = [row.margin for dtype in report.request.dtypes for row in report.verdict.nearest(dtype, 1)]
    count = len(report.verdict.notes)
    parts = [
        f"largest difference {max(nearest):.2g} of its bound" if nearest else "",
        _describe_time(report),
        f"{count} note{'s' * (count > 1)}: {_short_path(page)}" if count else "",
    ]
    return "; ".join(part for part in parts if part)


def _describe_time(report: Report) -> str:
    """Return the duration of the gate in seconds, and whether cached results were used."""
    return f"{report.seconds:.1f} s" + (", cached" if report.cached else "")


def _describe_conditions(report: Report) -> str:
    """Return in one line the versions, device, kernels and duration of the gate."""
    flags = report.candidate.execution.flags
    versions = {**report.candidate.execution.versions, **report.reference.execution.versions}
    paddle = versions.get("paddlepaddle") or versions.get("paddlepaddle-gpu")
    package_text = ", ".join(f"{name} {version}" for name, version in report.candidate.execution.versions.items())
    port = f"paddle {paddle}" if paddle else package_text or "saved tensors"
    num_texts = len(report.reference.tokens or [])
    parts = [
        f"{port} against torch {versions['torch']}, transformers {versions['transformers']}",
        f"checkpoint {report.request.origin}" if report.request.origin else "",
        f"{report.request.device}",
        KERNEL_TEXTS.get(flags.get(kernels.VARIABLE, ""), ""),
        f"{num_texts} texts tokenized alike" if num_texts and report.passed else "",
        f"{report.randomized} constant parameters randomized" if report.randomized else "",
        _describe_time(report),
    ]
    return "; ".join(part for part in parts if part)
