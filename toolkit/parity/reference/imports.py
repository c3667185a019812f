"""How transformers is imported: without what it takes wherever that is installed, and the gate has no use for; and
without looking for garbage meanwhile."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from models import collector
from toolkit.parity.job import files

#: For metrics of generation and losses of other models. They take a fifth of the time in which the reference starts.
UNUSED = ("sklearn", "scipy")


@contextlib.contextmanager
def left_out(jobs: Sequence[str], names: Sequence[str] = UNUSED) -> Iterator[None]:
    """Inside the ``with`` block packages of these names are as good as not installed; one that is imported already
    stays. Not where a job may be of a user's own reference, whose code may want them, nor where somebody has imported
    transformers before, which then expects what it has found installed.

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
        return False  # what is wrong with it, the task says
