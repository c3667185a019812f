"""RWKV-4 of transformers: a recurrent linear attention, squared ReLU, shifted tokens."""

import torch
from transformers import RwkvConfig, RwkvForCausalLM


def build(config):
    model = RwkvForCausalLM(
        RwkvConfig(vocab_size=61, hidden_size=16, num_hidden_layers=2, context_length=32, rescale_every=0)
    )
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and "time" not in name:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def batch(config, rng):
    input_ids = rng.integers(0, 61, (3, 9))
    return {"input_ids": input_ids, "labels": input_ids}


def loss(model, batch):
    return model(**batch, use_cache=False).loss
