"""The outcome of a gate, which all reports are created from, and the files of the reports."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models.families import FAMILIES
from toolkit.errors import UserError
from toolkit.files.ownership import is_gate_file, is_run_report, remove_gate_file
from toolkit.parity.exchange.results import CandidateResult, Place, ReferenceResult, Training
from toolkit.parity.followup.attribution import Substitution, describe_inaccurate_operation
from toolkit.parity.followup.trace import OperationTrace
from toolkit.parity.job.family import ported_family
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.report.headline import Headline, choose_headline
from toolkit.parity.request.request import GateRequest

#: Names of the reports for programs, for a CI system and for people, and of the report of ``parity bitwise``.
JSON, JUNIT, PAGE, BITWISE = "parity.json", "junit.xml", "parity.html", "bitwise.json"
#: Name of the file with the reference's constants, next to the report.
CONSTANTS = "constants.safetensors"


@dataclass
class Report:
    """The outcome of a gate. ``parity.json`` holds the same.

    Attributes:
        verdict: comparisons and findings.
        culprit: the finding nearest to the cause; None if the gate passes.
        randomized: number of constant parameters that got random values.
        cached: whether the measurements are from an earlier, equal gate.
        attribution: if only float32 drifts, the tensors that each composed loop and each kind of the reference's
            kernels restores.
        trace: the operations that are wrong in isolation; None without a trace.
        training: comparison of both sides' independent training; only for a pair.
    """

    request: GateRequest
    verdict: Verdict
    culprit: Finding | None
    reference: ReferenceResult
    candidate: CandidateResult
    randomized: int
    seconds: float
    hashes: Mapping[str, str] = field(default_factory=dict)
    cached: bool = False
    attribution: Sequence[Substitution] = ()
    trace: OperationTrace | None = None
    training: Training | None = None

    @property
    def passed(self) -> bool:
        """Whether the port is the same function as the reference."""
        return self.verdict.passed

    @property
    def exit_status(self) -> int:
        """The exit status of the command: 0 parity, 1 drift, 3 inconclusive."""
        return 0 if self.passed else 3 if self.verdict.inconclusive else 1

    @property
    def places(self) -> Mapping[str, Place]:
        """Class and source line of each module of the port, and of its other code."""
        loops = {f"loop:{loop.loop}": Place("compiled loop", loop.where) for loop in self.candidate.loops}
        optimizer = {} if self.training is None else {"optimizer": self.training.optimizer}
        module_places = next(iter(self.candidate.dtypes.values())).places
        return {**module_places, **self.candidate.tokenizer_places, **loops, **optimizer}

    def headline(self) -> Headline:
        """Return the place at fault and the fault; both are empty if the gate passes."""
        if self.culprit is None:
            return Headline("", "")
        decayed_names = self.reference.facts.decayed
        place, message = choose_headline(self.culprit, self.verdict, self.trace, self.places, decayed_names)
        return Headline(place, "; ".join(filter(None, (message, describe_inaccurate_operation(self.attribution)))))

    def summary(self) -> str:
        """Return the verdict in one line, with the place at fault."""
        if self.culprit is None:
            num_accepted, dtypes = len(self.verdict.accepted), ", ".join(self.request.dtypes)
            accepted_text = f"; {num_accepted} known differences are accepted" if num_accepted else ""
            agree = f"{len(self.verdict.comparisons) - num_accepted} tensors of the port agree with the reference"
            step = self.verdict.training_unjudged_from
            training_note = "" if step is None else f"; training is not judged from step {step} on"
            num_set_aside = len({TensorName.parse(finding.name).module for finding in self.verdict.set_aside})
            modules = f"{num_set_aside} module{'s' * (num_set_aside > 1)}"
            set_aside = f"; outputs of {modules} are not compared" if num_set_aside else ""
            return f"parity: {agree} ({dtypes}){accepted_text}{training_note}{set_aside}"
        if self.verdict.inconclusive:
            return f"inconclusive: {self.culprit.message}: {self.culprit.name}"
        place, message = self.headline()
        return f"drift: {self.culprit.verdict}: {place}: {message}"


def short_name(name: str) -> str:
    """Return a tensor's name without the prefixes that all names of a family have."""
    for model in FAMILIES:
        for prefix, short in ported_family(model).short_names.items():
            name = name.replace(prefix, short)
    return name


def remove_report(folder: Path) -> None:
    """Delete an earlier report, so that it is not mistaken for the report of an aborted gate.

    Raises UserError, without removing a file, if another file has the name of a report.
    """
    paths = [path for name in (JSON, JUNIT, PAGE, BITWISE, CONSTANTS) if os.path.lexists(path := folder / name)]
    is_in_run = is_run_report(folder)
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            raise UserError(f"{path}: is a folder, where a file is to be written; remove it")
        if not is_in_run and not is_gate_file(path):
            raise UserError(f"{path}: is not of an earlier gate, and would be lost; move it, or name another folder")
    for path in paths:
        remove_gate_file(path)
