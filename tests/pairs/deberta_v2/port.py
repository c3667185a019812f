"""DeBERTa-v2 in Paddle."""

import math

import paddle
from paddle import nn
from paddle.nn import functional as F

NUM_HEADS, HEAD_DIM, NUM_BUCKETS, MAX_DISTANCE = 3, 8, 4, 32
EPSILON = 1e-7


def bucket_distances(length):
    """Return the bucket of each distance from query to key, (length, length): exact up to the middle, then in logs."""
    distance = paddle.arange(length).unsqueeze(1) - paddle.arange(length)
    middle = NUM_BUCKETS // 2
    size = distance.abs().clip(min=middle).astype("float64")
    share = (size / middle).log() / math.log((MAX_DISTANCE - 1) / middle)
    bucket = (share * (middle - 1)).ceil().astype("int64") + middle
    return paddle.where(distance.abs() <= middle, distance, bucket * distance.sign())


class DisentangledAttention(nn.Layer):
    def __init__(self, hidden_size):
        super().__init__()
        self.query_proj, self.key_proj, self.value_proj = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.pos_dropout, self.dropout = nn.Dropout(0.1), nn.Dropout(0.1)

    @staticmethod
    def split_heads(x):
        return x.reshape([x.shape[0], x.shape[1], NUM_HEADS, HEAD_DIM]).transpose([0, 2, 1, 3])

    def forward(self, x, visible, buckets, positions):
        query, key, value = (self.split_heads(layer(x)) for layer in (self.query_proj, self.key_proj, self.value_proj))
        positions = self.pos_dropout(positions).unsqueeze(0)
        position_query = self.split_heads(self.query_proj(positions))
        position_key = self.split_heads(self.key_proj(positions))
        scale = math.sqrt(HEAD_DIM * 3)
        shape = [x.shape[0], NUM_HEADS, *buckets.shape]
        scores = query @ key.transpose([0, 1, 3, 2]) / scale
        place = (buckets + NUM_BUCKETS).clip(0, 2 * NUM_BUCKETS - 1).expand(shape)
        scores = scores + (query @ position_key.transpose([0, 1, 3, 2])).take_along_axis(place, -1) / scale
        place = (NUM_BUCKETS - buckets).clip(0, 2 * NUM_BUCKETS - 1).expand(shape)
        of_keys = (key @ position_query.transpose([0, 1, 3, 2])).take_along_axis(place, -1)
        scores = scores + of_keys.transpose([0, 1, 3, 2]) / scale
        scores = paddle.where(visible, scores, paddle.full([], paddle.finfo(scores.dtype).min, scores.dtype))
        context = self.dropout(F.softmax(scores, -1)) @ value
        return context.transpose([0, 2, 1, 3]).flatten(2)


class Output(nn.Layer):
    def __init__(self, in_features, hidden_size):
        super().__init__()
        self.dense, self.dropout = nn.Linear(in_features, hidden_size), nn.Dropout(0.1)
        self.LayerNorm = nn.LayerNorm(hidden_size, EPSILON)

    def forward(self, x, residual):
        return self.LayerNorm(self.dropout(self.dense(x)) + residual)


class Block(nn.Layer):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.attention, self.attention_output = DisentangledAttention(hidden_size), Output(hidden_size, hidden_size)
        self.intermediate, self.output = (
            nn.Linear(hidden_size, intermediate_size),
            Output(intermediate_size, hidden_size),
        )

    def forward(self, x, *positions_and_masks):
        x = self.attention_output(self.attention(x, *positions_and_masks), x)
        return self.output(F.gelu(self.intermediate(x)), x)


class Convolution(nn.Layer):
    """Add a convolution of the embeddings to the first block's output."""

    def __init__(self, hidden_size):
        super().__init__()
        self.conv = nn.Conv1D(hidden_size, hidden_size, 3, padding=1)
        self.LayerNorm, self.dropout = nn.LayerNorm(hidden_size, EPSILON), nn.Dropout(0.1)

    def forward(self, embeddings, x, mask):
        local = self.conv(embeddings.transpose([0, 2, 1])).transpose([0, 2, 1])
        local = F.gelu(self.dropout(local * mask))
        return self.LayerNorm(x + local) * mask


class Deberta(nn.Layer):
    def __init__(self, vocab_size, hidden_size, num_labels):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden_size)
        self.embedding_norm, self.embedding_dropout = nn.LayerNorm(hidden_size, EPSILON), nn.Dropout(0.1)
        self.rel_embeddings = nn.Embedding(2 * NUM_BUCKETS, hidden_size)
        self.rel_norm = nn.LayerNorm(hidden_size, EPSILON)
        self.layer = nn.LayerList([Block(hidden_size, 40) for _ in range(2)])
        self.conv = Convolution(hidden_size)
        self.dropout, self.classifier = nn.Dropout(0.1), nn.Linear(hidden_size, num_labels)

    def forward(self, input_ids, attention_mask, labels):
        x = self.embedding_norm(self.word_embeddings(input_ids))
        mask = attention_mask.unsqueeze(-1).astype(x.dtype)
        embeddings = x = self.embedding_dropout(x * mask)
        visible = (attention_mask.unsqueeze(1) * attention_mask.unsqueeze(2)).unsqueeze(1).astype("bool")
        buckets = bucket_distances(input_ids.shape[1])
        positions = self.rel_norm(self.rel_embeddings.weight)
        for number, block in enumerate(self.layer):
            x = block(x, visible, buckets, positions)
            if number == 0:
                x = self.conv(embeddings, x, mask)
        logits = self.classifier(self.dropout(x))
        is_labeled = labels != -100
        return F.cross_entropy(logits[is_labeled], labels[is_labeled]), logits


def build(config):
    return Deberta(61, 24, 5)
