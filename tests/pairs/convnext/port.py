"""ConvNeXt (Liu et al. 2022) in Paddle: depthwise convolutions, layer scale and stochastic depth."""

import numpy as np
import paddle
from paddle import nn
from paddle.nn import functional as F

WIDTHS, DEPTHS, DROP_PATH_RATE = (8, 16), (2, 1), 0.4


class ChannelNorm(nn.Layer):
    """Layer norm over the channels of images, (N, C, H, W)."""

    def __init__(self, channels, epsilon):
        super().__init__()
        self.weight = self.create_parameter([channels], default_initializer=nn.initializer.Constant(1.0))
        self.bias = self.create_parameter([channels], is_bias=True)
        self.epsilon = epsilon

    def forward(self, x):
        deviation = x - x.mean(1, keepdim=True)
        variance = deviation.square().mean(1, keepdim=True)
        y = deviation / paddle.sqrt(variance + self.epsilon)
        return y * self.weight.reshape([1, -1, 1, 1]) + self.bias.reshape([1, -1, 1, 1])


class DropPath(nn.Layer):
    def __init__(self, rate):
        super().__init__()
        self.rate = rate

    def forward(self, x):
        if not self.training or self.rate == 0.0:
            return x
        keep_rate = 1.0 - self.rate
        keep_mask = paddle.floor(keep_rate + paddle.rand([x.shape[0], 1, 1, 1]))
        return x / keep_rate * keep_mask


class Block(nn.Layer):
    def __init__(self, width, drop_path_rate):
        super().__init__()
        self.dwconv = nn.Conv2D(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, 1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = self.create_parameter([width], default_initializer=nn.initializer.Constant(0.1))
        self.drop_path = DropPath(drop_path_rate)

    def forward(self, x):
        y = self.dwconv(x).transpose([0, 2, 3, 1])
        y = self.pwconv1(self.norm(y))
        y = F.gelu(y)
        y = self.pwconv2(y)
        y = self.gamma * y
        return x + self.drop_path(y.transpose([0, 3, 1, 2]))


class ConvNeXt(nn.Layer):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2D(3, WIDTHS[0], 2, stride=2), ChannelNorm(WIDTHS[0], 1e-6))
        self.downsample = nn.Sequential(ChannelNorm(WIDTHS[0], 1e-6), nn.Conv2D(*WIDTHS, 2, stride=2))
        rates = np.linspace(0.0, DROP_PATH_RATE, sum(DEPTHS))
        self.stage0 = nn.Sequential(*(Block(WIDTHS[0], rate) for rate in rates[: DEPTHS[0]]))
        self.stage1 = nn.Sequential(*(Block(WIDTHS[1], rate) for rate in rates[DEPTHS[0] :]))
        self.norm = nn.LayerNorm(WIDTHS[1], 1e-12)
        self.head = nn.Linear(WIDTHS[1], 5)

    def forward(self, pixel_values, labels):
        x = self.stage0(self.stem(pixel_values))
        x = self.stage1(self.downsample(x))
        logits = self.head(self.norm(x.mean([2, 3])))
        return F.cross_entropy(logits, labels), logits


def build(config):
    return ConvNeXt()
