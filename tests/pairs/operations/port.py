"""The port of reference.py."""

from dataclasses import dataclass

import paddle
from paddle import nn
from paddle.nn import functional as F


@dataclass
class Output:
    loss: paddle.Tensor
    logits: paddle.Tensor


class Rotary(nn.Layer):
    def __init__(self, base: float, size: int = 12, longest: int = 16) -> None:
        super().__init__()
        frequencies = 1.0 / base ** (paddle.arange(0, size, 2).astype("float32") / size)
        angles = paddle.arange(longest, dtype="float32").unsqueeze(1) * frequencies
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, x):
        cos, sin = (table[: x.shape[1]].astype(x.dtype) for table in (self.cos, self.sin))
        first_half, second_half = x.chunk(2, -1)
        return paddle.concat([first_half * cos - second_half * sin, second_half * cos + first_half * sin], -1)


class SplitAttention(nn.Layer):
    """Attention with three projections."""

    def __init__(self, wrong: bool, size: int = 12) -> None:
        super().__init__()
        self.wrong = wrong
        self.k, self.q, self.v, self.out = (nn.Linear(size, size) for _ in range(4))
        self.scale = self.create_parameter([size], default_initializer=nn.initializer.Constant(1.0))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.wrong:
            k, v = v, k
        return self.out(F.softmax(q @ k.transpose([0, 2, 1]), -1) @ v) * self.scale


class Down(nn.Layer):
    """A custom linear layer whose weight is stored as [inputs, outputs]."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = self.create_parameter([inputs, outputs])

    def forward(self, x):
        return x @ self.weight


class JoinedUnits(nn.Layer):
    """Gated linear units with one projection for both."""

    def __init__(self, wrong: bool, size: int = 12) -> None:
        super().__init__()
        self.wrong, self.gate_up, self.down = wrong, nn.Linear(size, 40), Down(20, size)

    def forward(self, x):
        gate, up = self.gate_up(x).chunk(2, -1)
        return self.down(F.silu(up) * gate if self.wrong else F.silu(gate) * up)


class Image(nn.Layer):
    """With channels last."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2D(12, 12, 3, padding=1, data_format="NHWC")
        self.norm = nn.GroupNorm(3, 12, data_format="NHWC")
        self.drop, self.out, self.wrong = nn.Dropout(0.3), nn.Linear(12, 12), wrong

    def forward(self, x):
        x = self.norm(self.conv(x.reshape([-1, 2, 3, 12])))
        x = self.drop(F.leaky_relu(x, 0.001) if self.wrong else F.relu(x))
        return self.out(x.reshape([-1, 6, 12]))


def join_heads(heads, wrong: bool):
    if not wrong:
        heads = heads.transpose([0, 2, 1, 3])
    return heads.tanh().reshape([heads.shape[0], -1, 12])


def operations(wrong: bool) -> dict:
    return {
        "elu": lambda x: F.elu(x, 0.7001 if wrong else 0.7),
        "pow": lambda x: (x.abs() + 0.1) ** (1.7001 if wrong else 1.7),
        "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.3001 if wrong else 0.3),
        "average": lambda x: F.avg_pool1d(x.transpose([0, 2, 1]), 3, 1, 1, exclusive=wrong).transpose([0, 2, 1]),
        "interpolate": lambda x: F.interpolate(
            x.transpose([0, 2, 1]), scale_factor=1.5, mode="linear", align_corners=wrong, data_format="NCW"
        ).transpose([0, 2, 1]),
        "noise": lambda x: x + (0.1001 if wrong else 0.1) * paddle.randn(x.shape),
        "heads": lambda x: join_heads(x.reshape([*x.shape[:2], 3, 4]).transpose([0, 2, 1, 3]), wrong),
        "ramp": lambda x: x * (paddle.arange(x.shape[1], dtype="float32") / (3.001 if wrong else 3)).unsqueeze(1),
    }


class Net(nn.Layer):
    def __init__(self, op: str, wrong: bool, returns: str) -> None:
        super().__init__()
        self.returns, self.wrong = returns, wrong
        self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 4)
        layers = {
            "group": lambda: nn.GroupNorm(3, 12, 1.001e-5 if wrong else 1e-5),
            "stride": lambda: nn.Conv1D(12, 12, 3, stride=2 if wrong else 1, padding=1),
            "weight": lambda: nn.utils.weight_norm(nn.Conv1D(12, 12, 3, padding=1), dim=1 if wrong else 0),
            "batch": lambda: nn.BatchNorm1D(12, epsilon=1.1e-5 if wrong else 1e-5),
            "rotary": lambda: Rotary(10001.0 if wrong else 10000.0),
            "fused": lambda: SplitAttention(wrong),
            "apart": lambda: JoinedUnits(wrong),
            "image": lambda: Image(wrong),
            "time": lambda: nn.LSTM(12, 6, direction="bidirect", time_major=True),
            "spectral": lambda: nn.utils.spectral_norm(nn.Linear(12, 12), n_power_iterations=2 if wrong else 1),
            "lstm": lambda: nn.LSTM(12, 6, num_layers=2, direction="bidirect", time_major=wrong),
        }
        self.op, self.layer = op, layers[op]() if op in layers else None
        self.operations = operations(wrong)

    def forward(self, x, labels):
        x = self.first(x)
        if self.op in ("group", "batch", "stride", "weight"):
            x = self.layer(x.transpose([0, 2, 1])).transpose([0, 2, 1])
        elif self.op == "lstm":
            x = self.layer(x)[0]
        elif self.op == "time":
            x = self.layer(x.transpose([1, 0, 2]))[0]
            x = x.reshape([4, 6, 12]) if self.wrong else x.transpose([1, 0, 2])
        else:
            x = (self.layer or self.operations[self.op])(x)
        logits = self.last(x).mean(1)
        loss = F.cross_entropy(logits, labels)
        return {"loss": loss, "dict": {"logits": logits}, "tuple": Output(loss, logits)}[self.returns]


def build(config):
    return Net(config["op"], config.get("wrong", False), config.get("returns", "loss"))
