"""Faults of the draws of Reformer's port."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from toolkit.parity.mutants import draws
from toolkit.parity.mutants.fault import Mutant, around


def _normal(port, change: Callable):
    """Replace rotations by ``change(normal, shape, dtype, seed)``; ``normal`` is the port's own."""

    def normal(original, self, shape, dtype, seed):
        return change(partial(original, self), shape, dtype, seed)

    return around(port.randomness.Generator, "normal", normal)


def _equal_along(axis: int):
    def change(plain, shape, dtype, seed):
        return plain([1 if i == axis else size for i, size in enumerate(shape)], dtype, seed).expand(shape)

    return change


def _uniform(port):
    """Use uniform rotations, also of mean 0 and variance 1."""
    return _normal(port, lambda plain, shape, dtype, seed: port.paddle.uniform(shape, dtype, -(3**0.5), 3**0.5))


_rotations = partial(Mutant, expected="normal:", family="reformer", draws=True)

DRAWS: tuple[Mutant, ...] = (
    *draws.faults("", "reformer", lambda p: p.modeling.ReformerModel),
    *draws.backwards("", "reformer", "classifier.dense", "classifier.dropout"),
    Mutant(
        "own-state-not-restored",
        "after a block was computed again, the generator goes on from there",
        "dropout:",
        lambda p: [(p.randomness.Replay, "__exit__", lambda self, *exception: None)],
        "reformer",
        draws=True,
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
