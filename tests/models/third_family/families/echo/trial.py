"""The model of the gate's trials."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolkit.parity.job.job import TokenizerJob

CONFIG = {"breadth": 16, "echoes": 2, "reach": 64, "vocab_size": 96}
HEAD, LENGTH = "causal_lm", 48


def train_tokenizer(texts: Sequence[str], folder: Path) -> TokenizerJob:
    """Return the tokenizer of bytes, which needs no training."""
    return TokenizerJob("bytes", list(texts), 256, offsets=True)
