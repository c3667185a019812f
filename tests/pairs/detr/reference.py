"""DETR of transformers with a set loss whose matching is part of the batch, which both sides get."""

import torch
from torch.nn import functional as F
from transformers import DetrConfig, DetrForObjectDetection, ResNetConfig

SMALL = {
    "use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None, "d_model": 16, "num_queries": 5,
    "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "dropout": 0.1, "attention_dropout": 0.1, "num_labels": 3,
}  # fmt: skip
BACKBONE = {
    "embedding_size": 4, "hidden_sizes": [4, 8], "depths": [1, 1], "layer_type": "basic", "out_features": ["stage2"],
}  # fmt: skip


def build(config):
    return DetrForObjectDetection(DetrConfig(**SMALL, backbone_config=ResNetConfig(**BACKBONE)))


def batch(config, rng):
    mask = torch.ones(2, 24, 24, dtype=torch.int64)
    mask[1, :, 16:] = mask[1, 20:] = 0
    boxes = rng.uniform(0.2, 0.4, (2, 2, 4))
    return {
        "pixel_values": rng.standard_normal((2, 3, 24, 24)), "pixel_mask": mask.numpy(), "boxes": boxes,
        "classes": rng.integers(0, 3, (2, 2)), "matched_queries": rng.permuted([[0, 1, 2, 3, 4]] * 2, axis=1)[:, :2],
    }  # fmt: skip


def corners(boxes):
    return torch.cat([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)


def generalized_iou(boxes, targets):
    areas = [(box_set[..., 2:] - box_set[..., :2]).prod(-1) for box_set in (boxes, targets)]
    overlap = (torch.minimum(boxes[..., 2:], targets[..., 2:]) - torch.maximum(boxes[..., :2], targets[..., :2])).clamp(
        min=0
    )
    overlap = overlap.prod(-1)
    union = areas[0] + areas[1] - overlap
    hull = (torch.maximum(boxes[..., 2:], targets[..., 2:]) - torch.minimum(boxes[..., :2], targets[..., :2])).prod(-1)
    return overlap / union - (hull - union) / hull


def loss(model, batch):
    output = model(batch["pixel_values"], batch["pixel_mask"])
    queries = batch["matched_queries"]
    targets = torch.full(output.logits.shape[:2], 3).scatter(1, queries, batch["classes"])
    weights = torch.tensor([1.0, 1.0, 1.0, 0.1])
    boxes = output.pred_boxes.gather(1, queries[..., None].expand(-1, -1, 4))
    num_boxes = queries.numel()
    return {
        "class": F.cross_entropy(output.logits.transpose(1, 2), targets, weights.to(output.logits.dtype)),
        "box": 5 * F.l1_loss(boxes, batch["boxes"], reduction="sum") / num_boxes,
        "overlap": 2 * (1 - generalized_iou(corners(boxes), corners(batch["boxes"]))).sum() / num_boxes,
    }
