"""Import transformers without optional packages that the gate does not need, and without garbage collection."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from models import collector
from toolkit.parity.job import files

#: transformers uses it for assisted generation alone. It takes a second to import.
UNUSED = ("sklearn",)
#: And these for models of other families: together a fifth of the reference's start-up time.
UNUSED_BY_FAMILIES = (*UNUSED, "scipy")


@contextlib.contextmanager
def left_out(jobs: Sequence[str], own_families: bool | None = None) -> Iterator[None]:
    """Make packages look uninstalled to transformers, which is imported inside the ``with`` block. None is left out
    that is imported already, or if transformers is, which then expects what it has found installed.

    Args:
        jobs: the folders of the process's jobs.
        own_families: whether all of them are of the toolkit's families; read from the jobs if None.
    """
    if own_families is None:
        own_families = all(_is_of_a_family(Path(job)) for job in jobs)
    names = () if "transformers" in sys.modules else UNUSED_BY_FAMILIES if own_families else UNUSED
    absent = [name for name in names if name not in sys.modules]
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
