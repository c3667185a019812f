"""The outcome of a gate, from which all reports are made, and their files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from models.families import FAMILIES
from toolkit.errors import UserError
from toolkit.files.ownership import is_gate_file, is_run_report, remove_gate_file
from toolkit.parity.followup.attribution import Substitution, cause
from toolkit.parity.followup.trace import OperationTrace
from toolkit.parity.job.family import ported
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import CandidateResult, Place, ReferenceResult, Training
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.report.headline import Headline, headline

#: Reports for programs, for a CI system, for a person, and of ``parity bitwise``.
JSON, JUNIT, PAGE, BITWISE = "parity.json", "junit.xml", "parity.html", "bitwise.json"
#: The reference's constants beside the report.
CONSTANTS = "constants.safetensors"


@dataclass
class Report:
    """The outcome of a gate. ``parity.json`` holds the same.

    Attributes:
        verdict: what was compared, what was found.
        culprit: the finding nearest to the cause, None where all passed.
        randomized: number of constant parameters that were given random values.
        cached: whether the measurements are from an earlier, equal gate.
        attribution: if float32 alone drifts, what each composed loop and each kind of the reference's kernels restores.
        trace: which operations are wrong by themselves; None if not traced.
        training: of a pair whose two sides were also trained by themselves.
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
        return self.verdict.passed

    @property
    def exit_status(self) -> int:
        return 0 if self.passed else 3 if self.verdict.inconclusive else 1

    @property
    def places(self) -> Mapping[str, Place]:
        """Class and source line of each module of the port, and of its other code."""
        loops = {f"loop:{one.loop}": Place("compiled loop", one.where) for one in self.candidate.loops}
        optimizer = {} if self.training is None else {"optimizer": self.training.optimizer}
        of_port = next(iter(self.candidate.dtypes.values())).places
        return {**of_port, **self.candidate.tokenizer_places, **loops, **optimizer}

    def headline(self) -> Headline:
        """The place at fault, and what is wrong there; empty where nothing is."""
        if self.culprit is None:
            return Headline("", "")
        decayed = self.reference.facts.decayed
        place, message = headline(self.culprit, self.verdict, self.trace, self.places, decayed)
        return Headline(place, "; ".join(filter(None, (message, cause(self.attribution)))))

    def summary(self) -> str:
        """One line: the verdict, and where it fails."""
        if self.culprit is None:
            accepted, dtypes = len(self.verdict.accepted), ", ".join(self.request.dtypes)
            known = f"; {accepted} known differences are accepted" if accepted else ""
            agree = f"{len(self.verdict.comparisons) - accepted} tensors of the port agree with the reference"
            step = self.verdict.training_unjudged_from
            training_note = "" if step is None else f"; training is not judged from step {step} on"
            num_set_aside = len({TensorName.parse(finding.name).module for finding in self.verdict.set_aside})
            modules = f"{num_set_aside} module{'s' * (num_set_aside > 1)}"
            set_aside = f"; outputs of {modules} are not compared" if num_set_aside else ""
            return f"parity: {agree} ({dtypes}){known}{training_note}{set_aside}"
        if self.verdict.inconclusive:
            return f"inconclusive: {self.culprit.message}: {self.culprit.name}"
        place, message = self.headline()
        return f"drift: {self.culprit.verdict}: {place}: {message}"


def short_name(name: str) -> str:
    """A tensor's name without the common prefix."""
    for model in FAMILIES:
        for beginning, short in ported(model).short_names.items():
            name = name.replace(beginning, short)
    return name


def remove_report(folder: Path) -> None:
    """Delete an earlier report, so that an aborted gate leaves none that could be taken for its own. Raises UserError
    if one of its names is another file's. Nothing is removed."""
    earlier = [path for name in (JSON, JUNIT, PAGE, BITWISE, CONSTANTS) if os.path.lexists(path := folder / name)]
    in_a_run = is_run_report(folder)
    for path in earlier:
        if path.is_dir() and not path.is_symlink():
            raise UserError(f"{path}: is a folder, where a file is to be written; remove it")
        if not in_a_run and not is_gate_file(path):
            raise UserError(f"{path}: is not of an earlier gate, and would be lost; move it, or name another folder")
    for path in earlier:
        remove_gate_file(path)
