"""Qwen3-MoE of transformers: norms of queries and keys, experts whose weights add up to one."""

from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM


def build(config):
    return Qwen3MoeForCausalLM(
        Qwen3MoeConfig(
            vocab_size=61,
            hidden_size=24,
            intermediate_size=40,
            moe_intermediate_size=12,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=8,
            num_experts=4,
            num_experts_per_tok=2,
            norm_topk_prob=True,
            attention_dropout=0.1,
            output_router_logits=True,
            router_aux_loss_coef=0.05,
            rope_theta=1e6,
            initializer_range=0.2,
            attn_implementation="eager",
        )
    )


def batch(config, rng):
    input_ids = rng.integers(0, 61, (3, 11))
    return {"input_ids": input_ids, "labels": input_ids}


def loss(model, batch):
    return model(**batch).loss
