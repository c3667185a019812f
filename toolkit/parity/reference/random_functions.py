"""Replacements of torch's random functions that use recorded draws, for each signature of the functions."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from toolkit.parity.reference.recorder import Recorder, requested_shape, requested_tensor, set_attribute

#: Limit of SELU for large negative inputs: minus its scale times its alpha.
SELU_LIMIT = -1.0507009873554804934193349852946 * 1.6732632423543772848170429916717


@contextlib.contextmanager
def recorded_random_functions(recorder: Recorder) -> Iterator[None]:
    """Inside the ``with`` block, replace torch's random functions and methods by functions that use recorded draws.

    The draws are standard normal numbers, uniform numbers between 0 and 1, or indices by weight (``multinomial``).
    Functions of other distributions, such as ``poisson``, remain torch's.

    Args:
        recorder: recorder of the run, which names the draws and has their values.
    """
    uniform, normal = recorder.draws.uniform, recorder.draws.normal

    def draw(kind: str, draw_fn: Callable, shape: Sequence[int], options: Mapping[str, Any]) -> torch.Tensor:
        """Return the next draw of a kind (``uniform`` or ``normal``) in the running module, as a call requests it."""
        return requested_tensor(draw_fn(recorder.stack.next_name(kind), tuple(shape)), options)

    def set_defaults(x: torch.Tensor, options: Mapping[str, Any]) -> dict[str, Any]:
        """Return a call's options with the dtype and device of ``x`` as defaults, as in torch's ``_like`` functions."""
        default = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        return {**options, "dtype": options.get("dtype") or default, "device": options.get("device") or x.device}

    def rand(*size: Any, **options: Any) -> torch.Tensor:
        return draw("uniform", uniform, requested_shape(size, options), options)

    def randn(*size: Any, **options: Any) -> torch.Tensor:
        return draw("normal", normal, requested_shape(size, options), options)

    def rand_like(input: torch.Tensor, **options: Any) -> torch.Tensor:
        return draw("uniform", uniform, input.shape, set_defaults(input, options))

    def randn_like(input: torch.Tensor, **options: Any) -> torch.Tensor:
        return draw("normal", normal, input.shape, set_defaults(input, options))

    def draw_integers(low: int, high: int, shape: Sequence[int], options: Mapping[str, Any]) -> torch.Tensor:
        """Return random integers from ``low`` to ``high`` - 1, which follow from recorded uniform numbers."""
        fractions = uniform(recorder.stack.next_name("uniform"), tuple(shape)).astype(np.float64)
        return requested_tensor((low + np.floor(fractions * (high - low))).astype(np.int64), options)

    def randint(*arguments: Any, **options: Any) -> torch.Tensor:
        *bounds, size = (*arguments, options["size"]) if "size" in options else arguments
        return draw_integers(*requested_range(bounds, options), size, {"dtype": torch.int64, **options})

    def randint_like(input: torch.Tensor, *bounds: int, **options: Any) -> torch.Tensor:
        tensor_options = {"dtype": input.dtype, "device": input.device, **options}
        return draw_integers(*requested_range(bounds, options), input.shape, tensor_options)

    def randperm(n: int, **options: Any) -> torch.Tensor:
        order = uniform(recorder.stack.next_name("uniform"), (int(n),)).argsort(kind="stable")
        return requested_tensor(order, {"dtype": torch.int64, **options})

    def normal_numbers(mean: Any = 0.0, std: Any = 1.0, size: Any = None, **options: Any) -> torch.Tensor:
        tensors = [moment for moment in (mean, std) if isinstance(moment, torch.Tensor)]
        if not tensors:
            return mean + std * draw("normal", normal, size, options)
        shape = torch.broadcast_shapes(*(moment.shape for moment in tensors))
        return mean + std * draw("normal", normal, shape, set_defaults(tensors[0], options))

    def bernoulli(input: torch.Tensor, p: Any = None, **_: Any) -> torch.Tensor:
        return (rand_like(input) < (input if p is None else p)).to(input.dtype)

    def multinomial(input: torch.Tensor, num_samples: int, replacement: bool = False, **_: Any) -> torch.Tensor:
        return recorder.draws.multinomial(recorder.stack.next_name("multinomial"), input, num_samples, replacement)

    def uniform_(self: torch.Tensor, *bounds: float, **options: Any) -> torch.Tensor:
        low, high = (*bounds, *(0.0, 1.0)[len(bounds) :])
        low, high = options.get("from", low), options.get("to", high)
        return self.copy_(low + (high - low) * rand_like(self))

    def normal_(self: torch.Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> torch.Tensor:
        return self.copy_(mean + std * randn_like(self))

    def bernoulli_(self: torch.Tensor, p: Any = 0.5, **_: Any) -> torch.Tensor:
        return self.copy_(rand_like(self) < p)

    def exponential_(self: torch.Tensor, lambd: float = 1.0, **_: Any) -> torch.Tensor:
        return self.copy_(-torch.log1p(-rand_like(self)) / lambd)

    def rrelu(
        input: torch.Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False, inplace: bool = False
    ) -> torch.Tensor:
        if not training:
            return own_rrelu(input, lower, upper)
        return torch.where(input > 0, input, input * (lower + (upper - lower) * rand_like(input)))

    def alpha_dropout(
        input: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> torch.Tensor:
        return drop_to_saturation(input, p, training, tuple(input.shape))

    def feature_alpha_dropout(
        input: torch.Tensor, p: float = 0.5, training: bool = False, inplace: bool = False
    ) -> torch.Tensor:
        return drop_to_saturation(input, p, training, (*input.shape[:2], *(1 for _ in input.shape[2:])))

    def drop_to_saturation(x: torch.Tensor, p: float, training: bool, mask_shape: Sequence[int]) -> torch.Tensor:
        """Return ``x`` after alpha dropout: dropped elements get SELU's limit, and mean and variance stay the same.

        "Self-Normalizing Neural Networks" (Klambauer et al. 2017, section "New dropout technique").

        Args:
            x: output of a SELU.
            p: dropout rate.
            training: whether anything is dropped.
            mask_shape: shape of the mask, which is broadcast to the shape of ``x``.
        """
        if not training or p == 0:
            return x
        if p == 1:
            return 0.0 * x
        keep_mask = draw("uniform", uniform, mask_shape, set_defaults(x, {})) >= p
        scale = (1 - p) ** -0.5 * (1 + p * SELU_LIMIT**2) ** -0.5
        return scale * torch.where(keep_mask, x, SELU_LIMIT) - scale * p * SELU_LIMIT

    own_rrelu = torch.nn.functional.rrelu
    functions: dict[str, Callable] = {
        "rand": rand, "randn": randn, "rand_like": rand_like, "randn_like": randn_like, "randint": randint,
        "randint_like": randint_like, "randperm": randperm, "normal": normal_numbers, "bernoulli": bernoulli,
        "multinomial": multinomial,
    }  # fmt: skip
    methods = {
        "bernoulli": bernoulli, "multinomial": multinomial, "uniform_": uniform_, "normal_": normal_,
        "bernoulli_": bernoulli_, "exponential_": exponential_,
    }  # fmt: skip
    undo = [set_attribute(torch, name, function) for name, function in functions.items()]
    for function in (rrelu, alpha_dropout, feature_alpha_dropout):
        undo += [set_attribute(torch.nn.functional, function.__name__, function)]
    undo += [set_attribute(torch.Tensor, name, function) for name, function in methods.items()]
    try:
        yield
    finally:
        for restore in undo:
            restore()


def requested_range(bounds: Sequence[int], options: Mapping[str, Any]) -> tuple[int, int]:
    """Return the range of a call of ``torch.randint``: the smallest possible number, and the largest number plus 1.

    Args:
        bounds: positional arguments before the shape: both bounds or only the upper bound. If ``high`` is a keyword
            argument, they are the lower bound or empty.
        options: keyword arguments of the call.
    """
    if "high" in options:
        return int(options.get("low", bounds[0] if bounds else 0)), int(options["high"])
    return int(options.get("low", bounds[0] if len(bounds) > 1 else 0)), int(bounds[-1])
