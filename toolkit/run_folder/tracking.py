"""Where the numbers of a run go: metrics.jsonl and metrics.csv always, wandb and VisualDL when the recipe asks."""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import io
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from models.files.plain import plain_file
from toolkit.errors import UserError
from toolkit.files.strict_json import dumps
from toolkit.files.whole import write_text
from toolkit.machine.disk import writing
from toolkit.machine.runtime import is_first_process
from toolkit.recipe.keys import Tracking
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.read import read_json, reading
from toolkit.run_folder.wandb import UNSAFE_SECONDS, WandbRun, check_wandb

#: The columns that every row has, in the order in which metrics.csv shows them.
LEADING_COLUMNS = ("step", "epoch", "split")
#: How each line begins.
BEGINNING = b'{"step": '


def check_trackers(recipe: Recipe) -> None:
    """Stop before any computation if a tracker that the recipe asks for cannot work: a UserError at the recipe's line,
    with what to do."""
    if recipe.tracking.wandb and is_first_process():
        check_wandb(recipe)
    if recipe.tracking.visualdl and importlib.util.find_spec("visualdl") is None:
        raise recipe.error("tracking.visualdl", "visualdl is not installed; pip install visualdl, or set it to false")


class MetricsFile:
    """Rows of metrics, as JSON lines and as a CSV table, on disk as soon as they are written.

    Args:
        last_step: rows of later steps, which an interrupted run wrote after its last checkpoint, are removed: the run
            that resumes writes them again.
        tell: told of lines that are no rows, and of lost rows; an old file that holds more is kept beside the
            new one.
        eval_steps: steps between validations; None to skip the check for lost rows.
        left: whether the row of the last step's validation is removed, too: the resuming run makes it first.
    """

    def __init__(
        self,
        folder: Path,
        last_step: int = 0,
        tell: Callable[[str], None] = lambda text: None,
        eval_steps: int | None = None,
        left: bool = False,
    ) -> None:
        self.json_path = folder / "metrics.jsonl"
        self.csv_path = folder / "metrics.csv"
        rows = read_metrics(self.json_path)
        kept = [row for row in rows if row["step"] <= last_step - left]
        kept += [row for row in rows if left and row["step"] == last_step and row.get("split") == "train"]
        if (wrong := complaint(self.json_path, last_step, eval_steps, left)) is not None:
            aside = [keep_aside(self.json_path)] if damaged_lines(self.json_path) else []
            aside += [keep_aside(self.csv_path)] if eval_steps and self._table_has_more(kept, last_step) else []
            tell(wrong + "".join(f", the old file is {path}" for path in aside))
        self._kept, self._ended = kept, rows[-1].get("seconds", 0.0) if rows else 0.0
        self._columns = list(LEADING_COLUMNS)
        self._columns += [key for key in dict.fromkeys(key for row in kept for key in row) if key not in self._columns]
        write_text(self.json_path, "".join(dumps(row) + "\n" for row in kept))
        self._write_table(kept)

    def write(self, row: dict[str, Any]) -> None:
        """Append one row; a key that is new becomes a new column."""
        with writing(self.json_path), self.json_path.open("a", encoding="utf-8") as lines:
            lines.write(dumps(row) + "\n")
        new = [key for key in row if key not in self._columns]
        if new:
            self._columns += new
            self._write_table(read_metrics(self.json_path))
            return
        with writing(self.csv_path), self.csv_path.open("a", encoding="utf-8", newline="") as table:
            csv.DictWriter(table, self._columns).writerow(row)

    def last_kept(self, seconds: float) -> list[dict[str, Any]]:
        """Return the kept rows of an interrupted run from its last ``seconds`` of training."""
        return [row for row in self._kept if row.get("seconds", 0.0) >= self._ended - seconds]

    def _table_has_more(self, kept: list[dict[str, Any]], last_step: int) -> bool:
        """Whether the table has rows up to a step that are not among those kept."""
        known = {(str(row["step"]), row.get("split")) for row in kept}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, csv.Error):
            with plain_file(self.csv_path).open(encoding="utf-8", newline="") as table:
                there = [(row["step"], row["split"]) for row in csv.DictReader(table)]
            return any(int(row[0]) <= last_step and row not in known for row in there)
        return False

    def _write_table(self, rows: list[dict[str, Any]]) -> None:
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.csv_path, table.getvalue())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a metrics.jsonl; none when there is no such file. Lines that are no rows are left out."""
    return [row for row in map(_row, _split(path)) if row is not None]


def damaged_lines(path: Path) -> list[int]:
    """The numbers of the lines that are no rows, from 1. A last line cut short by a kill is not counted."""
    *lines, last = _split(path) or [b""]
    if not last.startswith(BEGINNING[: len(last)]):
        lines.append(last)
    return [number for number, line in enumerate(lines, start=1) if _row(line) is None]


def complaint(path: Path, last_step: int, eval_steps: int | None, left: bool = False) -> str | None:
    """Say in a line what is wrong with a metrics.jsonl, and which rows up to a step are lost; None if all is well. The
    last two arguments are as those of :class:`MetricsFile`."""
    damaged = damaged_lines(path)
    lost = _lost(read_metrics(path), last_step, eval_steps, left) if eval_steps else ""
    if not damaged and not lost:
        return None
    wrong = _lines(damaged) if damaged else "lacks rows" if path.exists() else "is missing"
    return f"{path}: {wrong}; {f'lost are {lost}' if lost else 'the others stay'}"


def complaint_of_finished(folder: Path) -> str | None:
    """Like :func:`complaint`, for a finished run; None if its metrics.json does not tell its length."""
    try:
        training = read_json(folder / "metrics.json", "")["training"]
        return complaint(folder / "metrics.jsonl", int(training["steps"]), int(training["schedule"]["eval_steps"]))
    except (KeyError, TypeError, ValueError):
        return None
    except UserError as error:
        return str(error)


def _lost(rows: Sequence[Mapping[str, Any]], last_step: int, eval_steps: int, left: bool) -> str:
    """Say which rows of a run up to a step are missing; empty if none are."""
    there = {(row.get("split"), row["step"]) for row in rows}
    steps = {"train": range(1, last_step + 1), "validation": range(eval_steps, last_step + 1 - left, eval_steps)}
    lost = {split: [step for step in of if (split, step) not in there] for split, of in steps.items()}
    return " and ".join(f"the {split} rows of {_steps(missing)}" for split, missing in lost.items() if missing)


def _steps(numbers: Sequence[int]) -> str:
    """Name steps: the only one, or how many, the first and the last."""
    if len(numbers) == 1:
        return f"step {numbers[0]}"
    return f"{len(numbers)} steps from {numbers[0]} to {numbers[-1]}"


def keep_aside(path: Path) -> Path:
    """Copy a file to a free name beside it; return that."""
    names = (path.with_name(f"{path.name}.damaged-{number}") for number in itertools.count(1))
    aside = next(name for name in names if not name.exists())
    with writing(aside):
        shutil.copyfile(path, aside)
    return aside


def _split(path: Path) -> list[bytes]:
    """The lines of a file; what follows the last line break is one, too."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return []
    with reading(path, "remove it"):
        return plain_file(path).read_bytes().split(b"\n")


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _lines(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]} is no row of metrics"
    return f"{len(numbers)} lines, the first of them {numbers[0]}, are no rows of metrics"


class Tracker:
    """All the places that a run's metrics go to.

    Args:
        recipe: names trackers beside the files. Of several processes only the first has any.
        last_step: the step that a resumed run starts from, 0 for a new one.
        tell: see :class:`MetricsFile`; told as well if wandb fails.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        last_step: int = 0,
        tell: Callable[[str], None] = lambda text: None,
        eval_steps: int | None = None,
        left: bool = False,
    ) -> None:
        self._file = MetricsFile(folder, last_step, tell, eval_steps, left)
        asked = recipe.tracking if is_first_process() else Tracking()
        self._log_model = asked.log_model
        self._wandb = WandbRun(folder, recipe, tell) if asked.wandb else None
        self._visualdl = _start_visualdl(folder) if asked.visualdl else None
        if self._wandb is not None:
            for row in self._file.last_kept(UNSAFE_SECONDS):
                self._wandb.log(row, _numbers(row))

    def write(self, row: dict[str, Any]) -> None:
        """Record the metrics of one step; `split` says on which examples, the numbers are recorded as split/name."""
        self._file.write(row)
        numbers = _numbers(row)
        if self._wandb is not None:
            self._wandb.log(row, numbers)
        if self._visualdl is not None:
            for name, value in numbers.items():
                self._visualdl.add_scalar(name, value, row["step"])

    def summarize(self, results: dict[str, Any]) -> None:
        """Record the final numbers, the content of metrics.json, when the run folder is complete."""
        if self._wandb is not None:
            self._wandb.summarize(results)
            self._wandb.keep_files(self._log_model)

    def close(self, exit_status: int = 0) -> None:
        """Send what is still to be sent; a status other than 0 marks the run as unfinished."""
        if self._wandb is not None:
            self._wandb.close(exit_status)
        if self._visualdl is not None:
            self._visualdl.close()


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a row, named ``split/name``."""
    return {f"{row['split']}/{key}": value for key, value in row.items() if key not in LEADING_COLUMNS}


def _start_visualdl(folder: Path) -> Any:
    from visualdl import LogWriter

    return LogWriter(logdir=str(folder / "visualdl"))
