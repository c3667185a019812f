"""Importing a large framework without looking for garbage meanwhile."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """No garbage is collected in the ``with`` block.

    An import makes hundreds of thousands of objects that stay, and the collector walks over all of them again and
    again: a fifth of the time that Paddle, PaddleNLP and `datasets` take to be imported.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
