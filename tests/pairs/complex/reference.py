"""A block of torch that computes with complex numbers: rotary positions by a complex table, as LLaMA first had them,
and a spectral layer, whose output is complex."""

import torch
from torch import nn
from torch.nn import functional as F

LENGTH, HEADS, WIDTH = 12, 2, 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        each = WIDTH // HEADS
        angles = torch.outer(torch.arange(LENGTH), 10000.0 ** (-torch.arange(0, each, 2) / each))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def forward(self, x):
        q, k, v = self.project(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        q, k = (torch.view_as_real(self._complex(one) * self.turns).flatten(-2) for one in (q, k))
        return x + (F.softmax(q @ k.mT, -1) @ v).transpose(1, 2).flatten(-2)

    def _complex(self, x):
        return torch.view_as_complex(x.unflatten(-1, (-1, 2)))


class Spectrum(nn.Module):
    def __init__(self):
        super().__init__()
        self.real, self.imag = (nn.Parameter(torch.randn(WIDTH, WIDTH)) for _ in range(2))

    def forward(self, x):
        return torch.fft.rfft(x, dim=1) @ torch.complex(self.real, self.imag)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.attention, self.spectrum = nn.Embedding(20, WIDTH), Attention(), Spectrum()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        x = self.attention(self.embed(ids))
        x = x + torch.fft.irfft(self.spectrum(x), LENGTH, dim=1)
        return self.head(x[:, 0])


def build(config):
    return Model()


def batch(config, rng):
    return {"ids": rng.integers(0, 20, (3, LENGTH)), "labels": rng.integers(0, 3, 3)}


def loss(model, batch):
    return F.cross_entropy(model(batch["ids"]), batch["labels"])
