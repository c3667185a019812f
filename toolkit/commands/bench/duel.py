"""Measure two sides of a comparison in turn, each in a separate process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from models.files import another_python
from toolkit.commands.bench.ratios import Ratio, compute_ratio
from toolkit.commands.bench.workload import PART_OF, PARTS, Workload
from toolkit.errors import Inconclusive
from toolkit.machine import runtime
from toolkit.machine.scratch import child_process, scratch_folder

#: Number of discarded measurements of each side. During them, memory is allocated and kernels are chosen.
WARM_UPS = 2
#: Seconds between two sides, so that the threads of the previous side stop busy-waiting for work.
PAUSE = 0.25
#: Least memory in bytes for a ratio. A smaller number depends mostly on the allocator.
LEAST_MEMORY = 2**20
OURS = "port"
#: Environment variables that affect Paddle and are unset by default.
PADDLE_SETTINGS = ("OMP_NUM_THREADS", "FLAGS_paddle_num_threads", "MKL_DEBUG_CPU_TYPE")


@dataclass
class Measurements:
    """Measurements of one side.

    Attributes:
        seconds: duration of each measurement.
        first_value: return value of the first measurement; see :data:`.serve.RunFn`.
        memory: peak memory in bytes above the memory after the imports; for starts, of the whole process.
        versions: package -> version.
    """

    seconds: list[float] = field(default_factory=list)
    first_value: float = float("nan")
    memory: int = 0
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """A lower limit for the time of a work: the time of its slowest part alone.

    Attributes:
        part: name of the part, a key of :data:`.workload.PARTS`.
        amount: multiplications and additions of the port's matrix products, or bytes of the weights that all tokens
            read.
        speeds: highest speed of this processor, in operations or bytes per second, measured between the sides of each
            pair.
    """

    part: str
    amount: float
    speeds: Sequence[float]

    @property
    def speed(self) -> float:
        """Median speed, in operations or bytes per second."""
        return median(self.speeds)

    @property
    def seconds(self) -> float:
        """Seconds that the part takes alone at the median speed."""
        return self.amount / self.speed

    def __str__(self) -> str:
        return f"{self.part} alone, {self.seconds:.3g} s at {self.speed / 1e9:,.3g} {PARTS[self.part]}"


@dataclass(frozen=True)
class Duel:
    """A workload and the measurements of both sides.

    Attributes:
        workload: workload of both sides.
        sides: name of a side -> its measurements; the port comes first.
        limit: lower limit for the time; None if unknown.
    """

    workload: Workload
    sides: Mapping[str, Measurements]
    limit: Limit | None = None

    @property
    def times(self) -> Ratio:
        """The port's time divided by the other side's time."""
        ours, theirs = self.sides.values()
        return compute_ratio(ours.seconds, theirs.seconds)

    @property
    def memory(self) -> float | None:
        """The port's memory divided by the other side's; None if the latter is below :data:`LEAST_MEMORY`."""
        ours, theirs = self.sides.values()
        return ours.memory / theirs.memory if theirs.memory >= LEAST_MEMORY else None

    @property
    def shares(self) -> Mapping[str, float]:
        """Side -> the limit divided by the time of the side, median of the pairs; empty if the limit is unknown."""
        if not (limit := self.limit):
            return {}
        return {
            name: median(
                limit.amount / speed / seconds for speed, seconds in zip(limit.speeds, side.seconds, strict=True)
            )
            for name, side in self.sides.items()
        }

    def amount_per_second(self, side: str) -> float:
        """Return the tokens or texts per second of a side, by median time."""
        return self.workload.amount / median(self.sides[side].seconds)


def run_duel(workload: Workload, against: str, pairs: int, python: str | None, show: Callable[[str], None]) -> Duel:
    """Measure the port and another implementation in turn.

    Args:
        workload: workload of both sides.
        against: name of the other side.
        pairs: number of pairs of measurements; the first side alternates.
        python: path of the Python that runs transformers; None for the running Python.
        show: function that shows a line of progress.

    Raises:
        Inconclusive: a side cannot run.
    """
    if workload.work == "start":
        return _measure_starts(workload, against, pairs, python, show)
    measurements = {OURS: Measurements(), against: Measurements()}
    part, speeds = PART_OF.get(workload.work), []
    if part:
        _compile_port(workload, show)
    with contextlib.ExitStack() as stack:
        # Speeds are measured in a separate process, so that their arrays do not count as memory of the port.
        ruler = stack.enter_context(Side.start(OURS, None, workload.threads)) if part else None
        processes = {side: stack.enter_context(Side.start(side, python, workload.threads)) for side in measurements}
        for side, process in processes.items():
            show(f"preparing {side}")
            measurements[side].versions = process.ask("prepare", workload=workload.to_json())
            for number in range(WARM_UPS):
                value = process.ask("measure")["value"]
                if not number:
                    measurements[side].first_value = value
        for pair in range(pairs):
            for position, side in enumerate(list(processes)[:: -1 if pair % 2 else 1]):
                if position and ruler:
                    time.sleep(PAUSE)
                    speeds.append(ruler.ask("speed", workload=workload.to_json()))
                show(f"pair {pair + 1} of {pairs}: {side}")
                if workload.work == "tokenize":  # a new tokenizer has not cached any word
                    processes[side].ask("prepare", workload=workload.to_json())
                time.sleep(PAUSE)
                measurements[side].seconds.append(processes[side].ask("measure")["seconds"])
        for side, process in processes.items():
            measurements[side].memory = process.ask("memory")
        limit = Limit(part, processes[OURS].ask("amount"), speeds) if part else None
    return Duel(workload, measurements, limit)


def _compile_port(workload: Workload, show: Callable[[str], None]) -> None:
    """Compile the port's loops into its cache, so that the memory of Numba does not count in a measurement.

    Args:
        workload: model, sizes and computation to measure.
        show: function that shows a line of progress.
    """
    show("compiling")
    with Side.start(OURS, None, workload.threads) as process:
        process.ask("prepare", workload=workload.to_json())
        process.ask("measure")


def _measure_starts(
    workload: Workload, against: str, pairs: int, python: str | None, show: Callable[[str], None]
) -> Duel:
    """Measure the time from the start of a process to the end of its first training step.

    This includes the imports, the model and its weights. The first pair is discarded, because it reads files from the
    disk.

    Args:
        workload: model, sizes and computation to measure.
        against: implementation that the port is compared with.
        pairs: number of measurements of each side.
        python: path of the Python that runs the other side; None for the running Python.
        show: function that shows a line of progress.
    """
    measurements = {OURS: Measurements(), against: Measurements()}
    for pair in range(pairs + 1):
        for side in list(measurements)[:: -1 if pair % 2 else 1]:
            show(f"start {pair} of {pairs}: {side}" if pair else f"preparing {side}")
            time.sleep(PAUSE)
            start_time = time.perf_counter()
            with Side.start(side, python, workload.threads) as process:
                measurements[side].versions = process.ask("prepare", workload=workload.to_json())
                measurements[side].first_value = process.ask("measure")["value"]
                if pair:
                    measurements[side].seconds.append(time.perf_counter() - start_time)
                    measurements[side].memory = max(measurements[side].memory, process.ask("whole memory"))
    return Duel(workload, measurements)


@dataclass
class Side:
    """The process of a side, which carries out one order at a time.

    Attributes:
        name: name of the side.
        process: running process.
        log: file with the error output of the process.
    """

    name: str
    process: subprocess.Popen
    log: Path

    @classmethod
    @contextlib.contextmanager
    def start(cls, name: str, python: str | None, threads: int) -> Iterator[Side]:
        """Start the process of a side, which ends with the ``with`` block.

        Args:
            name: name of the side, a module of :mod:`toolkit.commands.bench.sides`.
            python: path of the Python that runs transformers; None for the running Python.
            threads: number of CPU threads.
        """
        with scratch_folder("toolkit-bench-") as folder, open(folder / "log", "x") as log:
            interpreter = python if python and name == "transformers" else sys.executable
            worker = child_process(
                another_python.module_command(interpreter, f"toolkit.commands.bench.sides.{name}"),
                env=_environment(name, threads),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
            with worker as process:
                yield cls(name, process, folder / "log")
                if process.stdin is not None:
                    process.stdin.close()

    def ask(self, command: str, **arguments: Any) -> Any:
        """Send an order with its arguments, and return the answer.

        Raises:
            Inconclusive: the process has ended.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": command, **arguments}) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.process.wait()
            log_text = " ".join(self.log.read_text(errors="replace")[-500:].split())
            raise Inconclusive(f"bench: {self.name} could not run: {log_text or 'it ended without a word'}")
        return json.loads(answer)


def _environment(side: str, threads: int) -> dict[str, str]:
    """Return the environment variables of a side.

    The port runs as in `toolkit finetune`, transformers with as many threads, and PaddleNLP with Paddle's defaults.
    """
    variables = another_python.clean_environment()
    variables_without_paddle = {key: value for key, value in variables.items() if key not in PADDLE_SETTINGS}
    if side == "paddlenlp":
        return variables_without_paddle
    if side == OURS:
        return {**variables_without_paddle, **runtime.paddle_environment(threads)}
    return {**variables_without_paddle, "OMP_NUM_THREADS": str(threads)}
