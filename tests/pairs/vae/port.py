"""The variational autoencoder in Paddle: reparameterized latents and the divergence from a standard normal."""

import paddle
from paddle import nn
from paddle.nn import functional as F


class Encoder(nn.Layer):
    def __init__(self, latent_size):
        super().__init__()
        self.conv1 = nn.Conv2D(1, 8, 4, stride=2, padding=1)
        self.conv2 = nn.Conv2D(8, 16, 4, stride=2, padding=1)
        self.mean = nn.Linear(64, latent_size)
        self.log_variance = nn.Linear(64, latent_size)

    def forward(self, images):
        x = F.leaky_relu(self.conv1(images), 0.2)
        x = F.silu(self.conv2(x)).flatten(1)
        return self.mean(x), self.log_variance(x).clip(-10.0, 10.0)


class Decoder(nn.Layer):
    def __init__(self, latent_size):
        super().__init__()
        self.project = nn.Linear(latent_size, 64)
        self.deconv1 = nn.Conv2DTranspose(16, 8, 4, stride=2, padding=1)
        self.deconv2 = nn.Conv2DTranspose(8, 1, 3, stride=2, padding=1, output_padding=1)

    def forward(self, latent):
        x = self.project(latent).reshape([-1, 16, 2, 2])
        return self.deconv2(F.elu(self.deconv1(x)))


class Autoencoder(nn.Layer):
    def __init__(self, latent_size, beta):
        super().__init__()
        self.beta = beta
        self.encoder = Encoder(latent_size)
        self.decoder = Decoder(latent_size)

    def forward(self, images):
        mean, log_variance = self.encoder(images)
        latent = mean
        if self.training:
            deviation = paddle.exp(log_variance / 2)
            latent = mean + deviation * paddle.randn(mean.shape)
        logits = self.decoder(latent)
        elements = F.binary_cross_entropy_with_logits(logits, images, reduction="none")
        likelihood = elements.sum([1, 2, 3]).mean()
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1)
        divergence = divergence.sum(1).mean()
        return likelihood + self.beta * divergence, logits


def build(config):
    return Autoencoder(config.get("latent_size", 6), config.get("beta", 0.7))
