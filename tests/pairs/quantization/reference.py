"""Quantization-aware training: learned step sizes (Esser et al. 2020) and channel scales, and the batch of both."""

import torch
from torch import nn
from torch.nn import functional as F


class QuantizedActivation(nn.Module):
    """Activations of 4 bits without a sign, with a step size that is learned."""

    def __init__(self):
        super().__init__()
        self.step_size = nn.Parameter(torch.full((4,), 0.21))

    def forward(self, x):
        gradient_scale = (15 * x.shape[0] * 4) ** -0.5
        step_size = (self.step_size - self.step_size * gradient_scale).detach() + self.step_size * gradient_scale
        y = (x / step_size.repeat_interleave(x.shape[-1] // 4)).clamp(0, 15)
        integer_y = y + (y.round() - y).detach()
        return integer_y * step_size.repeat_interleave(x.shape[-1] // 4)


class QuantizedLinear(nn.Module):
    """A linear layer whose weight has 8 bits with a sign, and a scale for each row."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)
        self.bias = nn.Parameter(torch.randn(outputs))

    def forward(self, x):
        scale = self.weight.detach().abs().amax(1, keepdim=True) / 127
        quantized = torch.clamp(torch.round(self.weight.detach() / scale), -128, 127) * scale
        return F.linear(x, self.weight + (quantized - self.weight).detach(), self.bias)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(12, 16)
        self.first, self.second = QuantizedLinear(16, 16), QuantizedLinear(16, 16)
        self.act1, self.act2 = QuantizedActivation(), QuantizedActivation()
        self.head = nn.Linear(16, 5)

    def forward(self, features, labels):
        x = self.act1(self.stem(features))
        x = x + self.act2(self.first(x))
        x = F.relu(self.second(x))
        logits = self.head(x)
        return F.cross_entropy(logits, labels), logits


def build(config):
    return Net()


def batch(config, rng):
    return {"features": rng.standard_normal((8, 12)), "labels": rng.integers(0, 5, 8)}
