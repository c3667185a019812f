"""Test models of vision, audio, generation and training as pairs: the correct port passes, and faults are named."""

from __future__ import annotations

import pytest
from faulty_ports import PAIRS, Fault, line_number, named_lines, run_gate
from soak import some

#: Correct ports: folder of the pair, with the configuration.
CORRECT = (
    "clip", "convnext", "detr", "flamingo", "gan", "quantization", "siglip", "swin", "unet", "vae",
    "wav2vec2", "wav2vec2 norm=layer", "whisper",
)  # fmt: skip
FAULTS = {
    "clip": {
        "detached sigmoid": Fault(
            "F.sigmoid(1.702 * x)",
            "F.sigmoid(1.702 * x.detach())",
            near="the backward into output of text_model.encoder.layers.1.mlp.fc1",
        ),
        "exact gelu": Fault("return x * F.sigmoid(1.702 * x)", "return F.gelu(x)"),
        "no causal mask": Fault(
            "paddle.logical_or(is_later", "paddle.logical_and(is_later", near="is_later = paddle.ones("
        ),
        "last token": Fault("input_ids.argmax(-1)]", "-1]"),
        "one direction": Fault("F.cross_entropy(logits.T, targets)", "F.cross_entropy(logits, targets)"),
    },
    "siglip": {
        "epsilon": Fault("self.final_norm = nn.LayerNorm(WIDTH, 1e-6)", "self.final_norm = nn.LayerNorm(WIDTH)"),
        "exact gelu": Fault("approximate=True", "approximate=False"),
        "mean of all pairs": Fault("logits).sum(-1).mean()", "logits).mean()"),
        "bias within the scale": Fault(
            "self.logit_scale.exp() + self.logit_bias",
            "(self.logit_scale + self.logit_bias).exp()",
            near="the gradient of logit_bias",
        ),
        "first token": Fault("self.head(x[:, -1])", "self.head(x[:, 0])"),
    },
    "swin": {
        "no window mask": Fault(
            "shifted_window_mask(size, size, WINDOW, shift) if shift else None", "None", near="F.softmax(scores, -1)"
        ),
        "mask value": Fault("-100.0, 0.0)", "-10.0, 0.0)", near="by_window + mask.astype("),
        "bias table": Fault("row_offsets * (2 * window - 1)", "row_offsets * (2 * window)", near="(WindowAttention, "),
        "order of corners": Fault(
            "for column in (0, 1) for row in (0, 1)",
            "for row in (0, 1) for column in (0, 1)",
            near="paddle.concat(corners, -1)",
        ),
        "shift back": Fault("y.roll([self.shift, self.shift]", "y.roll([-self.shift, -self.shift]"),
    },
    "convnext": {
        "epsilon": Fault("self.norm = nn.LayerNorm(WIDTHS[1], 1e-12)", "self.norm = nn.LayerNorm(WIDTHS[1], 1e-6)"),
        "no layer scale": Fault("y = self.gamma * y", "y = 0.1 * y"),
        "unscaled drop path": Fault("x / keep_rate * keep_mask", "x * keep_mask"),
        "gelu by tanh": Fault("F.gelu(y)", "F.gelu(y, approximate=True)"),
        "norm over rows": Fault("x - x.mean(1, keepdim=True)", "x - x.mean(2, keepdim=True)"),
    },
    "whisper": {
        "bias of the key": Fault(
            "k_proj = nn.Linear(WIDTH, WIDTH, bias_attr=False)", "k_proj = nn.Linear(WIDTH, WIDTH)"
        ),
        "no causal mask": Fault("is_causal=True", "is_causal=False", near="F.softmax(scores, -1)"),
        "padding row is trained": Fault(
            "x.detach(), x)", "x, x)", near="the gradient of model.decoder.embed_tokens.weight"
        ),
        "no scale": Fault(
            "self.split_heads(self.q_proj(x)) * (WIDTH // HEADS) ** -0.5",
            "self.split_heads(self.q_proj(x))",
            near="scores = paddle.matmul(q, k",
        ),
        "memory without norm": Fault("return self.norm(x)\n", "return x\n"),
    },
    "wav2vec2": {
        "axis of the weight norm": Fault("groups=2), dim=2)", "groups=2), dim=0)"),
        "no embedding of masked steps": Fault("self.masked_spec_embed, x)", "self.masked_spec_embed * 0, x)"),
        "last frame": Fault("[:, :, :-1]", "[:, :, 1:]"),
        "group norm": Fault("nn.GroupNorm(8, 8)", "nn.GroupNorm(4, 8)"),
        "number of frames": Fault("// stride + 1", "// stride"),
    },
    "detr": {
        "positions in the values": Fault(
            "(placed, placed, x, mask)",
            "(placed, placed, placed, mask)",
            near="model.encoder.layers.0.self_attn.v_proj (Linear, ",
        ),
        "weight of no object": Fault(
            "[1.0, 1.0, 1.0, 0.1]", "[0.1, 1.0, 1.0, 1.0]", near="F.cross_entropy(logits.flatten(0, 1)"
        ),
        "sines without pairs": Fault(
            "(2 * (paddle.arange(half) // 2)", "(1 * (paddle.arange(half) // 1)", near="angles[..., 0::2].sin()"
        ),
        "no mask in the decoder": Fault(
            "memory + positions, memory, mask)", "memory + positions, memory)", near="F.softmax(scores, -1)"
        ),
        "overlap": Fault("(hull - union) / hull", "(hull - union) / union"),
    },
    "vae": {
        "deviation": Fault(
            "paddle.exp(log_variance / 2)", "paddle.exp(log_variance)", near="deviation * paddle.randn("
        ),
        "divergence": Fault("log_variance.exp() - log_variance - 1", "log_variance.exp() - log_variance"),
        "mean over pixels": Fault("elements.sum([1, 2, 3]).mean()", "elements.mean()"),
        "detached deviation": Fault(
            "latent = mean + deviation *",
            "latent = mean + deviation.detach() *",
            near="the backward into output of to_log_variance",
        ),
        "slope": Fault("F.leaky_relu(self.conv1(images), 0.2)", "F.leaky_relu(self.conv1(images))"),
    },
    "gan": {
        "not detached": Fault("generated.detach()", "generated", near="the backward into output of generator"),
        "sign": Fault("F.softplus(-scores)", "F.softplus(scores)"),
        "mean of features": Fault("x = x.sum([2, 3])", "x = x.mean([2, 3])"),
        "no spectral norm": Fault(
            "spectral_norm(nn.Embedding(4, 8), dim=0)", "nn.Embedding(4, 8)", near="discriminator.labels"
        ),
        "epsilon": Fault("self.norm2 = nn.InstanceNorm2D(8)", "self.norm2 = nn.InstanceNorm2D(8, epsilon=1e-3)"),
    },
    "quantization": {
        "gradient of rounding": Fault(
            "StraightThroughRound.apply(levels)", "paddle.round(levels)", near="the gradient of act2.step_size"
        ),
        "range": Fault("paddle.clip(x / step_size, 0, 15)", "paddle.clip(x / step_size, -8, 7)"),
        "scale of the gradient": Fault(
            "(15 * x.shape[0] * 4) ** 0.5", "(15 * x.shape[0]) ** 0.5", near="the gradient of act2.step_size"
        ),
        "scale of the whole weight": Fault(".abs().max(0, keepdim=True)", ".abs().max()"),
        "weight without gradient": Fault(
            "self.weight + (levels * scale - self.weight).detach()", "levels * scale + 0 * self.weight"
        ),
    },
    "flamingo": {
        "gate without tanh": Fault("F.tanh(self.attention_gate) * attended", "self.attention_gate * attended"),
        "all earlier images": Fault(
            "image_numbers.unsqueeze(-1) == latent",
            "image_numbers.unsqueeze(-1) >= latent",
            near="paddle.where(mask.unsqueeze(1)",
        ),
        "latents do not see themselves": Fault(
            "paddle.concat([norm_media(media), queries], 1)",
            "norm_media(media)",
            near="resampler.attentions.0.to_kv (Linear, ",
        ),
        "text before an image": Fault(
            "probabilities * sees_image.astype(probabilities.dtype)",
            "probabilities * 1.0",
            near="self.out(merge_heads(probabilities @ v))",
        ),
        "frozen gain": Fault("return F.layer_norm(x, WIDTH) * self.weight + self.bias", "return super().forward(x)"),
    },
    "unet": {
        "groups": Fault("self.norm_out = nn.GroupNorm(4, width)", "self.norm_out = nn.GroupNorm(2, width)"),
        "epsilon": Fault("self.norm = nn.GroupNorm(4, width, epsilon=1e-6)", "self.norm = nn.GroupNorm(4, width)"),
        "sine before cosine": Fault(
            "[paddle.cos(angles), paddle.sin(angles)]", "[paddle.sin(angles), paddle.cos(angles)]"
        ),
        "padding on the other sides": Fault("F.pad(skipped, [0, 1, 0, 1])", "F.pad(skipped, [1, 0, 1, 0])"),
        "no activation of time": Fault(
            "self.time_proj(F.silu(time))", "self.time_proj(time)", near="down.time_emb_proj (Linear, "
        ),
    },
}
EDITS = [(pair, name) for pair, faults in FAULTS.items() for name in faults]
#: By fault that the headline names at another place, this place and the reason.
NAMED_ELSEWHERE = {
    "whisper memory without norm": "the projection that reads it: the norm, which would be named, does not run",
    "quantization weight without gradient": "the first use of the weight: without a gradient its layout is not known",
    "flamingo frozen gain": "the layer before it: Paddle's kernel computes the backward of the norm",
}


@pytest.mark.slow
@pytest.mark.parametrize("pair", CORRECT)
def test_a_correct_port_passes(pair, command_line, tmp_path):
    status, out = run_gate(command_line, pair, PAIRS / pair.split()[0] / "port.py", tmp_path)
    assert status == 0 and out.startswith("PARITY "), out


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "name"), some(EDITS, 3))
def test_a_fault_is_named(pair, name, command_line, tmp_path):
    """The headline names the edited line, or the module or line next to it."""
    fault = FAULTS[pair][name]
    lines = {line_number(fault.correct, (PAIRS / pair / "port.py").read_text())}
    port, source = fault.put_into(pair, tmp_path)
    if fault.near and fault.near in source:
        lines.add(line_number(fault.near, source))
    status, out = run_gate(command_line, pair, port, tmp_path, "--dtype", "float64")
    headline = out.splitlines()[0]
    assert status == 1 and headline.startswith("DRIFT "), out
    if f"{pair} {name}" not in NAMED_ELSEWHERE:
        assert named_lines(headline) & lines or (fault.near and fault.near in headline), out


def test_every_exception_names_an_existing_fault():
    assert {*NAMED_ELSEWHERE} <= {" ".join(edit) for edit in EDITS}
