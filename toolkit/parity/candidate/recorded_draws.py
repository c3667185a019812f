"""The reference's random draws, handed to the port by name."""

from __future__ import annotations

import numpy as np

from toolkit.parity.measure.naming import ModuleStack


class RecordedDraws:
    """The reference's draws as a source for :mod:`models.randomness`; says which were asked for, and which wrongly.

    Args:
        tensors: name -> mask or rotation.
        rates: name -> dropout rate.
        stack: names the draws by the module that is running.
    """

    def __init__(self, tensors: dict[str, np.ndarray], rates: dict[str, float], stack: ModuleStack) -> None:
        self.tensors = tensors
        self.rates = rates
        self.stack = stack
        self.used: set[str] = set()
        self.problems: dict[str, str] = {}
        self.relu_flips: dict[str, dict] = {}

    def dropout(self, x, p, mask_shape):
        import paddle

        name = self.stack.draw("dropout")
        mask = self._take(name, mask_shape, f"dropout of {p}")
        if mask is None:
            return x
        if p != self.rates[name]:
            self.problems[name] = f"dropout of {p}, the reference has {self.rates[name]}"
        return x * (paddle.to_tensor(mask).astype(x.dtype) / (1.0 - p))

    def normal(self, shape, dtype, seed):
        import paddle

        drawn = self._take(self.stack.draw("normal"), shape, "rotations")
        return paddle.randn(shape, dtype) if drawn is None else paddle.to_tensor(drawn).astype(dtype)

    def state(self):
        return None

    def restore(self, state) -> None:
        """Nothing to do: names repeat by themselves when a block is computed again."""

    def relu(self, x, own):
        """What a ReLU makes of ``x`` where R64 decides which inputs are positive; ``own`` is what it makes by itself.

        Where the two differ in that, the number of places and R64's largest input there are written down; what is NaN
        shows in the output.
        """
        import paddle

        name = self.stack.draw("relu").partition(":")[2]
        truth = self.tensors.get(f"relu:{name}")
        if truth is None or list(truth.shape) != own.shape:
            return own  # whatever is wrong shows in the output
        flipped = ((own.numpy() > 0) != (truth > 0)) & ~np.isnan(x.numpy())
        if not flipped.any():
            return own
        largest = float(np.abs(self.tensors[f"input:{name}"][flipped]).max())
        self.relu_flips[name] = {"count": int(flipped.sum()), "of": int(flipped.size), "largest_margin": largest}
        chosen = paddle.where(paddle.to_tensor(truth > 0), x, paddle.zeros_like(x))
        return paddle.where(paddle.to_tensor(flipped), chosen, own)

    def _take(self, name: str, shape, what: str) -> np.ndarray | None:
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
        return sorted(n for n in self.tensors if n.startswith(("dropout:", "normal:")) and n not in self.used)
