"""CLIP (Radford et al. 2021) in Paddle: two encoders, normalized embeddings and a contrastive loss both ways."""

import paddle
from paddle import nn
from paddle.nn import functional as F

WIDTH, HEADS, PROJECTION_WIDTH = 16, 2, 12


def quick_gelu(x):
    return x * F.sigmoid(1.702 * x)


class Attention(nn.Layer):
    def __init__(self):
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.v_proj, self.out_proj = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.scale = (WIDTH // HEADS) ** -0.5

    def split_heads(self, x):
        return x.reshape([0, 0, HEADS, WIDTH // HEADS]).transpose([0, 2, 1, 3])

    def forward(self, x, hidden_mask=None):
        q = self.split_heads(self.q_proj(x)) * self.scale
        scores = q @ self.split_heads(self.k_proj(x)).transpose([0, 1, 3, 2])
        if hidden_mask is not None:
            scores = paddle.where(hidden_mask, paddle.full_like(scores, -1e30), scores)
        context = self.dropout(F.softmax(scores)) @ self.split_heads(self.v_proj(x))
        return self.out_proj(context.transpose([0, 2, 1, 3]).flatten(2))


class Block(nn.Layer):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attn = Attention()
        self.fc1, self.fc2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, hidden_mask=None):
        x = x + self.attn(self.ln_1(x), hidden_mask)
        return x + self.fc2(quick_gelu(self.fc1(self.ln_2(x))))


class TextEncoder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.token_embedding = nn.Embedding(40, WIDTH)
        self.position_embedding = nn.Embedding(10, WIDTH)
        self.blocks = nn.LayerList([Block() for _ in range(2)])
        self.ln_final = nn.LayerNorm(WIDTH)

    def forward(self, input_ids, attention_mask):
        length = input_ids.shape[1]
        x = self.token_embedding(input_ids) + self.position_embedding(paddle.arange(length))
        is_later = paddle.ones([length, length]).triu(1).astype("bool")
        hidden_mask = paddle.logical_or(is_later, attention_mask[:, None, None, :] == 0)
        for block in self.blocks:
            x = block(x, hidden_mask)
        x = self.ln_final(x)
        return x[paddle.arange(x.shape[0]), input_ids.argmax(-1)]


class VisionEncoder(nn.Layer):
    def __init__(self):
        super().__init__()
        self.class_embedding = self.create_parameter([WIDTH], default_initializer=nn.initializer.Normal())
        self.patch_embedding = nn.Conv2D(3, WIDTH, 4, stride=4, bias_attr=False)
        self.position_embedding = nn.Embedding(5, WIDTH)
        self.ln_pre, self.ln_post = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.blocks = nn.LayerList([Block() for _ in range(2)])

    def forward(self, pixel_values):
        patches = self.patch_embedding(pixel_values).flatten(2).transpose([0, 2, 1])
        first = self.class_embedding.expand([patches.shape[0], 1, WIDTH])
        x = paddle.concat([first, patches], 1) + self.position_embedding(paddle.arange(5))
        x = self.ln_pre(x)
        for block in self.blocks:
            x = block(x)
        return self.ln_post(x[:, 0])


class CLIP(nn.Layer):
    def __init__(self):
        super().__init__()
        self.text_model, self.vision_model = TextEncoder(), VisionEncoder()
        self.text_projection = nn.Linear(WIDTH, PROJECTION_WIDTH, bias_attr=False)
        self.visual_projection = nn.Linear(WIDTH, PROJECTION_WIDTH, bias_attr=False)
        self.logit_scale = self.create_parameter([1], default_initializer=nn.initializer.Constant(2.6592))

    def forward(self, input_ids, attention_mask, pixel_values):
        texts = self.text_projection(self.text_model(input_ids, attention_mask))
        images = self.visual_projection(self.vision_model(pixel_values))
        texts = texts / texts.square().sum(-1, keepdim=True).sqrt()
        images = images / images.square().sum(-1, keepdim=True).sqrt()
        logits = self.logit_scale.exp() * (texts @ images.T)
        targets = paddle.arange(logits.shape[0])
        return (F.cross_entropy(logits, targets) + F.cross_entropy(logits.T, targets)) / 2


def build(config):
    return CLIP()
