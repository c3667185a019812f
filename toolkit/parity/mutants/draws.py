"""Faults of the port's own random draws, and of dropout itself. The recorded draws, with which all else is compared,
never show faults of the port's own draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from toolkit.parity.mutants.fault import Mutant, around


def _port(body: Callable[[], type]) -> SimpleNamespace:
    import paddle

    from models.operations import ops, randomness

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


def _masks(port, change: Callable):
    """Replace masks by ``change(random_mask, p, shape)``."""
    plain = port.ops.random_mask
    return [(port.ops, "random_mask", lambda p, shape: change(plain, p, shape))]


def _paired(plain, p, shape):
    """Use one random number for two cells."""
    count = math.prod(shape)
    return plain(p, [-(-count // 2)]).astype("int32").repeat_interleave(2)[:count].astype("bool").reshape(shape)


def _striped(port):
    """Drop every tenth cell, at a rate of 0.1, starting from a random one."""

    def striped(plain, p, shape):
        period = round(1.0 / p)
        phase = port.paddle.randint(0, period, [1])
        return ((port.paddle.arange(math.prod(shape)) + phase) % period != 0).reshape(shape)

    return _masks(port, striped)


def _keep(port, forward: Callable, backward: Callable):
    """Apply a mask by ``forward(x, kept, p)``, and to the gradient by ``backward``."""

    class Keep(port.paddle.autograd.PyLayer):
        @staticmethod
        def forward(ctx, x, kept, p):
            ctx.kept, ctx.p = kept.astype(x.dtype), p
            return forward(x, ctx.kept, p)

        @staticmethod
        def backward(ctx, grad):
            return backward(grad, ctx.kept, ctx.p)

    return [(port.ops, "keep", lambda x, kept, p: Keep.apply(x, kept, p))]


def _right(x, kept, p):
    return x * kept / (1.0 - p)


def _unscaled(x, kept, p):
    return x * kept


def _leaking(x, kept, p):
    return x / (1.0 - p)


def _reseeded(port):
    """Seed the generator before each mask."""

    def kept(original, self, p, shape):
        port.paddle.seed(0)
        return original(self, p, shape)

    return around(port.generator, "kept", kept)


def _same_every_step(port):
    """Seed the generator before each forward."""

    def forward(original, self, *args, **kwargs):
        port.paddle.seed(0)
        return original(self, *args, **kwargs)

    return around(port.body, "forward", forward)


def _same_every_layer(port):
    """Draw all masks of a step from the state at its beginning; each step begins with another."""
    begun = SimpleNamespace()

    def forward(original, self, *args, **kwargs):
        begun.state = port.paddle.get_rng_state()
        return original(self, *args, **kwargs)

    def kept(original, self, p, shape):
        now = port.paddle.get_rng_state()
        port.paddle.set_rng_state(begun.state)
        mask = original(self, p, shape)
        port.paddle.set_rng_state(now)
        port.paddle.randint(0, 2, [1])
        return mask

    return around(port.body, "forward", forward) + around(port.generator, "kept", kept)


def _normal(port, change: Callable):
    """Replace rotations by ``change(normal, shape, dtype, seed)``; ``normal`` is the port's own."""

    def normal(original, self, shape, dtype, seed):
        return change(partial(original, self), shape, dtype, seed)

    return around(port.generator, "normal", normal)


def _equal_along(axis: int):
    def change(plain, shape, dtype, seed):
        return plain([1 if i == axis else size for i, size in enumerate(shape)], dtype, seed).expand(shape)

    return change


def _uniform(port):
    """Use uniform rotations, also of mean 0 and variance 1."""
    return _normal(port, lambda plain, shape, dtype, seed: port.paddle.uniform(shape, dtype, -(3**0.5), 3**0.5))


def _faults(prefix: str, port: Callable[[], SimpleNamespace]) -> tuple[Mutant, ...]:
    """Return the faults of masks, for one family."""

    def fault(name: str, what: str, apply: Callable) -> Mutant:
        return Mutant(prefix + name, what, "dropout:", apply, port)

    return (
        fault(
            "own-rate-off",
            "the port's own masks drop 1.05 times the rate",
            lambda p: _masks(p, lambda plain, rate, shape: plain(1.05 * rate, shape)),
        ),
        fault(
            "own-masks-constant",
            "the port's own masks are constant along the last axis",
            lambda p: _masks(p, lambda plain, rate, shape: plain(rate, [*shape[:-1], 1]).expand(shape)),
        ),
        fault("own-masks-paired", "one random number for two neighbouring cells", lambda p: _masks(p, _paired)),
        fault("own-masks-striped", "the port's own masks drop every tenth cell", _striped),
        fault("own-masks-reseeded", "the port's own generator is seeded before each mask", _reseeded),
        fault("own-masks-every-step", "the port's own masks are the same in every step", _same_every_step),
        fault("own-masks-every-layer", "the port's own masks are the same in every layer", _same_every_layer),
    )


def _backwards(prefix: str, port: Callable[[], SimpleNamespace], first: str, dropped: str) -> tuple[Mutant, ...]:
    """Return the faults of dropout's backward, for one family: ``first`` is the gradient that shows them first,
    ``dropped`` the first dropout that a backward meets."""
    fault = partial(Mutant, expected=first, port=port, operation=f"gradient:input:{dropped}")
    return (
        fault(
            prefix + "dropout-backward-unscaled",
            "the gradient of dropout without 1/(1-p)",
            apply=lambda p: _keep(p, _right, _unscaled),
        ),
        fault(
            prefix + "dropout-backward-leaks",
            "dropout lets gradients through what it dropped",
            apply=lambda p: _keep(p, _right, _leaking),
        ),
    )


_reformer_port = partial(_port, _reformer)
_rotations = partial(Mutant, expected="normal:", port=_reformer_port)

_ctrl_port = partial(_port, _ctrl)
CTRL_DRAWS: tuple[Mutant, ...] = (
    *_faults("ctrl-", _ctrl_port),
    *_backwards("ctrl-", _ctrl_port, "h.2.layernorm2", "transformer.h.2.dropout2"),
    Mutant(
        "ctrl-dropout-unscaled",
        "what dropout keeps is not scaled by 1/(1-p)",
        "output:transformer.dropout",
        lambda p: _keep(p, _unscaled, _unscaled),
        _ctrl_port,
        operation="output:transformer.dropout",
    ),
)

REFORMER_DRAWS: tuple[Mutant, ...] = (
    *_faults("", _reformer_port),
    *_backwards("", _reformer_port, "classifier.dense", "classifier.dropout"),
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
