"""The one source of the ports' random draws: dropout masks and LSH rotations.

A port calls :func:`dropout` and :func:`normal`, never a generator of Paddle's. That gives two things: a recomputed
block repeats its draws (:class:`Replay`), and a test or the parity gate can supply draws of its own (:func:`use`). A
source only gives random numbers: the code that uses them, forward and backward, is the same for every source. The
design is that of the reversible blocks of reformer-pytorch: one small object records and replays randomness, and the
layers do not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import paddle
from paddle import nn

from models.operations import ops


class Source(Protocol):
    """Supplies the draws."""

    def kept(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        """Draw a dropout mask, True where kept: bool of ``shape``, each False with probability ``p``."""

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        """Draw standard normal numbers; with ``seed``, the same each time."""

    def state(self) -> object:
        """Return what :meth:`restore` needs to repeat all later draws."""

    def restore(self, state: object) -> None:
        """Go back to a :meth:`state`."""


class Generator:
    """Paddle's own generator of the current device: the source in training."""

    def kept(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        return ops.random_mask(p, shape)

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        if seed is None:
            return paddle.randn(shape, dtype)
        before = self.state()
        paddle.seed(seed)
        drawn = paddle.randn(shape, dtype)
        self.restore(before)
        return drawn

    def state(self) -> object:
        return paddle.get_rng_state()

    def restore(self, state: object) -> None:
        paddle.set_rng_state(state)


_source: Source = Generator()


@contextmanager
def use(source: Source) -> Iterator[Source]:
    """Take all draws from ``source`` inside the ``with`` block."""
    global _source
    before, _source = _source, source
    try:
        yield source
    finally:
        _source = before


def kept_cells(p: float, training: bool, shape: Sequence[int]) -> paddle.Tensor | None:
    """Draw the mask of a dropout that another operation applies: bool of ``shape``, True where kept; None if all
    are."""
    return _source.kept(p, list(shape)) if training and p != 0.0 else None


def dropout(x: paddle.Tensor, p: float, training: bool, mask_shape: Sequence[int] | None = None) -> paddle.Tensor:
    """Dropout with the kept values scaled by 1/(1-p) (Srivastava et al. 2014, section 10).

    Args:
        x: any shape.
        p: the fraction that is dropped; at 0, or outside training, nothing is drawn.
        mask_shape: broadcasts to the shape of ``x``; cells along a broadcast axis are kept or dropped together.
    """
    if not training or p == 0.0:
        return x
    return ops.keep(x, _source.kept(p, x.shape if mask_shape is None else list(mask_shape)), p)


class Dropout(nn.Layer):
    """:func:`dropout` as a layer."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        return dropout(x, self.p, self.training)


def normal(shape: Sequence[int], dtype: str, seed: int | None = None) -> paddle.Tensor:
    """Standard normal numbers of ``shape``; with ``seed`` the same ones each time, other draws undisturbed."""
    return _source.normal(shape, dtype, seed)


class Replay:
    """Repeats the draws of a block when the block is computed again.

    Create it right before the first computation; ``with replay:`` around a later one repeats the draws and then
    restores the source.
    """

    def __init__(self) -> None:
        self._source = _source
        self._state = _source.state()

    def __enter__(self) -> None:
        self._before = self._source.state()
        self._source.restore(self._state)

    def __exit__(self, *exception: object) -> None:
        self._source.restore(self._before)
