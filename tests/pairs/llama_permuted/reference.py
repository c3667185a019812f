"""LLaMA of transformers, whose rotary positions turn the halves of a head."""

from transformers import LlamaConfig, LlamaForCausalLM


def build(config):
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=61,
            hidden_size=24,
            intermediate_size=40,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=6,
            rms_norm_eps=1e-5,
            rope_theta=500000.0,
            initializer_range=0.2,
            attn_implementation="eager",
        )
    )


def batch(config, rng):
    input_ids = rng.integers(0, 61, (3, 11))
    return {"input_ids": input_ids, "labels": input_ids}


def loss(model, batch):
    return model(**batch).loss
