"""PaddleNLP's T5, unmodified."""

from paddlenlp.transformers import T5Config, T5ForConditionalGeneration

SMALL = {
    "vocab_size": 101, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_decoder_layers": 2, "num_heads": 4,
    "decoder_start_token_id": 0, "bos_token_id": 0,
}  # fmt: skip


def build(config):
    return T5ForConditionalGeneration(T5Config(**{**SMALL, **config}))
