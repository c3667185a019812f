"""DeepSeek-V3 of transformers: latent attention, YaRN positions, grouped experts with a correction bias."""

import torch
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM


def build(config):
    model = DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=61,
            hidden_size=24,
            intermediate_size=40,
            moe_intermediate_size=12,
            num_hidden_layers=2,
            num_attention_heads=3,
            num_key_value_heads=3,
            n_routed_experts=8,
            n_shared_experts=1,
            n_group=4,
            topk_group=2,
            num_experts_per_tok=3,
            first_k_dense_replace=1,
            routed_scaling_factor=2.5,
            q_lora_rank=12,
            kv_lora_rank=10,
            qk_nope_head_dim=6,
            qk_rope_head_dim=8,
            v_head_dim=5,
            max_position_embeddings=256,
            rope_scaling={
                "type": "yarn",
                "factor": 4.0,
                "beta_fast": 8,
                "beta_slow": 1,
                "mscale": 1.0,
                "mscale_all_dim": 0.8,
                "original_max_position_embeddings": 64,
            },
            attn_implementation="eager",
            initializer_range=0.2,
        )
    )
    torch.nn.init.normal_(model.model.layers[1].mlp.gate.e_score_correction_bias, std=0.1)
    return model


def batch(config, rng):
    input_ids = rng.integers(0, 61, (3, 11))
    return {"input_ids": input_ids, "labels": input_ids}


def loss(model, batch):
    return model(**batch).loss
