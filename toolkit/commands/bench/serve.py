"""A side's loop: it is told what to do by a line of JSON on its input, does it, and answers with one."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.commands.bench.workload import Workload

#: One measurement; gives a number that both sides must agree on, to see that they do the same: the loss of the first
#: step, or the last of the generated tokens.
Measured = Callable[[], float]


def serve(
    prepare: Callable[[Workload], Measured], extra: Callable[[Workload, str], Any], versions: dict[str, str]
) -> None:
    """Answer orders until the input ends.

    Args:
        prepare: gives what is to be timed.
        extra: called with the workload and the name of an order that is none of those here.
        versions: of what decides how fast this side is.
    """
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)  # what a framework prints is no answer
        workload: Workload | None = None
        measured: Measured | None = None
        before = 0
        for line in sys.stdin:
            order = json.loads(line)
            answer: Any
            if order["do"] == "prepare":
                workload = Workload(**order["workload"])
                measured = None  # the last model is freed before the next is made
                forget_peak()
                before = resident("VmRSS")
                measured = prepare(workload)
                answer = versions
            elif order["do"] == "measure":
                assert measured is not None
                start = time.perf_counter()
                value = measured()
                answer = {"seconds": time.perf_counter() - start, "value": value}
            elif order["do"] == "memory":
                answer = max(0, resident("VmHWM") - before)
            elif order["do"] == "whole memory":
                answer = resident("VmHWM")
            else:
                assert workload is not None
                answer = extra(workload, order["do"])
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def resident(kind: str) -> int:
    """Bytes of memory in use, ``VmRSS``, or at most in use, ``VmHWM``; 0 where the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{kind}:")), 0)


def forget_peak() -> None:
    """Begin the peak of :func:`resident` anew, where the system lets a process do so."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return
