"""Whisper of transformers for transcribing speech, and the batch that both sides get."""

import numpy as np
from transformers import WhisperConfig, WhisperForConditionalGeneration

SMALL = {
    "vocab_size": 40, "num_mel_bins": 6, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32,
    "max_source_positions": 8, "max_target_positions": 9, "dropout": 0.1, "attention_dropout": 0.1,
    "activation_dropout": 0.1, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3,
}  # fmt: skip


def build(config):
    return WhisperForConditionalGeneration(WhisperConfig(**{**SMALL, **config}))


def batch(config, rng):
    labels = rng.integers(4, 40, (3, 7))
    labels[0, 2] = 0  # a padding token amid the text, whose row of the embedding takes no gradient from being read
    return {
        "input_features": rng.standard_normal((3, 6, 16)),
        "labels": np.where(np.arange(7) < [[7], [4], [5]], labels, -100),
    }
