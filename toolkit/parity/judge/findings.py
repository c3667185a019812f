"""The findings of a gate (faults of the port), and the verdict, which has them and all comparisons.

The verdict of a single finding is its kind, such as ``semantics``; the specification's section "Verdicts" lists them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from toolkit.parity.exchange.results import Note
from toolkit.parity.judge.bounds import Comparison

#: Verdicts of findings on a tensor of the step, in float64 and in float32 or bfloat16. The names of the other verdicts
#: state their subject.
OF_TENSORS = ("semantics", "rounding")
#: Message of a finding on a tensor that only the port has.
ALONE = "computed by the port, has no counterpart in the reference"
#: Verdicts of findings on the recomputing backward, with recorded draws and with the port's own draws.
OF_RECOMPUTING = ("recomputed", "replay")


@dataclass(frozen=True)
class Finding:
    """A difference of the port from the reference that stops the port.

    Attributes:
        verdict: structure, buckets, signs, choices, semantics, rounding, precision, loop, recomputed, replay,
            randomness,
        initialisation, tokenizer or trajectory; ``reference`` if the reference itself is at fault, or if it has no
            tensor to
        compare.
        name: name of the wrong tensor, parameter, draw or text.
        message: description of the fault, with its figures.
        dtype: dtype of the fault; empty if it concerns all dtypes.
    """

    verdict: str
    name: str
    message: str
    dtype: str = ""


@dataclass(frozen=True)
class AcceptedFinding:
    """A finding that a pair's map accepts as a known difference.

    Attributes:
        finding: the accepted finding.
        relative: error (RMS) divided by the RMS of the tensor.
        pattern: pattern of tensor names in the map.
        why: reason for the difference, from the map.
        within: largest accepted relative error, from the map.
    """

    finding: Finding
    relative: float
    pattern: str
    why: str
    within: float


@dataclass
class Verdict:
    """All comparisons and all findings of a gate.

    Attributes:
        comparisons: comparisons of the port's tensors with R64.
        recomputed: comparisons of the recomputing backward with plain autograd of the same port, with recorded draws.
            The two
        gradients may differ by as much as a gradient may differ from R64.
        replay: comparisons of the same two backwards with the port's own draws.
        plain: comparisons of plain autograd with R64, if the step's own gradients come from another backward.
        findings: faults that stop the run.
        notes: notes for the report (:data:`.notes.TEXTS`).
        reference_faults: faults of the reference. A difference from a faulty reference does not show a fault of the
            port. A
        port that agrees with it passes.
        accepted: findings that a pair's map accepts. They have been removed from ``findings``.
        training_unjudged_from: first step of a pair's training with a difference of the two sides, if an accepted
            difference
        may be the reason; None otherwise.
        set_aside: findings on outputs of a pair that are not compared, since everything behind them agrees
        (:mod:`.interfaces`).
        replaceable: names of the outputs that are set aside if nothing else differs.
        same_numbers: names of a pair's outputs that hold the numbers of R64 at other positions.
        padded_outputs: names of the outputs in ``same_numbers`` that also have rows of padding, from the first layer.
    """

    comparisons: list[Comparison] = field(default_factory=list)
    recomputed: list[Comparison] = field(default_factory=list)
    replay: list[Comparison] = field(default_factory=list)
    plain: list[Comparison] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    reference_faults: list[Finding] = field(default_factory=list)
    accepted: list[AcceptedFinding] = field(default_factory=list)
    training_unjudged_from: int | None = None
    set_aside: list[Finding] = field(default_factory=list)
    replaceable: set[str] = field(default_factory=set)
    same_numbers: set[str] = field(default_factory=set)
    padded_outputs: set[str] = field(default_factory=set)

    @property
    def passed(self) -> bool:
        """Whether the port has passed: the list of findings is empty."""
        return not self.findings

    @property
    def inconclusive(self) -> bool:
        """Whether the findings do not show a fault of the port, since the reference is at fault or not finite."""
        of_reference = all(finding.verdict == "reference" for finding in self.findings)
        return bool(self.findings and (self.reference_faults or of_reference))

    def compared_by(self, verdict: str) -> list[Comparison]:
        """Return the comparisons that findings with this verdict come from, such as ``recomputed``.

        Args:
            verdict: name of a verdict, as in :class:`Finding`.
        """
        return getattr(self, verdict) if verdict in OF_RECOMPUTING else self.comparisons

    def nearest(self, dtype: str, count: int) -> list[Comparison]:
        """Return the ``count`` comparisons of a dtype that are nearest to their bounds, the largest margin first."""
        comparisons = [c for c in self.comparisons if c.dtype == dtype and c.informative]
        return sorted(comparisons, key=lambda c: c.margin, reverse=True)[:count]

    def find(self, verdict: str, name: str, message: str, dtype: str = "") -> None:
        """Add a finding; see :class:`Finding` for the arguments.

        Args:
            verdict: number and name of the verdict.
            name: name of the tensor or module.
            message: finding in words.
            dtype: dtype of the run; empty if it does not matter.
        """
        self.findings.append(Finding(verdict, name, message, dtype))

    def note(self, kind: str, **data: Any) -> None:
        """Add a note for the report.

        Args:
            kind: key of :data:`.notes.TEXTS`.
            data: values for the note's text.
        """
        self.notes.append(Note(kind, data))
