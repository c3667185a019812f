"""Measure a gate's seconds and the memory of its two processes, without and with its cache."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from toolkit.commands.bench.ratios import Ratio, ratio
from toolkit.commands.bench.workloads import benched
from toolkit.errors import Inconclusive
from toolkit.machine.disk import megabytes
from toolkit.machine.scratch import scratch_folder
from toolkit.parity import make_request, run_gate
from toolkit.terminal.console import LiteralConsole

CACHE = "TOOLKIT_CACHE"


@dataclass(frozen=True)
class GateRuns:
    """A gate run several times, each time with an empty cache and then with the cache that this left.

    Attributes:
        title: what is compared.
        cold, cached: seconds of each run.
        reference, port: peak bytes of the two processes.
    """

    title: str
    cold: list[float]
    cached: list[float]
    reference: int
    port: int

    @property
    def times(self) -> Ratio:
        """The cached runs' seconds over the cold ones'."""
        return ratio(self.cached, self.cold)

    def rows(self) -> list[tuple[str, str]]:
        """Return its table rows."""
        return [
            ("seconds, nothing cached", spread(self.cold)),
            ("seconds, cached", spread(self.cached)),
            ("cached / not", str(self.times)),
            ("peak memory of the reference's process", megabytes(self.reference)),
            ("peak memory of the port's process", megabytes(self.port)),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return all measurements."""
        return {**asdict(self), "ratio": asdict(self.times)}


def spread(seconds: Sequence[float]) -> str:
    """Format the median, minimum and maximum."""
    return f"{median(seconds):.3g} ({min(seconds):.3g} to {max(seconds):.3g})"


def gate_runs(
    *,
    model: str,
    layers: int | None,
    overrides: Sequence[str],
    pairs: int,
    reference_python: str | None,
    say: Callable[[str], None],
) -> GateRuns:
    """Run the gate of `toolkit parity` on a model as deep as that of the other measurements. Raises UserError if the
    configuration is impossible, and Inconclusive if the gate could not decide, or the port has not passed."""
    layers = layers or benched(model).defaults.layers
    small = [f"{key}={value}" for key, value in benched(model).overrides.items()]
    request = make_request(
        model=model, head=None, attention=None, layers=layers, length=None, batch_size=None, weights_from="random",
        seed=0, overrides=[*small, *overrides], reference_python=reference_python,
    )  # fmt: skip
    rows, length = request.batch["input_ids"].shape
    seconds: dict[bool, list[float]] = {False: [], True: []}
    peaks = {"reference": 0, "port": 0}
    for pair in range(pairs):
        with scratch_folder("toolkit-bench-") as folder, _cache_in(folder / "cache"):
            for cached in (False, True):
                say(f"gate {pair + 1} of {pairs}: {'cached' if cached else 'nothing cached'}")
                began = time.perf_counter()
                report = run_gate(request, folder / "report", LiteralConsole(quiet=True))
                seconds[cached].append(time.perf_counter() - began)
                if not report.passed or report.cached != cached:
                    raise Inconclusive(f"bench: {report.summary() if not report.passed else 'the gate was not cached'}")
            for side, result in (("reference", report.reference), ("port", report.candidate)):
                peaks[side] = max(peaks[side], result.execution.peak_bytes or 0)
    title = f"{model}, the gate: {layers} layers, {rows} x {length} tokens, float64 and float32"
    return GateRuns(title, seconds[False], seconds[True], **peaks)


@contextlib.contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Use another cache in the ``with`` block."""
    before = os.environ.get(CACHE)
    os.environ[CACHE] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[CACHE]
        else:
            os.environ[CACHE] = before
