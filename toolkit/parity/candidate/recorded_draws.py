"""The reference's random draws, handed to the port by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import paddle

from toolkit.parity.job.handover import Sender
from toolkit.parity.job.messages import DrawRequest
from toolkit.parity.measure.evaluation import TRAINING, name_in_run
from toolkit.parity.measure.naming import ModuleStack, TensorName


class RecordedDraws:
    """The reference's draws as a source for :mod:`models.operations.randomness`. The port's requests and choices
    are sent to the comparator. A draw that the reference lacks is filled in, and its effect shows.

    Args:
        stack: names the draws by the module that is running.
        order: by kind, the ordered names of an earlier run of the same model, which name the draws if no module has
            hooks; None if ``stack`` names them.

    Attributes:
        order: by kind, the names in the order of the requests.
    """

    def __init__(
        self,
        tensors: Mapping[str, np.ndarray],
        rates: Mapping[str, float],
        stack: ModuleStack,
        sender: Sender | None = None,
        run: str = TRAINING,
        order: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self.tensors = tensors
        self.rates = rates
        self.stack = stack
        self.sender = sender or Sender(None)
        self.run = run
        self.order: dict[str, list[str]] = {}
        self._named_before = None if order is None else {kind: list(names) for kind, names in order.items()}

    def name(self, kind: str) -> str:
        """Return the reference's name of the next draw of a kind by the module that is running."""
        if self._named_before is not None:
            remaining_names = self._named_before.get(kind)
            return (
                remaining_names.pop(0) if remaining_names else str(TensorName(kind, "one more than in the run before"))
            )
        name = self.stack.next_name(kind)
        self.order.setdefault(kind, []).append(name)
        return name

    def kept(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        mask = self._find_draw(self.name("dropout"), shape, f"dropout of {p}", p)
        return paddle.ones(shape, "bool") if mask is None else paddle.to_tensor(mask).astype("bool")

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        numbers = self._find_draw(self.name("normal"), shape, "rotations")
        return paddle.randn(shape, dtype) if numbers is None else paddle.to_tensor(numbers).astype(dtype)

    def state(self) -> object:
        return None

    def restore(self, state: object) -> None:
        """Nothing to do: names repeat automatically when a block is computed again."""

    def relu(self, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        """Output of a ReLU on ``x`` if R64 decides which inputs are positive. ``own`` is the ReLU's own output, whose
        signs are sent. NaN shows in the output."""
        return self.named_relu(self.name("relu"), x, own)

    def named_relu(self, name: str, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        """Return the output of :meth:`relu` for a draw with this name."""
        positive, nan = own.numpy() > 0, np.isnan(x.numpy())
        self.sender.send_array("signs", name_in_run(self.run, name), np.where(nan, -1, positive).astype(np.int8))
        truth = self.tensors.get(name)
        if truth is None or truth.size != own.size:
            return own  # whatever is wrong shows in the output
        truth = truth.reshape(own.shape)
        is_flipped = (positive != (truth > 0)) & ~nan
        if not is_flipped.any():
            return own
        reference_output = paddle.where(paddle.to_tensor(truth > 0), x, paddle.zeros_like(x))
        return paddle.where(paddle.to_tensor(is_flipped), reference_output, own)

    def buckets(self, module: str, own: paddle.Tensor) -> paddle.Tensor:
        """Send the port's buckets ``own`` of a module's vectors, and return the buckets to use.

        These are R64's if they have the same shape, otherwise ``own``.
        """
        name = str(TensorName("buckets", module))
        self.sender.send_array("buckets", name_in_run(self.run, name), own.numpy())
        truth = self.tensors.get(name)
        if truth is None or list(truth.shape) != own.shape:
            return own
        return paddle.to_tensor(truth.astype("int64"))

    def _find_draw(
        self, name: str, shape: Sequence[int], description: str, rate: float | None = None
    ) -> np.ndarray | None:
        request = DrawRequest(description, [int(size) for size in shape], None if rate is None else float(rate))
        self.sender.send_json("asked", request, name_in_run(self.run, name))
        value = self.tensors.get(name)
        return None if value is None or list(value.shape) != list(shape) else value
