"""Two batches of different lengths, with labels or without, and a loss of one or two parts."""

import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.5)
        self.last, self.shift = nn.Linear(8, 3), nn.Parameter(torch.ones(6))

    def forward(self, x, labels=None):
        return self.last(self.drop(self.norm(self.first(x + self.shift)).relu()))


def build(config):
    return Net()


def batch(config, rng):
    for rows in range(4, 4 + config.get("batches", 2)):
        inputs = {"x": rng.standard_normal((rows, 6))}
        yield {**inputs, "labels": rng.integers(0, 3, rows)} if config.get("labels", True) else inputs


def loss(model, batch):
    scores = model(**batch)
    return {"class": F.cross_entropy(scores, batch["labels"]), "size": (scores**2).mean()}
