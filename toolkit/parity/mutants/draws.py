"""Faults of the port's own random draws, and of dropout itself. The recorded draws, with which all else is compared,
never show faults of the port's own draws."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

from toolkit.parity.mutants.fault import Modules, Mutant, around


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


def keep(port, forward: Callable, backward: Callable):
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


def unscaled(x, kept, p):
    return x * kept


def _reseeded(port):
    """Seed the generator before each mask."""

    def kept(original, self, p, shape):
        port.paddle.seed(0)
        return original(self, p, shape)

    return around(port.randomness.Generator, "kept", kept)


def _same_every_step(port: Modules, body: type):
    """Seed the generator before each forward."""

    def forward(original, self, *args, **kwargs):
        port.paddle.seed(0)
        return original(self, *args, **kwargs)

    return around(body, "forward", forward)


def _same_every_layer(port: Modules, body: type):
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

    return around(body, "forward", forward) + around(port.randomness.Generator, "kept", kept)


def faults(prefix: str, family: str, body: Callable[[Modules], type]) -> tuple[Mutant, ...]:
    """Return the faults of masks, for one family; ``body`` takes the modules and gives the class of the model without
    its head."""

    def fault(name: str, what: str, apply: Callable) -> Mutant:
        return Mutant(prefix + name, what, "dropout:", apply, family, draws=True)

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
        fault(
            "own-masks-every-step",
            "the port's own masks are the same in every step",
            lambda p: _same_every_step(p, body(p)),
        ),
        fault(
            "own-masks-every-layer",
            "the port's own masks are the same in every layer",
            lambda p: _same_every_layer(p, body(p)),
        ),
    )


def backwards(prefix: str, family: str, first: str, dropped: str) -> tuple[Mutant, ...]:
    """Faults of dropout's backward: ``first`` is the gradient that shows them, ``dropped`` the first dropout met."""
    fault = partial(Mutant, expected=first, family=family, operation=f"gradient:input:{dropped}")
    return (
        fault(
            prefix + "dropout-backward-unscaled",
            "the gradient of dropout without 1/(1-p)",
            apply=lambda p: keep(p, _right, unscaled),
        ),
        fault(
            prefix + "dropout-backward-leaks",
            "dropout lets gradients through what it dropped",
            apply=lambda p: keep(p, _right, lambda x, kept, rate: x / (1.0 - rate)),
        ),
    )
