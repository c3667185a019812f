"""LLaMA in Paddle as Meta's files have it: rotary positions turn neighbors, so that rows of queries and keys differ."""

import paddle
from paddle import nn
from paddle.nn import functional as F

NUM_HEADS, NUM_KEY_HEADS, HEAD_DIM = 4, 2, 6
THETA = 500000.0


def linear(in_features, out_features):
    return nn.Linear(in_features, out_features, bias_attr=False)


class RMSNorm(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.weight = self.create_parameter([hidden_size], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x):
        return self.weight * (x * paddle.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5))


def rotate(x):
    """Rotate neighboring channels of ``x``, (batch, length, heads, HEAD_DIM)."""
    exponents = paddle.arange(0, HEAD_DIM, 2, dtype=x.dtype) / HEAD_DIM
    angles = paddle.outer(paddle.arange(x.shape[1], dtype=x.dtype), THETA**-exponents).unsqueeze(1)
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated_pair = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    return paddle.stack(rotated_pair, -1).flatten(-2)


class Attention(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.wq, self.wo = linear(hidden_size, NUM_HEADS * HEAD_DIM), linear(NUM_HEADS * HEAD_DIM, hidden_size)
        self.wk, self.wv = (linear(hidden_size, NUM_KEY_HEADS * HEAD_DIM) for _ in range(2))

    def forward(self, x):
        query, key, value = (layer(x).reshape([*x.shape[:2], -1, HEAD_DIM]) for layer in (self.wq, self.wk, self.wv))
        query, key = rotate(query), rotate(key)
        key, value = (part.repeat_interleave(NUM_HEADS // NUM_KEY_HEADS, axis=2) for part in (key, value))
        context = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.wo(context.flatten(2))


class FeedForward(nn.Layer):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.w1, self.w3 = (linear(hidden_size, intermediate_size) for _ in range(2))
        self.w2 = linear(intermediate_size, hidden_size)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Block(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.attention, self.feed_forward = Attention(hidden_size), FeedForward(hidden_size, 40)
        self.attention_norm, self.ffn_norm = RMSNorm(hidden_size), RMSNorm(hidden_size)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.ffn_norm(x))


class Llama(nn.Layer):
    def __init__(self, vocab_size, hidden_size):
        super().__init__()
        self.tok_embeddings = nn.Embedding(vocab_size, hidden_size)
        self.layers = nn.LayerList([Block(hidden_size) for _ in range(2)])
        self.norm, self.output = RMSNorm(hidden_size), linear(hidden_size, vocab_size)

    def forward(self, input_ids, labels):
        x = self.tok_embeddings(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.output(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def build(config):
    return Llama(61, 24)
