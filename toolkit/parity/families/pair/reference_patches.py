"""Replaces functions of torch and transformers while a user's module is built or runs."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig

from toolkit.parity.reference.float64_checks import NARROW_DTYPES
from toolkit.parity.reference.recorder import Recorder, set_attribute
from toolkit.parity.reference.rounded_constants import EXACT_EPSILONS

#: Names of torch's norm functions whose counterparts in Paddle keep the epsilon in float32.
FLOAT32_EPSILON_NORMS = ("layer_norm", "batch_norm", "instance_norm", "rms_norm")

#: Names of torch's functions of whole recurrent networks. They draw the dropout between the layers in a kernel.
RECURRENT_FUNCTIONS = ("lstm", "gru", "rnn_tanh", "rnn_relu")


@contextlib.contextmanager
def use_default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Set torch's default dtype inside the ``with`` block.

    If it is float64, code that asks for fewer digits also gets float64 (:class:`Float64Mode`).
    """
    previous_dtype = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with Float64Mode() if dtype == torch.float64 else contextlib.nullcontext():
            yield
    finally:
        torch.set_default_dtype(previous_dtype)


class Float64Mode(TorchFunctionMode):
    """Replaces narrower dtypes by float64 in calls of torch functions inside the ``with`` block.

    Examples are ``x.to(torch.float32)``, ``positions.float()``, ``softmax(x, dtype=torch.float32)`` and
    ``torch.arange(n, dtype=torch.float32)``.
    """

    def __torch_function__(self, function, types, args=(), kwargs=None):
        """Call a torch function with float64 instead of narrower dtypes."""
        kwargs = kwargs or {}
        if function in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            return args[0].double()
        if function is torch.Tensor.view:  # it reinterprets the bytes of a checkpoint's file and rounds nothing
            return function(*args, **kwargs)
        args = tuple(torch.float64 if x in NARROW_DTYPES else x for x in args) if _has_narrow_dtype(args) else args
        if kwargs.get("dtype") in NARROW_DTYPES:
            kwargs = {**kwargs, "dtype": torch.float64}
        return function(*args, **kwargs)


def _has_narrow_dtype(arguments: tuple) -> bool:
    """Return whether positional arguments include a dtype with fewer digits than float64."""
    return any(isinstance(value, torch.dtype) and value in NARROW_DTYPES for value in arguments)


@contextlib.contextmanager
def select_eager_attention() -> Iterator[None]:
    """Let each configuration of transformers that is created inside the ``with`` block select eager attention."""
    original = PretrainedConfig.__init__

    def initialize(self: PretrainedConfig, *args: Any, **options: Any) -> None:
        original(self, *args, **{"attn_implementation": "eager", **options})

    restore = set_attribute(PretrainedConfig, "__init__", initialize)
    try:
        yield
    finally:
        restore()


@contextlib.contextmanager
def round_epsilons() -> Iterator[None]:
    """Round the epsilons of torch's norm functions to float32 inside the ``with`` block.

    Paddle's kernels keep their epsilons in float32 in every dtype, except for group norm. The float32 number nearest to
    1e-5 has a relative error of 2.5e-8. In float64, this changes an output by a relative 1e-13. Every port has this
    difference, and no author can fix it.
    """
    owner = nn.functional
    restore_functions = [
        set_attribute(owner, name, _round_epsilon_of(getattr(owner, name))) for name in FLOAT32_EPSILON_NORMS
    ]
    try:
        yield
    finally:
        for restore in restore_functions:
            restore()


def _round_epsilon_of(norm_function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return a norm function of torch with its ``eps`` argument rounded to float32."""
    signature = inspect.signature(norm_function)

    @functools.wraps(norm_function)
    def call(*args: Any, **options: Any) -> torch.Tensor:
        call_arguments = signature.bind(*args, **options)
        call_arguments.apply_defaults()
        epsilon = call_arguments.arguments["eps"]
        if epsilon is not None:
            rounded_epsilon = float(np.float32(epsilon))
            if epsilon != rounded_epsilon:  # a norm that calls another norm passes on the rounded number
                EXACT_EPSILONS[rounded_epsilon] = epsilon
            call_arguments.arguments["eps"] = rounded_epsilon
        return norm_function(*call_arguments.args, **call_arguments.kwargs)

    return call


@contextlib.contextmanager
def replace_functions(recorder: Recorder) -> Iterator[None]:
    """Replace functional ReLU, attention and recurrent networks of torch inside the ``with`` block.

    ReLU called as a function takes R64's signs, like the module. Attention is computed step by step, and a recurrent
    network layer by layer, so that their dropout is one of the recorded draws.

    Args:
        recorder: recorder of the run.
    """

    def relu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
        return recorder._relu(x)

    restore_functions = [
        set_attribute(nn.functional, "relu", relu),
        set_attribute(torch, "relu", relu),
        set_attribute(torch.Tensor, "relu", relu),
        set_attribute(nn.functional, "scaled_dot_product_attention", compute_attention),
        *(set_attribute(torch._VF, name, run_layer_by_layer(getattr(torch._VF, name))) for name in RECURRENT_FUNCTIONS),
    ]
    try:
        yield
    finally:
        for restore in restore_functions:
            restore()


def run_layer_by_layer(run_network: Callable) -> Callable:
    """Return a replacement of a recurrent function of torch whose dropout between the layers is a recorded draw.

    Args:
        run_network: torch's function of a whole network, such as ``torch._VF.lstm``, for a batch of texts of one
            length. Its arguments are input, initial states, weights of all layers, whether there are biases, number of
            layers, dropout rate, and whether the network is trained, bidirectional and batch first.
    """

    def run_layers(x: torch.Tensor, states: Any, weights: Any, *settings: Any) -> Any:
        if isinstance(settings[0], (list, tuple)):
            _, _, num_layers, rate, is_trained, _ = settings  # a packed sequence, whose batch sizes come second
            if num_layers > 1 and rate and is_trained:
                raise NotImplementedError(
                    "dropout between the layers of a recurrent network cannot be compared for a packed sequence; "
                    "compare it with dropout 0"
                )
            return run_network(x, states, weights, *settings)
        has_biases, num_layers, rate, is_trained, is_bidirectional, is_batch_first = settings
        if num_layers == 1 or not rate or not is_trained:
            return run_network(x, states, weights, *settings)
        is_lstm = isinstance(states, (list, tuple))
        state_parts = [state.chunk(num_layers) for state in (states if is_lstm else [states])]
        weights_per_layer = len(weights) // num_layers
        final_states = []
        for layer, layer_states in enumerate(zip(*state_parts, strict=True)):
            if layer > 0:
                x = nn.functional.dropout(x, rate)
            layer_weights = weights[layer * weights_per_layer : (layer + 1) * weights_per_layer]
            layer_settings = (has_biases, 1, 0.0, is_trained, is_bidirectional, is_batch_first)
            x, *results = run_network(x, layer_states if is_lstm else layer_states[0], layer_weights, *layer_settings)
            final_states.append(results)
        return (x, *(torch.cat(parts) for parts in zip(*final_states, strict=True)))

    return run_layers


def compute_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Return the attention of a query, as the documentation of ``scaled_dot_product_attention`` defines it.

    The shapes and arguments are the same as in torch: query (..., H, L, E), key (..., H, S, E), value (..., H, S, Ev).
    """
    if enable_gqa:
        groups = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(groups, -3), value.repeat_interleave(groups, -3)
    scores = query @ key.transpose(-2, -1) * (query.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -torch.inf)
    if attn_mask is not None:
        is_bool = attn_mask.dtype == torch.bool
        scores = scores.masked_fill(~attn_mask, -torch.inf) if is_bool else scores + attn_mask
    return nn.functional.dropout(scores.softmax(-1), dropout_p, dropout_p > 0) @ value
