"""The progress bar of a run, and the lines that it prints at each evaluation."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from toolkit.terminal.escape import visible


class ProgressBar:
    """A bar over `total` steps with the latest numbers beside it.

    On a terminal it redraws itself; into a file or a pipe it prints only the lines of :meth:`line`.

    Args:
        console: where to draw.
        title: what is going on, one word.
        total: steps.
        done: steps that an earlier run has done.
    """

    def __init__(self, console: Console, title: str, total: int, done: int = 0) -> None:
        self._console = console
        self._title = visible(title)
        self._numbers = ""
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}", markup=False),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            refresh_per_second=4,
            transient=True,
        )
        self._task = self._progress.add_task(self._title, total=total, completed=done, numbers="")

    def start(self) -> None:
        """Begin to draw."""
        self._progress.start()

    def stop(self) -> None:
        """Remove the bar."""
        self._progress.stop()

    def __enter__(self) -> ProgressBar:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def update(self, done: int, **numbers: float | None) -> None:
        """Show how many steps are done, and the numbers that are known (None is left out)."""
        self._numbers = visible(
            "  ".join(f"{name} {format_number(value)}" for name, value in numbers.items() if value is not None)
        )
        self._progress.update(self._task, completed=done, description=self._title, numbers=self._numbers)

    def busy(self, what: str) -> None:
        """Show, in place of the title, what the run is doing between two steps, for example `validation 3/10`."""
        self._progress.update(self._task, description=visible(what))

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, highlight=False, soft_wrap=True)


def format_number(value: float) -> str:
    """Format with four significant digits; `1.2e-05` for many zeros."""
    return f"{value:.4g}"
