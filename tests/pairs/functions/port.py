"""The port of reference.py; wrong=true selects a fault of each function that a person could make."""

import paddle
from paddle import nn
from paddle.nn import functional as F


def channels_first(function):
    """Apply a function of channels and positions to positions and channels."""
    return lambda x: function(x.transpose([0, 2, 1])).transpose([0, 2, 1])


def resize(**options):
    return channels_first(lambda x: F.interpolate(x, mode="linear", data_format="NCW", **options))


def weights(x, first=0.1):
    return paddle.to_tensor([first, 0.7, 1.3, 2.1], dtype=x.dtype)


def heads(x, causal=True):
    x = x.reshape([len(x), 6, 3, 4])
    return F.scaled_dot_product_attention(x, x, x, is_causal=causal).reshape([len(x), 6, 12])


def gather_positions(x, order):
    return paddle.take_along_axis(x, order.reshape([1, 6, 1]).expand([len(x), 6, 12]), 1)


def shuffle_pixels(x, factor):
    return factor(x.transpose([0, 2, 1]).reshape([-1, 12, 2, 3])).reshape([-1, 6, 12])


def shuffle_in_wrong_order(x):
    b, c, h, w = x.shape
    return x.reshape([b, 2, 2, c // 4, h, w]).transpose([0, 3, 4, 1, 5, 2]).reshape([b, c // 4, 2 * h, 2 * w])


RIGHT = {
    "interpolate": resize(scale_factor=1.5),
    "interpolate_size": resize(size=[7]),
    "interpolate_corners": resize(size=[8], align_corners=True),
    "normalize": lambda x: F.normalize(x, axis=-1),
    "cosine": lambda x: x * F.cosine_similarity(x, x.flip(1), axis=-1).unsqueeze(-1),
    "temperature": lambda x: F.softmax(x / 0.07, -1),
    "clamp": lambda x: x.clip(-0.3, 0.3),
    "pow": lambda x: (x.abs() + 0.1).pow(1.7),
    "std": lambda x: x / (x.std(-1, keepdim=True) + 1e-3),
    "logsumexp": lambda x: x - paddle.logsumexp(x, -1, keepdim=True),
    "cumsum": lambda x: x.cumsum(1),
    "avg_pool": channels_first(lambda x: F.avg_pool1d(x, 3, 1, 1, exclusive=False)),
    "adaptive_avg_pool": channels_first(lambda x: F.adaptive_avg_pool1d(x, 4)),
    "max_pool": channels_first(lambda x: F.max_pool1d(x, 2)),
    "reflect": channels_first(lambda x: F.pad(x, [1, 2], mode="reflect", data_format="NCL")),
    "glu": lambda x: paddle.concat([F.glu(x, -1)] * 2, -1),
    "pixel_shuffle": lambda x: shuffle_pixels(x, lambda image: F.pixel_shuffle(image, 2)),
    "roll": lambda x: x.roll(1, 1),
    "einsum": lambda x: paddle.einsum("bid,bjd->bij", x, x) @ x,
    "attention": lambda x: F.softmax(x @ x.transpose([0, 2, 1]) / 12**0.5, -1) @ x,
    "causal_attention": heads,
    "gather": lambda x: gather_positions(x, paddle.arange(5, -1, -1)),
    "masked_fill": lambda x: x.masked_fill(x > 0.5, 0.1),
    "where": lambda x: paddle.where(x > 0, x, 0.1 * x),
    "local_response": channels_first(lambda x: F.local_response_norm(x, 3, data_format="NCL")),
    "layer_norm": lambda x: F.layer_norm(x, 12),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.1),
    "elu": lambda x: F.elu(x, 0.7),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 0.7),
    "softplus": lambda x: F.softplus(x, 1.3),
    "hardswish": lambda x: F.hardswish(3 * x),
    "hardsigmoid": F.hardsigmoid,
    "hardtanh": lambda x: F.hardtanh(x, -0.3, 0.3),
    "gelu_tanh": lambda x: F.gelu(x, approximate=True),
    "gelu": F.gelu,
    "silu": F.silu,
    "mish": F.mish,
    "relu6": lambda x: F.relu6(9 * x),
    "logsigmoid": F.log_sigmoid,
    "softshrink": lambda x: F.softshrink(x, 0.1),
    "hardshrink": lambda x: F.hardshrink(x, 0.1),
    "tanhshrink": F.tanhshrink,
    "softsign": F.softsign,
    "prelu": lambda x: F.prelu(x, paddle.full([1], 0.25, x.dtype)),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3, training=False),
    "topk": lambda x: x * F.one_hot(x.topk(2, -1)[1], 12).sum(-2).astype(x.dtype),
    "label_smoothing": lambda p, t, y: F.cross_entropy(p, y, label_smoothing=0.1),
    "class_weights": lambda p, t, y: F.cross_entropy(p, y, weight=weights(p)),
    "kl": lambda p, t, y: F.kl_div(F.log_softmax(p, -1), F.softmax(t * 1.3, -1), reduction="batchmean"),
    "smooth_l1": lambda p, t, y: F.smooth_l1_loss(p, t, delta=0.1, is_huber=False),
    "huber": lambda p, t, y: F.smooth_l1_loss(p, t, delta=0.1),
    "bce": lambda p, t, y: F.binary_cross_entropy_with_logits(p, t, pos_weight=weights(p)),
    "margin": lambda p, t, y: F.margin_ranking_loss(p[:, 0], p[:, 1], paddle.ones_like(p[:, 0]), margin=0.3),
    "triplet": lambda p, t, y: F.triplet_margin_loss(p, t, p.flip(0), margin=0.3),
    "nll": lambda p, t, y: F.nll_loss(F.log_softmax(p, -1), y),
    "mse": lambda p, t, y: F.mse_loss(p, t),
    "l1": lambda p, t, y: F.l1_loss(p, t),
    "poisson": lambda p, t, y: F.poisson_nll_loss(p, t),
    "soft_margin": lambda p, t, y: F.soft_margin_loss(p, 2 * t - 1),
}
WRONG = {
    "interpolate": resize(scale_factor=1.5, align_corners=True),
    "interpolate_size": resize(size=[7], align_mode=1),
    "interpolate_corners": resize(size=[8]),
    "normalize": lambda x: F.normalize(x, axis=1),
    "cosine": lambda x: x * F.cosine_similarity(x, x.flip(2), axis=-1).unsqueeze(-1),
    "temperature": lambda x: F.softmax(x / 0.0701, -1),
    "clamp": lambda x: x.clip(-0.3, 0.301),
    "pow": lambda x: (x.abs() + 0.1).pow(1.701),
    "std": lambda x: x / (x.std(-1, unbiased=False, keepdim=True) + 1e-3),
    "logsumexp": lambda x: x - paddle.logsumexp(x, 1, keepdim=True),
    "cumsum": lambda x: x.cumsum(-1),
    "avg_pool": channels_first(lambda x: F.avg_pool1d(x, 3, 1, 1)),
    "adaptive_avg_pool": channels_first(lambda x: F.adaptive_max_pool1d(x, 4)),
    "max_pool": channels_first(lambda x: F.avg_pool1d(x, 2)),
    "reflect": channels_first(lambda x: F.pad(x, [1, 2], mode="replicate", data_format="NCL")),
    "glu": lambda x: paddle.concat([F.swiglu(x)] * 2, -1),
    "pixel_shuffle": lambda x: shuffle_pixels(x, shuffle_in_wrong_order),
    "roll": lambda x: x.roll(-1, 1),
    "einsum": lambda x: paddle.einsum("bid,bje->bij", x, x) @ x,
    "attention": lambda x: F.softmax(x @ x.transpose([0, 2, 1]) / 12**0.5, 1) @ x,
    "causal_attention": lambda x: heads(x, causal=False),
    "gather": lambda x: gather_positions(x, paddle.arange(6)),
    "masked_fill": lambda x: x.masked_fill(x >= 0.45, 0.1),
    "where": lambda x: paddle.where(x > 0, 0.1 * x, x),
    "local_response": channels_first(lambda x: F.local_response_norm(x, 3, alpha=1e-3, data_format="NCL")),
    "layer_norm": lambda x: F.layer_norm(x, 12, epsilon=1e-6),
    "leaky_relu": lambda x: F.leaky_relu(x),
    "elu": lambda x: F.elu(x),
    "selu": lambda x: F.elu(x),
    "celu": lambda x: F.elu(x, 0.7),
    "softplus": lambda x: F.softplus(x),
    "hardswish": lambda x: F.silu(3 * x),
    "hardsigmoid": lambda x: F.hardsigmoid(x, slope=0.2),
    "hardtanh": lambda x: F.hardtanh(x),
    "gelu_tanh": lambda x: F.gelu(x),
    "gelu": lambda x: F.gelu(x, approximate=True),
    "silu": lambda x: x * F.sigmoid(1.702 * x),
    "mish": lambda x: F.silu(x),
    "relu6": lambda x: F.relu(9 * x),
    "logsigmoid": lambda x: F.log_sigmoid(-x),
    "softshrink": lambda x: F.softshrink(x),
    "hardshrink": lambda x: F.hardshrink(x),
    "tanhshrink": lambda x: F.softsign(x),
    "softsign": lambda x: F.tanh(x),
    "prelu": lambda x: F.prelu(x, paddle.full([1], 0.2, x.dtype)),
    "rrelu": lambda x: F.rrelu(x, training=False),
    "topk": lambda x: x * F.one_hot(x.topk(3, -1)[1], 12).sum(-2).astype(x.dtype),
    "label_smoothing": lambda p, t, y: F.cross_entropy(p, y, label_smoothing=0.11),
    "class_weights": lambda p, t, y: F.cross_entropy(p, y, weight=weights(p, 0.2)),
    "kl": lambda p, t, y: F.kl_div(F.log_softmax(p, -1), F.softmax(t * 1.3, -1)),
    "smooth_l1": lambda p, t, y: F.smooth_l1_loss(p, t, delta=0.1),
    "huber": lambda p, t, y: F.smooth_l1_loss(p, t, delta=0.1, is_huber=False),
    "bce": lambda p, t, y: F.binary_cross_entropy_with_logits(p, t),
    "margin": lambda p, t, y: F.margin_ranking_loss(p[:, 0], p[:, 1], paddle.ones_like(p[:, 0])),
    "triplet": lambda p, t, y: F.triplet_margin_loss(p, t, p.flip(0)),
    "nll": lambda p, t, y: F.nll_loss(F.softmax(p, -1), y),
    "mse": lambda p, t, y: F.mse_loss(p, t, reduction="sum"),
    "l1": lambda p, t, y: F.mse_loss(p, t),
    "poisson": lambda p, t, y: F.poisson_nll_loss(p, t, log_input=False),
    "soft_margin": lambda p, t, y: F.soft_margin_loss(p, 2 * t),
}
#: The last function of RIGHT; the entries after it are losses.
LAST = "topk"


class Net(nn.Layer):
    def __init__(self, names, wrong: bool) -> None:
        super().__init__()
        self.names, self.table = names, WRONG if wrong else RIGHT
        self.first = nn.LayerDict({name: nn.Linear(8, 12) for name in names})
        self.last = nn.LayerDict({name: nn.Linear(12, 4) for name in names})

    def forward(self, x, y):
        losses, functions = {}, list(RIGHT)[: list(RIGHT).index(LAST) + 1]
        for name in self.names:
            h = self.first[name](x)
            p = self.last[name](self.table[name](h) if name in functions else h).mean(1)
            target = F.one_hot(y, 4).astype(p.dtype)
            losses[name] = F.cross_entropy(p, y) if name in functions else self.table[name](p, target, y)
        return losses if len(losses) > 1 else losses[name]


def build(config):
    return Net(list(RIGHT) if config["op"] == "all" else [config["op"]], config.get("wrong", False))
