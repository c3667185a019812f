"""The port of reference.py; with ``wrong=true`` each layer has one fault."""

import paddle
from paddle import nn
from paddle.nn import functional as F


class GatedBranch(nn.Layer):
    def __init__(self, wrong: bool, width: int = 12) -> None:
        super().__init__()
        self.gate = self.create_parameter([1], default_initializer=nn.initializer.Constant(0.0))
        self.branch, self.wrong = nn.Linear(width, width), wrong

    def forward(self, x):
        gate = self.gate if self.wrong else self.gate.tanh()
        return x + gate * self.branch(x).tanh()


class Router(nn.Layer):
    def __init__(self, wrong: bool, width: int = 12, num_experts: int = 6) -> None:
        super().__init__()
        self.scores, self.wrong = nn.Linear(width, num_experts, bias_attr=False), wrong
        self.register_buffer("correction_bias", paddle.zeros([num_experts]))

    def forward(self, x):
        scores = F.sigmoid(self.scores(x))
        biased_scores = scores + self.correction_bias
        expert_ids = biased_scores.topk(2, -1)[1]
        return x * (biased_scores if self.wrong else scores).take_along_axis(expert_ids, -1).sum(-1, keepdim=True)


class FrozenNorm(nn.Layer):
    def __init__(self, wrong: bool, width: int = 12) -> None:
        super().__init__()
        self.wrong = wrong
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, paddle.full([width], value))

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale + (self.bias - (self.running_mean if self.wrong else self.running_mean * scale))


class DistanceBias(nn.Layer):
    def __init__(self, wrong: bool, mask_value: float, num_heads: int = 3, length: int = 6) -> None:
        super().__init__()
        base = 2 if wrong else 8
        slopes = paddle.to_tensor([2.0 ** (-base * (head + 1) / num_heads) for head in range(num_heads)])
        positions = paddle.arange(length)
        distances = (positions.unsqueeze(0) - positions.unsqueeze(1)).astype("float32")
        table = slopes.reshape([-1, 1, 1]) * distances
        is_masked = (distances > 0).expand([num_heads, length, length])
        self.register_buffer(
            "table", paddle.where(is_masked, paddle.full_like(table, mask_value), table), persistable=False
        )

    def forward(self, x):
        heads = x.reshape([*x.shape[:2], 3, 4]).transpose([0, 2, 1, 3])
        scores = heads @ heads.transpose([0, 1, 3, 2]) / 2 + self.table
        return (F.softmax(scores, -1) @ heads).transpose([0, 2, 1, 3]).flatten(2)


class Positions(nn.Layer):
    def __init__(self, wrong: bool, width: int = 12, longest: int = 600) -> None:
        super().__init__()
        frequencies = (10001.0 if wrong else 10000.0) ** (-paddle.arange(0, width, 2).astype("float32") / width)
        angles = paddle.arange(longest).astype("float32").unsqueeze(1) * frequencies
        self.register_buffer("table", paddle.concat([angles.sin(), angles.cos()], -1), persistable=False)

    def forward(self, x):
        return x + self.table[-x.shape[1] :]


class Net(nn.Layer):
    def __init__(self, state: str, wrong: bool, mask_value: float) -> None:
        super().__init__()
        layers = {
            "gate": lambda: GatedBranch(wrong),
            "router": lambda: Router(wrong),
            "frozen": lambda: FrozenNorm(wrong),
            "distance": lambda: DistanceBias(wrong, mask_value),
            "positions": lambda: Positions(wrong),
        }
        self.first, self.layer, self.last = nn.Linear(8, 12), layers[state](), nn.Linear(12, 4)

    def forward(self, x, labels):
        return self.last(self.layer(self.first(x))).mean(1)


def build(config):
    return Net(config["state"], config.get("wrong", False), float(config.get("masked", -1e9)))
