"""T5 of transformers, small, and the batch that both are given."""

from transformers import T5Config, T5ForConditionalGeneration

SMALL = {
    "vocab_size": 101, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0,
}  # fmt: skip


def build(config):
    return T5ForConditionalGeneration(T5Config(**{**SMALL, **config}))


def batch(config, rng):
    return {"input_ids": rng.integers(1, 101, (3, 17)), "labels": rng.integers(1, 101, (3, 9))}
