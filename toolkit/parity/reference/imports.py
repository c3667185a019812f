"""Import of transformers without optional packages that the gate does not need, and without garbage collection."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from models import collector
from toolkit.parity.exchange import files

#: Names of packages that transformers uses only for assisted generation. The import of sklearn takes a second.
UNUSED = ("sklearn",)
#: Names of packages that the toolkit's families do not need. Their imports take a fifth of the start-up time.
UNUSED_BY_FAMILIES = (*UNUSED, "scipy")


@contextlib.contextmanager
def hide_packages(jobs: Sequence[str], is_toolkit_family: bool | None = None) -> Iterator[None]:
    """Inside the ``with`` block, make unused packages look uninstalled to transformers, which is imported there.

    A package that is already imported is not hidden. If transformers is already imported, no package is hidden, because
    transformers expects the packages that it has found.

    Args:
        jobs: folders of the process's jobs.
        is_toolkit_family: whether all jobs have models of the toolkit's families; None to read it from the jobs.
    """
    if is_toolkit_family is None:
        is_toolkit_family = all(_has_family(Path(job)) for job in jobs)
    names = () if "transformers" in sys.modules else UNUSED_BY_FAMILIES if is_toolkit_family else UNUSED
    hidden_names = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden_names))  # type: ignore[arg-type]  # Python's mark for a missing module
    try:
        with collector.pause_garbage_collection():
            yield
    finally:
        for name in hidden_names:
            sys.modules.pop(name, None)


def _has_family(job: Path) -> bool:
    """Return whether a job folder's model belongs to a family; False for a pair or an unreadable job."""
    try:
        return files.read_job(job).pair is None
    except (OSError, ValueError):
        return False  # the task reports the fault
