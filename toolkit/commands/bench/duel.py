"""Measure two sides in turn."""

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
from toolkit.commands.bench.ratios import Ratio, ratio
from toolkit.commands.bench.workload import PART_OF, PARTS, Workload
from toolkit.errors import Inconclusive
from toolkit.machine import allocator, runtime
from toolkit.machine.scratch import child, scratch_folder

#: Discarded measurements of each side: memory is allocated and kernels are chosen in them.
WARM_UPS = 2
#: Seconds between two sides, in which the previous one's threads stop waiting for work.
PAUSE = 0.25
#: Bytes below which a side's memory is what its allocator happens to ask for.
LEAST_MEMORY = 2**20
OURS = "port"
#: Environment variables that affect Paddle and are unset by default.
PADDLE_SETTINGS = ("OMP_NUM_THREADS", "FLAGS_paddle_num_threads", "MKL_DEBUG_CPU_TYPE")


@dataclass
class Measurements:
    """Measurements of one side.

    Attributes:
        seconds: of each measurement.
        first_value: result of the first one; see :data:`.serve.Measured`.
        memory: peak bytes above those of the imports; for starts, of the whole process.
        versions: of what it runs on.
    """

    seconds: list[float] = field(default_factory=list)
    first_value: float = float("nan")
    memory: int = 0
    versions: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Limit:
    """The time that a part of the work takes alone, at the highest speed that this processor reaches between a pair's
    sides: nothing that does the same work is faster.

    Attributes:
        part: what is counted, of :data:`.workload.PARTS`.
        amount: multiplications and additions of the port's matrix products; or bytes of the weights, which each token
            reads.
        speeds: operations or bytes per second, of each pair.
    """

    part: str
    amount: float
    speeds: Sequence[float]

    @property
    def speed(self) -> float:
        """The median."""
        return median(self.speeds)

    @property
    def seconds(self) -> float:
        """Of a measurement that did nothing else, by median speed."""
        return self.amount / self.speed

    def __str__(self) -> str:
        return f"{self.part} alone, {self.seconds:.3g} s at {self.speed / 1e9:,.3g} {PARTS[self.part]}"


@dataclass(frozen=True)
class Duel:
    """A workload and both sides' measurements.

    Attributes:
        sides: name -> measurements, the port's first.
        limit: None where none is known.
    """

    workload: Workload
    sides: Mapping[str, Measurements]
    limit: Limit | None = None

    @property
    def times(self) -> Ratio:
        """The port's seconds over the other's."""
        ours, theirs = self.sides.values()
        return ratio(ours.seconds, theirs.seconds)

    @property
    def memory(self) -> float | None:
        """The port's memory over the other's; None if unknown, or if the other's is below :data:`LEAST_MEMORY`."""
        ours, theirs = self.sides.values()
        return ours.memory / theirs.memory if theirs.memory >= LEAST_MEMORY else None

    @property
    def shares(self) -> Mapping[str, float]:
        """The limit's share of each side's time, the median of the pairs; empty where no limit is known."""
        if not (limit := self.limit):
            return {}
        return {
            name: median(limit.amount / speed / one for speed, one in zip(limit.speeds, side.seconds, strict=True))
            for name, side in self.sides.items()
        }

    def amount_per_second(self, side: str) -> float:
        """Return a side's tokens or texts per second, by median time."""
        return self.workload.amount / median(self.sides[side].seconds)


def duel(workload: Workload, against: str, pairs: int, python: str | None, say: Callable[[str], None]) -> Duel:
    """Measure the port and another implementation in turn.

    Args:
        pairs: how many; the side that is first alternates.
        python: the interpreter of transformers; None: this one.

    Raises:
        Inconclusive: a side cannot run.
    """
    if workload.work == "start":
        return _starts(workload, against, pairs, python, say)
    measured = {OURS: Measurements(), against: Measurements()}
    part, speeds = PART_OF.get(workload.work), []
    if part:
        _compile(workload, say)
    with contextlib.ExitStack() as running:
        # Of its own: what it needs for that is no memory of the port's.
        ruler = running.enter_context(Side.started(OURS, None, workload.threads)) if part else None
        processes = {side: running.enter_context(Side.started(side, python, workload.threads)) for side in measured}
        for side, process in processes.items():
            say(f"preparing {side}")
            measured[side].versions = process.ask("prepare", workload=workload.to_json())
            for number in range(WARM_UPS):
                value = process.ask("measure")["value"]
                if not number:
                    measured[side].first_value = value
        for pair in range(pairs):
            for place, side in enumerate(list(processes)[:: -1 if pair % 2 else 1]):
                if place and ruler:
                    time.sleep(PAUSE)
                    speeds.append(ruler.ask("speed", workload=workload.to_json()))
                say(f"pair {pair + 1} of {pairs}: {side}")
                if workload.work == "tokenize":  # by a new tokenizer, with no word cached
                    processes[side].ask("prepare", workload=workload.to_json())
                time.sleep(PAUSE)
                measured[side].seconds.append(processes[side].ask("measure")["seconds"])
        for side, process in processes.items():
            measured[side].memory = process.ask("memory")
        limit = Limit(part, processes[OURS].ask("amount"), speeds) if part else None
    return Duel(workload, measured, limit)


def _compile(workload: Workload, say: Callable[[str], None]) -> None:
    """Let the port compile what is not yet in its cache: Numba's memory is none of a measurement's."""
    say("compiling")
    with Side.started(OURS, None, workload.threads) as process:
        process.ask("prepare", workload=workload.to_json())
        process.ask("measure")


def _starts(workload: Workload, against: str, pairs: int, python: str | None, say: Callable[[str], None]) -> Duel:
    """Time processes from their start to the end of the first training step: imports, the model, the weights. The first
    pair is discarded, because it reads files from the disk."""
    measured = {OURS: Measurements(), against: Measurements()}
    for pair in range(pairs + 1):
        for side in list(measured)[:: -1 if pair % 2 else 1]:
            say(f"start {pair} of {pairs}: {side}" if pair else f"preparing {side}")
            time.sleep(PAUSE)
            began = time.perf_counter()
            with Side.started(side, python, workload.threads) as process:
                measured[side].versions = process.ask("prepare", workload=workload.to_json())
                measured[side].first_value = process.ask("measure")["value"]
                if pair:
                    measured[side].seconds.append(time.perf_counter() - began)
                    measured[side].memory = max(measured[side].memory, process.ask("whole memory"))
    return Duel(workload, measured)


@dataclass
class Side:
    """A process that is asked for one thing at a time."""

    name: str
    process: subprocess.Popen
    log: Path

    @classmethod
    @contextlib.contextmanager
    def started(cls, name: str, python: str | None, threads: int) -> Iterator[Side]:
        """Start the side's program; it ends with the ``with`` block."""
        with scratch_folder("toolkit-bench-") as folder, open(folder / "log", "x") as log:
            interpreter = python if python and name == "transformers" else sys.executable
            worker = child(
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

    def ask(self, order: str, **given: Any) -> Any:
        """Send an order and wait for the answer. Raises Inconclusive if the process ended."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": order, **given}) + "\n")
            self.process.stdin.flush()
        answer = self.process.stdout.readline()
        if not answer:
            self.process.wait()
            words = " ".join(self.log.read_text(errors="replace")[-500:].split())
            raise Inconclusive(f"bench: {self.name} could not run: {words or 'it ended without a word'}")
        return json.loads(answer)


def _environment(side: str, threads: int) -> dict[str, str]:
    """The port runs as in `toolkit finetune`, transformers with as many threads, PaddleNLP with Paddle's defaults."""
    here = another_python.environment()
    inherited = {key: value for key, value in here.items() if key not in PADDLE_SETTINGS}
    if side == "paddlenlp":
        return inherited
    if side == OURS:
        return {**inherited, **runtime.environment(threads), **allocator.environment()}
    return {**inherited, "OMP_NUM_THREADS": str(threads)}
