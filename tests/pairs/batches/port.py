"""The port of reference.py."""

from paddle import nn
from paddle.nn import functional as F


class Net(nn.Layer):
    def __init__(self, wrong: str) -> None:
        super().__init__()
        self.first, self.norm, self.drop = nn.Linear(6, 8), nn.LayerNorm(8), nn.Dropout(0.5)
        self.last, self.wrong = nn.Linear(8, 3), wrong
        self.shift = self.create_parameter([6], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x, labels=None):
        x = self.norm(self.first(x + self.shift))
        if self.wrong == "doubled" and not x.stop_gradient:
            x.register_hook(lambda gradient: 2 * gradient)
        x = F.leaky_relu(x, 0.01) if self.wrong == "forward" or (self.wrong == "second" and len(x) == 5) else F.relu(x)
        return F.softmax(self.last(self.drop(x)), -1) if self.wrong == "after" else self.last(self.drop(x))


def build(config):
    return Net(config.get("wrong", ""))


def loss(model, batch):
    scores = model(**batch)
    size = scores.abs().mean() if model.wrong == "size" else (scores**2).mean()
    return {"class": F.cross_entropy(scores, batch["labels"]), "size": size}
