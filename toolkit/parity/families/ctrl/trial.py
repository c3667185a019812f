"""The CTRL of the gate's trials, which inject faults into its port."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.ctrl import tokenizer
from toolkit.parity.job.job import TokenizerJob

#: Configuration of a model that shows each fault: square matrices in attention, and a last norm with another epsilon.
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
#: Head of the model, and number of tokens of each text.
HEAD, LENGTH = "causal_lm", 48


def train_tokenizer(texts: Sequence[str], folder: Path) -> TokenizerJob:
    """Train a small byte-pair tokenizer on the texts, and return the job that compares it on both sides.

    Args:
        texts: texts for the training and for the comparison.
        folder: folder for the tokenizer's files.
    """
    tokenizer.train_bpe(texts, 400, folder)
    return TokenizerJob("ctrl", list(texts), 256, str(folder))
