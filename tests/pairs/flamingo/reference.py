"""Flamingo's parts (Alayrac et al. 2022): a Perceiver resampler and gated cross attention between frozen layers."""

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, HEAD_WIDTH, LATENTS = 16, 2, 8, 3


def feed_forward():
    return nn.Sequential(
        nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH, bias=False), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH, bias=False)
    )


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.to_q = nn.Linear(WIDTH, HEADS * HEAD_WIDTH, bias=False)
        self.to_kv = nn.Linear(WIDTH, 2 * HEADS * HEAD_WIDTH, bias=False)
        self.to_out = nn.Linear(HEADS * HEAD_WIDTH, WIDTH, bias=False)

    def forward(self, x, media, mask=None):
        heads = [one.unflatten(-1, (HEADS, HEAD_WIDTH)).transpose(1, 2) for one in
                 (self.to_q(x), *self.to_kv(media).chunk(2, -1))]  # fmt: skip
        query, key, value = heads
        scores = query * HEAD_WIDTH**-0.5 @ key.transpose(-1, -2)
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None], -torch.finfo(scores.dtype).max)
        probabilities = scores.softmax(-1)
        if mask is not None:
            probabilities = probabilities.masked_fill(~mask.any(-1)[:, None, :, None], 0.0)
        return self.to_out((probabilities @ value).transpose(1, 2).flatten(2))


class Resampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.latents = nn.Parameter(torch.randn(LATENTS, WIDTH))
        self.media_positions = nn.Parameter(torch.randn(2, 1, WIDTH))
        self.norm_media = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(2)])
        self.attentions = nn.ModuleList([Attention() for _ in range(2)])
        self.feed_forwards = nn.ModuleList([feed_forward() for _ in range(2)])
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, media):
        count, images = media.shape[:2]
        media = (media + self.media_positions).flatten(0, 1)
        latents = self.latents.expand(count * images, -1, -1)
        for norm_media, attention, dense in zip(self.norm_media, self.attentions, self.feed_forwards, strict=True):
            y = attention.norm(latents)
            latents = latents + attention(y, torch.cat([norm_media(media), y], 1))
            latents = latents + dense(latents)
        return self.norm(latents).unflatten(0, (count, images)).flatten(1, 2)


class GatedCrossAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.feed_forward = Attention(), feed_forward()
        self.attention_gate, self.feed_forward_gate = (nn.Parameter(torch.tensor([number])) for number in (0.4, -0.3))

    def forward(self, x, media, mask):
        x = x + self.attention(self.attention.norm(x), media, mask) * self.attention_gate.tanh()
        return x + self.feed_forward(x) * self.feed_forward_gate.tanh()


class Flamingo(nn.Module):
    def __init__(self):
        super().__init__()
        self.resampler = Resampler()
        self.tokens = nn.Embedding(30, WIDTH)
        self.cross_attentions = nn.ModuleList([GatedCrossAttention() for _ in range(2)])
        self.layers = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, 0.0, batch_first=True, norm_first=True)
                for _ in range(2)
            ]
        )
        self.norm = nn.LayerNorm(WIDTH)
        for part in (self.layers, self.tokens, self.norm):
            part.requires_grad_(False)

    def forward(self, input_ids, media, labels):
        image_numbers = (input_ids == 1).cumsum(1)  # of the last image before each token; 0 before the first
        latent_numbers = torch.arange(1, media.shape[1] + 1).repeat_interleave(LATENTS)
        mask = image_numbers[:, :, None] == latent_numbers
        media, x = self.resampler(media), self.tokens(input_ids)
        is_later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        for cross_attention, layer in zip(self.cross_attentions, self.layers, strict=True):
            x = layer(cross_attention(x, media, mask), is_later)
        logits = F.linear(self.norm(x), self.tokens.weight)
        return F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()), logits


def build(config):
    return Flamingo()


def batch(config, rng):
    input_ids = rng.integers(2, 30, (2, 8))
    input_ids[0, [1, 4]] = input_ids[1, [0, 6]] = 1
    return {"input_ids": input_ids, "media": rng.standard_normal((2, 2, 4, 16)), "labels": input_ids}
