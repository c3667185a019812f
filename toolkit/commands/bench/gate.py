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

from toolkit.commands.bench.ratios import Ratio, compute_ratio
from toolkit.commands.bench.workloads import benchmark_of
from toolkit.errors import Inconclusive
from toolkit.machine.scratch import scratch_folder
from toolkit.machine.sizes import format_bytes
from toolkit.parity import GateOptions, make_request, run_gate
from toolkit.terminal.console import LiteralConsole

CACHE = "TOOLKIT_CACHE"


@dataclass(frozen=True)
class GateRuns:
    """Measurements of several pairs of gate runs: one with an empty cache, then one with the cache of the first.

    Attributes:
        title: heading of the table.
        cold: seconds of each run with an empty cache.
        cached: seconds of each run with a filled cache.
        reference: peak memory of the reference's process, in bytes.
        port: peak memory of the port's process, in bytes.
    """

    title: str
    cold: list[float]
    cached: list[float]
    reference: int
    port: int

    @property
    def times(self) -> Ratio:
        """Time with a filled cache divided by the time with an empty cache."""
        return compute_ratio(self.cached, self.cold)

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table, a label and a value each."""
        return [
            ("seconds, nothing cached", format_spread(self.cold)),
            ("seconds, cached", format_spread(self.cached)),
            ("cached / not", str(self.times)),
            ("peak memory of the reference's process", format_bytes(self.reference)),
            ("peak memory of the port's process", format_bytes(self.port)),
        ]

    def to_json(self) -> dict[str, Any]:
        """Return all measurements as values for JSON."""
        return {**asdict(self), "ratio": asdict(self.times)}


def format_spread(seconds: Sequence[float]) -> str:
    """Return the median, minimum and maximum as text."""
    return f"{median(seconds):.3g} ({min(seconds):.3g} to {max(seconds):.3g})"


def measure_gate(
    *,
    model: str,
    layers: int | None,
    overrides: Sequence[str],
    pairs: int,
    reference_python: str | None,
    show: Callable[[str], None],
) -> GateRuns:
    """Measure the gate of `toolkit parity`, with an empty and with a filled cache.

    Args:
        model: model family.
        layers: number of layers; None for the default of the other measurements.
        overrides: ``KEY=VALUE`` settings of the model's configuration.
        pairs: number of pairs of runs.
        reference_python: path of the Python that runs the reference; None for the running Python.
        show: function that shows a line of progress.

    Raises:
        UserError: the configuration is impossible.
        Inconclusive: the gate could not decide, or the port has not passed.
    """
    layers = layers or benchmark_of(model).defaults.layers
    default_overrides = [f"{key}={value}" for key, value in benchmark_of(model).overrides.items()]
    options = GateOptions(
        model=model,
        layers=layers,
        weights_from="random",
        overrides=[*default_overrides, *overrides],
        reference_python=reference_python,
    )
    request = make_request(options)
    rows, length = request.batch["input_ids"].shape
    seconds: dict[bool, list[float]] = {False: [], True: []}
    peaks = {"reference": 0, "port": 0}
    for pair in range(pairs):
        with scratch_folder("toolkit-bench-") as folder, _cache_in(folder / "cache"):
            for is_cached in (False, True):
                show(f"gate {pair + 1} of {pairs}: {'cached' if is_cached else 'nothing cached'}")
                start_time = time.perf_counter()
                report = run_gate(request, folder / "report", LiteralConsole(quiet=True))
                seconds[is_cached].append(time.perf_counter() - start_time)
                if not report.passed or report.cached != is_cached:
                    raise Inconclusive(f"bench: {report.summary() if not report.passed else 'the gate was not cached'}")
            for side, result in (("reference", report.reference), ("port", report.candidate)):
                peaks[side] = max(peaks[side], result.execution.peak_bytes or 0)
    title = f"{model}, the gate: {layers} layers, {rows} x {length} tokens, float64 and float32"
    return GateRuns(title, seconds[False], seconds[True], **peaks)


@contextlib.contextmanager
def _cache_in(folder: Path) -> Iterator[None]:
    """Use ``folder`` as the cache in the ``with`` block."""
    previous = os.environ.get(CACHE)
    os.environ[CACHE] = str(folder)
    try:
        yield
    finally:
        if previous is None:
            del os.environ[CACHE]
        else:
            os.environ[CACHE] = previous
