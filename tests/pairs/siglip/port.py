"""SigLIP (Zhai et al. 2023) in Paddle: a sigmoid loss of pairs, and pooling by attention of a learned probe."""

import paddle
from paddle import nn
from paddle.nn import functional as F

WIDTH, HEADS = 16, 2


class Attention(nn.Layer):
    def __init__(self, dropout_rate):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.out_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(dropout_rate)

    def split_heads(self, x):
        return x.reshape([0, 0, HEADS, WIDTH // HEADS]).transpose([0, 2, 1, 3])

    def forward(self, queries, x):
        q = self.split_heads(self.q_proj(queries))
        k = self.split_heads(self.k_proj(x))
        v = self.split_heads(self.v_proj(x))
        scores = paddle.matmul(q, k, transpose_y=True) / (WIDTH // HEADS) ** 0.5
        context = self.dropout(F.softmax(scores, -1)) @ v
        return self.out_proj(context.transpose([0, 2, 1, 3]).flatten(2))


class FeedForward(nn.Layer):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate=True))


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer_norm1, self.layer_norm2 = nn.LayerNorm(WIDTH, 1e-6), nn.LayerNorm(WIDTH, 1e-6)
        self.attention, self.mlp = Attention(0.1), FeedForward()

    def forward(self, x):
        y = self.layer_norm1(x)
        x = x + self.attention(y, y)
        return x + self.mlp(self.layer_norm2(x))


class AttentionPool(nn.Layer):
    def __init__(self):
        super().__init__()
        self.probe = self.create_parameter([1, 1, WIDTH], default_initializer=nn.initializer.Normal())
        self.attention, self.mlp = Attention(0.0), FeedForward()
        self.norm = nn.LayerNorm(WIDTH, 1e-6)

    def forward(self, x):
        pooled = self.attention(self.probe.expand([x.shape[0], 1, WIDTH]), x)
        pooled = pooled + self.mlp(self.norm(pooled))
        return pooled.squeeze(1)


class TextTower(nn.Layer):
    def __init__(self):
        super().__init__()
        self.token_embedding, self.position_embedding = nn.Embedding(40, WIDTH), nn.Embedding(6, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(2)))
        self.final_norm = nn.LayerNorm(WIDTH, 1e-6)
        self.head = nn.Linear(WIDTH, WIDTH)

    def forward(self, input_ids):
        x = self.token_embedding(input_ids) + self.position_embedding.weight[: input_ids.shape[1]]
        x = self.final_norm(self.blocks(x))
        return self.head(x[:, -1])


class VisionTower(nn.Layer):
    def __init__(self):
        super().__init__()
        self.patch_embedding, self.position_embedding = nn.Conv2D(3, WIDTH, 4, stride=4), nn.Embedding(4, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(2)))
        self.post_norm, self.pool = nn.LayerNorm(WIDTH, 1e-6), AttentionPool()

    def forward(self, pixel_values):
        x = self.patch_embedding(pixel_values).flatten(2).transpose([0, 2, 1])
        x = self.blocks(x + self.position_embedding.weight)
        return self.pool(self.post_norm(x))


class SigLIP(nn.Layer):
    def __init__(self):
        super().__init__()
        self.text_tower, self.vision_tower = TextTower(), VisionTower()
        self.logit_scale = self.create_parameter([1], default_initializer=nn.initializer.Normal())
        self.logit_bias = self.create_parameter([1], default_initializer=nn.initializer.Normal())

    def forward(self, input_ids, pixel_values):
        texts = F.normalize(self.text_tower(input_ids), axis=-1)
        images = F.normalize(self.vision_tower(pixel_values), axis=-1)
        logits = texts @ images.T * self.logit_scale.exp() + self.logit_bias
        signs = 2 * paddle.eye(logits.shape[0]) - 1
        return -F.log_sigmoid(signs * logits).sum(-1).mean()


def build(config):
    return SigLIP()
