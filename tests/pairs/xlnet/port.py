"""XLNet in Paddle; batches come first inside, too."""

import paddle
from paddle import nn
from paddle.nn import functional as F

NUM_HEADS, HEAD_DIM = 3, 8


def relative_positions(length, hidden_size, dtype):
    """Return sines and cosines of the distances length, length - 1, ..., 1 - length, (2 * length, hidden_size)."""
    distance = paddle.arange(length, -length, -1).astype(dtype)
    frequencies = 1 / 10000 ** (paddle.arange(0, hidden_size, 2).astype(dtype) / hidden_size)
    angles = paddle.outer(distance, frequencies)
    return paddle.concat([angles.sin(), angles.cos()], -1)


def shift_distances(scores):
    """Turn scores by distance, (..., length, 2 * length), into scores by key, (..., length, length)."""
    length = scores.shape[-2]
    place = length - paddle.arange(length).unsqueeze(1) + paddle.arange(length)
    return scores.take_along_axis(place.expand([*scores.shape[:-1], length]), -1)


class RelativeAttention(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        for name in "qkvor":
            setattr(self, name, self.create_parameter([hidden_size, NUM_HEADS, HEAD_DIM]))
        for name in ("r_r_bias", "r_s_bias", "r_w_bias"):
            setattr(self, name, self.create_parameter([NUM_HEADS, HEAD_DIM]))
        self.seg_embed = self.create_parameter([2, NUM_HEADS, HEAD_DIM])
        self.layer_norm, self.dropout = nn.LayerNorm(hidden_size, 1e-12), nn.Dropout(0.1)

    def attend(self, query, key, value, position_key, is_other_segment, is_masked):
        content = paddle.einsum("bind,bjnd->bnij", query + self.r_w_bias, key)
        position = shift_distances(paddle.einsum("bind,bjnd->bnij", query + self.r_r_bias, position_key))
        segment = paddle.einsum("bind,snd->bnis", query + self.r_s_bias, self.seg_embed)
        segment = paddle.einsum("bnis,bijs->bnij", segment, is_other_segment)
        scores = (content + position + segment) * HEAD_DIM**-0.5
        scores = scores - 1e30 * is_masked.unsqueeze(1)
        weights = self.dropout(F.softmax(scores, -1))
        return paddle.einsum("bnij,bjnd->bind", weights, value)

    def project(self, x, context):
        return self.layer_norm(self.dropout(paddle.einsum("bind,hnd->bih", context, self.o)) + x)

    def forward(self, content, query, positions, is_other_segment, hidden, target_mapping):
        key, value, content_query = (
            paddle.einsum("bih,hnd->bind", content, weight) for weight in (self.k, self.v, self.q)
        )
        position_key = paddle.einsum("bih,hnd->bind", positions, self.r)
        hidden_to_others = F.relu(hidden - paddle.eye(hidden.shape[-1], dtype=hidden.dtype))
        mixed = self.attend(content_query, key, value, position_key, is_other_segment, hidden_to_others)
        new_content = self.project(content, mixed)
        query_query = paddle.einsum("bmnd,bml->blnd", paddle.einsum("bmh,hnd->bmnd", query, self.q), target_mapping)
        mixed = self.attend(query_query, key, value, position_key, is_other_segment, hidden)
        return new_content, self.project(query, paddle.einsum("blnd,bml->bmnd", mixed, target_mapping))


class FeedForward(nn.Layer):
    def __init__(self, hidden_size, inner_size):
        super().__init__()
        self.layer_1, self.layer_2 = nn.Linear(hidden_size, inner_size), nn.Linear(inner_size, hidden_size)
        self.layer_norm, self.dropout = nn.LayerNorm(hidden_size, 1e-12), nn.Dropout(0.1)

    def forward(self, x):
        states = self.dropout(F.gelu(self.layer_1(x)))
        return self.layer_norm(self.dropout(self.layer_2(states)) + x)


class Block(nn.Layer):
    def __init__(self, hidden_size, inner_size):
        super().__init__()
        self.rel_attn, self.ff = RelativeAttention(hidden_size), FeedForward(hidden_size, inner_size)

    def forward(self, content, query, *others):
        content, query = self.rel_attn(content, query, *others)
        query = self.ff(query)
        return self.ff(content), query


class XLNet(nn.Layer):
    def __init__(self, vocab_size, hidden_size, inner_size):
        super().__init__()
        self.word_embedding = nn.Embedding(vocab_size, hidden_size)
        self.mask_emb = self.create_parameter([1, 1, hidden_size])
        self.layer = nn.LayerList([Block(hidden_size, inner_size) for _ in range(2)])
        self.dropout = nn.Dropout(0.1)
        self.bias = self.create_parameter([vocab_size], is_bias=True)

    def forward(self, input_ids, token_type_ids, perm_mask, target_mapping, labels):
        batch_size, length = input_ids.shape
        content = self.dropout(self.word_embedding(input_ids))
        query = self.dropout(self.mask_emb.expand([batch_size, target_mapping.shape[1], -1]))
        differs = (token_type_ids.unsqueeze(2) != token_type_ids.unsqueeze(1)).astype("int64")
        is_other_segment = F.one_hot(differs, 2).astype(content.dtype)
        positions = relative_positions(length, content.shape[-1], content.dtype).unsqueeze(0)
        positions = self.dropout(positions.expand([batch_size, -1, -1]))
        for layer in self.layer:
            content, query = layer(content, query, positions, is_other_segment, perm_mask, target_mapping)
        logits = self.dropout(query) @ self.word_embedding.weight.t() + self.bias
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def build(config):
    return XLNet(61, 24, 40)
