"""Faults of an adapter: what it adds, what it leaves as it is, and what becomes of it in a saved model. They show only
in an adapted model, and are the same for every family."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

from toolkit.parity.mutants.fault import Mutant, around


def _port() -> SimpleNamespace:
    import paddle

    from models.operations.ops import linear
    from models.operations.randomness import dropout
    from models.port import adapter, lora
    from models.port import base as pretrained

    return SimpleNamespace(
        paddle=paddle,
        layer=adapter.LoRALinear,
        lora=lora,
        settings=lora.LoRA,
        pretrained=pretrained,
        linear=linear,
        dropout=dropout,
    )


def _scaled(port, scale):
    return [(port.settings, "scale", property(scale))]


def _swapped(port):
    """Give B the input and A what B makes of it, both transposed."""

    def update(plain, self, x):
        dropped = port.dropout(x, self.dropout, self.training)
        first = port.paddle.matmul(dropped, self.lora_B.weight, transpose_y=True)
        return port.paddle.matmul(first, self.lora_A.weight, transpose_y=True) * self.scale

    return around(port.layer, "update", update)


def _dropped_twice(port):
    """Drop what goes into the frozen map, too."""

    def forward(plain, self, x):
        dropped = port.dropout(x, self.dropout, self.training)
        return port.linear(dropped, self.weight, self.bias) + self.lora_B(self.lora_A(dropped)) * self.scale

    return around(port.layer, "forward", forward)


def _update_dropped(port):
    """Apply dropout to the update, not to what goes into it."""

    def update(plain, self, x):
        return port.dropout(self.lora_B(self.lora_A(x)) * self.scale, self.dropout, self.training)

    return around(port.layer, "update", update)


def _trained(port, trains):
    return around(port.settings, "trains", trains)


def _merged(port, change):
    plain = port.lora.merged
    return [(port.pretrained, "merged", lambda weights, lora: change(plain, weights, lora))]


def _twice(plain, weights, lora):
    once = plain(weights, lora)
    return {name: value + (value - weights[name]) for name, value in once.items()}


def _left_out(plain, weights, lora):
    return {name: weights[name] for name in plain(weights, lora)}


def _random_b(port):
    plain = port.lora.new_values

    def new_values(table, lora, seed):
        for name, value in plain(table, lora, seed):
            draws = port.lora.generator(seed, name).standard_normal(value.shape, dtype="float32")
            yield name, value if value.any() else draws / value.shape[1]

    return [(port.lora, "new_values", new_values)]


_fault = partial(Mutant, port=_port)

LORA: tuple[Mutant, ...] = (
    _fault(
        "lora-scale-inverted",
        "the update is scaled by r / alpha",
        "_attention.",
        lambda p: _scaled(p, lambda self: self.rank / self.alpha),
    ),
    _fault("lora-scale-missing", "the update is not scaled", "_attention.", lambda p: _scaled(p, lambda self: 1.0)),
    _fault("lora-factors-swapped", "A and B are used in the place of each other", "_attention.", _swapped),
    _fault("lora-dropout-of-base", "what goes into W0 is dropped, too", "_attention.", _dropped_twice),
    _fault("lora-dropout-of-update", "the update is dropped, not what goes into it", "_attention.", _update_dropped),
    _fault(
        "lora-base-not-frozen",
        "the weights that are adapted are trained, too",
        "gradient:",
        lambda p: _trained(p, lambda plain, self, name: True),
    ),
    _fault(
        "lora-b-frozen",
        "B is not trained",
        "lora_B",
        lambda p: _trained(p, lambda plain, self, name: plain(self, name) and "lora_B" not in name),
    ),
    _fault("lora-merged-twice", "the update is added twice to what is saved", "merged:", lambda p: _merged(p, _twice)),
    _fault("lora-not-merged", "the saved weights lack the update", "merged:", lambda p: _merged(p, _left_out)),
    _fault("lora-b-random", "B is not zero at first", "lora_B", _random_b, initialisation=True),
)
