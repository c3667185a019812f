"""Faults of the port's own random draws. The recorded draws, with which all else is compared, never meet them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from toolkit.parity.mutants.fault import Mutant, around


def _port(body: Callable[[], type]) -> SimpleNamespace:
    import paddle

    from models import ops, randomness

    return SimpleNamespace(
        paddle=paddle, ops=ops, randomness=randomness, generator=randomness.Generator, replay=randomness.Replay,
        body=body(),
    )  # fmt: skip


def _reformer() -> type:
    from models.reformer.modeling import ReformerModel

    return ReformerModel


def _ctrl() -> type:
    from models.ctrl.modeling import CTRLModel

    return CTRLModel


def _dropout(port, change: Callable):
    """Dropout becomes ``change(dropout, x, p, mask_shape)``."""
    plain = port.ops.dropout
    return [(port.ops, "dropout", lambda x, p, mask_shape: change(plain, x, p, mask_shape))]


def _rate_off(plain, x, p, mask_shape):
    """The scale stays that of the right rate."""
    return plain(x, 1.05 * p, mask_shape) * ((1.0 - 1.05 * p) / (1.0 - p))


def _pairs(port):
    """One random number for two cells."""

    def dropout(plain, x, p, mask_shape):
        count = -(-x.size // 2)
        ones = plain(port.paddle.ones([count], x.dtype), p, [count])
        return x * ones.repeat_interleave(2)[: x.size].reshape(x.shape)

    return _dropout(port, dropout)


def _striped(port):
    """Every tenth cell, at a rate of 0.1, from a random one on."""

    def dropout(plain, x, p, mask_shape):
        period = round(1.0 / p)
        phase = port.paddle.randint(0, period, [1])
        kept = (port.paddle.arange(x.size) + phase) % period != 0
        return x * (kept.astype(x.dtype) / (1.0 - p)).reshape(x.shape)

    return _dropout(port, dropout)


def _reseeded(port):
    """The generator is seeded before each mask."""

    def dropout(original, self, x, p, mask_shape):
        port.paddle.seed(0)
        return original(self, x, p, mask_shape)

    return around(port.generator, "dropout", dropout)


def _same_every_step(port):
    """The generator is seeded before each forward."""

    def forward(original, self, *args, **kwargs):
        port.paddle.seed(0)
        return original(self, *args, **kwargs)

    return around(port.body, "forward", forward)


def _same_every_layer(port):
    """All masks of a step are drawn from the state at its beginning; each step begins elsewhere."""
    begun = SimpleNamespace()

    def forward(original, self, *args, **kwargs):
        begun.state = port.paddle.get_rng_state()
        return original(self, *args, **kwargs)

    def dropout(original, self, x, p, mask_shape):
        now = port.paddle.get_rng_state()
        port.paddle.set_rng_state(begun.state)
        dropped = original(self, x, p, mask_shape)
        port.paddle.set_rng_state(now)
        port.paddle.randint(0, 2, [1])
        return dropped

    return around(port.body, "forward", forward) + around(port.generator, "dropout", dropout)


def _normal(port, change: Callable):
    """Rotations become ``change(normal, shape, dtype, seed)``, ``normal`` being the port's own."""

    def normal(original, self, shape, dtype, seed):
        return change(partial(original, self), shape, dtype, seed)

    return around(port.generator, "normal", normal)


def _equal_along(axis: int):
    def change(plain, shape, dtype, seed):
        return plain([1 if i == axis else size for i, size in enumerate(shape)], dtype, seed).expand(shape)

    return change


def _uniform(port):
    """Of mean 0 and variance 1, too."""
    return _normal(port, lambda plain, shape, dtype, seed: port.paddle.uniform(shape, dtype, -(3**0.5), 3**0.5))


def _faults(prefix: str, port: Callable[[], SimpleNamespace]) -> tuple[Mutant, ...]:
    """The faults of masks, for one family."""

    def fault(name: str, what: str, apply: Callable) -> Mutant:
        return Mutant(prefix + name, what, "dropout:", apply, port)

    return (
        fault("own-rate-off", "the port's own masks drop 1.05 times the rate", lambda p: _dropout(p, _rate_off)),
        fault(
            "own-masks-unscaled",
            "the port's own masks without 1/(1-p)",
            lambda p: _dropout(p, lambda plain, x, rate, shape: plain(x, rate, shape) * (1.0 - rate)),
        ),
        fault(
            "own-masks-constant",
            "the port's own masks are constant along the last axis",
            lambda p: _dropout(p, lambda plain, x, rate, shape: plain(x, rate, [*shape[:-1], 1])),
        ),
        fault("own-masks-paired", "one random number for two neighbouring cells", _pairs),
        fault("own-masks-striped", "the port's own masks drop every tenth cell", _striped),
        fault("own-masks-reseeded", "the port's own generator is seeded before each mask", _reseeded),
        fault("own-masks-every-step", "the port's own masks are the same in every step", _same_every_step),
        fault("own-masks-every-layer", "the port's own masks are the same in every layer", _same_every_layer),
    )


_reformer_port = partial(_port, _reformer)
_rotations = partial(Mutant, expected="normal:", port=_reformer_port)

CTRL_DRAWS: tuple[Mutant, ...] = _faults("ctrl-", partial(_port, _ctrl))

REFORMER_DRAWS: tuple[Mutant, ...] = (
    *_faults("", _reformer_port),
    Mutant(
        "own-masks-shape",
        "single cells are dropped where whole columns are to be",
        "dropout:reformer.embeddings.position_embeddings",
        lambda p: _dropout(p, lambda plain, x, rate, shape: plain(x, rate, x.shape)),
        _reformer_port,
    ),
    Mutant(
        "own-state-not-restored",
        "after a block was computed again, the generator goes on from there",
        "dropout:",
        lambda p: [(p.replay, "__exit__", lambda self, *exception: None)],
        _reformer_port,
    ),
    _rotations("rotations-uniform", "rotations of uniform numbers, not normal ones", apply=_uniform),
    _rotations("rotations-of-heads", "the same rotations in all heads", apply=lambda p: _normal(p, _equal_along(0))),
    _rotations(
        "rotations-of-rounds", "the same rotations in all hash rounds", apply=lambda p: _normal(p, _equal_along(2))
    ),
    _rotations(
        "rotations-seeded",
        "the same rotations in every layer and step",
        apply=lambda p: _normal(p, lambda plain, shape, dtype, seed: plain(shape, dtype, 0)),
    ),
)
