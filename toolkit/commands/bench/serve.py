"""A side's loop: it reads orders as lines of JSON, carries each out, and answers with a line of JSON."""

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

#: One measurement. Returns a number on which both sides must agree if they do the same: the loss of the first step, or
#: the last generated token.
Measured = Callable[[], float]


def serve(
    prepare: Callable[[Workload], Measured],
    versions: dict[str, str],
    amount: Callable[[Workload, Measured], float] | None = None,
    speed: Callable[[Workload], float] | None = None,
) -> None:
    """Answer orders until the input ends.

    Args:
        versions: of what decides this side's speed.
        amount, speed: of the part that limits a work (:data:`.workload.PART_OF`), in operations or bytes, and by the
            second.
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
            elif order["do"] == "speed":
                assert speed is not None
                answer = speed(Workload(**order["workload"]))
            else:
                assert workload is not None and measured is not None and amount is not None
                answer = amount(workload, measured)
            answers.write(json.dumps(answer) + "\n")
            answers.flush()


def resident(kind: str) -> int:
    """Return the bytes of memory in use, ``VmRSS``, or their peak, ``VmHWM``; 0 if the system does not say."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(f"{kind}:")), 0)


def forget_peak() -> None:
    """Reset the peak of :func:`resident`, if the system allows it."""
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "a") as counter:
        counter.write("5")
