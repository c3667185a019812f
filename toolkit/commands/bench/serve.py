"""The loop of a side: it reads orders as lines of JSON, carries each out, and answers with a line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.commands.bench.workload import Workload

#: Function that runs the workload once. It returns a number that should be equal on both sides: the loss of the first
#: step, or the last generated token.
RunFn = Callable[[], float]


def serve_orders(
    prepare: Callable[[Workload], RunFn],
    versions: dict[str, str],
    amount: Callable[[Workload, RunFn], float] | None = None,
    speed: Callable[[Workload], float] | None = None,
) -> None:
    """Answer orders until the input ends.

    Args:
        prepare: function that builds a workload and returns a function that runs it once.
        versions: package -> version, for the packages that determine the speed of this side.
        amount: function that returns the operations or bytes of the part that limits a work
            (:data:`.workload.PART_OF`).
        speed: function that returns the speed of this part, in operations or bytes per second.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # a framework's output must not mix with the answers
        workload: Workload | None = None
        run_once: RunFn | None = None
        memory_before = 0
        for line in sys.stdin:
            order = json.loads(line)
            answer: Any
            if order["do"] == "prepare":
                workload = Workload(**order["workload"])
                run_once = None  # frees the previous model before the next model is built
                reset_peak_memory()
                memory_before = resident_bytes("VmRSS")
                run_once = prepare(workload)
                answer = versions
            elif order["do"] == "measure":
                assert run_once is not None
                start = time.perf_counter()
                value = run_once()
                answer = {"seconds": time.perf_counter() - start, "value": value}
            elif order["do"] == "memory":
                answer = max(0, resident_bytes("VmHWM") - memory_before)
            elif order["do"] == "whole memory":
                answer = resident_bytes("VmHWM")
            elif order["do"] == "speed":
                assert speed is not None
                answer = speed(Workload(**order["workload"]))
            else:
                assert workload is not None and run_once is not None and amount is not None
                answer = amount(workload, run_once)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def resident_bytes(kind: str) -> int:
    """Return the resident memory of this process in bytes; 0 if the system does not report it.

    ``kind`` is ``VmRSS`` for the current memory or ``VmHWM`` for its peak.
    """
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{kind}:")), 0)


def reset_peak_memory() -> None:
    """Reset the peak memory (``VmHWM``) of this process, if the system allows it."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "a") as counter:
        counter.write("5")
