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
    """Write text in UTF-8 to a new file.

    Args:
        path: file to be created.
        text: content of the file.
        errors: treatment of characters that UTF-8 cannot hold, as in :func:`open`.

    Raises:
        FileExistsError: the path exists already.
    """
    with open(path, "x", encoding="utf-8", errors=errors) as file:
        file.write(text)


def move_to_free_name(source: Path, target: Path) -> None:
    """Rename a file or folder to a name that is free.

    Args:
        source: file or folder to rename.
        target: new name.

    Raises:
        FileExistsError: the new name exists already, even as a broken link.
    """
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    os.rename(source, target)


def remove_empty_folders(folders: Iterable[Path]) -> None:
    """Remove each of the folders that is empty; do nothing for the others."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
