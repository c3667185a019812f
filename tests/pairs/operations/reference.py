"""One operation between two linear layers, by its name; with ``wrong=true`` the port has another constant."""

import torch
from torch import nn
from torch.nn import functional as F


class Rotary(nn.Module):
    """Rotary positions as in many decoders: in float32 for every dtype, from a table that is not a buffer."""

    def __init__(self, size: int = 12, longest: int = 16) -> None:
        super().__init__()
        frequencies = 1.0 / 10000.0 ** (torch.arange(0, size, 2, dtype=torch.int64).float() / size)
        angles = torch.arange(longest).float()[:, None] * frequencies
        self.cos, self.sin = angles.cos(), angles.sin()

    def forward(self, x):
        positions = torch.arange(x.shape[1])
        cos, sin = (table[positions].to(x.dtype) for table in (self.cos, self.sin))
        first_half, second_half = x.chunk(2, -1)
        return torch.cat([first_half * cos - second_half * sin, second_half * cos + first_half * sin], -1)


class FusedAttention(nn.Module):
    """Attention with one projection of queries, keys and values, and an output scaled by channel: [12, 1]."""

    def __init__(self, size: int = 12) -> None:
        super().__init__()
        self.qkv, self.proj = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.scale = nn.Parameter(torch.ones(size, 1))

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.proj((q @ k.transpose(1, 2)).softmax(-1) @ v) * self.scale[:, 0]


class Apart(nn.Module):
    """Gated linear units with two projections."""

    def __init__(self, size: int = 12) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(size, 20), nn.Linear(size, 20)
        self.down_proj = nn.Linear(20, size, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Image(nn.Module):
    """Six vectors as an image of 2 x 3."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(12, 12, 3, padding=1), nn.GroupNorm(3, 12)
        self.drop, self.out = nn.Dropout(0.3), nn.Linear(12, 12)

    def forward(self, x):
        x = x.transpose(1, 2).unflatten(2, (2, 3))
        x = self.drop(F.relu(self.norm(self.conv(x))))
        return self.out(x.flatten(2).transpose(1, 2))


OPERATIONS = {
    "elu": lambda x: F.elu(x, 0.7),
    "pow": lambda x: (x.abs() + 0.1) ** 1.7,
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.3),
    "average": lambda x: F.avg_pool1d(x.transpose(1, 2), 3, 1, 1).transpose(1, 2),
    "interpolate": lambda x: F.interpolate(x.transpose(1, 2), scale_factor=1.5, mode="linear").transpose(1, 2),
    "noise": lambda x: x + 0.1 * torch.randn(x.shape),
    "heads": lambda x: x.unflatten(-1, (3, 4)).tanh().flatten(-2),
    "ramp": lambda x: x * (torch.arange(x.shape[1], dtype=torch.float32) / 3)[:, None],
}


class Net(nn.Module):
    def __init__(self, op: str, returns: str) -> None:
        super().__init__()
        self.returns = returns
        self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 4)
        layers = {
            "group": lambda: nn.GroupNorm(3, 12),
            "stride": lambda: nn.Conv1d(12, 12, 3, padding=1),
            "weight": lambda: nn.utils.weight_norm(nn.Conv1d(12, 12, 3, padding=1)),
            "batch": lambda: nn.BatchNorm1d(12),
            "rotary": Rotary,
            "fused": FusedAttention,
            "apart": Apart,
            "image": Image,
            "time": lambda: nn.LSTM(12, 6, bidirectional=True, batch_first=True),
            "spectral": lambda: nn.utils.spectral_norm(nn.Linear(12, 12)),
            "lstm": lambda: nn.LSTM(12, 6, num_layers=2, bidirectional=True, batch_first=True),
        }
        self.op, self.layer = op, layers[op]() if op in layers else None

    def forward(self, x, labels):
        x = self.first(x)
        if self.op in ("group", "batch", "stride", "weight"):
            x = self.layer(x.transpose(1, 2)).transpose(1, 2)
        elif self.op in ("lstm", "time"):
            x = self.layer(x)[0]
        else:
            x = (self.layer or OPERATIONS[self.op])(x)
        logits = self.last(x).mean(1)
        loss = F.cross_entropy(logits, labels)
        return {"loss": loss, "dict": {"logits": logits, "loss": loss}, "tuple": (loss, logits)}[self.returns]


def build(config):
    return Net(config["op"], config.get("returns", "loss"))


def batch(config, rng):
    return {"x": rng.standard_normal((4, 6, 8)).astype("float32"), "labels": rng.integers(0, 4, 4)}
