"""The CTRL on which the gate is tried."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.ctrl import tokenizer
from toolkit.parity.job.job import TokenizerJob

#: A model in which each fault of the catalogue shows: square matrices in attention, and a last norm whose epsilon
#: differs from the others'.
CONFIG = {
    "n_embd": 32,
    "n_head": 4,
    "dff": 48,
    "n_layer": 3,
    "n_positions": 64,
    "vocab_size": 96,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.1,
    "pad_token_id": 0,
}
HEAD, LENGTH = "causal_lm", 48


def train_tokenizer(texts: Sequence[str], folder: Path) -> TokenizerJob:
    """Train a small tokenizer on the texts and leave it in the folder."""
    tokenizer.train_bpe(texts, 400, folder)
    return TokenizerJob("ctrl", list(texts), 256, str(folder))
