"""The same decoders of PaddleFormers, PaddleNLP's successor, unmodified, in a separate environment."""

import paddleformers.transformers
from paddle import ones_like
from paddle.nn import functional as F

USES_MASK = {}  # by id of a model, whether it gets a mask of 1


def build(config):
    family, uses_mask = config.pop("family"), config.pop("masked", False)
    model_config = getattr(paddleformers.transformers, f"{family}Config")(**config)
    model = getattr(paddleformers.transformers, f"{family}ForCausalLM")(model_config)
    USES_MASK[id(model)] = uses_mask
    return model


def loss(model, batch):
    options = {"attention_mask": ones_like(batch["input_ids"])} if USES_MASK[id(model)] else {}
    logits = model(batch["input_ids"], return_dict=True, **options).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
