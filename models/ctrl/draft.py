"""A small CTRL with new weights, as `toolkit recipe new` proposes it: keys, values and comments."""

from __future__ import annotations

from typing import Any


def lines(head: str, length: int, rows: int) -> list[tuple[str, Any, str]]:
    """Return the configuration, which is the same for all data."""
    return [
        ("n_layer", 4, "layers"),
        ("n_embd", 128, "width of a position"),
        ("n_head", 4, "heads of each layer"),
        ("dff", 512, "width of the feed-forward layers"),
        ("n_positions", 256, "the longest text"),
        ("initializer_range", 0.08, "about 1 / sqrt(n_embd): at 0.02 the positions dwarf the tokens"),
        ("resid_pdrop", 0.1, "dropout of what the layers add"),
        ("embd_pdrop", 0.1, "dropout of the embeddings"),
    ]
