"""The group of all commands: names of two words, and headings in `toolkit --help`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import click

#: Heading of a group of commands in `toolkit --help` -> the first words of their names.
COMMAND_GROUPS = {
    "Your data": ("recipe",),
    "A run": ("finetune", "search", "finish", "report", "compare", "evaluate", "predict", "generate", "serve", "export",
              "push"),
    "Check a port": ("parity",),
    "The machine": ("doctor", "bench", "cache"),
}  # fmt: skip


@contextlib.contextmanager
def interrupts_as_aborts() -> Iterator[None]:
    """Raise click.Abort instead of a KeyboardInterrupt in the ``with`` block. Click would print an empty line."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise click.Abort from error


class TwoWords(click.Group):
    """A group whose command names may have two words; the first is a command, too."""

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and their short help into the help text, grouped under headings."""
        width = max(map(len, self.commands))
        for heading, first_words in COMMAND_GROUPS.items():
            names = [name for word in first_words for name in sorted(self.commands) if name.split()[0] == word]
            with formatter.section(heading):
                formatter.write_dl(
                    [(name.ljust(width), self.commands[name].get_short_help_str(limit=10**6)) for name in names]
                )

    def resolve_command(self, context: click.Context, arguments: list[str]) -> tuple:
        """Return the name and the command that the first word or two words name, and the other arguments."""
        name = " ".join(arguments[:2])
        if len(arguments) > 1 and name in self.commands:
            return name, self.commands[name], arguments[2:]
        return super().resolve_command(context, arguments)

    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        """Parse the arguments; Ctrl-C ends the program as click's own abort."""
        with interrupts_as_aborts():
            return super().make_context(*arguments, **options)

    def invoke(self, context: click.Context) -> Any:
        """Run the command; Ctrl-C ends the program as click's own abort."""
        with interrupts_as_aborts():
            return super().invoke(context)
