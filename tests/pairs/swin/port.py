"""The Swin transformer (Liu et al. 2021) in Paddle: shifted windows, relative position biases and merged patches."""

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

WINDOW = 4


def relative_positions(window):
    """Return the row of the bias table for each pair of a window's positions, (window ** 2, window ** 2)."""
    rows, columns = (places.reshape(-1) for places in np.meshgrid(range(window), range(window), indexing="ij"))
    row_offsets = rows[:, None] - rows[None] + window - 1
    column_offsets = columns[:, None] - columns[None] + window - 1
    return row_offsets * (2 * window - 1) + column_offsets


def partition(x, window):
    """Cut images (N, H, W, C) into windows, (N * windows, window ** 2, C)."""
    count, height, width, channels = x.shape
    x = x.reshape([count, height // window, window, width // window, window, channels])
    return x.transpose([0, 1, 3, 2, 4, 5]).reshape([-1, window * window, channels])


def merge(windows, window, height, width):
    """Put windows together to images again, (N, H, W, C)."""
    x = windows.reshape([-1, height // window, width // window, window, window, windows.shape[-1]])
    return x.transpose([0, 1, 3, 2, 4, 5]).reshape([-1, height, width, windows.shape[-1]])


def shifted_window_mask(height, width, window, shift):
    """Return -100 for pairs of positions that only the cyclic shift brings together, (windows, 1, N, N), else 0."""
    regions = np.zeros((1, height, width, 1))
    parts = (slice(0, -window), slice(-window, -shift), slice(-shift, None))
    for number, (rows, columns) in enumerate((rows, columns) for rows in parts for columns in parts):
        regions[:, rows, columns] = number
    windows = partition(paddle.to_tensor(regions), window).squeeze(-1).numpy()
    is_apart = windows[:, None, :] != windows[:, :, None]
    return paddle.to_tensor(np.where(is_apart, -100.0, 0.0))[:, None]


class DropPath(nn.Layer):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if not self.training or self.rate == 0.0:
            return x
        keep_mask = (paddle.rand([x.shape[0], 1, 1]) + (1 - self.rate)).floor()
        return x / (1 - self.rate) * keep_mask


class WindowAttention(nn.Layer):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head_width = heads, width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.relative_position_bias_table = self.create_parameter([(2 * WINDOW - 1) ** 2, heads])
        self.register_buffer("relative_position_index", paddle.to_tensor(relative_positions(WINDOW)))
        self.dropout = nn.Dropout(0.1)
        self.proj, self.proj_dropout = nn.Linear(width, width), nn.Dropout(0.1)

    def split_heads(self, x):
        return x.reshape([0, 0, self.heads, self.head_width]).transpose([0, 2, 1, 3])

    def forward(self, x, mask):
        query, key, value = (self.split_heads(layer(x)) for layer in (self.query, self.key, self.value))
        scores = paddle.matmul(query, key, transpose_y=True) / self.head_width**0.5
        bias = self.relative_position_bias_table[self.relative_position_index.flatten()]
        bias = bias.reshape([x.shape[1], x.shape[1], self.heads]).transpose([2, 0, 1])
        scores = scores + bias
        if mask is not None:
            by_window = scores.reshape([-1, mask.shape[0], *scores.shape[1:]])
            scores = (by_window + mask.astype(scores.dtype)).reshape(scores.shape)
        probabilities = self.dropout(F.softmax(scores, -1))
        context = (probabilities @ value).transpose([0, 2, 1, 3]).flatten(2)
        return self.proj_dropout(self.proj(context))


class Block(nn.Layer):
    def __init__(self, width, heads, size, shift, drop_path_rate):
        super().__init__()
        self.size, self.shift = size, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn = WindowAttention(width, heads)
        self.drop_path = DropPath(drop_path_rate)
        self.fc1, self.fc2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.dropout = nn.Dropout(0.1)
        self.mask = shifted_window_mask(size, size, WINDOW, shift) if shift else None

    def forward(self, x):
        y = self.norm1(x).reshape([0, self.size, self.size, x.shape[-1]])
        if self.shift:
            y = y.roll([-self.shift, -self.shift], [1, 2])
        y = merge(self.attn(partition(y, WINDOW), self.mask), WINDOW, self.size, self.size)
        if self.shift:
            y = y.roll([self.shift, self.shift], [1, 2])
        x = x + self.drop_path(y.reshape(x.shape))
        return x + self.dropout(self.fc2(F.gelu(self.fc1(self.norm2(x)))))


class PatchMerging(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(4 * width)
        self.reduction = nn.Linear(4 * width, 2 * width, bias_attr=False)

    def forward(self, x, size):
        x = x.reshape([0, size, size, x.shape[-1]])
        corners = [x[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
        return self.reduction(self.norm(paddle.concat(corners, -1).flatten(1, 2)))


class Swin(nn.Layer):
    def __init__(self):
        super().__init__()
        self.patch_embed, self.patch_norm = nn.Conv2D(3, 8, 2, stride=2), nn.LayerNorm(8)
        self.dropout = nn.Dropout(0.1)
        self.stage0 = nn.Sequential(Block(8, 2, 8, 0, 0.0), Block(8, 2, 8, 2, 0.15))
        self.downsample = PatchMerging(8)
        self.stage1 = nn.Sequential(Block(16, 4, 4, 0, 0.3))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 5)

    def forward(self, pixel_values, labels):
        x = self.patch_embed(pixel_values).flatten(2).transpose([0, 2, 1])
        x = self.stage0(self.dropout(self.patch_norm(x)))
        x = self.stage1(self.downsample(x, 8))
        logits = self.head(self.norm(x).mean(1))
        return F.cross_entropy(logits, labels), logits


def build(config):
    return Swin()
