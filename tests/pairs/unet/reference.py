"""A small U-Net of a denoising diffusion model (Ho et al. 2020), and the batch that both sides get."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class TimeEmbedding(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.width = width
        self.linear_1, self.linear_2 = nn.Linear(width, 2 * width), nn.Linear(2 * width, 2 * width)

    def forward(self, steps):
        half = self.width // 2
        frequencies = torch.exp(-math.log(10000) * torch.arange(half) / half)
        angles = steps[:, None].float() * frequencies[None]
        return self.linear_2(F.silu(self.linear_1(torch.cat([angles.cos(), angles.sin()], -1))))


class ResnetBlock(nn.Module):
    def __init__(self, inputs, outputs, time_width):
        super().__init__()
        self.norm1 = nn.GroupNorm(4, inputs, eps=1e-6)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = nn.Linear(time_width, outputs)
        self.norm2 = nn.GroupNorm(4, outputs, eps=1e-6)
        self.dropout = nn.Dropout(0.1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x, time):
        states = self.conv1(F.silu(self.norm1(x)))
        states = states + self.time_emb_proj(F.silu(time))[:, :, None, None]
        states = self.conv2(self.dropout(F.silu(self.norm2(states))))
        return states + (x if self.conv_shortcut is None else self.conv_shortcut(x))


class AttentionBlock(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.group_norm = nn.GroupNorm(4, width, eps=1e-6)
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        count, width, height, breadth = x.shape
        states = self.group_norm(x).view(count, width, -1).transpose(1, 2)
        states = F.scaled_dot_product_attention(self.to_q(states), self.to_k(states), self.to_v(states))
        return x + self.to_out(states).transpose(1, 2).reshape(count, width, height, breadth)


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.time_embedding = TimeEmbedding(width)
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        self.down = ResnetBlock(width, width, 2 * width)
        self.downsample = nn.Conv2d(width, width, 3, stride=2)
        self.middle = ResnetBlock(width, 2 * width, 2 * width)
        self.attention = AttentionBlock(2 * width)
        self.upsample = nn.Conv2d(2 * width, width, 3, padding=1)
        self.up = ResnetBlock(2 * width, width, 2 * width)
        self.conv_norm_out = nn.GroupNorm(4, width)
        self.conv_out = nn.Conv2d(width, 3, 3, padding=1)
        betas = torch.linspace(0.0001**0.5, 0.02**0.5, 50, dtype=torch.float64) ** 2
        self.register_buffer("alphas_cumprod", torch.cumprod(1 - betas, 0).float())

    def forward(self, images, steps):
        noise = torch.randn_like(images)
        alphas = self.alphas_cumprod[steps][:, None, None, None]
        x = alphas.sqrt() * images + (1 - alphas).sqrt() * noise
        time = self.time_embedding(steps)
        skipped = self.down(self.conv_in(x), time)
        x = self.downsample(F.pad(skipped, (0, 1, 0, 1)))
        x = self.attention(self.middle(x, time))
        x = self.upsample(F.interpolate(x, scale_factor=2.0, mode="nearest"))
        x = self.up(torch.cat([x, skipped], 1), time)
        predicted_noise = self.conv_out(F.silu(self.conv_norm_out(x)))
        return F.mse_loss(predicted_noise, noise), predicted_noise


def build(config):
    return UNet(config.get("width", 8))


def batch(config, rng):
    return {"images": rng.standard_normal((3, 3, 6, 6)), "steps": rng.integers(0, 50, 3)}
