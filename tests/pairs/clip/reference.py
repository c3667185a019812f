"""CLIP of transformers with its contrastive loss, and the batch that both sides get."""

import numpy as np
from transformers import CLIPConfig, CLIPModel

SIZE = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "attention_dropout": 0.1,
}  # fmt: skip
TEXT = {**SIZE, "vocab_size": 40, "max_position_embeddings": 10, "eos_token_id": 39}
VISION = {**SIZE, "image_size": 8, "patch_size": 4}


def build(config):
    return CLIPModel(CLIPConfig(text_config=TEXT, vision_config=VISION, projection_dim=12))


def batch(config, rng):
    lengths = np.array([[7], [5], [7]])
    mask = (np.arange(7) < lengths).astype("int64")
    input_ids = rng.integers(3, 39, (3, 7)) * mask
    np.put_along_axis(input_ids, lengths - 1, 39, 1)  # the end of the text has the highest number
    return {"input_ids": input_ids, "attention_mask": mask, "pixel_values": rng.standard_normal((3, 3, 8, 8))}


def loss(model, batch):
    return model(**batch, return_loss=True).loss
