"""The Swin transformer of transformers for classifying images, and the batch that both sides get."""

from transformers import SwinConfig, SwinForImageClassification

SMALL = {
    "image_size": 16, "patch_size": 2, "embed_dim": 8, "depths": [2, 1], "num_heads": [2, 4], "window_size": 4,
    "mlp_ratio": 2.0, "drop_path_rate": 0.3, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "num_labels": 5,
}  # fmt: skip


def build(config):
    return SwinForImageClassification(SwinConfig(**{**SMALL, **config}))


def batch(config, rng):
    return {"pixel_values": rng.standard_normal((3, 3, 16, 16)), "labels": rng.integers(0, 5, 3)}
