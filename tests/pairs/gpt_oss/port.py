"""gpt-oss in Paddle."""

import paddle
from paddle import nn
from paddle.nn import functional as F

NUM_HEADS, NUM_KEY_HEADS, HEAD_DIM, WINDOW = 4, 2, 8, 4
NUM_EXPERTS, NUM_CHOSEN, LIMIT, SLOPE = 4, 2, 7.0, 1.702
THETA = 150000.0


class RMSNorm(nn.Layer):
    def __init__(self, hidden_size, epsilon=1e-5):
        super().__init__()
        self.weight = self.create_parameter([hidden_size], default_initializer=nn.initializer.Constant(1.0))
        self.epsilon = epsilon

    def forward(self, x):
        return self.weight * (x * paddle.rsqrt((x**2).mean(-1, keepdim=True) + self.epsilon))


def rotate(x):
    """Rotate the halves of the channels of ``x``, (batch, length, heads, HEAD_DIM)."""
    half = HEAD_DIM // 2
    frequencies = THETA ** (-paddle.arange(half, dtype=x.dtype) / half)
    angles = paddle.arange(x.shape[1], dtype=x.dtype).unsqueeze(-1) * frequencies
    cos, sin = angles.cos().unsqueeze(1), angles.sin().unsqueeze(1)
    first, second = x[..., :half], x[..., half:]
    return paddle.concat([first * cos - second * sin, second * cos + first * sin], -1)


class SinkAttention(nn.Layer):
    def __init__(self, hidden_size, window):
        super().__init__()
        self.q_proj = nn.Linear(hidden_size, NUM_HEADS * HEAD_DIM)
        self.k_proj = nn.Linear(hidden_size, NUM_KEY_HEADS * HEAD_DIM)
        self.v_proj = nn.Linear(hidden_size, NUM_KEY_HEADS * HEAD_DIM)
        self.o_proj = nn.Linear(NUM_HEADS * HEAD_DIM, hidden_size)
        self.sinks = self.create_parameter([NUM_HEADS], default_initializer=nn.initializer.Normal())
        self.window = window

    def forward(self, x):
        batch_size, length, _ = x.shape
        query = rotate(self.q_proj(x).reshape([batch_size, length, NUM_HEADS, HEAD_DIM]))
        key = rotate(self.k_proj(x).reshape([batch_size, length, NUM_KEY_HEADS, HEAD_DIM]))
        value = self.v_proj(x).reshape([batch_size, length, NUM_KEY_HEADS, HEAD_DIM])
        key, value = (part.repeat_interleave(NUM_HEADS // NUM_KEY_HEADS, axis=2) for part in (key, value))
        query, key, value = (part.transpose([0, 2, 1, 3]) for part in (query, key, value))
        scores = query @ key.transpose([0, 1, 3, 2]) / HEAD_DIM**0.5
        position = paddle.arange(length)
        distance = position.unsqueeze(1) - position
        visible = distance >= 0
        if self.window:
            visible = visible & (distance < self.window)
        scores = paddle.where(visible, scores, paddle.full([], float("-inf"), scores.dtype))
        sinks = self.sinks.reshape([1, -1, 1, 1]).expand([batch_size, NUM_HEADS, length, 1])
        weights = F.softmax(paddle.concat([scores, sinks], -1), -1)
        mixed = (weights[..., :-1] @ value).transpose([0, 2, 1, 3])
        return self.o_proj(mixed.reshape([batch_size, length, -1]))


class Router(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.weight = self.create_parameter([NUM_EXPERTS, hidden_size])
        self.bias = self.create_parameter([NUM_EXPERTS], is_bias=True)

    def forward(self, tokens):
        scores = F.linear(tokens, self.weight.t(), self.bias)
        top, experts = scores.topk(NUM_CHOSEN, -1)
        weights = F.softmax(top, -1)
        expert_mask = F.one_hot(experts, NUM_EXPERTS).astype(weights.dtype)
        return (weights.unsqueeze(-1) * expert_mask).sum(1)


class Experts(nn.Layer):
    """Experts whose weights are one parameter; every expert processes every token."""

    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_up_proj = self.create_parameter([NUM_EXPERTS, hidden_size, 2 * intermediate_size])
        self.gate_up_proj_bias = self.create_parameter([NUM_EXPERTS, 2 * intermediate_size], is_bias=True)
        self.down_proj = self.create_parameter([NUM_EXPERTS, intermediate_size, hidden_size])
        self.down_proj_bias = self.create_parameter([NUM_EXPERTS, hidden_size], is_bias=True)

    def forward(self, x, weights):
        tokens = x.reshape([1, -1, x.shape[-1]])
        hidden = tokens @ self.gate_up_proj + self.gate_up_proj_bias.unsqueeze(1)
        gate, up = hidden[..., 0::2], hidden[..., 1::2]
        gate, up = gate.clip(max=LIMIT), up.clip(-LIMIT, LIMIT)
        activation = gate * F.sigmoid(SLOPE * gate) * (up + 1)
        mixed = activation @ self.down_proj + self.down_proj_bias.unsqueeze(1)
        return (mixed * weights.t().unsqueeze(-1)).sum(0).reshape(x.shape)


class MLP(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.router, self.experts = Router(hidden_size), Experts(hidden_size, 10)

    def forward(self, x):
        return self.experts(x, self.router(x.flatten(0, 1)))


class Block(nn.Layer):
    def __init__(self, hidden_size, window):
        super().__init__()
        self.self_attn, self.mlp = SinkAttention(hidden_size, window), MLP(hidden_size)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden_size), RMSNorm(hidden_size)

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class GptOss(nn.Layer):
    def __init__(self, vocab_size, hidden_size):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.LayerList([Block(hidden_size, WINDOW), Block(hidden_size, None)])
        self.norm, self.lm_head = RMSNorm(hidden_size), nn.Linear(hidden_size, vocab_size, bias_attr=False)

    def forward(self, input_ids, labels):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def build(config):
    return GptOss(61, 24)
