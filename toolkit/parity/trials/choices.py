"""Random choices that a seed determines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np


def make_chooser(seed: int) -> Callable[..., Any]:
    """Return a function that picks one of its arguments at random.

    Args:
        seed: seed of the picks.
    """
    generator = np.random.default_rng(seed)
    return lambda *options: options[generator.integers(len(options))]


def choose_values(values_by_key: Mapping[str, Sequence[Any]], one_of: Callable[..., Any]) -> dict[str, Any]:
    """Return a random value for each key of a configuration or of settings.

    Args:
        values_by_key: values that each key may have, by the key.
        one_of: function that picks one of its arguments (:func:`make_chooser`).
    """
    return {key: one_of(*values) for key, values in values_by_key.items()}
