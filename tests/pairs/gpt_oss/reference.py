"""gpt-oss of transformers: attention sinks, windows in every second layer, experts with a clamped SwiGLU."""

from torch import nn
from transformers import GptOssConfig, GptOssForCausalLM


def build(config):
    model = GptOssForCausalLM(
        GptOssConfig(
            vocab_size=61,
            hidden_size=24,
            intermediate_size=10,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=4,
            num_local_experts=4,
            num_experts_per_tok=2,
            rope_theta=150000.0,
            rope_scaling=None,
            initializer_range=0.3,
            attn_implementation="eager",
        )
    )
    for layer in model.model.layers:
        nn.init.normal_(layer.mlp.experts.gate_up_proj, std=2.0)  # so that some gates are beyond the limit
    return model


def batch(config, rng):
    input_ids = rng.integers(0, 61, (3, 11))
    return {"input_ids": input_ids, "labels": input_ids}


def loss(model, batch):
    return model(**batch).loss
