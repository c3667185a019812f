"""The port of the masks in Paddle."""

import paddle
from paddle import nn
from paddle.nn import functional as F

LARGE = -1e4


class Attention(nn.Layer):
    def __init__(self, dim, window):
        super().__init__()
        self.window = window
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.bias = nn.Embedding(40, 1)

    def forward(self, x, lengths):
        n, w = x.shape[1], self.window
        q, k = self.query(x), self.key(x)
        scores = q @ k.transpose([0, 2, 1]) / 4
        i = paddle.arange(n)
        distance = i.unsqueeze(1) - i.unsqueeze(0)
        causal = distance >= 0  # hides
        near = paddle.less_than(distance, paddle.full_like(distance, w))  # idle
        is_masked = paddle.logical_not(paddle.logical_and(causal, near))
        weights = F.softmax(scores.masked_fill(is_masked, -float("inf")))
        far = distance >= w  # idle
        weights = weights + F.softmax(paddle.where(far, paddle.full_like(scores, LARGE), scores))
        ahead = paddle.triu(paddle.full([n, n], LARGE, x.dtype), 1)  # hides
        band = paddle.tril(paddle.ones([n, n], x.dtype), w)  # idle
        beyond = paddle.triu(paddle.ones([n, n], x.dtype), w)  # idle
        weights = weights + F.softmax(scores + ahead + (1 - band) * LARGE) * (1.0 - beyond)
        lower = paddle.tril(paddle.ones([n, n], x.dtype))  # hides
        band_mask = paddle.triu(lower, -w)  # idle
        weights = weights + F.softmax(scores + (1 - band_mask) * LARGE)
        zero, large = paddle.zeros([1], x.dtype), paddle.full([1], LARGE, x.dtype)
        bias = paddle.where(distance > -w, zero, large)  # idle
        weights = weights + F.softmax(scores + bias)
        assigned_bias = paddle.zeros([n, n], x.dtype)
        assigned_bias[i.unsqueeze(1) > i + w] = LARGE  # idle
        weights = weights + F.softmax(scores + assigned_bias)
        table = paddle.full_like(distance, 39)
        limited = distance.clip(-w, w)  # limit
        buckets = paddle.where(distance.abs() < w, limited + 20, table)  # no mask, choice: a row of a table
        weights = weights + F.softmax(scores + self.bias(buckets).squeeze(-1))
        scaled_scores = paddle.where(distance < w, scores, 2 * scores)  # no mask, choice: one result or another
        is_token = i < lengths.unsqueeze(1)  # hides
        whole = i < lengths.max() + 0 * lengths.unsqueeze(1)  # idle
        keep_mask = is_token.unsqueeze(-1).astype(x.dtype) * whole.unsqueeze(-1).astype(x.dtype)
        y = (weights + scaled_scores) @ (x * keep_mask)
        y = paddle.where(y > -1e6, y, 0.1 * y)  # no mask: of a result
        count = (i < w).sum()  # no mask: a number
        y = y / count.astype(x.dtype)
        visible = i.unsqueeze(1) <= i.unsqueeze(0) + w  # idle
        q, k, v = (one.unsqueeze(2) for one in (q, k, x))
        return y + F.scaled_dot_product_attention(q, k, v, attn_mask=visible.unsqueeze([0, 1])).squeeze(2)


class Net(nn.Layer):
    def __init__(self, window, dim=8):
        super().__init__()
        self.embed = nn.Embedding(20, dim)
        self.attention = Attention(dim, window)
        self.head = nn.Linear(dim, 20)

    def forward(self, ids, lengths):
        return self.head(self.attention(self.embed(ids), lengths))


def build(config):
    return Net(config.get("window", 16))


def loss(model, batch):
    return F.cross_entropy(model(batch["ids"], batch["lengths"]).flatten(0, 1), batch["labels"].flatten())
