"""Errors that a user can fix, each with one clear message and an exit status instead of a traceback."""

from __future__ import annotations


class ToolkitError(Exception):
    """A failure whose message is meant for the user; `toolkit` prints it and exits with `exit_status`.

    The message has one line for each argument. A line break in an argument, as in a file name, is printed as an escape.
    """

    exit_status = 1

    def __str__(self) -> str:
        return "\n".join(map(str, self.args))


class UserError(ToolkitError):
    """A mistake in a recipe, an argument or a data file; the message names the place, the mistake and the remedy."""

    exit_status = 2


class ParityDrift(ToolkitError):
    """The gate found the Paddle port to differ from the reference: no training was started."""

    exit_status = 1


class Inconclusive(ToolkitError):
    """The gate could not decide, for example because the reference cannot run on this machine."""

    exit_status = 3
