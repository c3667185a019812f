"""Import transformers without optional packages that the gate does not need, and without garbage collection."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from models import collector
from toolkit.parity.job import files

#: Used for metrics of generation and losses of other models. They take a fifth of the reference's start-up time.
UNUSED = ("sklearn", "scipy")


@contextlib.contextmanager
def left_out(jobs: Sequence[str], names: Sequence[str] = UNUSED) -> Iterator[None]:
    """Make packages of these names look uninstalled inside the ``with`` block, but those that are imported already. All
    stay if a job may have a user's own reference, which may need them, or if transformers is imported already, which
    then expects what it has found installed.

    Args:
        jobs: the folders of the process's jobs.
    """
    unwanted = "transformers" not in sys.modules and all(_is_of_a_family(Path(job)) for job in jobs)
    absent = [name for name in names if name not in sys.modules] if unwanted else []
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # Python's own way to say that there is none
    try:
        with collector.paused():
            yield
    finally:
        for name in absent:
            sys.modules.pop(name, None)


def _is_of_a_family(job: Path) -> bool:
    try:
        return files.read_job(job).pair is None
    except (OSError, ValueError):
        return False  # the task reports what is wrong
