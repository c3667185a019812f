"""Random choices that a seed decides."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np


def chooser(seed: int) -> tuple[Callable[..., Any], np.random.Generator]:
    """Return a function that picks one of its arguments, and the generator behind it."""
    draw = np.random.default_rng(seed)
    return (lambda *values: values[draw.integers(len(values))]), draw


def choices(values: Mapping[str, tuple], one_of: Callable[..., Any]) -> dict[str, Any]:
    """Return a choice for each key."""
    return {key: one_of(*several) for key, several in values.items()}
