"""The gate on trial: every fault of the catalogue must be caught and named, every harmless one let pass."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from toolkit.parity import bundle
from toolkit.parity.gate import GateRequest, run_workers, write_job
from toolkit.parity.mutants import REFORMER, Mutant
from toolkit.parity.report import short_name
from toolkit.parity.verdict import first_at_fault, judge


@dataclass(frozen=True)
class Trial:
    """What the gate made of one mutant.

    Attributes:
        caught: whether anything was found.
        culprit: what it named, empty where nothing was found.
        verdict: by which verdict.
        margin: the culprit's error in units of its bound; None where it is no matter of size.
    """

    mutant: Mutant
    caught: bool
    culprit: str
    verdict: str
    margin: float | None

    @property
    def named(self) -> bool:
        return self.mutant.expected in self.culprit

    @property
    def passed(self) -> bool:
        """A fault must be caught and named; a harmless change must not be caught."""
        return not self.caught if self.mutant.harmless else self.caught and self.named


def try_mutants(request: GateRequest, console: Console, names: Sequence[str] | None = None) -> list[Trial]:
    """Run the gate once for each mutant of the catalogue (or those of ``names``), all on the same reference run."""
    mutants = [mutant for mutant in REFORMER if names is None or mutant.name in names]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        job = Path(scratch)
        write_job(request, request.weights, job, [mutant.name for mutant in mutants])
        run_workers(job, console)
        reference = bundle.read_json(job / "reference" / "result.json")
        candidate = bundle.read_json(job / "candidate" / "result.json")
    return [_trial(mutant, reference, candidate) for mutant in mutants]


def _trial(mutant: Mutant, reference: dict, candidate: dict) -> Trial:
    measured = candidate["mutants"][mutant.name]
    if "raised" in measured:
        return Trial(mutant, True, measured["raised"], "raised", None)
    verdict = judge(reference, {**candidate, "dtypes": measured})
    culprit = first_at_fault(verdict, list(reference["tensors"]))
    if culprit is None:
        return Trial(mutant, False, "", "", None)
    margins = {comparison.name: comparison.margin for comparison in verdict.comparisons}
    label = f"replay:{culprit.name}" if culprit.verdict == "replay" else culprit.name
    return Trial(mutant, True, label, culprit.verdict, margins.get(culprit.name))


def print_trials(trials: Sequence[Trial], console: Console) -> None:
    """A row for each mutant, then the score."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("mutant", "caught", "by", "named"):
        table.add_column(title, overflow="fold")
    table.add_column("error / bound", justify="right")
    for trial in trials:
        outcome = "harmless" if trial.mutant.harmless and not trial.caught else "yes" if trial.caught else "NO"
        margin = "" if trial.margin is None else f"{trial.margin:.1e}"
        name = short_name(trial.culprit) if trial.culprit else trial.mutant.harmless
        style = "" if trial.passed else "red"
        table.add_row(trial.mutant.name, outcome, trial.verdict, escape(name), margin, style=style)
    console.print(table)
    faults = [trial for trial in trials if not trial.mutant.harmless]
    harmless = [trial for trial in trials if trial.mutant.harmless]
    console.print(
        f"{sum(t.caught for t in faults)} of {len(faults)} faults caught, {sum(t.passed for t in faults)} named; "
        f"{sum(t.passed for t in harmless)} of {len(harmless)} harmless changes passed",
        highlight=False,
    )
