"""A variational autoencoder (Kingma and Welling 2014) with convolutions, and the batch that both sides get."""

import torch
from torch import nn
from torch.nn import functional as F


class Autoencoder(nn.Module):
    def __init__(self, latent_size, beta):
        super().__init__()
        self.beta = beta
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 4, stride=2, padding=1),
            nn.LeakyReLU(0.2),
            nn.Conv2d(8, 16, 4, stride=2, padding=1),
            nn.SiLU(),
        )
        self.to_mean = nn.Linear(64, latent_size)
        self.to_log_variance = nn.Linear(64, latent_size)
        self.expand = nn.Linear(latent_size, 64)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1),
            nn.ELU(),
            nn.ConvTranspose2d(8, 1, 3, stride=2, padding=1, output_padding=1),
        )

    def forward(self, images):
        states = self.encoder(images).flatten(1)
        mean, log_variance = self.to_mean(states), self.to_log_variance(states).clamp(-10.0, 10.0)
        latent = mean
        if self.training:
            latent = mean + torch.exp(0.5 * log_variance) * torch.randn_like(mean)
        logits = self.decoder(self.expand(latent).view(-1, 16, 2, 2))
        likelihood = F.binary_cross_entropy_with_logits(logits, images, reduction="none").flatten(1).sum(1).mean()
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return {"loss": likelihood + self.beta * divergence, "logits": logits}


def build(config):
    return Autoencoder(config.get("latent_size", 6), config.get("beta", 0.7))


def batch(config, rng):
    return {"images": rng.random((5, 1, 8, 8))}
