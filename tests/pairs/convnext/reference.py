"""ConvNeXt of transformers for classifying images, and the batch that both sides get."""

from transformers import ConvNextConfig, ConvNextForImageClassification

SMALL = {
    "patch_size": 2, "num_stages": 2, "hidden_sizes": [8, 16], "depths": [2, 1], "drop_path_rate": 0.4,
    "layer_scale_init_value": 0.1, "num_labels": 5,
}  # fmt: skip


def build(config):
    return ConvNextForImageClassification(ConvNextConfig(**{**SMALL, **config}))


def batch(config, rng):
    return {"pixel_values": rng.standard_normal((4, 3, 12, 12)), "labels": rng.integers(0, 5, 4)}
