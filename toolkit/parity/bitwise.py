"""``toolkit parity bitwise``: with the reference's basic kernels the port's float32 must be the reference's to the bit.

Then only the port's structure is its own: which operations, in which order, on which numbers. If all kinds of kernels
are the reference's and a tensor still differs in as little as its last bit, the port does its arithmetic in another
order. With only some kinds, the first difference shows where another kernel first matters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit.errors import UserError
from toolkit.parity.job import files
from toolkit.parity.job.build import batch_of, is_streamed, job_of, labels_of, scratch_job, workers_of, write_job
from toolkit.parity.job.family import ported
from toolkit.parity.job.kernel_messages import KINDS
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.records import as_json
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import BitwiseResult, Place, read_reference
from toolkit.parity.job.synthetic import randomize_constants
from toolkit.parity.measure import ulp
from toolkit.parity.measure.naming import is_gradient
from toolkit.parity.measure.ulp import BitDifference
from toolkit.parity.report.headline import describe_place
from toolkit.parity.report.report import BITWISE, remove_report, short_name
from toolkit.parity.report.terminal import print_line, print_verdict

#: Of ``bitwise.json``.
SCHEMA = 1


@dataclass
class Bitwise:
    """What the comparison found.

    Attributes:
        kinds: kinds of kernels taken from the reference.
        tensors: outputs, streams, logits and loss by name in execution order.
        gradients: likewise. They are not judged: sums of several gradients have no fixed order.
        extra: names of tensors that the reference lacks.
        places: module of the port -> its class and source line.
        calls: kernel -> number of calls.
    """

    request: GateRequest
    kinds: Sequence[str]
    tensors: Mapping[str, BitDifference]
    gradients: Mapping[str, BitDifference]
    extra: Sequence[str]
    places: Mapping[str, Place]
    calls: Mapping[str, int]
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def first(self) -> str | None:
        """The first tensor that differs; None where none does."""
        return next((name for name, tensor in self.tensors.items() if tensor.differing), None)

    @property
    def last_equal(self) -> str | None:
        """The tensor computed right before :attr:`first`: the fault lies between them. None if there is none."""
        place = list(self.tensors).index(self.first) if self.first is not None else 0
        return list(self.tensors)[place - 1] if place else None

    @property
    def passed(self) -> bool:
        return bool(self.tensors) and self.first is None and not self.extra

    @property
    def exit_status(self) -> int:
        return 0 if self.passed else 1

    def equal(self) -> int:
        return sum(not tensor.differing for tensor in self.tensors.values())

    def place(self) -> str:
        """Return the module of the first difference with its class and source line; "" if none."""
        return describe_place(self.first, self.places) if self.first is not None else ""

    def summary(self) -> str:
        """Return in a line how many agree, and the first difference."""
        which = "its kernels" if set(self.kinds) == set(KINDS) else f"its {', '.join(self.kinds)}"
        text = (
            f"{self.equal()} of {len(self.tensors)} float32 tensors are the reference's to the last bit, with {which}"
        )
        if self.first is None:
            return text
        after = f", right after {short_name(self.last_equal)}" if self.last_equal else ""
        difference = _in_words(self.tensors[self.first])
        return f"{text}; the first that is not{after}: {short_name(self.first)}: {difference}"

    def as_content(self) -> dict[str, Any]:
        """The content of ``bitwise.json``."""
        first = self.first
        return {
            "schema": SCHEMA,
            "passed": self.passed,
            "exit_status": self.exit_status,
            "summary": self.summary(),
            "model": self.request.model,
            "head": self.request.head,
            "config": dict(self.request.config),
            "seed": self.request.seed,
            "kernels": list(self.kinds),
            "calls": dict(self.calls),
            "compared": len(self.tensors),
            "equal": self.equal(),
            "first": None if first is None else {"name": first, "place": self.place(), **as_json(self.tensors[first])},
            "last_equal": self.last_equal,
            "extra": list(self.extra),
            "tensors": as_json(self.tensors),
            "gradients": as_json(self.gradients),
            "versions": as_json(self.versions),
        }


def _in_words(tensor: BitDifference) -> str:
    if tensor.problem is not None:
        return tensor.problem
    apart = "NaN among them" if tensor.units == ulp.NAN_DISTANCE else f"by at most {tensor.units} units"
    return f"{tensor.differing} of {tensor.of} elements differ, {apart} in the last place"


def run_bitwise(request: GateRequest, kinds: Sequence[str], folder: Path, console: Console) -> Bitwise:
    """Compare one float32 step of the port on the reference's kernels with the reference's step; print the outcome and
    write it to ``folder/bitwise.json``. Raises UserError if the model is too large to be compared as a whole, and
    Inconclusive if a worker could not run."""
    remove_report(folder)
    if is_streamed(request):
        smaller = ported(request.model).smaller
        raise UserError(f"a model this large is not compared as a whole; take a smaller one, such as {smaller}")
    weights, _ = randomize_constants(request.weights, request.seed)
    with scratch_job() as job:
        told = replace(job_of(request), kernels=list(kinds))
        write_job(told, weights, batch_of(request), labels_of(request), job)
        run_workers([job], console, workers_of(request))
        reference = read_reference(job)
        candidate = files.read(files.result_path(job, "candidate"), BitwiseResult)
    outcome = Bitwise(
        request=request,
        kinds=kinds,
        tensors={name: tensor for name, tensor in candidate.tensors.items() if not is_gradient(name)},
        gradients={name: tensor for name, tensor in candidate.tensors.items() if is_gradient(name)},
        extra=candidate.extra,
        places=candidate.places,
        calls=candidate.calls,
        versions={"reference": reference.execution.versions, "candidate": candidate.execution.versions},
    )
    folder.mkdir(parents=True, exist_ok=True)
    files.write_report(folder / BITWISE, outcome.as_content())
    print_bitwise(outcome, console)
    return outcome


def print_bitwise(outcome: Bitwise, console: Console) -> None:
    """Print the outcome, the place of the first difference, and which kernels of the reference were used."""
    if outcome.passed:
        print_verdict(console, "EXACT", "bold green", outcome.summary())
    else:
        print_verdict(console, "NOT EXACT", "bold red", outcome.place())
        print_line(console, outcome.summary())
    if outcome.extra:
        print_line(console, f"{len(outcome.extra)} that the reference lacks, the first of them {outcome.extra[0]}")
    equal = sum(not tensor.differing for tensor in outcome.gradients.values())
    print_line(console, f"gradients, which are not judged here: {equal} of {len(outcome.gradients)} to the last bit")
    calls = ", ".join(f"{name} {count}" for name, count in sorted(outcome.calls.items()))
    print_line(console, f"kernels of the reference used, times: {calls or 'none'}")
