"""PaddleNLP's OPT, unmodified."""

from paddlenlp.transformers import OPTConfig, OPTForCausalLM

SMALL = {
    "vocab_size": 101, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "word_embed_proj_dim": 32,
}  # fmt: skip


def build(config):
    return OPTForCausalLM(OPTConfig(**{**SMALL, **config}))
