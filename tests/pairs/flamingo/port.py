"""Flamingo's parts in Paddle: latents that attend to images, and text that attends to the latents of its image."""

import paddle
from paddle import nn
from paddle.nn import functional as F

WIDTH, HEADS, LATENTS = 16, 2, 3


def split_heads(x):
    return x.reshape([0, 0, HEADS, -1]).transpose([0, 2, 1, 3])


def merge_heads(x):
    return x.transpose([0, 2, 1, 3]).flatten(2)


class FeedForward(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH, bias_attr=False)
        self.down = nn.Linear(2 * WIDTH, WIDTH, bias_attr=False)

    def forward(self, x):
        return self.down(F.gelu(self.up(self.norm(x))))


class CrossAttention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.q, self.out = nn.Linear(WIDTH, WIDTH, bias_attr=False), nn.Linear(WIDTH, WIDTH, bias_attr=False)
        self.kv = nn.Linear(WIDTH, 2 * WIDTH, bias_attr=False)

    def forward(self, x, media, mask=None):
        k, v = (split_heads(half) for half in self.kv(media).chunk(2, -1))
        q = split_heads(self.q(x)) * (WIDTH // HEADS) ** -0.5
        scores = paddle.matmul(q, k, transpose_y=True)
        if mask is not None:
            scores = paddle.where(mask.unsqueeze(1), scores, paddle.full_like(scores, -1e30))
        probabilities = F.softmax(scores, -1)
        if mask is not None:
            sees_image = mask.any(-1).unsqueeze([1, 3])
            probabilities = probabilities * sees_image.astype(probabilities.dtype)
        return self.out(merge_heads(probabilities @ v))


class Resampler(nn.Layer):
    def __init__(self):
        super().__init__()
        self.latents = self.create_parameter([LATENTS, WIDTH])
        self.media_positions = self.create_parameter([2, 1, WIDTH])
        self.norm_media = nn.LayerList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.attentions = nn.LayerList([CrossAttention() for _ in range(2)])
        self.feed_forwards = nn.LayerList([FeedForward() for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, media):
        count, images, patches, _ = media.shape
        media = (media + self.media_positions).reshape([count * images, patches, WIDTH])
        latents = self.latents.unsqueeze(0).expand([count * images, LATENTS, WIDTH])
        for norm_media, attention, feed_forward in zip(
            self.norm_media, self.attentions, self.feed_forwards, strict=True
        ):
            queries = attention.norm(latents)
            latents = latents + attention(queries, paddle.concat([norm_media(media), queries], 1))
            latents = latents + feed_forward(latents)
        return self.norm(latents).reshape([count, images * LATENTS, WIDTH])


class GatedCrossAttention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = CrossAttention(), FeedForward()
        self.attention_gate = self.create_parameter([1], default_initializer=nn.initializer.Constant(0.4))
        self.feed_forward_gate = self.create_parameter([1], default_initializer=nn.initializer.Constant(-0.3))

    def forward(self, x, media, mask):
        attended = self.attention(self.attention.norm(x), media, mask)
        x = x + F.tanh(self.attention_gate) * attended
        return x + F.tanh(self.feed_forward_gate) * self.feed_forward(x)


class FrozenNorm(nn.LayerNorm):
    """A layer norm with frozen weights. Paddle's own kernel takes such a gain for 1 in its backward."""

    def forward(self, x):
        return F.layer_norm(x, WIDTH) * self.weight + self.bias


class DecoderLayer(nn.Layer):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = FrozenNorm(WIDTH), FrozenNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.linear1, self.linear2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (split_heads(part) for part in self.qkv(self.norm1(x)).chunk(3, -1))
        scores = paddle.matmul(q, k, transpose_y=True) / (WIDTH // HEADS) ** 0.5
        is_later = paddle.ones([x.shape[1], x.shape[1]]).triu(1).astype("bool")
        scores = scores.masked_fill(is_later, -1e30)
        x = x + self.out(merge_heads(F.softmax(scores, -1) @ v))
        return x + self.linear2(F.relu(self.linear1(self.norm2(x))))


class Flamingo(nn.Layer):
    def __init__(self):
        super().__init__()
        self.resampler = Resampler()
        self.tokens = nn.Embedding(30, WIDTH)
        self.cross_attentions = nn.LayerList([GatedCrossAttention() for _ in range(2)])
        self.layers = nn.LayerList([DecoderLayer() for _ in range(2)])
        self.norm = FrozenNorm(WIDTH)
        for layer in (self.tokens, self.layers, self.norm):
            for parameter in layer.parameters():
                parameter.stop_gradient = True

    def forward(self, input_ids, media, labels):
        image_numbers = (input_ids == 1).astype("int64").cumsum(1)
        latent_numbers = paddle.arange(1, media.shape[1] + 1).repeat_interleave(LATENTS)
        mask = image_numbers.unsqueeze(-1) == latent_numbers
        media = self.resampler(media)
        x = self.tokens(input_ids)
        for cross_attention, layer in zip(self.cross_attentions, self.layers, strict=True):
            x = layer(cross_attention(x, media, mask))
        logits = paddle.matmul(self.norm(x), self.tokens.weight, transpose_y=True)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits


def build(config):
    return Flamingo()
