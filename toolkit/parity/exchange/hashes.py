"""SHA-256 of the tensor files in a job folder, for the report, computed while the workers run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from toolkit.parity.exchange import files

#: Names of folders whose files are not hashed. Their tensors pass between the stages of a model larger than memory, and
#: are then deleted.
PASSING = ("state", "truth")
#: Number of seconds between two scans of the job folder.
EVERY = 0.5


class Hashes:
    """SHA-256 of a job's tensor files. Each file is hashed when it appears, and again if it changes.

    The reference of a long text writes 10 GB, whose hashes take 13 seconds. After the end of the workers, the gate
    would have to wait for them.

    Args:
        job: folder of the job.
    """

    def __init__(self, job: Path) -> None:
        self._job = job
        self._found: dict[str, tuple[tuple[int, int], str]] = {}  # by path: size and time, and the hash then
        self._ended = threading.Event()

    def all(self) -> dict[str, str]:
        """Return the SHA-256 of each tensor file by its path in the job folder, sorted by path.

        Call it after the workers have ended.
        """
        self._look()
        return {name: digest for name, (_, digest) in sorted(self._found.items())}

    def watch(self) -> None:
        """Hash the files that appear or change, until :meth:`end` is called."""
        while not self._ended.wait(EVERY):
            with contextlib.suppress(OSError):  # the gate was stopped, and its folder is gone
                self._look()

    def end(self) -> None:
        """End :meth:`watch`, which runs in another thread."""
        self._ended.set()

    def _look(self) -> None:
        """Hash all tensor files of the job folder that are new or have changed."""
        for path in self._job.rglob("*.safetensors"):
            if path.parent.name in PASSING:
                continue
            name, now = str(path.relative_to(self._job)), path.stat()
            state = now.st_size, now.st_mtime_ns
            if self._found.get(name, (None,))[0] != state:
                self._found[name] = state, files.file_sha256(path)


@contextlib.contextmanager
def hash_job_files(job: Path) -> Iterator[Hashes]:
    """Inside the ``with`` block, hash the tensor files that appear in a job folder, in a separate thread.

    The block gets the hashes.

    Args:
        job: folder of the job.
    """
    hashes = Hashes(job)
    watch = threading.Thread(target=hashes.watch, daemon=True)
    watch.start()
    try:
        yield hashes
    finally:
        hashes.end()
    watch.join()  # not if the gate was stopped: the hashes are not needed then
