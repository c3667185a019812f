"""Qwen3-MoE in Paddle."""

import paddle
from paddle import nn
from paddle.nn import functional as F

NUM_HEADS, NUM_KEY_HEADS, HEAD_DIM = 4, 2, 8
NUM_EXPERTS, NUM_CHOSEN, BALANCE = 4, 2, 0.05
THETA = 1e6


def linear(in_features, out_features):
    return nn.Linear(in_features, out_features, bias_attr=False)


class RMSNorm(nn.Layer):
    def __init__(self, hidden_size, epsilon=1e-6):
        super().__init__()
        self.weight = self.create_parameter([hidden_size], default_initializer=nn.initializer.Constant(1.0))
        self.epsilon = epsilon

    def forward(self, x):
        return self.weight * (x * paddle.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon))


class Rotary(nn.Layer):
    def __init__(self):
        super().__init__()
        exponents = paddle.arange(0, HEAD_DIM, 2, dtype=paddle.get_default_dtype()) / HEAD_DIM
        self.register_buffer("inv_freq", 1.0 / THETA**exponents, persistable=False)

    def forward(self, length):
        angles = paddle.outer(paddle.arange(length, dtype=self.inv_freq.dtype), self.inv_freq)
        angles = paddle.concat([angles, angles], -1)
        return angles.cos(), angles.sin()


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return x * cos + paddle.concat([-second, first], -1) * sin


class Attention(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.q_proj, self.o_proj = linear(hidden_size, NUM_HEADS * HEAD_DIM), linear(NUM_HEADS * HEAD_DIM, hidden_size)
        self.k_proj, self.v_proj = (linear(hidden_size, NUM_KEY_HEADS * HEAD_DIM) for _ in range(2))
        self.q_norm, self.k_norm = RMSNorm(HEAD_DIM), RMSNorm(HEAD_DIM)

    def forward(self, x, cos, sin):
        batch_size, length, _ = x.shape
        query, key, value = (
            layer(x).reshape([batch_size, length, -1, HEAD_DIM]) for layer in (self.q_proj, self.k_proj, self.v_proj)
        )
        query = rotate(self.q_norm(query).transpose([0, 2, 1, 3]), cos, sin)
        key = rotate(self.k_norm(key).transpose([0, 2, 1, 3]), cos, sin)
        value = value.transpose([0, 2, 1, 3])
        key, value = (part.repeat_interleave(NUM_HEADS // NUM_KEY_HEADS, axis=1) for part in (key, value))
        scores = paddle.matmul(query, key, transpose_y=True) * HEAD_DIM**-0.5
        ahead = paddle.full([length, length], paddle.finfo(scores.dtype).min, scores.dtype).triu(1)
        weights = F.dropout(F.softmax(scores + ahead, -1), 0.1, training=self.training)
        context = (weights @ value).transpose([0, 2, 1, 3]).reshape([batch_size, length, -1])
        return self.o_proj(context)


class GatedMLP(nn.Layer):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj, self.up_proj = (linear(hidden_size, intermediate_size) for _ in range(2))
        self.down_proj = linear(intermediate_size, hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Experts(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.gate = linear(hidden_size, NUM_EXPERTS)
        self.experts = nn.LayerList([GatedMLP(hidden_size, 12) for _ in range(NUM_EXPERTS)])

    def forward(self, x):
        tokens = x.flatten(0, 1)
        scores = self.gate(tokens)
        weights, chosen = F.softmax(scores, -1).topk(NUM_CHOSEN, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        mixed = paddle.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            ranks, rows = paddle.nonzero((chosen == number).t(), as_tuple=True)
            if len(rows):
                output = expert(tokens.index_select(rows)) * weights[rows, ranks].unsqueeze(-1)
                mixed = paddle.scatter_nd_add(mixed, rows.unsqueeze(-1), output)
        return mixed.reshape(x.shape), scores


class Block(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.self_attn, self.mlp = Attention(hidden_size), Experts(hidden_size)
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden_size), RMSNorm(hidden_size)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        mixed, scores = self.mlp(self.post_attention_layernorm(x))
        return x + mixed, scores


def balance_loss(scores):
    """Return how unevenly the tokens of all layers are spread over the experts."""
    probabilities = F.softmax(paddle.concat(scores), -1)
    chosen = F.one_hot(probabilities.topk(NUM_CHOSEN, -1)[1], NUM_EXPERTS).astype(probabilities.dtype)
    return (chosen.mean(0) * probabilities.mean(0)).sum() * NUM_EXPERTS


class Qwen3Moe(nn.Layer):
    def __init__(self, vocab_size, hidden_size):
        super().__init__()
        self.embed_tokens, self.rotary = nn.Embedding(vocab_size, hidden_size), Rotary()
        self.layers = nn.LayerList([Block(hidden_size) for _ in range(2)])
        self.norm, self.lm_head = RMSNorm(hidden_size), linear(hidden_size, vocab_size)

    def forward(self, input_ids, labels):
        x, all_scores = self.embed_tokens(input_ids), []
        cos, sin = self.rotary(input_ids.shape[1])
        for layer in self.layers:
            x, scores = layer(x, cos, sin)
            all_scores.append(scores)
        logits = self.lm_head(self.norm(x))
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return loss + BALANCE * balance_loss(all_scores)


def build(config):
    return Qwen3Moe(61, 24)
