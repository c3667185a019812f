"""AdamW as transformers' Trainer sets it up: what decays, how gradients are clipped. For training and for the gate."""

from __future__ import annotations

from typing import Any

import paddle
from paddle.nn.clip import _squared_l2_norm

#: Added to the norm that gradients are divided by, as torch's clip_grad_norm_ does.
NORM_EPSILON = 1e-6


class ClipGradByGlobalNorm(paddle.nn.ClipGradByGlobalNorm):
    """Scale all gradients in place, without a copy, by min(1, clip_norm / (norm + 1e-6)), where norm is that of all of
    them together (Pascanu et al. 2013, section 3.2). Paddle's own leaves out the 1e-6. Where fleet splits a model over
    devices, it replaces this by its own."""

    @paddle.no_grad()
    def _dygraph_clip(self, params_grads: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        squares = [_squared_l2_norm(grad) for _, grad in params_grads if grad is not None]
        if not squares:
            return params_grads
        wide = "float64" if squares[0].dtype == paddle.float64 else "float32"
        norm = paddle.sqrt(paddle.stack([square.astype(wide) for square in squares]).sum())
        scale = (self.clip_norm / (norm + NORM_EPSILON)).clip(max=1.0)
        if norm.place.is_cpu_place() and float(scale) == 1.0:
            return params_grads
        scaled = set()  # two parameters may have one tensor for their gradients
        for _, grad in params_grads:
            if grad is not None and grad.data_ptr() not in scaled:
                scaled.add(grad.data_ptr())
                scale_in_place(grad, scale.astype(grad.dtype))
        return params_grads


def scale_in_place(grad: paddle.Tensor, factor: paddle.Tensor) -> None:
    """Multiply in place by a tensor of one number. On a CPU, by the number itself: Paddle's product with a broadcast
    tensor takes five times as long there. Not on a GPU, where the host would have to wait for the number."""
    if grad.place.is_cpu_place():
        grad.scale_(float(factor))
    else:
        grad.multiply_(factor)


class AdamW(paddle.optimizer.AdamW):
    """Paddle's, which frees the gradients after each step, as torch's does, and fills none with zeros. A step leaves a
    parameter without a gradient alone, whether the run was resumed before or not."""

    def clear_grad(self, set_to_zero: bool = False) -> None:
        """As Paddle's; ``set_to_zero`` is False unless it is given."""
        super().clear_grad(set_to_zero)


def decayed_parameters(model: Any) -> set[str]:
    """Paddle's names of the parameters that weight decay applies to: no bias and nothing of a normalisation layer."""
    spared = {
        parameter.name
        for layer in model.sublayers(include_self=True)
        if "norm" in type(layer).__name__.lower()
        for parameter in layer.parameters(include_sublayers=False)
    }
    return {
        parameter.name
        for name, parameter in model.named_parameters()
        if not name.endswith("bias") and parameter.name not in spared
    }


def adamw(
    model: Any,
    learning_rate: Any,
    *,
    weight_decay: float,
    beta1: float,
    beta2: float,
    epsilon: float,
    max_grad_norm: float | None,
) -> paddle.optimizer.AdamW:
    """AdamW (Loshchilov and Hutter 2019, algorithm 2) over all parameters of a model.

    Args:
        learning_rate: a number, or a schedule of Paddle's.
        weight_decay: decoupled; spares biases and normalisation layers.
        max_grad_norm: gradients are scaled down to this norm; None or 0: never.
    """
    return AdamW(
        learning_rate=learning_rate,
        beta1=beta1,
        beta2=beta2,
        epsilon=epsilon,
        parameters=model.parameters(),
        weight_decay=weight_decay,
        apply_decay_param_fun=decayed_parameters(model).__contains__,
        grad_clip=ClipGradByGlobalNorm(max_grad_norm) if max_grad_norm else None,
    )
