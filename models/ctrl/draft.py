"""Configuration of a small, randomly initialized CTRL that `toolkit recipe new` proposes."""

from __future__ import annotations

from typing import Any


def config_lines(head: str, length: int, num_rows: int) -> list[tuple[str, Any, str]]:
    """Return the proposed keys, each with its value and comment.

    CTRL's proposal is the same for all data.

    Args:
        head: head of the model, such as ``causal_lm``.
        length: number of tokens of a padded text.
        num_rows: number of rows of the training data.
    """
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
