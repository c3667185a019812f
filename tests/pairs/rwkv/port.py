"""RWKV-4 in Paddle."""

import paddle
from paddle import nn
from paddle.nn import functional as F


def linear(in_features, out_features):
    return nn.Linear(in_features, out_features, bias_attr=False)


def shift(x):
    """Return the token before each token of ``x``, (batch, length, channels); zeros before the first."""
    return F.pad(x, [1, 0], data_format="NLC")[:, :-1]


class Mixing(nn.Layer):
    """A layer that mixes its inputs with the inputs of the previous token."""

    def mixing(self, hidden_size):
        return self.create_parameter([1, 1, hidden_size], default_initializer=nn.initializer.Uniform(0, 1))

    @staticmethod
    def mix(x, previous, share):
        return x * share + previous * (1 - share)


class TimeMixing(Mixing):
    def __init__(self, hidden_size):
        super().__init__()
        self.time_decay = self.create_parameter([hidden_size], default_initializer=nn.initializer.Uniform(-5, 3))
        self.time_first = self.create_parameter([hidden_size], default_initializer=nn.initializer.Normal())
        self.time_mix_key, self.time_mix_value = self.mixing(hidden_size), self.mixing(hidden_size)
        self.time_mix_receptance = self.mixing(hidden_size)
        self.key, self.value = linear(hidden_size, hidden_size), linear(hidden_size, hidden_size)
        self.receptance, self.output = linear(hidden_size, hidden_size), linear(hidden_size, hidden_size)

    def average(self, key, value):
        """Return for each token the average of the values so far, weighted by key and age."""
        numerator = denominator = paddle.zeros_like(key[:, 0])
        largest = paddle.full_like(key[:, 0], -1e38)
        decay, averages = -paddle.exp(self.time_decay), []
        for k, v in zip(key.unbind(1), value.unbind(1), strict=True):
            current = k + self.time_first
            top = paddle.maximum(largest, current)
            past, present = paddle.exp(largest - top), paddle.exp(current - top)
            averages.append((past * numerator + present * v) / (past * denominator + present))
            top = paddle.maximum(largest + decay, k)
            past, present = paddle.exp(largest + decay - top), paddle.exp(k - top)
            numerator, denominator = past * numerator + present * v, past * denominator + present
            largest = top
        return paddle.stack(averages, 1)

    def forward(self, x):
        previous = shift(x)
        key = self.key(self.mix(x, previous, self.time_mix_key))
        value = self.value(self.mix(x, previous, self.time_mix_value))
        receptance = F.sigmoid(self.receptance(self.mix(x, previous, self.time_mix_receptance)))
        return self.output(receptance * self.average(key, value))


class ChannelMixing(Mixing):
    def __init__(self, hidden_size, intermediate_size):
        super().__init__()
        self.time_mix_key, self.time_mix_receptance = self.mixing(hidden_size), self.mixing(hidden_size)
        self.key, self.value = linear(hidden_size, intermediate_size), linear(intermediate_size, hidden_size)
        self.receptance = linear(hidden_size, hidden_size)

    def forward(self, x):
        previous = shift(x)
        key = F.relu(self.key(self.mix(x, previous, self.time_mix_key)))
        receptance = F.sigmoid(self.receptance(self.mix(x, previous, self.time_mix_receptance)))
        return receptance * self.value(key**2)


class Block(nn.Layer):
    def __init__(self, hidden_size, is_first):
        super().__init__()
        self.pre_ln = nn.LayerNorm(hidden_size, 1e-5) if is_first else nn.Identity()
        self.ln1, self.ln2 = nn.LayerNorm(hidden_size, 1e-5), nn.LayerNorm(hidden_size, 1e-5)
        self.attention, self.feed_forward = TimeMixing(hidden_size), ChannelMixing(hidden_size, 4 * hidden_size)

    def forward(self, x):
        x = self.pre_ln(x)
        x = x + self.attention(self.ln1(x))
        return x + self.feed_forward(self.ln2(x))


class Rwkv(nn.Layer):
    def __init__(self, vocab_size, hidden_size):
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, hidden_size)
        self.blocks = nn.LayerList([Block(hidden_size, number == 0) for number in range(2)])
        self.ln_out, self.head = nn.LayerNorm(hidden_size, 1e-5), linear(hidden_size, vocab_size)

    def forward(self, input_ids, labels):
        x = self.embeddings(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.ln_out(x))
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def build(config):
    return Rwkv(61, 16)
