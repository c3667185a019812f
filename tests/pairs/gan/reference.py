"""A generative adversarial network with spectral norm (Miyato et al. 2018), and the batch that both sides get."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import spectral_norm


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.labels = nn.Embedding(4, 6)
        self.project = nn.Linear(12, 8 * 4)
        self.norm1 = nn.InstanceNorm2d(8, affine=True)
        self.up = nn.ConvTranspose2d(8, 8, 4, stride=2, padding=1, bias=False)
        self.norm2 = nn.InstanceNorm2d(8, affine=True)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, noise, labels):
        x = self.project(torch.cat([noise, self.labels(labels)], 1)).view(-1, 8, 2, 2)
        x = self.up(F.relu(self.norm1(x)))
        return torch.tanh(self.out(F.relu(self.norm2(x))))


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2d(3, 8, 3, padding=1))
        self.conv2 = spectral_norm(nn.Conv2d(8, 8, 4, stride=2, padding=1))
        self.score = spectral_norm(nn.Linear(8, 1))
        self.labels = spectral_norm(nn.Embedding(4, 8))

    def forward(self, images, labels):
        x = F.leaky_relu(self.conv1(images), 0.1)
        x = F.leaky_relu(self.conv2(x), 0.1).sum((2, 3))
        return self.score(x).squeeze(1) + (self.labels(labels) * x).sum(1)


class Adversaries(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = Generator()
        self.discriminator = Discriminator()

    def forward(self, images, noise, labels):
        generated = self.generator(noise, labels)
        real_scores = self.discriminator(images, labels)
        generated_scores = self.discriminator(generated.detach(), labels)
        discriminator_loss = F.relu(1 - real_scores).mean() + F.relu(1 + generated_scores).mean()
        generator_loss = F.softplus(-self.discriminator(generated, labels)).mean()
        return discriminator_loss, generator_loss


def build(config):
    return Adversaries()


def batch(config, rng):
    images, noise = rng.uniform(-1, 1, (4, 3, 4, 4)), rng.standard_normal((4, 6))
    return {"images": images, "noise": noise, "labels": rng.integers(0, 4, 4)}


def loss(model, batch):
    discriminator_loss, generator_loss = model(**batch)
    return {"discriminator": discriminator_loss, "generator": generator_loss}
