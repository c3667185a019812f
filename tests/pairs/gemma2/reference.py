"""Gemma 2 of transformers: capped scores, windows in every second layer, four norms a block, a tied output layer."""

from transformers import Gemma2Config, Gemma2ForCausalLM


def build(config):
    return Gemma2ForCausalLM(
        Gemma2Config(
            vocab_size=61,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            query_pre_attn_scalar=6,
            sliding_window=4,
            attn_logit_softcapping=5.0,
            final_logit_softcapping=3.0,
            initializer_range=0.3,
            attn_implementation="eager",
        )
    )


def batch(config, rng):
    input_ids = rng.integers(1, 61, (3, 11))
    return {"input_ids": input_ids, "labels": input_ids}


def loss(model, batch):
    return model(**batch).loss
