"""The U-Net of a diffusion model in Paddle: group norms, time embeddings, attention and skipped connections."""

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F


def embed_steps(steps, width):
    """Return the sines and cosines of diffusion steps, (N, width)."""
    exponents = paddle.arange(width // 2, dtype="float32") / (width // 2)
    angles = steps.astype("float32").unsqueeze(1) * 10000.0 ** (-exponents)
    return paddle.concat([paddle.cos(angles), paddle.sin(angles)], -1)


class ResidualBlock(nn.Layer):
    def __init__(self, inputs, outputs, time_width):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inputs, epsilon=1e-6), nn.GroupNorm(4, outputs, epsilon=1e-6)
        self.conv1 = nn.Conv2D(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2D(outputs, outputs, 3, padding=1)
        self.time_proj = nn.Linear(time_width, outputs)
        self.drop = nn.Dropout(0.1)
        self.shortcut = nn.Conv2D(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x, time):
        y = self.conv1(F.silu(self.norm1(x)))
        y = y + self.time_proj(F.silu(time)).unsqueeze([2, 3])
        y = F.silu(self.norm2(y))
        y = self.conv2(self.drop(y))
        return self.shortcut(x) + y


class AttentionBlock(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.GroupNorm(4, width, epsilon=1e-6)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.scale = width**-0.5

    def forward(self, x):
        y = self.norm(x).flatten(2).transpose([0, 2, 1])
        scores = self.q(y) @ self.k(y).transpose([0, 2, 1])
        probabilities = F.softmax(scores * self.scale, -1)
        y = self.out(probabilities @ self.v(y))
        return x + y.transpose([0, 2, 1]).reshape(x.shape)


class UNet(nn.Layer):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.time_linear1 = nn.Linear(width, 2 * width)
        self.time_linear2 = nn.Linear(2 * width, 2 * width)
        self.conv_in = nn.Conv2D(3, width, 3, padding=1)
        self.down = ResidualBlock(width, width, 2 * width)
        self.downsample = nn.Conv2D(width, width, 3, stride=2)
        self.middle = ResidualBlock(width, 2 * width, 2 * width)
        self.attention = AttentionBlock(2 * width)
        self.upsample = nn.Conv2D(2 * width, width, 3, padding=1)
        self.up = ResidualBlock(2 * width, width, 2 * width)
        self.norm_out = nn.GroupNorm(4, width)
        self.conv_out = nn.Conv2D(width, 3, 3, padding=1)
        betas = np.linspace(0.0001**0.5, 0.02**0.5, 50) ** 2
        self.register_buffer("alphas_cumprod", paddle.to_tensor(np.cumprod(1 - betas).astype("float32")))

    def forward(self, images, steps):
        noise = paddle.randn(images.shape)
        signal_rate = self.alphas_cumprod[steps].reshape([-1, 1, 1, 1])
        x = signal_rate.sqrt() * images + (1 - signal_rate).sqrt() * noise
        time = F.silu(self.time_linear1(embed_steps(steps, self.width)))
        time = self.time_linear2(time)
        skipped = self.down(self.conv_in(x), time)
        x = self.downsample(F.pad(skipped, [0, 1, 0, 1]))
        x = self.attention(self.middle(x, time))
        x = self.upsample(F.interpolate(x, scale_factor=2, mode="nearest"))
        x = self.up(paddle.concat([x, skipped], 1), time)
        predicted_noise = self.conv_out(F.silu(self.norm_out(x)))
        return F.mse_loss(predicted_noise, noise), predicted_noise


def build(config):
    return UNet(config.get("width", 8))
