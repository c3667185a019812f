from paddle import nn


class Net(nn.Layer):
    def __init__(self, hidden):
        super().__init__()
        self.embed = nn.Embedding(50, hidden)
        self.up, self.drop, self.down = nn.Linear(hidden, 64), nn.Dropout(0.1), nn.Linear(64, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, 5)

    def forward(self, ids, labels):
        x = self.embed(ids)
        x = self.norm(x + self.down(self.drop(nn.functional.relu(self.up(x)))))
        return nn.functional.cross_entropy(self.head(x.mean(1)), labels)


def build(config):
    return Net(config.get("hidden", 16))
