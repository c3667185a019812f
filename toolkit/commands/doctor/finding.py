"""The finding of a check, and wording that several checks share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from toolkit.errors import ToolkitError
from toolkit.machine.install import install_command
from toolkit.machine.runtime import distribution_version
from toolkit.terminal.escape import one_line

#: Maximum number of characters to show of another program's message.
MAX_MESSAGE_LENGTH = 300

State = Literal["ok", "warn", "fault"]


@dataclass(frozen=True)
class Finding:
    """A row of the table.

    Attributes:
        check: name of the check.
        state: ``ok``; ``warn`` if a run works, but not as well as it could; ``fault`` if a run would fail.
        description: description of the finding, one line.
        remedy: command or advice that fixes the finding, or details; may be empty.
    """

    check: str
    state: State
    description: str
    remedy: str = ""


def split_message(error: ToolkitError) -> tuple[str, str]:
    """Split the message of an error of the toolkit into its description and its remedy."""
    description, _, remedy = one_line(str(error)).partition("; ")
    return description, remedy


def reinstall_command() -> str:
    """Return the command that installs the toolkit again, for the same kind of Paddle wheel."""
    wheel = "gpu" if distribution_version("paddlepaddle-gpu") else "cpu"
    return install_command(f"{wheel},reference")
