"""The progress bar of a run, and the lines that it prints at each evaluation."""

from __future__ import annotations

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.table import Column
from rich.text import Text

from toolkit.terminal.escape import visible

#: Minimum width of the bar. Numbers that do not fit next to it are left out.
MIN_BAR_WIDTH = 4


class ProgressBar:
    """A progress bar with the latest metrics next to it.

    On a terminal it redraws itself. In a file or a pipe it prints only the lines of :meth:`line`.

    Args:
        console: console to print to.
        title: name of the activity, one word.
        total: total number of steps.
        done: number of steps that an earlier run has finished.
    """

    def __init__(self, console: Console, title: str, total: int, done: int = 0) -> None:
        self._console = console
        self._title = visible(title)
        self._total = total
        self._numbers: list[str] = []
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),  # only this column shrinks
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

    def update(self, num_done: int, **numbers: float | None) -> None:
        """Show the number of finished steps, and as many metrics as fit, in their order; None values are skipped."""
        self._numbers = [
            visible(f"{name} {format_number(value)}") for name, value in numbers.items() if value is not None
        ]
        self._progress.update(self._task, completed=num_done)
        self._show(self._title)

    def busy(self, activity: str) -> None:
        """Show an activity between two steps instead of the title, for example `validation 3/10`."""
        self._show(visible(activity))

    def _show(self, title: str) -> None:
        """Show a title, and as many metrics as fit on the line."""
        fixed_text = f"{title} {self._total}/{self._total} {times_of(self._progress.tasks[0])}"
        available_width = self._console.width - cell_len(fixed_text) - MIN_BAR_WIDTH - len("  ")
        fitting_numbers = list(self._numbers)
        while fitting_numbers and cell_len("  ".join(fitting_numbers)) > available_width:
            fitting_numbers.pop()
        self._progress.update(self._task, description=title, numbers="  ".join(fitting_numbers))

    def line(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(text, highlight=False, soft_wrap=True)


class Times(ProgressColumn):
    """Column of the progress bar with the elapsed and the remaining time."""

    def render(self, task: Task) -> Text:
        """Return the times of a task as text."""
        return Text(times_of(task))


def times_of(task: Task) -> str:
    """Return the elapsed time of a task, and the estimated remaining time as soon as it is known."""
    elapsed_text = f"{_time(task.elapsed or 0.0)} passed"
    remaining_seconds = task.time_remaining
    return elapsed_text if remaining_seconds is None else f"{elapsed_text}, {_time(remaining_seconds)} left"


def _time(seconds: float) -> str:
    """Return a duration as ``2:05`` or ``1:02:05``."""
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds_left:02}" if hours else f"{minutes}:{seconds_left:02}"


def format_number(value: float) -> str:
    """Return a number with four significant digits, such as `0.1235` or `1.2e-05`."""
    return f"{value:.4g}"
