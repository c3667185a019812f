"""The same block in Paddle."""

import paddle
from paddle import nn
from paddle.nn import functional as F

LENGTH, HEADS, WIDTH = 12, 2, 16


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        each = WIDTH // HEADS
        angles = paddle.outer(paddle.arange(LENGTH, dtype="float32"), 10000.0 ** (-paddle.arange(0, each, 2) / each))
        self.register_buffer("turns", paddle.complex(paddle.cos(angles), paddle.sin(angles)))

    def forward(self, x):
        q, k, v = self.project(x).reshape([0, 0, 3, HEADS, -1]).transpose([2, 0, 3, 1, 4])
        q, k = (paddle.as_real(self._complex(one) * self.turns).flatten(-2) for one in (q, k))
        return x + (F.softmax(q @ k.transpose([0, 1, 3, 2])) @ v).transpose([0, 2, 1, 3]).flatten(-2)

    def _complex(self, x):
        return paddle.as_complex(x.reshape([0, 0, 0, -1, 2]))


class Spectrum(nn.Layer):
    def __init__(self):
        super().__init__()
        self.real, self.imag = (self.create_parameter([WIDTH, WIDTH]) for _ in range(2))

    def forward(self, x):
        return paddle.fft.rfft(x, axis=1) @ paddle.complex(self.real, self.imag)


class Model(nn.Layer):
    def __init__(self):
        super().__init__()
        self.embed, self.attention, self.spectrum = nn.Embedding(20, WIDTH), Attention(), Spectrum()
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        x = self.attention(self.embed(ids))
        x = x + paddle.fft.irfft(self.spectrum(x), LENGTH, axis=1)
        return self.head(x[:, 0])


def build(config):
    return Model()


def loss(model, batch):
    return F.cross_entropy(model(batch["ids"]), batch["labels"])
