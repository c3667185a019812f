"""Decoders of transformers, by the family's name and its own keys."""

import transformers
from torch.nn import functional as F


def build(config):
    family, _ = config.pop("family"), config.pop("masked", None)
    model_config = getattr(transformers, f"{family}Config")(**config)
    return getattr(transformers, f"{family}ForCausalLM")(model_config)


def batch(config, rng):
    ids = rng.integers(3, 101, (3, 17))
    return {"input_ids": ids, "labels": ids}


def loss(model, batch):
    logits = model(batch["input_ids"]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
