"""The type of arguments of the command line that name a file or a folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import click


class PathArgument(click.Path):
    """Type of an argument that is a valid path, which need not exist."""

    def __init__(self, path_type: type = Path) -> None:
        super().__init__(path_type=path_type)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return the path, and reject a text that cannot be the name of a file."""
        try:
            os.lstat(value)
        except ValueError:
            self.fail(f"{str(value)[:80]!r} holds a null character, so it cannot name a file", parameter, context)
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                wrong = f"'{str(value)[:80]}...' has {len(str(value))} characters; shorten the name"
                self.fail(wrong, parameter, context)
        return super().convert(value, parameter, context)
