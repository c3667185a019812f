"""Random models; a correct port must pass on each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

PRINTED_KEYS = ("echoes", "breadth")
VARIED_VALUES: dict[str, tuple] = {"loss_of_echo": (0.0, 0.3)}
PORT_VALUES: dict[str, tuple] = {}


def draw_config(head: str, one_of: Callable[..., Any]) -> tuple[dict[str, Any], int]:
    """Draw a random shape and a length."""
    return {"echoes": one_of(1, 3), "breadth": one_of(8, 24), "vocab_size": one_of(32, 258)}, one_of(16, 33)
