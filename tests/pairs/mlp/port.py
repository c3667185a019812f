"""A small layer of a user's, and the batch that both sides are given."""

from paddle import nn


class Net(nn.Layer):
    def __init__(self, hidden):
        super().__init__()
        self.embed = nn.Embedding(50, hidden)
        self.first = nn.Linear(hidden, 2 * hidden)
        self.act = nn.ReLU()
        self.drop = nn.Dropout(0.1)
        self.second = nn.Linear(2 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, 5)

    def forward(self, ids, labels):
        x = self.embed(ids)
        x = self.norm(x + self.second(self.drop(self.act(self.first(x)))))
        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)


def build(config):
    return Net(config.get("hidden", 16))
