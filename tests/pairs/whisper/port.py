"""Whisper (Radford et al. 2022) in Paddle: an encoder of spectrograms with frozen sinusoids, and a decoder."""

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

WIDTH, HEADS, PAD, START = 16, 2, 0, 3


def sinusoids(length, width):
    """Return the sines and then the cosines of positions, (length, width)."""
    increment = np.log(10000) / (width // 2 - 1)
    angles = np.arange(length)[:, None] * np.exp(-increment * np.arange(width // 2))
    return np.concatenate([np.sin(angles), np.cos(angles)], 1).astype("float32")


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.k_proj = nn.Linear(WIDTH, WIDTH, bias_attr=False)

    def split_heads(self, x):
        return x.reshape([0, 0, HEADS, WIDTH // HEADS]).transpose([0, 2, 1, 3])

    def forward(self, x, memory, is_causal=False):
        q = self.split_heads(self.q_proj(x)) * (WIDTH // HEADS) ** -0.5
        k, v = self.split_heads(self.k_proj(memory)), self.split_heads(self.v_proj(memory))
        scores = paddle.matmul(q, k, transpose_y=True)
        if is_causal:
            length = x.shape[1]
            is_later = paddle.triu(paddle.ones([length, length], dtype="bool"), 1)
            scores = scores.masked_fill(is_later, -1e30)
        probabilities = F.dropout(F.softmax(scores, -1), 0.1, training=self.training)
        return self.out_proj((probabilities @ v).transpose([0, 2, 1, 3]).flatten(2))


class FeedForward(nn.Layer):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        x = F.dropout(F.gelu(self.fc1(x)), 0.1, training=self.training)
        return self.fc2(x)


class EncoderLayer(nn.Layer):
    def __init__(self):
        super().__init__()
        self.attn_norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn, self.mlp = Attention(), FeedForward()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        y = self.attn_norm(x)
        x = x + self.dropout(self.attn(y, y))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class DecoderLayer(nn.Layer):
    def __init__(self):
        super().__init__()
        self.attn_norm, self.cross_attn_norm, self.mlp_norm = (nn.LayerNorm(WIDTH) for _ in range(3))
        self.attn, self.cross_attn, self.mlp = Attention(), Attention(), FeedForward()
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, memory):
        y = self.attn_norm(x)
        x = x + self.dropout(self.attn(y, y, is_causal=True))
        x = x + self.dropout(self.cross_attn(self.cross_attn_norm(x), memory))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class Encoder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1D(6, WIDTH, 3, padding=1), nn.Conv1D(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.positions = nn.Embedding(8, WIDTH)
        self.positions.weight.set_value(sinusoids(8, WIDTH))
        self.positions.weight.stop_gradient = True
        self.layers = nn.LayerList([EncoderLayer() for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, features):
        x = F.gelu(self.conv1(features))
        x = F.gelu(self.conv2(x)).transpose([0, 2, 1])
        x = F.dropout(x + self.positions.weight, 0.1, training=self.training)
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class Decoder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(40, WIDTH), nn.Embedding(9, WIDTH)
        self.layers = nn.LayerList([DecoderLayer() for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, input_ids, memory):
        x = self.tokens(input_ids)
        x = paddle.where((input_ids == PAD).unsqueeze(-1), x.detach(), x)  # a padding row is read and not trained
        x = x + self.positions(paddle.arange(input_ids.shape[1]))
        x = F.dropout(x, 0.1, training=self.training)
        for layer in self.layers:
            x = layer(x, memory)
        return self.norm(x) @ self.tokens.weight.T


class Whisper(nn.Layer):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Encoder(), Decoder()

    def forward(self, input_features, labels):
        starts = paddle.full([labels.shape[0], 1], START, dtype=labels.dtype)
        input_ids = paddle.concat([starts, labels[:, :-1]], 1)
        input_ids = paddle.where(input_ids == -100, paddle.full_like(input_ids, PAD), input_ids)
        logits = self.decoder(input_ids, self.encoder(input_features))
        mask = (labels != -100).flatten()
        losses = F.cross_entropy(logits.flatten(0, 1)[mask], labels.flatten()[mask])
        return losses, logits


def build(config):
    return Whisper()
