"""Activations with gradients as accurate as in the reference; Paddle's CPU kernels (3.3.1) are less accurate.

The error of Paddle's float32 tanh is some units in the last place near 1, where 1 - tanh^2 loses its digits. On numbers
of standard deviation 3, the relative error of its gradient is 2.7e-7, compared with 7.4e-8 in torch and 5e-8 here. For
tanh GELU, these errors are 6.7e-7, 1.4e-7 and 6e-8. Paddle's gradient of SiLU is NaN below -88.7 (in float64 below
-709), where exp(-x) overflows.
"""

from __future__ import annotations

import math

import paddle
import paddle.nn.functional as F
from paddle import nn
from paddle.autograd import PyLayer

from models.operations.ops import ReLU, is_composed

#: GELU by tanh is x times the logistic function of LINEAR x + CUBIC x^3.
LINEAR = 2.0 * math.sqrt(2.0 / math.pi)
CUBIC = LINEAR * 0.044715


class _Tanh(PyLayer):
    @staticmethod
    def forward(ctx, x):
        """Return tanh(x)."""
        ctx.save_for_backward(x)
        return paddle.tanh(x)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient with respect to x, from the gradient of the output."""
        (x,) = ctx.saved_tensor()
        small = F.sigmoid(-2.0 * x.abs())  # 1 - tanh^2 is 4 s(2x) s(-2x), with s the logistic function
        return grad * (4.0 * small * (1.0 - small))


class _TanhGELU(PyLayer):
    @staticmethod
    def forward(ctx, x):
        """Return GELU of x by the tanh approximation."""
        ctx.save_for_backward(x)
        return F.gelu(x, approximate=True)

    @staticmethod
    def backward(ctx, grad):
        """Return the gradient with respect to x, from the gradient of the output."""
        (x,) = ctx.saved_tensor()
        square = x * x
        inner = x * (LINEAR + CUBIC * square)
        logistic = F.sigmoid(inner)
        return grad * logistic * (1.0 + F.sigmoid(-inner) * x * (LINEAR + 3.0 * CUBIC * square))


def tanh_gelu(x: paddle.Tensor) -> paddle.Tensor:
    """Compute 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016)."""
    if not paddle.in_dynamic_mode():  # composed: Paddle2ONNX 2.0.1 exports Paddle's operator as GELU by erf
        return x * F.sigmoid(x * (LINEAR + CUBIC * x * x))
    return _TanhGELU.apply(x) if _has_inexact_gradient(x) else F.gelu(x, approximate=True)


def silu(x: paddle.Tensor) -> paddle.Tensor:
    """Compute x times its logistic function (Elfwing et al. 2017)."""
    return x * F.sigmoid(x) if is_composed(x) else F.silu(x)


def tanh(x: paddle.Tensor) -> paddle.Tensor:
    """Compute the hyperbolic tangent."""
    return _Tanh.apply(x) if _has_inexact_gradient(x) else paddle.tanh(x)


def _has_inexact_gradient(x: paddle.Tensor) -> bool:
    """Return whether the gradient of Paddle's tanh is inexact for this tensor."""
    return is_composed(x) and x.dtype == paddle.float32


class TanhGELU(nn.Layer):
    """A layer that computes :func:`tanh_gelu`."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return :func:`tanh_gelu` of each number of ``x``, of any shape."""
        return tanh_gelu(x)


class SiLU(nn.Layer):
    """A layer that computes :func:`silu`."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return :func:`silu` of each number of ``x``, of any shape."""
        return silu(x)


class Tanh(nn.Layer):
    """A layer that computes :func:`tanh`."""

    def forward(self, x: paddle.Tensor) -> paddle.Tensor:
        """Return :func:`tanh` of each number of ``x``, of any shape."""
        return tanh(x)


#: Layer of each activation, by its name in Hugging Face's configurations.
ACTIVATIONS = {
    "relu": ReLU,
    "gelu": nn.GELU,
    "gelu_new": TanhGELU,
    "silu": SiLU,
    "swish": SiLU,
    "tanh": Tanh,
    "sigmoid": nn.Sigmoid,
}
