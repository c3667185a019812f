"""Random LSH rotations as constants, so that an exported graph hashes a text to the same buckets in every call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import paddle

from models.operations import randomness


class RecordingGenerator(randomness.Generator):
    """A random generator that records its draws.

    Attributes:
        drawn: rotations in the order of the layers, each (H, D, R, half the sum of the bucket factors).
    """

    def __init__(self) -> None:
        self.drawn: list[paddle.Tensor] = []

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        """Return standard normal numbers as the base class does, and record them."""
        self.drawn.append(super().normal(shape, dtype, seed))
        return self.drawn[-1]


class ConstantGenerator(randomness.Generator):
    """A generator that returns constant rotations one after another, in the requested dtype.

    Args:
        rotations: rotations in the order of the layers.
    """

    def __init__(self, rotations: Iterable[paddle.Tensor]) -> None:
        self._left: Iterator[paddle.Tensor] = iter(rotations)

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        """Return the next recorded tensor in the given dtype; shape and seed are not used."""
        return next(self._left).astype(dtype)

    def state(self) -> object:
        """Return None, since nothing is drawn."""
        return None

    def restore(self, state: object) -> None:
        """Do nothing, since nothing is drawn."""


def draw_rotations(model: paddle.nn.Layer, batch: Mapping[str, paddle.Tensor], seed: int) -> list[paddle.Tensor]:
    """Return the same LSH rotations as ``toolkit predict`` draws: from the run's seed, or from ``hash_seed``.

    Args:
        model: port.
        batch: int64 tensors (B, T) by input name.
        seed: random seed of the run.
    """
    paddle.seed(seed)
    with paddle.no_grad(), randomness.use_rng(RecordingGenerator()) as generator:
        model(**batch)
    return generator.drawn  # type: ignore[attr-defined]
