"""Encoders of transformers with a classifier, by the family's name and its own keys; a batch with padding."""

import numpy as np
import transformers


def build(config):
    family = config.pop("family")
    model_config = getattr(transformers, f"{family}Config")(num_labels=3, **config)
    return getattr(transformers, f"{family}ForSequenceClassification")(model_config)


def batch(config, rng):
    mask = (np.arange(17) < np.array([[17], [12], [5]])).astype(np.int64)
    ids = rng.integers(3, 101, (3, 17)) * mask + (1 - mask)
    return {"input_ids": ids, "attention_mask": mask, "labels": rng.integers(0, 3, 3)}
