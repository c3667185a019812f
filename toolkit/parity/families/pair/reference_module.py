"""Builds the torch module of a user's file, and computes its outputs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from toolkit.parity.families.pair.reference_patches import select_eager_attention, use_default_dtype
from toolkit.parity.job import outputs, user_code
from toolkit.parity.job.job import Job

#: Largest difference between a table in float64 and in float32, relative to the table's largest element.
TOLERANCE = 1e-4
#: Norms of torch, which have an epsilon.
NORMS = (nn.LayerNorm, nn.GroupNorm, nn.modules.batchnorm._BatchNorm, nn.RMSNorm)


def build_model(source: Any, job: Job, dtype: torch.dtype = torch.float32, seed: int | None = None) -> nn.Module:
    """Return the module that the ``build`` function of the reference's file creates, in a dtype.

    Modules of transformers use eager attention.

    Args:
        source: loaded module of the reference's file.
        job: job of the pair, with the configuration and the seed.
        dtype: default dtype of torch during the construction.
        seed: seed of torch's generators; by default the job's seed.

    Raises:
        UserCodeError: ``build`` raised an error, or did not return a new torch module; or the module has complex
            parameters.
    """
    torch.manual_seed(job.seed if seed is None else seed)
    with select_eager_attention(), use_default_dtype(dtype), user_code.running(source):
        model = source.build(dict(job.config))
    user_code.check_built(source, model, nn.Module, "torch.nn.Module")
    user_code.check_real(source, model.named_parameters())
    return model


def exact_buffers_of(model: nn.Module, float32_buffers: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the buffers of a module that was built in float64, by name.

    A buffer that differs by more than rounding between float64 and float32 was drawn at random. Its float32 values are
    then returned instead.

    Args:
        model: module that was built in float64.
        float32_buffers: buffers of the module that was built in float32, by name.
    """

    def choose_value(exact: torch.Tensor, float32_value: torch.Tensor) -> torch.Tensor:
        """Return the float64 buffer ``exact``, or the float32 buffer ``float32_value`` if it was drawn at random."""
        if not (exact.is_floating_point() or exact.is_complex()) or not exact.numel():
            return float32_value
        float32_value = float32_value.to(exact)
        return (
            exact
            if torch.allclose(exact, float32_value, rtol=0, atol=TOLERANCE * float(float32_value.abs().max()))
            else float32_value
        )

    return {name: choose_value(value, float32_buffers[name]).clone() for name, value in model.named_buffers()}


def epsilons_of(model: nn.Module) -> dict[str, float]:
    """Return the epsilon of each norm of a model, by the path of its module."""
    norms = {name: module for name, module in model.named_modules() if isinstance(module, NORMS)}
    epsilons = {name: getattr(module, "eps", None) for name, module in norms.items()}
    return {name: epsilon for name, epsilon in epsilons.items() if isinstance(epsilon, float)}


def round_momenta(model: nn.Module) -> None:
    """Round the momenta of a model's batch norms as Paddle's kernels do.

    Paddle's momentum is 1 minus torch's momentum, and its kernels keep it in float32.
    """
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module.momentum = 1 - float(np.float32(1 - module.momentum))


def compute_output(
    source: Any, model: nn.Module, inputs: Mapping[str, torch.Tensor], needs_loss: bool = True
) -> outputs.StepOutput:
    """Return the logits and the loss of a user's module for a batch (:func:`.outputs.compute_step`).

    Args:
        source: loaded module of the user's file.
        model: module of the user.
        inputs: tensors of the batch by name.
        needs_loss: whether a loss is required; False if only a forward is compared.
    """
    return outputs.compute_step(source, model, inputs, _is_tensor, nn.functional.cross_entropy, needs_loss=needs_loss)


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a torch tensor."""
    return isinstance(value, torch.Tensor)


@contextlib.contextmanager
def collect_logits(model: nn.Module) -> Iterator[list[torch.Tensor | None]]:
    """Yield a list, and append the logits of every call of the model inside the ``with`` block.

    An entry is None if a call returns no logits. The list is needed because a file's own ``loss`` function returns only
    the loss.
    """
    logits: list[torch.Tensor | None] = []

    def collect(module: nn.Module, args: Any, output: Any) -> None:
        """Append the logits in the output of a call; None if there are none."""
        scores = outputs.loss_and_logits(output, _is_tensor)[1]
        logits.append(scores if scores is not None and scores.is_floating_point() else None)

    hook = model.register_forward_hook(collect)
    try:
        yield logits
    finally:
        hook.remove()
