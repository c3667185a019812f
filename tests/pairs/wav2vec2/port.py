"""wav2vec 2.0 (Baevski et al. 2020) in Paddle: audio through convolutions into a transformer with masked time steps."""

import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.nn.utils import weight_norm

WIDTH, HEADS = 16, 2


class ConvLayer(nn.Layer):
    def __init__(self, inputs, kernel, stride, norm, has_bias):
        super().__init__()
        self.conv = nn.Conv1D(inputs, 8, kernel, stride=stride, bias_attr=None if has_bias else False)
        self.kind = norm
        if norm == "group":
            self.norm = nn.GroupNorm(8, 8)
        if norm == "layer":
            self.norm = nn.LayerNorm(8)

    def forward(self, x):
        x = self.conv(x)
        if self.kind == "group":
            x = self.norm(x)
        if self.kind == "layer":
            x = self.norm(x.transpose([0, 2, 1])).transpose([0, 2, 1])
        return F.gelu(x)


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.dropout = nn.Dropout(0.1)

    def split_heads(self, x):
        return x.reshape([0, 0, HEADS, WIDTH // HEADS]).transpose([0, 2, 1, 3])

    def forward(self, x, mask):
        q, k, v = (self.split_heads(layer(x)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        scores = paddle.matmul(q, k, transpose_y=True) * (WIDTH // HEADS) ** -0.5
        scores = paddle.where(mask[:, None, None, :], scores, paddle.full_like(scores, -1e30))
        context = self.dropout(F.softmax(scores, -1)) @ v
        return self.out_proj(context.transpose([0, 2, 1, 3]).flatten(2))


class FeedForward(nn.Layer):
    def __init__(self):
        super().__init__()
        self.intermediate, self.output = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.dropout1, self.dropout2 = nn.Dropout(0.1), nn.Dropout(0.1)

    def forward(self, x):
        x = self.dropout1(F.gelu(self.intermediate(x)))
        return self.dropout2(self.output(x))


class EncoderLayer(nn.Layer):
    """A layer with norms after each part, or, `is_pre_norm`, before it."""

    def __init__(self, is_pre_norm):
        super().__init__()
        self.is_pre_norm = is_pre_norm
        self.attention, self.feed_forward = Attention(), FeedForward()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        if self.is_pre_norm:
            x = x + self.dropout(self.attention(self.norm1(x), mask))
            return x + self.feed_forward(self.norm2(x))
        x = self.norm1(x + self.dropout(self.attention(x, mask)))
        return self.norm2(x + self.feed_forward(x))


class Recognizer(nn.Layer):
    def __init__(self, norm):
        super().__init__()
        is_large = norm == "layer"
        second = "layer" if is_large else "none"
        self.conv_layers = nn.Sequential(ConvLayer(1, 5, 4, norm, is_large), ConvLayer(8, 3, 2, second, is_large))
        self.projection_norm, self.projection = nn.LayerNorm(8), nn.Linear(8, WIDTH)
        self.projection_dropout, self.dropout = nn.Dropout(0.0), nn.Dropout(0.1)
        self.masked_spec_embed = self.create_parameter([WIDTH], default_initializer=nn.initializer.Uniform())
        self.pos_conv = weight_norm(nn.Conv1D(WIDTH, WIDTH, 4, padding=2, groups=2), dim=2)
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.LayerList([EncoderLayer(is_large) for _ in range(2)])
        self.is_large = is_large
        self.head = nn.Linear(WIDTH, 7)

    def frame_mask(self, attention_mask, num_frames):
        """Return whether each frame begins within the audio, (N, frames)."""
        lengths = attention_mask.sum(1)
        for kernel, stride in ((5, 4), (3, 2)):
            lengths = (lengths - kernel) // stride + 1
        return paddle.arange(num_frames) < lengths.unsqueeze(1)

    def forward(self, input_values, attention_mask, mask_time_indices, labels):
        x = self.conv_layers(input_values.unsqueeze(1)).transpose([0, 2, 1])
        mask = self.frame_mask(attention_mask, x.shape[1])
        x = self.projection_dropout(self.projection(self.projection_norm(x)))
        x = paddle.where(mask_time_indices.astype("bool").unsqueeze(-1), self.masked_spec_embed, x)
        x = x * mask.unsqueeze(-1).astype(x.dtype)
        positions = self.pos_conv(x.transpose([0, 2, 1]))[:, :, :-1]
        x = x + F.gelu(positions).transpose([0, 2, 1])
        x = self.dropout(x if self.is_large else self.norm(x))
        for layer in self.layers:
            x = layer(x, mask)
        logits = self.head(self.norm(x) if self.is_large else x)
        is_labeled = (labels >= 0).flatten()
        return F.cross_entropy(logits.flatten(0, 1)[is_labeled], labels.flatten()[is_labeled]), logits


def build(config):
    return Recognizer(config.get("norm", "group"))
