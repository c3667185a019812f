"""Record the metrics of a run in metrics.jsonl and metrics.csv, and in the services that the recipe enables."""

from __future__ import annotations

import contextlib
import csv
import importlib
import importlib.util
import io
import itertools
import json
import shutil
from collections.abc import Callable, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from models.files.plain import plain_file
from toolkit.errors import UserError
from toolkit.files.strict_json import dumps
from toolkit.files.whole import write_text
from toolkit.machine.disk import explain_write_errors
from toolkit.machine.runtime import is_first_process
from toolkit.recipe.keys import Tracking
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.read import read_json, reading
from toolkit.run_folder.wandb import UNSAFE_SECONDS, WandbRun, check_wandb

#: Columns of every row, in the order of metrics.csv.
LEADING_COLUMNS = ("step", "epoch", "split")
#: Package whose writer of log files has the name of a key of ``tracking``, by this key.
WRITER_PACKAGES = {"visualdl": "visualdl", "tensorboard": "tensorboardX"}
#: Prefix of each line of metrics.jsonl.
LINE_PREFIX = b'{"step": '


def check_trackers(recipe: Recipe) -> None:
    """Check before any computation that the trackers of the recipe can work.

    Raises:
        UserError: a tracker cannot work; the message has the line of the recipe and a remedy.
    """
    if recipe.tracking.wandb and is_first_process():
        check_wandb(recipe)
    for key, package in WRITER_PACKAGES.items():
        if getattr(recipe.tracking, key) and importlib.util.find_spec(package) is None:
            message = f"{package} is not installed; pip install {package}, or set it to false"
            raise recipe.error(f"tracking.{key}", message)


class MetricsFile:
    """Rows of metrics, in a file of JSON lines and in a CSV table, which are written immediately.

    Args:
        folder: folder of the run.
        last_step: step of the checkpoint where the run resumes. Rows of later steps are removed, since the run
            writes them again.
        on_warning: function that is called with a message about damaged lines and lost rows. An old file with more rows
            is copied under another name first.
        eval_steps: number of steps between validations; None skips the check for lost rows.
        repeats_validation: whether the validation of the last step is repeated, so that its row is removed.
    """

    def __init__(
        self,
        folder: Path,
        last_step: int = 0,
        on_warning: Callable[[str], None] = lambda text: None,
        eval_steps: int | None = None,
        *,
        repeats_validation: bool = False,
    ) -> None:
        self.json_path = folder / "metrics.jsonl"
        self.csv_path = folder / "metrics.csv"
        rows = read_metrics(self.json_path)
        kept_rows = [row for row in rows if row["step"] <= last_step - repeats_validation]
        kept_rows += [
            row for row in rows if repeats_validation and row["step"] == last_step and row.get("split") == "train"
        ]
        if (
            message := complaint(self.json_path, last_step, eval_steps, repeats_validation=repeats_validation)
        ) is not None:
            copies = [copy_damaged_file(self.json_path)] if damaged_lines(self.json_path) else []
            copies += (
                [copy_damaged_file(self.csv_path)] if eval_steps and self._table_has_more(kept_rows, last_step) else []
            )
            on_warning(message + "".join(f", the old file is {path}" for path in copies))
        self._kept, self._ended = kept_rows, rows[-1].get("seconds", 0.0) if rows else 0.0
        self._columns = list(LEADING_COLUMNS)
        self._columns += [
            key for key in dict.fromkeys(key for row in kept_rows for key in row) if key not in self._columns
        ]
        write_text(self.json_path, "".join(dumps(row) + "\n" for row in kept_rows))
        self._write_table(kept_rows)

    def write(self, row: dict[str, Any]) -> None:
        """Append a row to both files. A key that is new becomes a new column."""
        with explain_write_errors(self.json_path), self.json_path.open("a", encoding="utf-8") as lines:
            lines.write(dumps(row) + "\n")
        new_columns = [key for key in row if key not in self._columns]
        if new_columns:
            self._columns += new_columns
            self._write_table(read_metrics(self.json_path))
            return
        with explain_write_errors(self.csv_path), self.csv_path.open("a", encoding="utf-8", newline="") as table:
            csv.DictWriter(table, self._columns).writerow(row)

    def last_kept(self, seconds: float) -> list[dict[str, Any]]:
        """Return the rows of an interrupted run from its last ``seconds`` of training, up to the checkpoint."""
        return [row for row in self._kept if row.get("seconds", 0.0) >= self._ended - seconds]

    def _table_has_more(self, kept_rows: list[dict[str, Any]], last_step: int) -> bool:
        """Return whether the CSV table has rows up to ``last_step`` that are missing in ``kept_rows``."""
        known_steps = {(str(row["step"]), row.get("split")) for row in kept_rows}
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError, csv.Error):
            with plain_file(self.csv_path).open(encoding="utf-8", newline="") as table:
                table_steps = [(row["step"], row["split"]) for row in csv.DictReader(table)]
            return any(int(row[0]) <= last_step and row not in known_steps for row in table_steps)
        return False

    def _write_table(self, rows: list[dict[str, Any]]) -> None:
        """Write rows of metrics as a csv file.

        Args:
            rows: rows of metrics.
        """
        table = io.StringIO(newline="")
        writer = csv.DictWriter(table, self._columns)
        writer.writeheader()
        writer.writerows(rows)
        write_text(self.csv_path, table.getvalue())


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl without its damaged lines; an empty list if the file does not exist."""
    return [row for row in map(_parse_row, _read_lines(path)) if row is not None]


def damaged_lines(path: Path) -> list[int]:
    """Return the numbers of damaged lines, counted from 1. A last line that a kill has cut off does not count."""
    *lines, last = _read_lines(path) or [b""]
    if not last.startswith(LINE_PREFIX[: len(last)]):
        lines.append(last)
    return [number for number, line in enumerate(lines, start=1) if _parse_row(line) is None]


def complaint(path: Path, last_step: int, eval_steps: int | None, *, repeats_validation: bool = False) -> str | None:
    """Return a message about damaged lines and lost rows of a metrics.jsonl; None if it is complete.

    Args:
        path: file of metrics.
        last_step: last step whose rows are expected.
        eval_steps: number of steps between validations; None skips the check for lost rows.
        repeats_validation: whether the validation of the last step is repeated, so that its row may be missing.
    """
    damaged_line_numbers = damaged_lines(path)
    lost_rows = (
        _describe_lost(read_metrics(path), last_step, eval_steps, repeats_validation=repeats_validation)
        if eval_steps
        else ""
    )
    if not damaged_line_numbers and not lost_rows:
        return None
    description = (
        _describe_lines(damaged_line_numbers)
        if damaged_line_numbers
        else "lacks rows"
        if path.exists()
        else "is missing"
    )
    return f"{path}: {description}; {f'lost are {lost_rows}' if lost_rows else 'the others stay'}"


def complaint_of_finished(folder: Path) -> str | None:
    """Return a message about damaged lines and lost rows in the metrics of a finished run; None if they are complete.

    None is also returned if metrics.json does not have the length of the run.
    """
    try:
        training = read_json(folder / "metrics.json", "")["training"]
        return complaint(folder / "metrics.jsonl", int(training["steps"]), int(training["schedule"]["eval_steps"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    except UserError as error:
        return str(error)


def _describe_lost(
    rows: Sequence[Mapping[str, Any]], last_step: int, eval_steps: int, *, repeats_validation: bool
) -> str:
    """Return a description of the rows up to ``last_step`` that are missing; empty if the rows are complete.

    Args:
        rows: rows of metrics.
        last_step: last step that must have its rows.
        eval_steps: number of steps between two validations.
        repeats_validation: whether the validation of the last step is measured again.
    """
    row_steps = {
        "train": range(1, last_step + 1),
        "validation": range(eval_steps, last_step + 1 - repeats_validation, eval_steps),
    }
    return " and ".join(
        f"the {split_name} rows of {missing_steps}"
        for split_name, steps in row_steps.items()
        if (missing_steps := _describe_missing(steps, {row["step"] for row in rows if row.get("split") == split_name}))
    )


def _describe_missing(steps: range, existing_steps: Set[int]) -> str:
    """Return a description of the steps that are missing; empty if none is.

    It does not list the steps, since a damaged metrics.json can name a run of any length.
    """
    count = len(steps) - sum(step in steps for step in existing_steps)
    if count == 0:
        return ""
    first = next(step for step in steps if step not in existing_steps)
    last = next(step for step in reversed(steps) if step not in existing_steps)
    return f"step {first}" if count == 1 else f"{count} steps from {first} to {last}"


def copy_damaged_file(path: Path) -> Path:
    """Copy a file to a free name in the same folder, and return the path of the copy."""
    candidates = (path.with_name(f"{path.name}.damaged-{number}") for number in itertools.count(1))
    copy_path = next(candidate for candidate in candidates if not candidate.exists())
    with explain_write_errors(copy_path):
        shutil.copyfile(path, copy_path)
    return copy_path


def _read_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, including the text after the last line break."""
    if not path.exists() or (path.is_file() and not path.stat().st_size):
        return []
    with reading(path, "remove it"):
        return plain_file(path).read_bytes().split(b"\n")


def _parse_row(line: bytes) -> dict[str, Any] | None:
    """Return the row of metrics in a line of the metrics file, or None if the line is damaged."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and isinstance(row.get("step"), int) else None


def _describe_lines(line_numbers: list[int]) -> str:
    """Return words for damaged lines of the metrics file, given their numbers."""
    if len(line_numbers) == 1:
        return f"line {line_numbers[0]} is no row of metrics"
    return f"{len(line_numbers)} lines, the first of them {line_numbers[0]}, are no rows of metrics"


class Tracker:
    """All files and services that record the metrics of a run.

    Args:
        folder: folder of the run.
        recipe: recipe, which names further services. Only the first of several processes uses them.
        last_step: step of the checkpoint where the run resumes, 0 for a new run.
        on_warning: function that is called with a message about damaged or lost rows, or about a failure of wandb.
        eval_steps: number of steps between validations; None skips the check for lost rows.
        repeats_validation: whether the validation of the last step is repeated, so that its row is removed.
    """

    def __init__(
        self,
        folder: Path,
        recipe: Recipe,
        last_step: int = 0,
        on_warning: Callable[[str], None] = lambda text: None,
        eval_steps: int | None = None,
        *,
        repeats_validation: bool = False,
    ) -> None:
        self._file = MetricsFile(folder, last_step, on_warning, eval_steps, repeats_validation=repeats_validation)
        tracking = recipe.tracking if is_first_process() else Tracking()
        self._log_model = tracking.log_model
        self._wandb = WandbRun(folder, recipe, on_warning) if tracking.wandb else None
        self._writers = [_start_writer(folder, key) for key in WRITER_PACKAGES if getattr(tracking, key)]
        if self._wandb is not None:
            for row in self._file.last_kept(UNSAFE_SECONDS):
                self._wandb.log(row, _named_metrics(row))

    def write(self, row: dict[str, Any]) -> None:
        """Record the metrics of a step. Services record a metric as ``split/name``, with the row's `split`."""
        self._file.write(row)
        numbers = _named_metrics(row)
        if self._wandb is not None:
            self._wandb.log(row, numbers)
        for writer in self._writers:
            for name, value in numbers.items():
                writer.add_scalar(name, value, row["step"])

    def summarize(self, results: dict[str, Any]) -> None:
        """Record the final metrics, the content of metrics.json, when the run folder is complete."""
        if self._wandb is not None:
            self._wandb.summarize(results)
            self._wandb.keep_files(log_model=self._log_model)

    def close(self, exit_status: int = 0) -> None:
        """Send all remaining metrics. An exit status other than 0 marks the run as unfinished."""
        if self._wandb is not None:
            self._wandb.close(exit_status)
        for writer in self._writers:
            writer.close()


def _named_metrics(row: dict[str, Any]) -> dict[str, Any]:
    """Return the metrics of a row by the name ``split/name``."""
    return {f"{row['split']}/{key}": value for key, value in row.items() if key not in LEADING_COLUMNS}


def _start_writer(folder: Path, key: str) -> Any:
    """Return the writer of the log files of a key of ``tracking``; they are in the folder of this name."""
    package = importlib.import_module(WRITER_PACKAGES[key])
    writer_class = package.LogWriter if key == "visualdl" else package.SummaryWriter
    return writer_class(logdir=str(folder / key))
