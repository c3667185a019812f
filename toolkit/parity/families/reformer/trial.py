"""The Reformer of the gate's trials, which inject faults into its port."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.reformer import tokenizer
from toolkit.parity.job.job import TokenizerJob

#: A model that shows each fault of the catalogue: square matrices, two hash rounds, more chunks than neighbors, dropout
#: everywhere, and an activation that does not commute with dropout.
SMALL_REFORMER = {
    "attn_layers": ["local", "lsh", "local", "lsh"],
    "hidden_size": 32,
    "num_attention_heads": 2,
    "attention_head_size": 16,
    "feed_forward_size": 48,
    "axial_pos_shape": [8, 16],
    "axial_pos_embds_dim": [8, 24],
    "max_position_embeddings": 128,
    "local_attn_chunk_length": 16,
    "lsh_attn_chunk_length": 16,
    "num_hashes": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "local_attention_probs_dropout_prob": 0.1,
    "lsh_attention_probs_dropout_prob": 0.1,
    "vocab_size": 64,
    "num_labels": 3,
}
#: The same model with 7 chunks. Each chunk attends to two chunks before it and to one chunk after it.
CONFIG = {
    **SMALL_REFORMER,
    "axial_pos_shape": [7, 16],
    "max_position_embeddings": 112,
    "local_num_chunks_before": 2,
    "local_num_chunks_after": 1,
    "lsh_num_chunks_after": 1,
}
#: Head of the model, and number of tokens of each text.
HEAD, LENGTH = "sequence_classification", 112


def train_tokenizer(texts: Sequence[str], folder: Path) -> TokenizerJob:
    """Train a small SentencePiece tokenizer on the texts, and return the job that compares it on both sides.

    Args:
        texts: texts for the training and for the comparison.
        folder: folder for the tokenizer's files.
    """
    tokenizer.train_sentencepiece(texts, 300, folder)
    return TokenizerJob("sentencepiece", list(texts), 256, str(folder / tokenizer.MODEL_FILE), offsets=True)
