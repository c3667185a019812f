"""The outcome of a gate for a person on the terminal: the verdict first, then where."""

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
from toolkit.terminal.dotted import Dotted

FINDINGS_SHOWN = 8
NEAREST_SHOWN = 5
#: Text for kernels that are not the CPU's default.
OF_KERNELS = {kernels.PADDLE: "Paddle's own kernels", kernels.COMPILED: "compiled kernels"}


def print_report(report: Report, page: Path, console: Console, brief: bool = False) -> None:
    """Print the verdict, the place of a fault, the findings and a table of the nearest tensors of each dtype; if
    ``brief``, one line if the gate passes."""
    verdict = report.verdict
    if report.culprit is None:
        more = f"; {_brief(report, page)}" if brief and report.passed else ""
        print_verdict(console, "PARITY", "bold green", report.summary().partition(": ")[2] + more)
        if more:
            return
    elif verdict.inconclusive:
        _print_reference_faults(report, console)
    else:
        place, message = report.headline()
        print_verdict(console, "DRIFT", "bold red", place)
        verdict_in = f"{report.culprit.verdict} {report.culprit.dtype}".strip()
        say(console, f"{verdict_in}: {message}")
    cause = report.culprit.name if report.culprit is not None and is_of_part(report.culprit) else ""
    for line in trace.lines(report.trace, cause):
        say(console, line)
    if not (report.passed or verdict.inconclusive):
        _print_findings(report, console)
        for line in attribution.lines(report.attribution):
            say(console, line)
    console.print(_table(report))
    if rows := depth_rows(report.request.model, report.reference, report.candidate):
        console.print(depth_table(rows))
    for line in (*_recomputed_lines(report), *(f"note: {notes.text(note)}" for note in verdict.notes)):
        say(console, line)
    say(console, _facts(report))
    say(console, f"curves and all tensors: {_short_path(page)}")


def print_verdict(console: Console, word: str, style: str, text: str) -> None:
    """Print a line that begins with a word in colour, the rest as it is."""
    console.print(Text.assemble((word, style), f" {text}"), soft_wrap=True)


def say(console: Console, text: str) -> None:
    """Print an indented line without interpreting markup."""
    console.print(Text(f"  {text}"), soft_wrap=True)


def _short_path(path: Path) -> Path:
    """Relative to the working folder if inside."""
    path = path.resolve()
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path


def _print_reference_faults(report: Report, console: Console) -> None:
    verdict = report.verdict
    first, *others = verdict.reference_faults or verdict.findings
    title = f"{first.message}: {first.name}"
    print_verdict(console, "INCONCLUSIVE", "bold yellow", title)
    for fault in others:
        say(console, f"also {fault.message}: {fault.name}")
    if verdict.reference_faults:
        what = f"{len(verdict.findings)} comparisons with it fail, and say nothing about the port; all are in"
        say(console, f"{what} parity.json")
    elif any(one.informative and one.passed for one in verdict.comparisons):
        counts = {dtype: sum(c.dtype == dtype for c in verdict.comparisons) for dtype in report.request.dtypes}
        compared = ", ".join(f"{count} in {dtype}" for dtype, count in counts.items())
        say(console, f"where the reference is finite, the port agrees with it: {compared}")


def _print_findings(report: Report, console: Console) -> None:
    others = [finding for finding in report.verdict.findings if finding is not report.culprit]
    if report.culprit is not None and is_of_part(report.culprit):
        parts = [finding for finding in others if is_of_part(finding)]
        if len(others) > len(parts):
            say(console, f"{len(others) - len(parts)} findings may follow from it; all are in parity.json")
        others = parts
    for finding in others[:FINDINGS_SHOWN]:
        dtype = f" {finding.dtype}" if finding.dtype else ""
        say(console, f"also {finding.verdict}{dtype}: {short_name(finding.name)}: {finding.message}")
    if len(others) > FINDINGS_SHOWN:
        say(console, f"and {len(others) - FINDINGS_SHOWN} more, in parity.json")


def _table(report: Report) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("tensor, nearest its bound first")
    for title in ("dtype", "error / size", "error / bound"):
        table.add_column(title, justify="right", no_wrap=True)
    for dtype in report.request.dtypes:
        for row in report.verdict.nearest(dtype, NEAREST_SHOWN):
            figures = (dtype, f"{row.relative:.1e}", f"{row.margin:.2g}")
            table.add_row(Dotted(short_name(row.name)), *figures, style="" if row.passed else "red")
    return table


def _recomputed_lines(report: Report) -> list[str]:
    """Largest distance of the port's recomputing backward from plain autograd, and of the reference's if asked."""
    lines = []
    theirs, what = report.reference.own_backward, family(report.request.model).recomputed
    for dtype in report.candidate.dtypes:
        errors = [one.relative for one in report.verdict.recomputed if one.dtype == dtype]
        if not (errors and what):
            continue
        worst = max(errors)
        text = f"{what}, {dtype}: the port's gradients within {worst:.1e}"
        if dtype in theirs:
            text += f", the reference's own within {max(theirs[dtype].values()):.1e}"
        lines.append(f"{text} of plain autograd's")
    return lines


def _brief(report: Report, page: Path) -> str:
    """The rest of the line of a gate that passes: how near the bounds it came, how long it took, how much it notes."""
    nearest = [row.margin for dtype in report.request.dtypes for row in report.verdict.nearest(dtype, 1)]
    count = len(report.verdict.notes)
    parts = [
        f"largest difference {max(nearest):.2g} of its bound" if nearest else "",
        _time(report),
        f"{count} note{'s' * (count > 1)}: {_short_path(page)}" if count else "",
    ]
    return "; ".join(part for part in parts if part)


def _time(report: Report) -> str:
    return f"{report.seconds:.1f} s" + (", cached" if report.cached else "")


def _facts(report: Report) -> str:
    flags = report.candidate.execution.flags
    versions = {**report.candidate.execution.versions, **report.reference.execution.versions}
    paddle = versions.get("paddlepaddle") or versions.get("paddlepaddle-gpu")
    given = ", ".join(f"{name} {version}" for name, version in report.candidate.execution.versions.items())
    port = f"paddle {paddle}" if paddle else given or "saved tensors"
    texts = len(report.reference.tokens or [])
    parts = [
        f"{port} against torch {versions['torch']}, transformers {versions['transformers']}",
        f"checkpoint {report.request.origin}" if report.request.origin else "",
        f"{report.request.device}",
        OF_KERNELS.get(flags.get(kernels.VARIABLE, ""), ""),
        f"{texts} texts tokenized alike" if texts and report.passed else "",
        f"{report.randomized} constant parameters randomized" if report.randomized else "",
        _time(report),
    ]
    return "; ".join(part for part in parts if part)
