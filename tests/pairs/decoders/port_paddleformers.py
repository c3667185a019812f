"""The same decoders of PaddleFormers, PaddleNLP's successor, unmodified, in an environment of its own."""

import paddleformers.transformers
from paddle import ones_like
from paddle.nn import functional as F

MASKED = {}  # models -> whether they are given a mask of ones


def build(config):
    family, masked = config.pop("family"), config.pop("masked", False)
    made = getattr(paddleformers.transformers, f"{family}Config")(**config)
    model = getattr(paddleformers.transformers, f"{family}ForCausalLM")(made)
    MASKED[id(model)] = masked
    return model


def loss(model, batch):
    given = {"attention_mask": ones_like(batch["input_ids"])} if MASKED[id(model)] else {}
    logits = model(batch["input_ids"], return_dict=True, **given).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
