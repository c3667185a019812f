"""Random LSH rotations as constants: a graph that leaves this project must hash a text the same on every call."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import paddle

from models.operations import randomness


class Recorded(randomness.Generator):
    """Generator that records its draws.

    Attributes:
        drawn: the rotations, in the order of the layers: (H, D, R, half the sum of the bucket factors) each.
    """

    def __init__(self) -> None:
        self.drawn: list[paddle.Tensor] = []

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        self.drawn.append(super().normal(shape, dtype, seed))
        return self.drawn[-1]


class Constant(randomness.Generator):
    """Generator that returns the given rotations one after another, in the requested dtype."""

    def __init__(self, rotations: Iterable[paddle.Tensor]) -> None:
        self._left: Iterator[paddle.Tensor] = iter(rotations)

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        return next(self._left).astype(dtype)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        """Nothing is drawn."""


def draw(model: object, batch: dict[str, paddle.Tensor], seed: int) -> list[paddle.Tensor]:
    """Return ``toolkit predict``'s rotations: the first after the run's seed, or those of ``hash_seed``."""
    paddle.seed(seed)
    with paddle.no_grad(), randomness.use(Recorded()) as source:
        model(**batch)  # type: ignore[operator]
    return source.drawn  # type: ignore[attr-defined]
