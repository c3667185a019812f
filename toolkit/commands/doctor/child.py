"""Run code of a check in a child process, whose crash or timeout is reported as a failure."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.commands.doctor.finding import MAX_MESSAGE_LENGTH
from toolkit.machine.install import CHECKOUT
from toolkit.machine.interruption import signal_name
from toolkit.terminal.escape import one_line

#: Time limit of a child process in seconds. It imports frameworks from a disk that may be slow.
TIMEOUT_SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """The answer of a child process.

    Attributes:
        values: key -> value, as reported before the end or the failure of the process.
        failure: description of the failure; empty if the process succeeded.
    """

    values: Mapping[str, Any]
    failure: str


PREAMBLE = """
import json, os
sys.path.append(sys.argv[1])
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer
def say(**found):
    answers.write(json.dumps(found) + "\\n")
    answers.flush()
"""


def run_in_child(code: str, python: str | None = None, timeout_seconds: float = TIMEOUT_SECONDS) -> Answer:
    """Run code in a child process and return the values that the code reports by calling ``say``.

    Args:
        code: lines of Python.
        python: path of the Python that runs them; None for the running Python.
        timeout_seconds: time limit in seconds.
    """
    from models.files.another_python import code_command
    from toolkit.machine.scratch import child_process
    from toolkit.parity import worker_environment

    variables = {**worker_environment(), "WANDB_ERROR_REPORTING": "false", "GLOG_minloglevel": "2"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    command = code_command(python or sys.executable, PREAMBLE + code, str(CHECKOUT))
    timeout_message = ""
    with child_process(command, env=variables, text=True, errors="replace", **pipes) as process:
        try:
            out, log = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired:
            timeout_message = f"no answer within {timeout_seconds:.0f} s"
            process.kill()
            out, log = process.communicate()
    values: dict[str, Any] = {}
    for line in out.splitlines():
        values |= json.loads(line)
    return Answer(values, timeout_message or _describe_failure(process.returncode, log))


def _describe_failure(status: int, log: str) -> str:
    """Return how a process failed, from its exit status and its error output; empty if it succeeded."""
    if status == 0:
        return ""
    if status < 0:
        return f"the process was ended by {signal_name(-status)}"
    lines = [line for line in log.splitlines() if line.strip()] or [f"exit status {status}"]
    return one_line(lines[-1])[:MAX_MESSAGE_LENGTH]
