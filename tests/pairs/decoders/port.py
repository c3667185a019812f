"""PaddleNLP's decoders, unmodified, by the family's name."""

import paddlenlp.transformers
from paddle.nn import functional as F


def build(config):
    family = config.pop("family")
    model_config = getattr(paddlenlp.transformers, f"{family}Config")(**config)
    return getattr(paddlenlp.transformers, f"{family}ForCausalLM")(model_config)


def loss(model, batch):
    output = model(batch["input_ids"], return_dict=True)
    logits = output if hasattr(output, "flatten") else output[0]  # some return logits whatever they are asked for
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())
