"""``toolkit parity --ops``: with the reference's basic kernels the port's float32 must be the reference's, bit for bit.

What is left of the port then is its structure: which operations, in which order, on which numbers. Where all kinds of
kernels are the reference's and a tensor still differs by as much as its last bit, the port does its arithmetic in
another order. With only some of them the first difference shows where another kernel first matters.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from toolkit.errors import UserError
from toolkit.parity.gate import is_streamed, workers_of, write_job
from toolkit.parity.job import files
from toolkit.parity.job.kernel_messages import KINDS
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.synthetic import stir
from toolkit.parity.measure import ulp
from toolkit.parity.report.report import short_name


@dataclass
class Exactness:
    """What the comparison found.

    Attributes:
        kinds: of kernels, those that were the reference's.
        tensors: outputs, streams, scores and loss by name in the order of execution: ``differing`` elements ``of`` how
            many, the largest distance in ``units`` of the last place (:mod:`.last_bit`).
        gradients: likewise. Nothing is judged by them: sums of several gradients have no order of their own.
        extra: names of tensors that the reference has not.
        places: for each module of the port, its class and source line.
        calls: how often each kernel was asked for.
    """

    request: GateRequest
    kinds: Sequence[str]
    tensors: Mapping[str, Mapping[str, Any]]
    gradients: Mapping[str, Mapping[str, Any]]
    extra: Sequence[str]
    places: Mapping[str, Mapping[str, str]]
    calls: Mapping[str, int]
    versions: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def first(self) -> str | None:
        """The first tensor that differs; None where none does."""
        return next((name for name, tensor in self.tensors.items() if tensor["differing"]), None)

    @property
    def last_equal(self) -> str | None:
        """The tensor computed right before :attr:`first`: the fault lies between the two. None where there is none."""
        place = list(self.tensors).index(self.first) if self.first is not None else 0
        return list(self.tensors)[place - 1] if place else None

    @property
    def passed(self) -> bool:
        return bool(self.tensors) and self.first is None and not self.extra

    @property
    def exit_status(self) -> int:
        return 0 if self.passed else 1

    def equal(self) -> int:
        return sum(not tensor["differing"] for tensor in self.tensors.values())

    def place(self) -> str:
        """The module of the first difference with its class and source line; "" where there is none."""
        module = (self.first or "").partition(":")[2].split("#")[0]
        found = self.places.get(module)
        return f"{module} ({found['class']}, {found['where']})" if found else (self.first or "")

    def summary(self) -> str:
        """One line: how many agree, and the first that does not."""
        which = "its kernels" if set(self.kinds) == set(KINDS) else f"its {', '.join(self.kinds)}"
        text = (
            f"{self.equal()} of {len(self.tensors)} float32 tensors are the reference's to the last bit, with {which}"
        )
        if self.first is None:
            return text
        after = f", right after {short_name(self.last_equal)}" if self.last_equal else ""
        difference = _difference(self.tensors[self.first])
        return f"{text}; the first that is not{after}: {short_name(self.first)}: {difference}"


def _difference(tensor: Mapping[str, Any]) -> str:
    if tensor.get("missing"):
        return "not computed by the port"
    if "shape" in tensor:
        return tensor["shape"]
    apart = "NaN among them" if tensor["units"] == ulp.UNORDERED else f"by at most {tensor['units']} units"
    return f"{tensor['differing']} of {tensor['of']} elements differ, {apart} in the last place"


def run_exact(request: GateRequest, kinds: Sequence[str], folder: Path, console: Console) -> Exactness:
    """Compare one float32 step of the port, with kernels of the reference, with the reference's; print the outcome and
    write it to ``folder/parity.json``.

    Raises:
        UserError: a model that is too large to be compared as a whole.
        Inconclusive: a worker could not run.
    """
    if is_streamed(request):
        smaller = "--layers 4 n_embd=320 dff=1024 vocab_size=5000"
        raise UserError(f"--ops: a model this large is not compared as a whole; take a smaller one, such as {smaller}")
    weights, _ = stir(request.weights, request.seed)
    with tempfile.TemporaryDirectory(prefix="parity-") as scratch:
        job = Path(scratch)
        write_job(request, weights, job)
        interpreters = workers_of(request)
        content = files.read_json(job / "job.json")
        content["ops"] = {"kinds": list(kinds), "python": interpreters["reference"]}
        files.write_json(job / "job.json", content)
        run_workers([job], console, interpreters)
        order = files.read_json(job / "reference" / "order.json")
        reference, candidate = (files.read_json(job / side / "result.json") for side in ("reference", "candidate"))
    compared = {name: candidate["tensors"][name] for name in order}
    outcome = Exactness(
        request=request,
        kinds=kinds,
        tensors={name: tensor for name, tensor in compared.items() if not name.startswith("gradient:")},
        gradients={name: tensor for name, tensor in compared.items() if name.startswith("gradient:")},
        extra=candidate["extra"],
        places=candidate["places"],
        calls=candidate["calls"],
        versions={"reference": reference["versions"], "candidate": candidate["versions"]},
    )
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / "parity.json", as_json(outcome))
    print_exactness(outcome, console)
    return outcome


def print_exactness(outcome: Exactness, console: Console) -> None:
    """The outcome first, then the place of the first difference, then what was asked of the reference."""
    if outcome.passed:
        console.print(f"[bold green]EXACT[/] {escape(outcome.summary())}", highlight=False, soft_wrap=True)
    else:
        console.print(f"[bold red]NOT EXACT[/] {escape(outcome.place())}", highlight=False, soft_wrap=True)
        _say(console, outcome.summary())
    if outcome.extra:
        _say(console, f"{len(outcome.extra)} that the reference has not, the first of them {outcome.extra[0]}")
    equal = sum(not tensor["differing"] for tensor in outcome.gradients.values())
    _say(console, f"gradients, which are not judged here: {equal} of {len(outcome.gradients)} to the last bit")
    calls = ", ".join(f"{name} {count}" for name, count in sorted(outcome.calls.items()))
    _say(console, f"kernels of the reference used, times: {calls or 'none'}")


def _say(console: Console, text: str) -> None:
    console.print(f"  {escape(text)}", highlight=False, soft_wrap=True)


def as_json(outcome: Exactness) -> dict[str, Any]:
    """The content of ``parity.json``."""
    first = outcome.first
    return {
        "schema": files.SCHEMA,
        "passed": outcome.passed,
        "exit_status": outcome.exit_status,
        "summary": outcome.summary(),
        "model": outcome.request.model,
        "head": outcome.request.head,
        "config": dict(outcome.request.config),
        "device": outcome.request.device,
        "dtypes": ["float32"],
        "seed": outcome.request.seed,
        "ops": {
            "kinds": list(outcome.kinds),
            "calls": dict(outcome.calls),
            "compared": len(outcome.tensors),
            "equal": outcome.equal(),
            "first": None if first is None else {"name": first, "place": outcome.place(), **outcome.tensors[first]},
            "last_equal": outcome.last_equal,
            "extra": list(outcome.extra),
            "tensors": dict(outcome.tensors),
            "gradients": dict(outcome.gradients),
        },
        "versions": dict(outcome.versions),
    }
