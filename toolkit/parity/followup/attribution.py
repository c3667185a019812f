"""Where float64 passes and float32 does not, the port is right and a kernel is inaccurate: which one?

The float32 step is run again with one kind of kernel at a time taken from the reference (:mod:`.kernels`). The kind
that brings the tensors back within their bounds is the one at fault.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit.parity.job import files
from toolkit.parity.judge.bounds import compare, is_measured
from toolkit.parity.judge.verdict import Verdict


@dataclass(frozen=True)
class Substitution:
    """What the reference's kernels of one kind restore.

    Attributes:
        kind: one of ``KINDS`` of :mod:`.kernels`.
        before, after: the largest error of any tensor in units of its bound, with Paddle's kernels and with these.
        tensor: the tensor that is largest ``after``.
    """

    kind: str
    before: float
    after: float
    tensor: str

    @property
    def restores(self) -> bool:
        """Whether every tensor is within its bound."""
        return self.after <= 1.0

    def text(self) -> str:
        return f"with the reference's {self.kind}: {self.before:.3g} -> {self.after:.3g} of the bound"


def wanted(verdict: Verdict, dtypes: Sequence[str]) -> bool:
    """Whether float32 drifts, and nothing else is wrong."""
    only_float32 = {finding.dtype for finding in verdict.findings} == {"float32"}
    return {"float64", "float32"} <= set(dtypes) and only_float32 and not verdict.inconclusive


def attribute(
    job: Path, verdict: Verdict, results: dict[str, Any], console: Console, python: str = sys.executable
) -> list[dict[str, Any]]:
    """What each kind of kernel restores, the most first, as dictionaries of :class:`Substitution`.

    Empty where there is nothing to attribute, on a GPU, whose kernels are not served, and where the step cannot be run
    again, of which the console is told.

    Args:
        job: the folder of a gate that has run.
        verdict: on ``results``, the ``reference``'s and the ``candidate``'s.
        python: the interpreter that has torch.
    """
    reference, candidate = results["reference"], results["candidate"]
    content = files.read_json(job / "job.json")
    if content["device"] != "cpu" or not wanted(verdict, list(candidate["dtypes"])):
        return []
    with console.status("parity gate: float32 drifts; running the port with the reference's kernels, kind by kind"):
        measured, problem = _measure(job, python)
    if problem:
        console.print(f"parity gate: which kernel it is could not be found out: {problem}", markup=False)
        return []
    before, _ = worst(reference, candidate["dtypes"]["float32"]["tensors"])
    found = [Substitution(kind, before, *worst(reference, errors)) for kind, errors in measured.items()]
    return [asdict(one) for one in sorted(found, key=lambda one: one.after)]


def worst(reference: dict[str, Any], errors: dict[str, dict]) -> tuple[float, str]:
    """The largest float32 error in units of its bound, and whose it is, among tensors of which float32 can tell."""
    compared = [
        compare(name, theirs, errors[name], "float32")
        for name, theirs in reference["tensors"].items()
        if name in errors and errors[name]["rms"] is not None and is_measured(theirs, "float32")
    ]
    largest = max((one for one in compared if one.informative), key=lambda one: one.margin)
    return largest.margin, largest.name


def _measure(job: Path, python: str) -> tuple[dict[str, dict[str, dict]], str]:
    """By kind and tensor, the errors; and why there are none, if so."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "toolkit.parity.candidate.attribution", str(job), python],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        return {}, (done.stdout + done.stderr).strip()[-500:]
    return files.read_json(job / "candidate" / "attribution.json"), ""


def lines(substitutions: Sequence[dict[str, Any]]) -> list[str]:
    """What the report says: what restores the bounds first, the rest in one line."""
    found = [Substitution(**one) for one in substitutions]
    if not found:
        return []
    restoring = [one for one in found if one.restores]
    rest = ", ".join(f"{one.kind} {one.after:.3g}" for one in found if not one.restores)
    said = [one.text() for one in restoring]
    if not restoring:
        said.append(f"float64 passes, so a kernel is inaccurate; no kind alone brings {found[0].before:.3g} below 1")
    if rest:
        said.append(f"with the reference's other kernels, worst tensor in units of its bound: {rest}")
    return said
