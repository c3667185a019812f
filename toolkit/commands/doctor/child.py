"""Ask a child process something: its crash or silence is an answer, too."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.commands.doctor.finding import LONGEST_WORDS
from toolkit.machine.install import CHECKOUT
from toolkit.machine.interruption import name_of
from toolkit.terminal.escape import one_line

#: Seconds for a child process, which imports frameworks from a disk that may be slow.
PATIENCE = 120.0


@dataclass(frozen=True)
class Answer:
    """Answer of a child.

    Attributes:
        said: by key, up to where it failed.
        failed: how; empty if it did not.
    """

    said: Mapping[str, Any]
    failed: str


PREAMBLE = """
import json, os
sys.path.append(sys.argv[1])
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what libraries print is no answer
def say(**found):
    answers.write(json.dumps(found) + "\\n")
    answers.flush()
"""


def ask(code: str, python: str | None = None, patience: float = PATIENCE) -> Answer:
    """Run some lines in a child process, in which ``say(key=value)`` answers."""
    from models.files.another_python import code_command
    from toolkit.machine.scratch import child
    from toolkit.parity import worker_environment

    variables = {**worker_environment(), "WANDB_ERROR_REPORTING": "false", "GLOG_minloglevel": "2"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    command = code_command(python or sys.executable, PREAMBLE + code, str(CHECKOUT))
    late = ""
    with child(command, env=variables, text=True, errors="replace", **pipes) as process:
        try:
            out, log = process.communicate(timeout=patience)
        except subprocess.TimeoutExpired:
            late = f"no answer within {patience:.0f} s"
            process.kill()
            out, log = process.communicate()
    said: dict[str, Any] = {}
    for line in out.splitlines():
        said |= json.loads(line)
    return Answer(said, late or _last_words(process.returncode, log))


def _last_words(status: int, log: str) -> str:
    """Say how a process failed; empty if it did not."""
    if status == 0:
        return ""
    if status < 0:
        return f"the process was ended by {name_of(-status)}"
    lines = [line for line in log.splitlines() if line.strip()] or [f"exit status {status}"]
    return one_line(lines[-1])[:LONGEST_WORDS]
