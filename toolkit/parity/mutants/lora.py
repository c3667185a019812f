"""Faults of an adapter: what it adds, what it leaves as it is, and what becomes of it in a saved model. They show only
in an adapted model, and are the same for every family."""

from __future__ import annotations

from toolkit.parity.mutants.fault import Mutant, around


def _scaled(port, scale):
    return [(port.lora.LoRA, "scale", property(scale))]


def _swapped(port):
    """Give B the input and A what B makes of it, both transposed."""

    def update(plain, self, x):
        dropped = port.randomness.dropout(x, self.dropout, self.training)
        first = port.paddle.matmul(dropped, self.lora_B.weight, transpose_y=True)
        return port.paddle.matmul(first, self.lora_A.weight, transpose_y=True) * self.scale

    return around(port.adapter.LoRALinear, "update", update)


def _dropped_twice(port):
    """Drop what goes into the frozen map, too."""

    def forward(plain, self, x):
        dropped = port.randomness.dropout(x, self.dropout, self.training)
        return port.ops.linear(dropped, self.weight, self.bias) + self.lora_B(self.lora_A(dropped)) * self.scale

    return around(port.adapter.LoRALinear, "forward", forward)


def _update_dropped(port):
    """Apply dropout to the update, not to what goes into it."""

    def update(plain, self, x):
        return port.randomness.dropout(self.lora_B(self.lora_A(x)) * self.scale, self.dropout, self.training)

    return around(port.adapter.LoRALinear, "update", update)


def _trained(port, trains):
    return around(port.lora.LoRA, "trains", trains)


def _merged(port, change):
    plain = port.lora.merged
    return [(port.base, "merged", lambda weights, lora: change(plain, weights, lora))]


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


LORA: tuple[Mutant, ...] = (
    Mutant(
        "lora-scale-inverted",
        "the update is scaled by r / alpha",
        "_attention.",
        lambda p: _scaled(p, lambda self: self.rank / self.alpha),
    ),
    Mutant("lora-scale-missing", "the update is not scaled", "_attention.", lambda p: _scaled(p, lambda self: 1.0)),
    Mutant("lora-factors-swapped", "A and B are used in the place of each other", "_attention.", _swapped),
    Mutant("lora-dropout-of-base", "what goes into W0 is dropped, too", "_attention.", _dropped_twice),
    Mutant("lora-dropout-of-update", "the update is dropped, not what goes into it", "_attention.", _update_dropped),
    Mutant(
        "lora-base-not-frozen",
        "the weights that are adapted are trained, too",
        "gradient:",
        lambda p: _trained(p, lambda plain, self, name: True),
    ),
    Mutant(
        "lora-b-frozen",
        "B is not trained",
        "lora_B",
        lambda p: _trained(p, lambda plain, self, name: plain(self, name) and "lora_B" not in name),
    ),
    Mutant("lora-merged-twice", "the update is added twice to what is saved", "merged:", lambda p: _merged(p, _twice)),
    Mutant("lora-not-merged", "the saved weights lack the update", "merged:", lambda p: _merged(p, _left_out)),
    Mutant("lora-b-random", "B is not zero at first", "lora_B", _random_b, initialisation=True),
)
