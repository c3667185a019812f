"""SHA-256 of the tensors that both sides are given, for the report: taken while the workers compute."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from toolkit.parity.job import files

#: Folders of tensors that pass between stages of a model larger than memory, and are deleted.
PASSING = ("state", "truth")
#: Seconds between two scans of the folder.
EVERY = 0.5


class Hashes:
    """SHA-256 of a job's tensor files, each hashed when it appears, and again if it changes.

    A long text's reference leaves 10 GB, which takes 13 seconds; after the workers' end nothing else would run.
    """

    def __init__(self, job: Path) -> None:
        self._job = job
        self._found: dict[str, tuple[tuple[int, int], str]] = {}  # by path: size and time, and the hash then
        self._ended = threading.Event()

    def all(self) -> dict[str, str]:
        """By each file's path in the job folder, in order; asked for when the workers have ended."""
        self._look()
        return {name: digest for name, (_, digest) in sorted(self._found.items())}

    def watch(self) -> None:
        """Hash what appears, until :meth:`end`."""
        while not self._ended.wait(EVERY):
            with contextlib.suppress(OSError):  # the gate was stopped, and its folder is gone
                self._look()

    def end(self) -> None:
        """Stop watching."""
        self._ended.set()

    def _look(self) -> None:
        for path in self._job.rglob("*.safetensors"):
            if path.parent.name in PASSING:
                continue
            name, now = str(path.relative_to(self._job)), path.stat()
            state = now.st_size, now.st_mtime_ns
            if self._found.get(name, (None,))[0] != state:
                self._found[name] = state, files.file_sha256(path)


@contextlib.contextmanager
def hash_job_files(job: Path) -> Iterator[Hashes]:
    """Hash what appears in a job folder inside the ``with`` block."""
    hashes = Hashes(job)
    watch = threading.Thread(target=hashes.watch, daemon=True)
    watch.start()
    try:
        yield hashes
    finally:
        hashes.end()
    watch.join()  # not if the gate was stopped: the hashes are not needed then
