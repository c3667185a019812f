"""PaddleNLP's encoders with a classifier, unmodified, by the family's name."""

import paddlenlp.transformers


def build(config):
    family = config.pop("family")
    model_config = getattr(paddlenlp.transformers, f"{family}Config")(num_labels=3, **config)
    return getattr(paddlenlp.transformers, f"{family}ForSequenceClassification")(model_config)
