"""One function between two linear layers, or one loss behind them; `op` names it, or several: op=elu,pow."""

import torch
from torch import nn
from torch.nn import functional as F


def channels_first(function):
    """Apply a function of channels and positions to positions and channels."""
    return lambda x: function(x.transpose(1, 2)).transpose(1, 2)


def weights(x):
    return torch.tensor([0.1, 0.7, 1.3, 2.1], dtype=x.dtype)


def heads(x):
    x = x.view(len(x), 6, 3, 4).transpose(1, 2)
    return F.scaled_dot_product_attention(x, x, x, is_causal=True).transpose(1, 2).reshape(len(x), 6, 12)


FUNCTIONS = {
    "interpolate": channels_first(lambda x: F.interpolate(x, scale_factor=1.5, mode="linear")),
    "interpolate_size": channels_first(lambda x: F.interpolate(x, size=7, mode="linear")),
    "interpolate_corners": channels_first(lambda x: F.interpolate(x, size=8, mode="linear", align_corners=True)),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cosine": lambda x: x * F.cosine_similarity(x, x.flip(1), dim=-1)[..., None],
    "temperature": lambda x: F.softmax(x / 0.07, -1),
    "clamp": lambda x: x.clamp(-0.3, 0.3),
    "pow": lambda x: (x.abs() + 0.1).pow(1.7),
    "std": lambda x: x / (x.std(-1, keepdim=True) + 1e-3),
    "logsumexp": lambda x: x - torch.logsumexp(x, -1, keepdim=True),
    "cumsum": lambda x: x.cumsum(1),
    "avg_pool": channels_first(lambda x: F.avg_pool1d(x, 3, 1, 1)),
    "adaptive_avg_pool": channels_first(lambda x: F.adaptive_avg_pool1d(x, 4)),
    "max_pool": channels_first(lambda x: F.max_pool1d(x, 2)),
    "reflect": channels_first(lambda x: F.pad(x, (1, 2), mode="reflect")),
    "glu": lambda x: torch.cat([F.glu(x, -1)] * 2, -1),
    "pixel_shuffle": lambda x: F.pixel_shuffle(x.transpose(1, 2).reshape(-1, 12, 2, 3), 2).reshape(-1, 6, 12),
    "roll": lambda x: x.roll(1, 1),
    "einsum": lambda x: torch.einsum("bid,bjd->bij", x, x) @ x,
    "attention": lambda x: (x @ x.transpose(1, 2) / 12**0.5).softmax(-1) @ x,
    "causal_attention": heads,
    "gather": lambda x: x.gather(1, torch.arange(5, -1, -1)[None, :, None].expand(len(x), 6, 12)),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 0.1),
    "where": lambda x: torch.where(x > 0, x, 0.1 * x),
    "local_response": channels_first(lambda x: F.local_response_norm(x, 3)),
    "layer_norm": lambda x: F.layer_norm(x, (12,)),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softplus": lambda x: F.softplus(x, 1.3),
    "hardswish": lambda x: F.hardswish(3 * x),
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.3),
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "relu6": lambda x: F.relu6(9 * x),
    "logsigmoid": F.logsigmoid,
    "softshrink": lambda x: F.softshrink(x, 0.1),
    "hardshrink": lambda x: F.hardshrink(x, 0.1),
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "prelu": lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3, training=False),
    "topk": lambda x: x * F.one_hot(x.topk(2, -1).indices, 12).sum(-2),
}
LOSSES = {
    "label_smoothing": lambda p, t, y: F.cross_entropy(p, y, label_smoothing=0.1),
    "class_weights": lambda p, t, y: F.cross_entropy(p, y, weight=weights(p)),
    "kl": lambda p, t, y: F.kl_div(F.log_softmax(p, -1), F.softmax(t * 1.3, -1), reduction="batchmean"),
    "smooth_l1": lambda p, t, y: F.smooth_l1_loss(p, t, beta=0.1),
    "huber": lambda p, t, y: F.huber_loss(p, t, delta=0.1),
    "bce": lambda p, t, y: F.binary_cross_entropy_with_logits(p, t, pos_weight=weights(p)),
    "margin": lambda p, t, y: F.margin_ranking_loss(p[:, 0], p[:, 1], torch.ones_like(p[:, 0]), margin=0.3),
    "triplet": lambda p, t, y: F.triplet_margin_loss(p, t, p.flip(0), margin=0.3),
    "nll": lambda p, t, y: F.nll_loss(F.log_softmax(p, -1), y),
    "mse": lambda p, t, y: F.mse_loss(p, t),
    "l1": lambda p, t, y: F.l1_loss(p, t),
    "poisson": lambda p, t, y: F.poisson_nll_loss(p, t),
    "soft_margin": lambda p, t, y: F.soft_margin_loss(p, 2 * t - 1),
}
ALL = [*FUNCTIONS, *LOSSES]


class Net(nn.Module):
    def __init__(self, names) -> None:
        super().__init__()
        self.first = nn.ModuleDict({name: nn.Linear(8, 12) for name in names})
        self.last = nn.ModuleDict({name: nn.Linear(12, 4) for name in names})

    def forward(self, x, y):
        losses = {}
        for name in self.first:
            h = FUNCTIONS.get(name, lambda h: h)(self.first[name](x))
            p = self.last[name](h).mean(1)
            target = F.one_hot(y, 4).to(p.dtype)
            losses[name] = LOSSES.get(name, lambda p, t, y: F.cross_entropy(p, y))(p, target, y)
        return losses if len(losses) > 1 else losses[name]


def build(config):
    return Net(ALL if config["op"] == "all" else [config["op"]])


def batch(config, rng):
    return {"x": rng.standard_normal((4, 6, 8)), "y": rng.integers(0, 4, 4)}
