"""DETR (Carion et al. 2020) in Paddle: a frozen ResNet, sine positions, object queries and a set loss."""

import math

import paddle
from paddle import nn
from paddle.nn import functional as F

WIDTH, HEADS = 16, 2


class FrozenBatchNorm(nn.Layer):
    def __init__(self, channels):
        super().__init__()
        self.register_buffer("weight", paddle.ones([channels]))
        self.register_buffer("bias", paddle.zeros([channels]))
        self.register_buffer("running_mean", paddle.zeros([channels]))
        self.register_buffer("running_var", paddle.ones([channels]))

    def forward(self, x):
        scale = self.weight * paddle.rsqrt(self.running_var + 1e-5)
        shift = self.bias - self.running_mean * scale
        return x * scale.reshape([1, -1, 1, 1]) + shift.reshape([1, -1, 1, 1])


class ConvNorm(nn.Layer):
    def __init__(self, inputs, outputs, kernel, stride):
        super().__init__()
        self.conv = nn.Conv2D(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias_attr=False)
        self.norm = FrozenBatchNorm(outputs)

    def forward(self, x):
        return self.norm(self.conv(x))


class ResidualBlock(nn.Layer):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1, self.conv2 = ConvNorm(inputs, outputs, 3, stride), ConvNorm(outputs, outputs, 3, 1)
        self.shortcut = ConvNorm(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        return F.relu(self.conv2(F.relu(self.conv1(x))) + self.shortcut(x))


class Backbone(nn.Layer):
    def __init__(self):
        super().__init__()
        self.stem = ConvNorm(3, 4, 7, 2)
        self.stage1, self.stage2 = ResidualBlock(4, 4, 1), ResidualBlock(4, 8, 2)
        for parameter in self.parameters():
            parameter.stop_gradient = True

    def forward(self, images):
        x = F.max_pool2d(F.relu(self.stem(images)), 3, stride=2, padding=1)
        return self.stage2(self.stage1(x))


def sine_positions(mask, width):
    """Return the position embeddings of a map of features, (N, H * W, width).

    Args:
        mask: 1 for features of the image and 0 for padding, (N, H, W).
    """
    half = width // 2
    steps = 10000.0 ** (2 * (paddle.arange(half) // 2).astype("float32") / half)
    embeddings = []
    for axis in (1, 2):
        places = mask.astype("float32").cumsum(axis)
        last = places[:, -1:] if axis == 1 else places[:, :, -1:]
        angles = (places / (last + 1e-6) * 2 * math.pi).unsqueeze(-1) / steps
        waves = paddle.stack([angles[..., 0::2].sin(), angles[..., 1::2].cos()], -1)
        embeddings.append(waves.flatten(3))
    return paddle.concat(embeddings, -1).flatten(1, 2)


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def split_heads(self, x):
        return x.reshape([0, 0, HEADS, WIDTH // HEADS]).transpose([0, 2, 1, 3])

    def forward(self, queries, keys, values, mask=None):
        q = self.split_heads(self.q_proj(queries)) * (WIDTH // HEADS) ** -0.5
        k, v = self.split_heads(self.k_proj(keys)), self.split_heads(self.v_proj(values))
        scores = paddle.matmul(q, k, transpose_y=True)
        if mask is not None:
            scores = paddle.where(mask[:, None, None, :], scores, paddle.full_like(scores, -1e30))
        probabilities = F.dropout(F.softmax(scores, -1), 0.1, training=self.training)
        return self.out_proj((probabilities @ v).transpose([0, 2, 1, 3]).flatten(2))


class FeedForward(nn.Layer):
    def __init__(self):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.linear2(F.relu(self.linear1(x)))


class EncoderLayer(nn.Layer):
    def __init__(self):
        super().__init__()
        self.self_attn, self.ffn = Attention(), FeedForward()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, positions, mask):
        placed = x + positions
        x = self.norm1(x + self.dropout(self.self_attn(placed, placed, x, mask)))
        return self.norm2(x + self.dropout(self.ffn(x)))


class DecoderLayer(nn.Layer):
    def __init__(self):
        super().__init__()
        self.self_attn, self.cross_attn, self.ffn = Attention(), Attention(), FeedForward()
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, query_positions, memory, positions, mask):
        placed = x + query_positions
        x = self.norm1(x + self.dropout(self.self_attn(placed, placed, x)))
        attended = self.cross_attn(x + query_positions, memory + positions, memory, mask)
        x = self.norm2(x + self.dropout(attended))
        return self.norm3(x + self.dropout(self.ffn(x)))


class DETR(nn.Layer):
    def __init__(self):
        super().__init__()
        self.backbone = Backbone()
        self.input_proj = nn.Conv2D(8, WIDTH, 1)
        self.query_embed = nn.Embedding(5, WIDTH)
        self.encoder = nn.LayerList([EncoderLayer() for _ in range(2)])
        self.decoder = nn.LayerList([DecoderLayer() for _ in range(2)])
        self.decoder_norm = nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.class_embed = nn.Linear(WIDTH, 4)
        self.bbox_embed = nn.LayerList([nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4)])

    def forward(self, images, pixel_mask):
        features = self.backbone(images)
        mask = F.interpolate(pixel_mask.unsqueeze(1).astype("float32"), features.shape[2:]).squeeze(1)
        positions = sine_positions(mask, WIDTH)
        mask = mask.flatten(1).astype("bool")
        memory = self.dropout(self.input_proj(features).flatten(2).transpose([0, 2, 1]))
        for layer in self.encoder:
            memory = layer(memory, positions, mask)
        query_positions = self.query_embed.weight.unsqueeze(0).expand([images.shape[0], -1, -1])
        x = paddle.zeros_like(query_positions)
        for layer in self.decoder:
            x = layer(x, query_positions, memory, positions, mask)
        x = self.decoder_norm(x)
        boxes = F.relu(self.bbox_embed[1](F.relu(self.bbox_embed[0](x))))
        return self.class_embed(x), F.sigmoid(self.bbox_embed[2](boxes))


def corners(boxes):
    """Return the corners of boxes that are given by center and size, (..., 4)."""
    centers, sizes = boxes[..., :2], boxes[..., 2:]
    return paddle.concat([centers - 0.5 * sizes, centers + 0.5 * sizes], -1)


def generalized_iou(boxes, targets):
    """Return the generalized intersection over union of pairs of boxes, (...)."""
    low, high = paddle.maximum(boxes[..., :2], targets[..., :2]), paddle.minimum(boxes[..., 2:], targets[..., 2:])
    overlap = (high - low).clip(min=0).prod(-1)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1) + (targets[..., 2:] - targets[..., :2]).prod(-1)
    union = area - overlap
    low, high = paddle.minimum(boxes[..., :2], targets[..., :2]), paddle.maximum(boxes[..., 2:], targets[..., 2:])
    hull = (high - low).prod(-1)
    return overlap / union - (hull - union) / hull


def build(config):
    return DETR()


def loss(model, batch):
    logits, boxes = model(batch["pixel_values"], batch["pixel_mask"])
    queries = batch["matched_queries"]
    targets = paddle.full(logits.shape[:2], 3, dtype="int64")
    targets = paddle.put_along_axis(targets, queries, batch["classes"], 1)
    weights = paddle.to_tensor([1.0, 1.0, 1.0, 0.1], dtype=logits.dtype)
    boxes = paddle.take_along_axis(boxes, queries.unsqueeze(-1).expand([-1, -1, 4]), 1, broadcast=False)
    num_boxes = queries.size
    overlaps = generalized_iou(corners(boxes), corners(batch["boxes"]))
    return {
        "class": F.cross_entropy(logits.flatten(0, 1), targets.flatten(), weight=weights),
        "box": 5 * (boxes - batch["boxes"]).abs().sum() / num_boxes,
        "overlap": 2 * (1 - overlaps).sum() / num_boxes,
    }
