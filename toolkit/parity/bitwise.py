"""``toolkit parity bitwise``: on the reference's basic kernels, the port's float32 must equal the reference bit by bit.

Then only the structure is the port's own: which operations it runs, in which order, on which numbers. If all kinds of
kernels are the reference's and a tensor still differs in its last bit, the port computes in another order. With only
some kinds, the first difference shows the first place that depends on another kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit.errors import UserError
from toolkit.parity.exchange import files
from toolkit.parity.exchange.kernel_messages import KINDS
from toolkit.parity.exchange.records import as_json
from toolkit.parity.exchange.results import BitwiseResult, Place, read_reference
from toolkit.parity.inputs.synthetic import randomize_constants
from toolkit.parity.job.family import ported_family
from toolkit.parity.measure import ulp
from toolkit.parity.measure.naming import is_gradient
from toolkit.parity.measure.ulp import BitDifference
from toolkit.parity.processes.processes import run_workers
from toolkit.parity.report.headline import describe_place
from toolkit.parity.report.report import BITWISE, remove_report, short_name
from toolkit.parity.report.terminal import print_line, print_verdict
from toolkit.parity.request.build import batch_of, is_streamed, job_of, labels_of, scratch_job, workers_of, write_job
from toolkit.parity.request.request import GateRequest

#: Version of the format of ``bitwise.json``.
SCHEMA = 1


@dataclass
class Bitwise:
    """The result of a bit-by-bit comparison.

    Attributes:
        request: request of the comparison.
        kinds: kinds of kernels that are the reference's.
        tensors: differences of outputs, streams, logits and loss, by name, in execution order.
        gradients: differences of gradients, by name. They are not judged, since sums of gradients have no fixed order.
        extra: names of tensors that the reference lacks.
        places: class and source line of each module of the port.
        calls: number of calls of each of the reference's kernels.
        versions: versions of packages of both sides.
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
        """The name of the first tensor that differs; None if no tensor differs."""
        return next((name for name, tensor in self.tensors.items() if tensor.differing), None)

    @property
    def last_equal(self) -> str | None:
        """The name of the tensor before :attr:`first`, so that the fault is between them; None if there is none."""
        index = list(self.tensors).index(self.first) if self.first is not None else 0
        return list(self.tensors)[index - 1] if index else None

    @property
    def is_exact(self) -> bool:
        """Whether all tensors of the reference are equal and the port has no others."""
        return bool(self.tensors) and self.first is None and not self.extra

    @property
    def exit_status(self) -> int:
        """Exit status of the command: 0 if all tensors are equal bit by bit, otherwise 1."""
        return 0 if self.is_exact else 1

    def count_equal(self) -> int:
        """Return the number of equal tensors."""
        return sum(not tensor.differing for tensor in self.tensors.values())

    def first_place(self) -> str:
        """Return the module of the first difference with its class and source line, or "" if no tensor differs."""
        return describe_place(self.first, self.places) if self.first is not None else ""

    def summary(self) -> str:
        """Return one line with the number of equal tensors and the first difference."""
        kernels = "its kernels" if set(self.kinds) == set(KINDS) else f"its {', '.join(self.kinds)}"
        counts = f"{self.count_equal()} of {len(self.tensors)}"
        text = f"{counts} float32 tensors are the reference's to the last bit, with {kernels}"
        if self.first is None:
            return text
        position = f", right after {short_name(self.last_equal)}" if self.last_equal else ""
        difference = _describe_difference(self.tensors[self.first])
        return f"{text}; the first that is not{position}: {short_name(self.first)}: {difference}"

    def as_content(self) -> dict[str, Any]:
        """Return the content of ``bitwise.json``."""
        first = self.first
        return {
            "schema": SCHEMA,
            "passed": self.is_exact,
            "exit_status": self.exit_status,
            "summary": self.summary(),
            "model": self.request.model,
            "head": self.request.head,
            "config": dict(self.request.config),
            "seed": self.request.seed,
            "kernels": list(self.kinds),
            "calls": dict(self.calls),
            "compared": len(self.tensors),
            "equal": self.count_equal(),
            "first": None
            if first is None
            else {"name": first, "place": self.first_place(), **as_json(self.tensors[first])},
            "last_equal": self.last_equal,
            "extra": list(self.extra),
            "tensors": as_json(self.tensors),
            "gradients": as_json(self.gradients),
            "versions": as_json(self.versions),
        }


def _describe_difference(bit_difference: BitDifference) -> str:
    """Return in words how many elements of a tensor differ, and by how much."""
    if bit_difference.problem is not None:
        return bit_difference.problem
    size = "NaN among them" if bit_difference.units == ulp.NAN_DISTANCE else f"by at most {bit_difference.units} units"
    return f"{bit_difference.differing} of {bit_difference.of} elements differ, {size} in the last place"


def run_bitwise(request: GateRequest, kernel_kinds: Sequence[str], folder: Path, console: Console) -> Bitwise:
    """Compare one float32 step of the port with the reference's step bit by bit.

    Print the outcome and write it to ``folder/bitwise.json``.

    Args:
        request: request of the comparison.
        kernel_kinds: kinds of kernels that the port takes from the reference.
        folder: folder of the report.
        console: console for the outcome.

    Raises:
        UserError: the model is too large to be compared as a whole.
        Inconclusive: a worker could not run.
    """
    remove_report(folder)
    if is_streamed(request):
        smaller = ported_family(request.model).smaller
        raise UserError(f"a model this large is not compared as a whole; take a smaller one, such as {smaller}")
    weights, _ = randomize_constants(request.weights, request.seed)
    with scratch_job() as job:
        job_with_kernels = replace(job_of(request), kernels=list(kernel_kinds))
        write_job(job_with_kernels, weights, batch_of(request), labels_of(request), job)
        run_workers([job], console, workers_of(request))
        reference = read_reference(job)
        candidate = files.read(files.result_path(job, "candidate"), BitwiseResult)
    outcome = Bitwise(
        request=request,
        kinds=kernel_kinds,
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
    """Print the outcome, the place of the first difference, and the number of calls of the reference's kernels."""
    if outcome.is_exact:
        print_verdict(console, "EXACT", "bold green", outcome.summary())
    else:
        print_verdict(console, "NOT EXACT", "bold red", outcome.first_place())
        print_line(console, outcome.summary())
    if outcome.extra:
        print_line(console, f"{len(outcome.extra)} that the reference lacks, the first of them {outcome.extra[0]}")
    equal = sum(not tensor.differing for tensor in outcome.gradients.values())
    print_line(console, f"gradients, which are not judged here: {equal} of {len(outcome.gradients)} to the last bit")
    calls = ", ".join(f"{name} {count}" for name, count in sorted(outcome.calls.items()))
    print_line(console, f"kernels of the reference used, times: {calls or 'none'}")
