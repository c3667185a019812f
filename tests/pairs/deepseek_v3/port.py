"""DeepSeek-V3 in Paddle."""

import math

import paddle
from paddle import nn
from paddle.nn import functional as F

NUM_HEADS, CONTENT_DIM, ROTARY_DIM, VALUE_DIM = 3, 6, 8, 5
QUERY_RANK, KEY_VALUE_RANK = 12, 10
NUM_EXPERTS, NUM_GROUPS, NUM_CHOSEN_GROUPS, NUM_CHOSEN_EXPERTS = 8, 4, 2, 3
ROUTED_SCALE = 2.5
THETA, TRAINED_LENGTH, LENGTH = 10000.0, 64, 256
FASTEST, SLOWEST = 8, 1


def linear(in_features, out_features):
    return nn.Linear(in_features, out_features, bias_attr=False)


def attention_temperature(factor, weight):
    return 0.1 * weight * math.log(factor) + 1.0


class RMSNorm(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.weight = self.create_parameter([hidden_size], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x):
        return self.weight * (x * paddle.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6))


class YarnRotary(nn.Layer):
    """Rotate pairs of neighboring channels by angles that YaRN stretches."""

    def __init__(self):
        super().__init__()
        factor = LENGTH / TRAINED_LENGTH
        frequencies = THETA ** -(paddle.arange(0, ROTARY_DIM, 2, dtype=paddle.get_default_dtype()) / ROTARY_DIM)
        low, high = self.channel_of(FASTEST), self.channel_of(SLOWEST)
        low, high = max(math.floor(low), 0), min(math.ceil(high), ROTARY_DIM - 1)
        ramp = ((paddle.arange(ROTARY_DIM // 2, dtype=frequencies.dtype) - low) / (high - low)).clip(0, 1)
        self.register_buffer("frequencies", frequencies * (1 - ramp) + frequencies / factor * ramp, persistable=False)
        self.scale = attention_temperature(factor, 1.0) / attention_temperature(factor, 0.8)

    @staticmethod
    def channel_of(num_rotations):
        return ROTARY_DIM * math.log(TRAINED_LENGTH / (num_rotations * 2 * math.pi)) / (2 * math.log(THETA))

    def forward(self, x):
        angles = paddle.outer(paddle.arange(x.shape[1], dtype=x.dtype), self.frequencies)
        cos, sin = (angles.cos() * self.scale).unsqueeze(1), (angles.sin() * self.scale).unsqueeze(1)
        even, odd = x[..., 0::2], x[..., 1::2]
        return paddle.concat([even * cos - odd * sin, odd * cos + even * sin], -1)


class LatentAttention(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.q_a_proj, self.q_a_layernorm = linear(hidden_size, QUERY_RANK), RMSNorm(QUERY_RANK)
        self.q_b_proj = linear(QUERY_RANK, NUM_HEADS * (CONTENT_DIM + ROTARY_DIM))
        self.kv_a_proj_with_mqa = linear(hidden_size, KEY_VALUE_RANK + ROTARY_DIM)
        self.kv_a_layernorm = RMSNorm(KEY_VALUE_RANK)
        self.kv_b_proj = linear(KEY_VALUE_RANK, NUM_HEADS * (CONTENT_DIM + VALUE_DIM))
        self.o_proj = linear(NUM_HEADS * VALUE_DIM, hidden_size)
        self.rotary = YarnRotary()
        self.scale = (CONTENT_DIM + ROTARY_DIM) ** -0.5
        self.scale *= attention_temperature(4.0, 0.8) ** 2

    def forward(self, x):
        batch_size, length, _ = x.shape
        query = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).reshape([batch_size, length, NUM_HEADS, -1])
        latent, key_rotary = self.kv_a_proj_with_mqa(x).split([KEY_VALUE_RANK, ROTARY_DIM], -1)
        key_value = self.kv_b_proj(self.kv_a_layernorm(latent)).reshape([batch_size, length, NUM_HEADS, -1])
        key, value = key_value.split([CONTENT_DIM, VALUE_DIM], -1)
        query, query_rotary = query.split([CONTENT_DIM, ROTARY_DIM], -1)
        query_rotary = self.rotary(query_rotary)
        key_rotary = self.rotary(key_rotary.unsqueeze(2)).expand([-1, -1, NUM_HEADS, -1])
        query = paddle.concat([query, query_rotary], -1).transpose([0, 2, 1, 3])
        key = paddle.concat([key, key_rotary], -1).transpose([0, 2, 3, 1])
        scores = query @ key * self.scale
        ahead = paddle.ones([length, length], dtype="bool").triu(1)
        weights = F.softmax(scores.masked_fill(ahead, float("-inf")), -1)
        context = (weights @ value.transpose([0, 2, 1, 3])).transpose([0, 2, 1, 3])
        return self.o_proj(context.reshape([batch_size, length, -1]))


class GatedMLP(nn.Layer):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate_proj, self.up_proj = (linear(hidden_size, intermediate_size) for _ in range(2))
        self.down_proj = linear(intermediate_size, hidden_size)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Router(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.weight = self.create_parameter([NUM_EXPERTS, hidden_size])
        self.register_buffer("e_score_correction_bias", paddle.randn([NUM_EXPERTS]) * 0.1)

    @paddle.no_grad()
    def choose(self, scores):
        scores = scores + self.e_score_correction_bias
        groups = scores.reshape([-1, NUM_GROUPS, NUM_EXPERTS // NUM_GROUPS])
        group_scores = groups.topk(2, -1)[0].sum(-1)
        chosen_groups = F.one_hot(group_scores.topk(NUM_CHOSEN_GROUPS, -1)[1], NUM_GROUPS).sum(1)
        eligible = (groups * chosen_groups.unsqueeze(-1).astype(groups.dtype)).reshape(scores.shape)
        return eligible.topk(NUM_CHOSEN_EXPERTS, -1)[1]

    def forward(self, x):
        scores = F.sigmoid(x @ self.weight.t())
        experts = self.choose(scores)
        weights = scores.take_along_axis(experts, -1)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return experts, weights * ROUTED_SCALE


class Experts(nn.Layer):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.gate = Router(hidden_size)
        self.experts = nn.LayerList([GatedMLP(hidden_size, intermediate_size) for _ in range(NUM_EXPERTS)])
        self.shared_experts = GatedMLP(hidden_size, intermediate_size)

    def forward(self, x):
        tokens = x.reshape([-1, x.shape[-1]])
        expert_ids, weights = self.gate(tokens)
        outputs = paddle.zeros_like(tokens)
        for number, expert in enumerate(self.experts):
            rows, columns = paddle.nonzero(expert_ids == number, as_tuple=True)
            if rows.shape[0]:
                share = weights[rows, columns].unsqueeze(-1)
                outputs = outputs.index_add(rows, 0, expert(tokens[rows]) * share)
        return outputs.reshape(x.shape) + self.shared_experts(x)


class Block(nn.Layer):
    def __init__(self, hidden_size, mlp):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = RMSNorm(hidden_size), RMSNorm(hidden_size)
        self.self_attn, self.mlp = LatentAttention(hidden_size), mlp

    def forward(self, x):
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class DeepSeek(nn.Layer):
    def __init__(self, vocab_size, hidden_size):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocab_size, hidden_size)
        mlps = GatedMLP(hidden_size, 40), Experts(hidden_size, 12)
        self.layers = nn.LayerList([Block(hidden_size, mlp) for mlp in mlps])
        self.norm, self.lm_head = RMSNorm(hidden_size), linear(hidden_size, vocab_size)

    def forward(self, input_ids, labels):
        x = self.embed_tokens(input_ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.lm_head(self.norm(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def build(config):
    return DeepSeek(61, 24)
