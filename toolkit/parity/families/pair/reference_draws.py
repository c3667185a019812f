"""Sources of draws for the description of a pair's reference."""

from __future__ import annotations

import numpy as np
import torch

from toolkit.parity.job.pair import DrawFacts
from toolkit.parity.measure.naming import TensorName
from toolkit.parity.reference.recorder import Draws

#: Kinds of draws that return random numbers, not masks or indices.
NUMBER_KINDS = ("normal", "uniform")


class OtherNumberDraws(Draws):
    """Source of draws with the same dropout masks as :class:`.recorder.Draws`, but with other random numbers.

    If the loss does not change, the numbers have no effect, for example those for a layer drop with rate 0.
    """

    def _generator(self, name: str) -> np.random.Generator:
        """Return the generator of a draw: the same as in the first run for masks, another for numbers."""
        return super()._generator(f"other:{name}" if name.startswith(NUMBER_KINDS) else name)


class DrawRecorder(Draws):
    """Source of draws that records the draws and discrete choices in order.

    Args:
        seed: seed of the draws.

    Attributes:
        draw_facts: facts about each draw and choice so far.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.draw_facts: list[DrawFacts] = []

    def mask(self, name: str, shape: tuple[int, ...], p: float) -> np.ndarray:
        """Record a dropout mask, and return it: 1 for kept and 0 for dropped elements, uint8.

        Args:
            name: name of the draw.
            shape: shape of the mask.
            p: rate of the dropout.
        """
        self.draw_facts.append(DrawFacts(name, list(shape), p))
        return super().mask(name, shape, p)

    def normal(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Record standard normal numbers of a shape by the name of the draw, and return them, float32."""
        self.draw_facts.append(DrawFacts(name, list(shape)))
        return super().normal(name, shape)

    def uniform(self, name: str, shape: tuple[int, ...]) -> np.ndarray:
        """Record uniform numbers in [0, 1) of a shape by the name of the draw, and return them, float32."""
        self.draw_facts.append(DrawFacts(name, list(shape)))
        return super().uniform(name, shape)

    def positive(self, draw_name: TensorName, x: torch.Tensor) -> torch.Tensor:
        """Record the signs under a ReLU, and return the mask of the positive inputs.

        Args:
            draw_name: name of the signs.
            x: input of the ReLU.
        """
        self.draw_facts.append(DrawFacts(str(draw_name), list(x.shape)))
        return super().positive(draw_name, x)

    def choose(
        self, draw_name: TensorName, scores: torch.Tensor, own: torch.Tensor, is_ordered: bool = True
    ) -> torch.Tensor:
        """Record a discrete choice, and return its indices along the last axis.

        Args:
            draw_name: name of the choice.
            scores: scores, with the choice along the last axis.
            own: indices that the module has chosen.
            is_ordered: unused.
        """
        self.draw_facts.append(DrawFacts(str(draw_name), list(own.shape)))
        return super().choose(draw_name, scores, own)

    def multinomial(self, name: str, p: torch.Tensor, count: int, replacement: bool) -> torch.Tensor:
        """Record a draw of indices from probabilities along the last axis, and return the indices.

        Args:
            name: name of the draw.
            p: probabilities, (..., number of classes).
            count: number of indices to draw.
            replacement: whether an index may be drawn several times.
        """
        self.draw_facts.append(DrawFacts(name, [*p.shape[:-1], count]))
        return super().multinomial(name, p, count, replacement)

    def note_other(self, name: str) -> None:
        """Record a discrete choice that the port cannot replay."""
        self.draw_facts.append(DrawFacts(name, []))
