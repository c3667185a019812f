"""Quantization-aware training in Paddle: the rounding has the gradient of the identity (straight through)."""

import paddle
from paddle import nn
from paddle.autograd import PyLayer
from paddle.nn import functional as F


class StraightThroughRound(PyLayer):
    @staticmethod
    def forward(ctx, x):
        return paddle.round(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient


def scale_gradient(x, scale):
    """Return `x` with a gradient that is multiplied by `scale`."""
    y = x * scale
    return (x - y).detach() + y


class QuantizedActivation(nn.Layer):
    def __init__(self):
        super().__init__()
        self.step_size = self.create_parameter([4], default_initializer=nn.initializer.Constant(0.21))

    def forward(self, x):
        gradient_scale = 1.0 / (15 * x.shape[0] * 4) ** 0.5
        step_size = scale_gradient(self.step_size, gradient_scale).repeat_interleave(x.shape[-1] // 4)
        levels = paddle.clip(x / step_size, 0, 15)
        return StraightThroughRound.apply(levels) * step_size


class QuantizedLinear(nn.Layer):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = self.create_parameter([inputs, outputs])
        self.bias = self.create_parameter([outputs], is_bias=True)

    def forward(self, x):
        scale = self.weight.detach().abs().max(0, keepdim=True) / 127
        levels = paddle.round(self.weight.detach() / scale).clip(-128, 127)
        weight = self.weight + (levels * scale - self.weight).detach()
        return F.linear(x, weight, self.bias)


class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(12, 16), nn.Linear(16, 5)
        self.linear1, self.linear2 = QuantizedLinear(16, 16), QuantizedLinear(16, 16)
        self.quantizer1, self.quantizer2 = QuantizedActivation(), QuantizedActivation()

    def forward(self, features, labels):
        x = self.quantizer1(self.stem(features))
        x = x + self.quantizer2(self.linear1(x))
        x = F.relu(self.linear2(x))
        logits = self.head(x)
        return F.cross_entropy(logits, labels), logits


def build(config):
    return Net()
