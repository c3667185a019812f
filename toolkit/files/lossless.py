"""Changes of files and folders that lose no data, whatever the arguments are.

This module imports only the standard library: processes with any framework import it.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path


def write_new_file(path: Path, text: str, errors: str = "strict") -> None:
    """Write text in UTF-8 to a new file. Raises FileExistsError if anything is at its name.

    Args:
        errors: treatment of characters that UTF-8 cannot hold, as in :func:`open`.
    """
    with open(path, "x", encoding="utf-8", errors=errors) as file:
        file.write(text)


def move_to_free_name(source: Path, target: Path) -> None:
    """Rename a file or folder. Raises FileExistsError if anything is at the new name, even a link to nowhere."""
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(source, target)


def remove_empty_folders(folders: Iterable[Path]) -> None:
    """Remove each of the folders that is empty; leave the others."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
