"""What a check finds, and wording that several checks share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolkit.errors import ToolkitError
from toolkit.machine.install import install_command
from toolkit.machine.runtime import version_of
from toolkit.terminal.escape import one_line

#: Characters shown of another program's message.
LONGEST_WORDS = 300

State = Literal["ok", "warn", "fault"]


@dataclass(frozen=True)
class Finding:
    """A row of the table.

    Attributes:
        state: ``ok``; ``warn`` if a run works, but not as it could; ``fault`` if it would not.
        what: what is found, in a line.
        mend: the command, or what to do; empty if nothing is to be done.
    """

    check: str
    state: State
    what: str
    mend: str = ""


def told(problem: ToolkitError) -> tuple[str, str]:
    """Split the toolkit's own message: what is wrong, and what to do."""
    what, _, mend = one_line(str(problem)).partition("; ")
    return what, mend


def reinstall() -> str:
    wheel = "gpu" if version_of("paddlepaddle-gpu") else "cpu"
    return install_command(f"{wheel},reference")
