"""SigLIP of transformers with its sigmoid loss, and the batch that both sides get."""

from transformers import SiglipConfig, SiglipModel

SIZE = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "attention_dropout": 0.1,
}  # fmt: skip
TEXT = {**SIZE, "vocab_size": 40, "max_position_embeddings": 6, "projection_size": 16}
VISION = {**SIZE, "image_size": 8, "patch_size": 4}


def build(config):
    return SiglipModel(SiglipConfig(text_config=TEXT, vision_config=VISION))


def batch(config, rng):
    return {"input_ids": rng.integers(1, 40, (3, 6)), "pixel_values": rng.standard_normal((3, 3, 8, 8))}


def loss(model, batch):
    return model(**batch, return_loss=True).loss
