"""The progress bar of a run, and the lines that it prints at each evaluation."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from toolkit.terminal.escape import visible

#: The bar's least width, with which the numbers are chosen.
LEAST_BAR = 4


class ProgressBar:
    """A bar over `total` steps with the latest numbers beside it.

    On a terminal it redraws itself; into a file or a pipe it prints only the lines of :meth:`line`.

    Args:
        title: what is going on, one word.
        done: steps that an earlier run has done.
    """

    def __init__(self, console: Console, title: str, total: int, done: int = 0) -> None:
        self._console = console
        self._title = visible(title)
        self._total = total
        self._numbers: list[str] = []
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),  # the one column that shrinks
            MofNCompleteColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[numbers]}", markup=False),
            Times(table_column=Column(no_wrap=True)),
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
        """Show the steps done, and the numbers that are known and have room, the first ones first."""
        self._numbers = [
            visible(f"{name} {format_number(value)}") for name, value in numbers.items() if value is not None
        ]
        self._progress.update(self._task, completed=done)
        self._show(self._title)

    def busy(self, what: str) -> None:
        """Show, in place of the title, what the run is doing between two steps, for example `validation 3/10`."""
        self._show(visible(what))

    def _show(self, title: str) -> None:
        """Show a title, and as many of the numbers as a line has room for beside it."""
        others = f"{title} {self._total}/{self._total} {times_of(self._progress.tasks[0])}"
        room = self._console.width - cell_len(others) - LEAST_BAR - len("  ")
        shown = list(self._numbers)
        while shown and cell_len("  ".join(shown)) > room:
            shown.pop()
        self._progress.update(self._task, description=title, numbers="  ".join(shown))

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, highlight=False, soft_wrap=True)


class Times(ProgressColumn):
    """The times of :func:`times_of`."""

    def render(self, task: Task) -> Text:
        """As text."""
        return Text(times_of(task))


def times_of(task: Task) -> str:
    """The time that has passed, and what is left of it at this pace, once that is known."""
    passed = f"{_time(task.elapsed or 0.0)} passed"
    left = task.time_remaining
    return passed if left is None else f"{passed}, {_time(left)} left"


def _time(seconds: float) -> str:
    """``2:05`` or ``1:02:05``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_number(value: float) -> str:
    """Format with four significant digits; `1.2e-05` for many zeros."""
    return f"{value:.4g}"
