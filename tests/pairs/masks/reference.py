"""Masks created in every way; comments tell which of them hide something in texts of 12 tokens and which are idle."""

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

LARGE = -1e4


class Attention(nn.Module):
    def __init__(self, dim, window):
        super().__init__()
        self.window = window
        self.query, self.key = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.bias = nn.Embedding(40, 1)

    def forward(self, x, lengths):
        n, w = x.shape[1], self.window
        q, k = self.query(x), self.key(x)
        scores = q @ k.transpose(1, 2) / 4
        i = torch.arange(n)
        distance = i[:, None] - i[None]
        causal = distance >= 0  # hides
        near = distance < w  # idle
        weights = scores.masked_fill(~(causal & near), -torch.inf).softmax(-1)
        weights = weights + 0 * (scores.bfloat16() * near).float()  # a dtype that NumPy lacks
        far = distance >= w  # idle
        weights = weights + torch.where(far, LARGE, scores).softmax(-1)
        ahead = torch.triu(torch.full((n, n), LARGE), 1)  # hides
        band = torch.tril(torch.ones(n, n), w)  # idle
        beyond = torch.triu(torch.ones(n, n), w)  # idle
        weights = weights + (scores + ahead + (1 - band) * LARGE).softmax(-1) * (1.0 - beyond)
        lower = torch.tril(torch.ones(n, n))  # hides
        band_mask = torch.triu(lower, -w)  # idle
        weights = weights + (scores + (1 - band_mask) * LARGE).softmax(-1)
        bias = torch.where(distance > -w, 0.0, LARGE)  # idle
        weights = weights + (scores + bias).softmax(-1)
        assigned_bias = torch.zeros(n, n)
        assigned_bias[i[:, None] > i + w] = LARGE  # idle
        weights = weights + (scores + assigned_bias).softmax(-1)
        limited = distance.clamp(-w, w)  # limit
        buckets = torch.where(distance.abs() < w, limited + 20, 39)  # no mask, choice: a row of a table
        weights = weights + (scores + self.bias(buckets)[..., 0]).softmax(-1)
        scaled_scores = torch.where(distance < w, scores, 2 * scores)  # no mask, choice: one result or another
        is_token = i < lengths[:, None]  # hides
        whole = i < lengths.max() + 0 * lengths[:, None]  # idle
        y = (weights + scaled_scores) @ (x * is_token[..., None] * whole[..., None].to(x.dtype))
        y = torch.where(y > -1e6, y, 0.1 * y)  # no mask: of a result
        count = (i < w).sum()  # no mask: a number
        y = y / count
        visible = i[:, None] <= i[None] + w  # idle
        return y + F.scaled_dot_product_attention(q[:, None], k[:, None], x[:, None], attn_mask=visible)[:, 0]


class Net(nn.Module):
    def __init__(self, window, dim=8):
        super().__init__()
        self.embed = nn.Embedding(20, dim)
        self.attention = Attention(dim, window)
        self.head = nn.Linear(dim, 20)

    def forward(self, ids, lengths):
        return self.head(self.attention(self.embed(ids), lengths))


def build(config):
    return Net(config.get("window", 16))


def batch(config, rng):
    ids, lengths = rng.integers(0, 20, (2, 12)), np.array([12, 7])
    return {"ids": ids, "lengths": lengths, "labels": rng.integers(0, 20, (2, 12))}


def loss(model, batch):
    return F.cross_entropy(model(batch["ids"], batch["lengths"]).flatten(0, 1), batch["labels"].flatten())
