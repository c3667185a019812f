"""State that is constant in a new model, or whose elements differ in size: by its name, between two linear layers."""

import torch
from torch import nn


class GatedBranch(nn.Module):
    """A branch behind the tanh of a single number, which begins as 0 (Flamingo; Alayrac et al. 2022, 3.2)."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.gate, self.branch = nn.Parameter(torch.zeros(1)), nn.Linear(width, width)

    def forward(self, x):
        return x + self.gate.tanh() * self.branch(x).tanh()


class Router(nn.Module):
    """Experts are chosen by score and correction bias, and weighted by the score alone (DeepSeek-V3, 2.1.2)."""

    def __init__(self, width: int = 12, num_experts: int = 6) -> None:
        super().__init__()
        self.scores = nn.Linear(width, num_experts, bias=False)
        self.register_buffer("correction_bias", torch.zeros(num_experts))

    def forward(self, x):
        scores = self.scores(x).sigmoid()  # (B, T, experts)
        expert_ids = (scores + self.correction_bias).topk(2, -1).indices
        return x * scores.gather(-1, expert_ids).sum(-1, keepdim=True)


class FrozenNorm(nn.Module):
    """A batch norm whose statistics and parameters are buffers, as in detection models."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((width,), value))

    def forward(self, x):
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        return x * scale + (self.bias - self.running_mean * scale)


class DistanceBias(nn.Module):
    """Attention with linear biases and a causal mask in one table (ALiBi; Press et al. 2022, 3)."""

    def __init__(self, mask_value: float, num_heads: int = 3, length: int = 6) -> None:
        super().__init__()
        slopes = torch.tensor([2.0 ** (-8 * (head + 1) / num_heads) for head in range(num_heads)])
        positions = torch.arange(length)
        distances = (positions[None, :] - positions[:, None]).float()  # (query, key)
        table = slopes[:, None, None] * distances
        self.register_buffer("table", table.masked_fill(distances > 0, mask_value), persistent=False)

    def forward(self, x):
        heads = x.unflatten(-1, (3, 4)).transpose(1, 2)  # (B, heads, T, 4)
        scores = heads @ heads.transpose(-1, -2) / 2 + self.table
        return (scores.softmax(-1) @ heads).transpose(1, 2).flatten(2)


class Positions(nn.Module):
    """Sines of large angles, which float32 rounds by more than a unit of themselves."""

    def __init__(self, width: int = 12, longest: int = 600) -> None:
        super().__init__()
        frequencies = 10000.0 ** (-torch.arange(0, width, 2).float() / width)
        angles = torch.arange(longest).float()[:, None] * frequencies
        self.register_buffer("table", torch.cat([angles.sin(), angles.cos()], -1), persistent=False)

    def forward(self, x):
        return x + self.table[-x.shape[1] :]


class Net(nn.Module):
    def __init__(self, state: str, mask_value: float) -> None:
        super().__init__()
        layers = {
            "gate": GatedBranch,
            "router": Router,
            "frozen": FrozenNorm,
            "distance": lambda: DistanceBias(mask_value),
            "positions": Positions,
        }
        self.first, self.layer, self.last = nn.Linear(8, 12), layers[state](), nn.Linear(12, 4)

    def forward(self, x, labels):
        return self.last(self.layer(self.first(x))).mean(1)


def build(config):
    return Net(config["state"], float(config.get("masked", -1e9)))


def batch(config, rng):
    return {"x": rng.standard_normal((4, 6, 8)).astype("float32"), "labels": rng.integers(0, 4, 4)}
