"""R64's random draws and discrete choices, which the port replays by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import paddle

from toolkit.parity.exchange.handover import Sender
from toolkit.parity.exchange.messages import DrawRequest
from toolkit.parity.measure.evaluation import TRAINING, name_in_run
from toolkit.parity.measure.naming import ModuleStack, TensorName


class RecordedDraws:
    """A source of draws that returns R64's draws by name, and sends the port's requests and choices to the comparator.

    It can replace any source of :mod:`models.operations.randomness`. If R64 lacks a draw, another is returned, and the
    comparator reports the request.

    Args:
        tensors: R64's draws and choices by name.
        rates: rates of R64's dropout masks by name.
        stack: names each draw after the module that is running.
        sender: sending end of the pipe to the comparator; None to send nothing.
        run: name of the run, such as ``training`` or ``evaluation``.
        order: kind of draw -> names of the draws of an earlier run of the same model, in the order of the requests.
            They name
        the draws if no module has hooks. None if ``stack`` names them.

    Attributes:
        order: kind of draw -> names of the draws so far, in the order of the requests.
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
        """Return the reference's name of the next draw of a kind, such as ``dropout:encoder.layers.0``.

        Args:
            kind: kind of the draw, such as ``dropout``, ``normal`` or ``relu``.
        """
        if self._named_before is not None:
            remaining_names = self._named_before.get(kind)
            return (
                remaining_names.pop(0) if remaining_names else str(TensorName(kind, "one more than in the run before"))
            )
        name = self.stack.next_name(kind)
        self.order.setdefault(kind, []).append(name)
        return name

    def draw_mask(self, p: float, shape: Sequence[int]) -> paddle.Tensor:
        """Return R64's dropout mask for the next dropout of the running module.

        If R64 has no mask of this name and shape, the result keeps all elements.

        Args:
            p: probability of a dropped element, which is sent.
            shape: requested shape.
        """
        mask = self._find_draw(self.name("dropout"), shape, f"dropout of {p}", p)
        return paddle.ones(shape, "bool") if mask is None else paddle.to_tensor(mask).astype("bool")

    def normal(self, shape: Sequence[int], dtype: str, seed: int | None) -> paddle.Tensor:
        """Return R64's normal numbers for the next draw of the running module.

        If R64 has no numbers of this name and shape, the result is random.

        Args:
            shape: requested shape.
            dtype: dtype of the result.
            seed: not used.
        """
        numbers = self._find_draw(self.name("normal"), shape, "rotations")
        return paddle.randn(shape, dtype) if numbers is None else paddle.to_tensor(numbers).astype(dtype)

    def state(self) -> object:
        """Return None: names repeat automatically when a block is computed again, so no state is needed."""
        return None

    def restore(self, state: object) -> None:
        """Do nothing: names repeat automatically when a block is computed again.

        Args:
            state: result of :meth:`state`; not used.
        """

    def relu(self, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        """Return the output of a ReLU whose inputs count as positive if R64's inputs are positive.

        The signs of the port's own output are sent. NaN remains in the output.

        Args:
            x: input of the ReLU.
            own: output that the ReLU computes itself, of the same shape.
        """
        return self.named_relu(self.name("relu"), x, own)

    def named_relu(self, name: str, x: paddle.Tensor, own: paddle.Tensor) -> paddle.Tensor:
        """Return the output of a ReLU as :meth:`relu` does, for a choice with this name.

        Args:
            name: the reference's name of the choice, such as ``relu:encoder.layers.0``.
            x: input of the ReLU.
            own: output that the ReLU computes itself, of the same shape.
        """
        positive, nan = own.numpy() > 0, np.isnan(x.numpy())
        self.sender.send_array("signs", name_in_run(self.run, name), np.where(nan, -1, positive).astype(np.int8))
        truth = self.tensors.get(name)
        if truth is None or truth.size != own.size:
            return own  # the output shows the fault
        truth = truth.reshape(own.shape)
        is_flipped = (positive != (truth > 0)) & ~nan
        if not is_flipped.any():
            return own
        reference_output = paddle.where(paddle.to_tensor(truth > 0), x, paddle.zeros_like(x))
        return paddle.where(paddle.to_tensor(is_flipped), reference_output, own)

    def buckets(self, module: str, own: paddle.Tensor) -> paddle.Tensor:
        """Send the port's hash buckets of a module's vectors, and return the buckets to use.

        These are R64's buckets if they have the same shape, otherwise ``own``.

        Args:
            module: path of the module.
            own: buckets that the port computed.
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
        """Send the port's request for a draw, and return R64's draw; None if R64 has none like it.

        A draw of R64 is returned only if it has the requested name and shape.

        Args:
            name: the reference's name of the draw.
            shape: requested shape.
            description: the draw in words for a message, such as ``dropout of 0.1``.
            rate: rate of a dropout mask; None for other draws.
        """
        request = DrawRequest(description, [int(size) for size in shape], None if rate is None else float(rate))
        self.sender.send_json("asked", request, name_in_run(self.run, name))
        value = self.tensors.get(name)
        return None if value is None or list(value.shape) != list(shape) else value
