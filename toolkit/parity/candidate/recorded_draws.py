"""The reference's random draws, handed to the port by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import paddle

from toolkit.parity.job.results import Flips
from toolkit.parity.measure.naming import ModuleStack, TensorName


class RecordedDraws:
    """The reference's draws as a source for :mod:`models.randomness`; says which were asked for, and which wrongly.

    Args:
        tensors: name -> mask or rotation.
        rates: name -> dropout rate.
        stack: names the draws by the module that is running.

    Attributes:
        problems: draws that were asked for wrongly: name -> what is wrong.
        relu_flips, bucket_flips: by module, where the port chose otherwise than R64.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], rates: Mapping[str, float], stack: ModuleStack) -> None:
        self.tensors = tensors
        self.rates = rates
        self.stack = stack
        self.used: set[str] = set()
        self.problems: dict[str, str] = {}
        self.relu_flips: dict[str, Flips] = {}
        self.bucket_flips: dict[str, Flips] = {}

    def name(self, kind: str) -> str:
        """The reference's name of the next draw of a kind by the module that is running."""
        return self.stack.draw(kind)

    def kept(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        name = self.name("dropout")
        mask = self._take(name, shape, f"dropout of {p}")
        if mask is None:
            return paddle.ones(shape, "bool")
        if p != self.rates[name]:
            self.problems[name] = f"dropout of {p}, the reference has {self.rates[name]}"
        return paddle.to_tensor(mask).astype("bool")

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        drawn = self._take(self.name("normal"), shape, "rotations")
        return paddle.randn(shape, dtype) if drawn is None else paddle.to_tensor(drawn).astype(dtype)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        """Nothing to do: names repeat by themselves when a block is computed again."""

    def relu(self, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        """What a ReLU makes of ``x`` where R64 decides which inputs are positive; ``own`` is what it makes by itself.

        Where the two differ in that, the number of places and R64's largest input there are written down; what is NaN
        shows in the output.
        """
        drawn = TensorName.parse(self.name("relu"))
        truth = self.tensors.get(str(drawn))
        if truth is None or truth.size != own.size:
            return own  # whatever is wrong shows in the output
        truth = truth.reshape(own.shape)
        flipped = ((own.numpy() > 0) != (truth > 0)) & ~np.isnan(x.numpy())
        if not flipped.any():
            return own
        inputs = self.tensors[str(drawn._replace(kind="input"))].reshape(own.shape)
        largest = float(np.abs(inputs[flipped]).max())
        self.relu_flips[drawn.module + drawn.call] = Flips(int(flipped.sum()), int(flipped.size), largest)
        chosen = paddle.where(paddle.to_tensor(truth > 0), x, paddle.zeros_like(x))
        return paddle.where(paddle.to_tensor(flipped), chosen, own)

    def _take(self, name: str, shape: Sequence[int], what: str) -> np.ndarray | None:
        value = self.tensors.get(name)
        if value is None:
            self.problems[name] = f"{what} is drawn here, the reference draws nothing"
            return None
        self.used.add(name)
        if list(value.shape) != list(shape):
            self.problems[name] = f"{what} is drawn with shape {list(shape)}, the reference's is {list(value.shape)}"
            return None
        return value

    def unused(self) -> list[str]:
        """Draws of the reference that the port never asked for."""
        return sorted(
            n for n in self.tensors if TensorName.parse(n).kind in ("dropout", "normal") and n not in self.used
        )
