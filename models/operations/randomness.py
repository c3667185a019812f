"""The one source of the ports' random draws: dropout masks and LSH rotations.

A port calls :func:`dropout` and :func:`normal`, never a generator of Paddle. So a block that is computed again can
repeat its draws (:class:`Replay`), and a test or the parity gate can supply other draws (:func:`use_rng`). A source
only supplies random numbers: the code that uses them, forward and backward, is the same for every source. The
reversible blocks of reformer-pytorch have the same design: one small object records and replays randomness, without any
change of the layers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import paddle
from paddle import nn

from models.operations import ops


class Source(Protocol):
    """A source of random draws."""

    def draw_mask(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        """Draw a dropout mask: bool of ``shape``, each element False, which drops it, with probability ``p``."""

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        """Draw standard normal numbers of ``shape``; with a seed, the same numbers each time.

        Args:
            shape: shape of the result.
            dtype: dtype of the result, such as ``float32``.
            seed: seed of the numbers; None to continue the sequence of this source.
        """

    def state(self) -> object:
        """Return the current state, so that :meth:`restore` can repeat all later draws."""

    def restore(self, state: object) -> None:
        """Restore an earlier :meth:`state`."""


class Generator:
    """Paddle's own generator of the current device: the source in training."""

    def draw_mask(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        """Return a random dropout mask of this shape, which is False with probability ``p``."""
        return ops.random_mask(p, shape)

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        """Return standard normal numbers.

        Args:
            shape: shape of the result.
            dtype: dtype of the result.
            seed: seed of this draw alone, after which Paddle's generator continues as before; None to draw from
                Paddle's generator.
        """
        if seed is None:
            return paddle.randn(shape, dtype)
        previous = self.state()
        paddle.seed(seed)
        numbers = paddle.randn(shape, dtype)
        self.restore(previous)
        return numbers

    def state(self) -> object:
        """Return the state of Paddle's random generators."""
        return paddle.get_rng_state()

    def restore(self, state: object) -> None:
        """Set the state of Paddle's random generators to a result of :meth:`state`."""
        paddle.set_rng_state(state)


_source: Source = Generator()


@contextmanager
def use_rng(source: Source) -> Iterator[Source]:
    """Draw all random numbers from ``source`` inside the ``with`` block."""
    global _source
    previous, _source = _source, source
    try:
        yield source
    finally:
        _source = previous


def draw_keep_mask(p: float, training: bool, shape: Sequence[int]) -> paddle.Tensor | None:
    """Draw the mask of a dropout that another operation applies: bool of ``shape``; None if nothing is dropped.

    Args:
        p: probability of dropping an element.
        training: whether the model trains; otherwise nothing is dropped.
        shape: shape of the mask.
    """
    return _source.draw_mask(p, list(shape)) if training and p != 0.0 else None


def dropout(x: paddle.Tensor, p: float, training: bool, mask_shape: Sequence[int] | None = None) -> paddle.Tensor:
    """Apply dropout, and scale the elements that are kept by 1/(1-p) (Srivastava et al. 2014, section 10).

    Args:
        x: input of any shape.
        p: fraction of elements that are dropped; at 0, nothing is drawn.
        training: whether elements are dropped at all.
        mask_shape: shape of the mask, which broadcasts to the shape of ``x``; the elements along a broadcast axis are
            kept or dropped together. None for the shape of ``x``.
    """
    if not training or p == 0.0:
        return x
    return ops.keep_masked(x, _source.draw_mask(p, x.shape if mask_shape is None else list(mask_shape)), p)


class Dropout(nn.Layer):
    """A layer that computes :func:`dropout`."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return ``x``, of any shape, after dropout at rate ``p`` in training, and unchanged in evaluation."""
        return dropout(x, self.p, self.training)


def normal(shape: Sequence[int], dtype: str, seed: int | None = None) -> paddle.Tensor:
    """Draw standard normal numbers of ``shape``; with a seed, the same each time, without effect on other draws.

    Args:
        shape: shape of the result.
        dtype: dtype of the result, such as ``float32``.
        seed: seed of the numbers; None to continue the sequence of the source.
    """
    return _source.normal(shape, dtype, seed)


class Replay:
    """A context manager that repeats the draws of a block when the block is computed again.

    Create it right before the first computation. ``with replay:`` around a later computation repeats the draws, and
    then restores the source.
    """

    def __init__(self) -> None:
        self._source = _source
        self._state = _source.state()

    def __enter__(self) -> None:
        self._previous_state = self._source.state()
        self._source.restore(self._state)

    def __exit__(self, *exception: object) -> None:
        self._source.restore(self._previous_state)
