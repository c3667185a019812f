"""The torch module that port.py ports, and the batch that both are given."""

from torch import nn


class Net(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.embedding = nn.Embedding(50, hidden)
        self.ffn = nn.Sequential(
            nn.Linear(hidden, 2 * hidden), nn.ReLU(), nn.Dropout(0.1), nn.Linear(2 * hidden, hidden)
        )
        self.ln = nn.LayerNorm(hidden)
        self.classifier = nn.Linear(hidden, 5)

    def forward(self, ids, labels):
        x = self.embedding(ids)
        x = self.ln(x + self.ffn(x))
        return nn.functional.cross_entropy(self.classifier(x.mean(1)), labels)


def build(config):
    return Net(config.get("hidden", 16))


def batch(config, rng):
    return {"ids": rng.integers(0, 50, (4, 7)), "labels": rng.integers(0, 5, 4)}
