"""Gemma 2 in Paddle."""

import paddle
from paddle import nn
from paddle.nn import functional as F

NUM_HEADS, NUM_KEY_HEADS, HEAD_DIM, WINDOW = 4, 2, 8, 4
SCORE_SCALE, SCORE_CAP, LOGIT_CAP = 6**-0.5, 5.0, 3.0


def linear(in_features, out_features):
    return nn.Linear(in_features, out_features, bias_attr=False)


def cap(x, limit):
    return paddle.tanh(x / limit) * limit


class RMSNorm(nn.Layer):
    """A norm whose weight is kept as its distance from one."""

    def __init__(self, hidden_size):
        super().__init__()
        self.weight = self.create_parameter([hidden_size], default_initializer=nn.initializer.Constant(0.0))

    def forward(self, x):
        x = x * paddle.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        return x * (1 + self.weight)


class Attention(nn.Layer):
    def __init__(self, hidden_size, window):
        super().__init__()
        self.q_proj, self.o_proj = linear(hidden_size, NUM_HEADS * HEAD_DIM), linear(NUM_HEADS * HEAD_DIM, hidden_size)
        self.k_proj, self.v_proj = (linear(hidden_size, NUM_KEY_HEADS * HEAD_DIM) for _ in range(2))
        self.window = window

    @staticmethod
    def rotate(x):
        positions = paddle.arange(x.shape[2], dtype=x.dtype).unsqueeze(-1)
        angles = positions / 10000 ** (paddle.arange(0, HEAD_DIM, 2, dtype=x.dtype) / HEAD_DIM)
        angles = paddle.tile(angles, [1, 2])
        first, second = x.chunk(2, -1)
        return x * angles.cos() + paddle.concat([-second, first], -1) * angles.sin()

    def forward(self, x):
        batch_size, length, _ = x.shape
        query, key, value = (
            layer(x).reshape([batch_size, length, -1, HEAD_DIM]).transpose([0, 2, 1, 3])
            for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        query = self.rotate(query).reshape([batch_size, NUM_KEY_HEADS, -1, length, HEAD_DIM])
        key, value = self.rotate(key).unsqueeze(2), value.unsqueeze(2)
        scores = cap(query @ key.transpose([0, 1, 2, 4, 3]) * SCORE_SCALE, SCORE_CAP)
        distance = paddle.arange(length).unsqueeze(1) - paddle.arange(length)
        is_masked = distance < 0
        if self.window is not None:
            is_masked = is_masked | (distance >= self.window)
        scores = scores + is_masked.astype(scores.dtype) * paddle.finfo(scores.dtype).min
        context = (F.softmax(scores, -1) @ value).flatten(1, 2)
        return self.o_proj(context.transpose([0, 2, 1, 3]).flatten(2))


class GatedMLP(nn.Layer):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj, self.up_proj = (linear(hidden_size, intermediate_size) for _ in range(2))
        self.down_proj = linear(intermediate_size, hidden_size)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate=True) * self.up_proj(x))


class Block(nn.Layer):
    def __init__(self, hidden_size, window):
        super().__init__()
        self.self_attn, self.mlp = Attention(hidden_size, window), GatedMLP(hidden_size, 40)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden_size), RMSNorm(hidden_size)
        self.pre_feedforward_layernorm, self.post_feedforward_layernorm = RMSNorm(hidden_size), RMSNorm(hidden_size)

    def forward(self, x):
        x = x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))
        return x + self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x)))


class Gemma2(nn.Layer):
    def __init__(self, vocab_size, hidden_size):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.LayerList([Block(hidden_size, WINDOW), Block(hidden_size, None)])
        self.norm = RMSNorm(hidden_size)

    def forward(self, input_ids, labels):
        x = self.embed_tokens(input_ids)
        x = x * x.shape[-1] ** 0.5
        for layer in self.layers:
            x = layer(x)
        logits = cap(self.norm(x) @ self.embed_tokens.weight.t(), LOGIT_CAP)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def build(config):
    return Gemma2(61, 24)
