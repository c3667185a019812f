"""The generative adversarial network in Paddle: both losses in one step, the generated images detached in one."""

import paddle
from paddle import nn
from paddle.nn import functional as F
from paddle.nn.utils import spectral_norm


class Generator(nn.Layer):
    def __init__(self):
        super().__init__()
        self.class_embedding = nn.Embedding(4, 6)
        self.fc = nn.Linear(12, 8 * 4)
        self.norm1 = nn.InstanceNorm2D(8)
        self.deconv = nn.Conv2DTranspose(8, 8, 4, stride=2, padding=1, bias_attr=False)
        self.norm2 = nn.InstanceNorm2D(8)
        self.to_rgb = nn.Conv2D(8, 3, 3, padding=1)

    def forward(self, noise, labels):
        x = paddle.concat([noise, self.class_embedding(labels)], 1)
        x = self.fc(x).reshape([-1, 8, 2, 2])
        x = self.deconv(F.relu(self.norm1(x)))
        x = self.to_rgb(F.relu(self.norm2(x)))
        return F.tanh(x)


class Discriminator(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv1 = spectral_norm(nn.Conv2D(3, 8, 3, padding=1), dim=0)
        self.conv2 = spectral_norm(nn.Conv2D(8, 8, 4, stride=2, padding=1), dim=0)
        self.fc = spectral_norm(nn.Linear(8, 1), dim=1)
        self.class_embedding = spectral_norm(nn.Embedding(4, 8), dim=0)

    def forward(self, images, labels):
        x = F.leaky_relu(self.conv1(images), 0.1)
        x = F.leaky_relu(self.conv2(x), 0.1)
        x = x.sum([2, 3])
        projection = (self.class_embedding(labels) * x).sum(1)
        return self.fc(x).squeeze(1) + projection


class Adversaries(nn.Layer):
    def __init__(self):
        super().__init__()
        self.generator = Generator()
        self.discriminator = Discriminator()

    def forward(self, images, noise, labels):
        generated = self.generator(noise, labels)
        real_scores = self.discriminator(images, labels)
        generated_scores = self.discriminator(generated.detach(), labels)
        hinges = F.relu(1.0 - real_scores).mean(), F.relu(1.0 + generated_scores).mean()
        scores = self.discriminator(generated, labels)
        return hinges[0] + hinges[1], F.softplus(-scores).mean()


def build(config):
    return Adversaries()


def loss(model, batch):
    discriminator_loss, generator_loss = model(**batch)
    return {"discriminator": discriminator_loss, "generator": generator_loss}
