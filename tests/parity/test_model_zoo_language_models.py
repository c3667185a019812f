"""Test language models and taggers as pairs: correct ports pass, and realistic faults are named by their lines."""

from __future__ import annotations

import ast

import pytest
from faulty_ports import PAIRS, Fault, named_lines, run_gate
from soak import some

#: By pair and name, a fault.
FAULTS: dict[str, dict[str, Fault]] = {
    "deepseek_v3": {
        "other epsilon": Fault("keepdim=True) + 1e-6)", "keepdim=True) + 1e-5)"),
        "scores without YaRN's temperature": Fault(
            "        self.scale *= attention_temperature(4.0, 0.8) ** 2\n", "", "scores = query @ key * self.scale"
        ),
        "weights with the correction bias": Fault(
            "weights = scores.take_along_axis(", "weights = (scores + self.e_score_correction_bias).take_along_axis("
        ),
        "rotated halves": Fault("even, odd = x[..., 0::2], x[..., 1::2]", "even, odd = x.chunk(2, -1)"),
        "weights without their scale": Fault(
            "return experts, weights * ROUTED_SCALE",
            "return experts, weights",
            "share = weights[rows, columns].unsqueeze(-1)",
        ),
        "groups by the best expert": Fault("groups.topk(2, -1)[0].sum(-1)", "groups.topk(1, -1)[0].sum(-1)"),
    },
    "gpt_oss": {
        "window off by one": Fault("distance < self.window", "distance <= self.window"),
        "sink beside the softmax": Fault(
            "F.softmax(paddle.concat([scores, sinks], -1), -1)", "paddle.concat([F.softmax(scores, -1), sinks], -1)"
        ),
        "no one added to up": Fault("* (up + 1)", "* up"),
        "gate clamped from below": Fault("gate.clip(max=LIMIT)", "gate.clip(-LIMIT, LIMIT)"),
        "gate and up as halves": Fault(
            "gate, up = hidden[..., 0::2], hidden[..., 1::2]", "gate, up = hidden.chunk(2, -1)"
        ),
        "softmax over all experts": Fault(
            "weights = F.softmax(top, -1)", "weights = F.softmax(scores, -1).take_along_axis(experts, -1)"
        ),
    },
    "qwen3_moe": {
        "weights do not add up to one": Fault(
            "        weights = weights / weights.sum(-1, keepdim=True)\n", "", "* weights[rows, ranks].unsqueeze(-1)"
        ),
        "norm after the rotation": Fault(
            "query = rotate(self.q_norm(query).transpose([0, 2, 1, 3]), cos, sin)",
            "query = self.q_norm(rotate(query.transpose([0, 2, 1, 3]), cos, sin))",
        ),
        "balance of each layer": Fault(
            "BALANCE * balance_loss(all_scores)", "BALANCE * sum(balance_loss([scores]) for scores in all_scores) / 2"
        ),
        "detached router": Fault("self.gate(tokens)", "self.gate(tokens.detach())"),
        "dropout before the softmax": Fault(
            "F.dropout(F.softmax(scores + ahead, -1), 0.1, training=self.training)",
            "F.softmax(F.dropout(scores + ahead, 0.1, training=self.training), -1)",
        ),
        "other theta": Fault("THETA = 1e6", "THETA = 1e4", "1.0 / THETA**exponents"),
    },
    "gemma2": {
        "norm without one": Fault("return x * (1 + self.weight)", "return x * self.weight"),
        "scores without a cap": Fault(
            "cap(query @ key.transpose([0, 1, 2, 4, 3]) * SCORE_SCALE, SCORE_CAP)",
            "query @ key.transpose([0, 1, 2, 4, 3]) * SCORE_SCALE",
        ),
        "window off by one": Fault("(distance >= self.window)", "(distance > self.window)"),
        "exact gelu": Fault("F.gelu(self.gate_proj(x), approximate=True)", "F.gelu(self.gate_proj(x))"),
        "embeddings without their scale": Fault(
            "        x = x * x.shape[-1] ** 0.5\n", "", "x = self.embed_tokens(input_ids)"
        ),
        "scale of the head's width": Fault("= 6**-0.5, 5.0", "= 8**-0.5, 5.0", "* SCORE_SCALE, SCORE_CAP)"),
        "norm after the residual": Fault(
            "x + self.post_attention_layernorm(self.self_attn(self.input_layernorm(x)))",
            "self.post_attention_layernorm(x + self.self_attn(self.input_layernorm(x)))",
        ),
    },
    "rwkv": {
        "sign of the decay": Fault(
            "decay, averages = -paddle.exp(self.time_decay), []", "decay, averages = -paddle.exp(-self.time_decay), []"
        ),
        "shifted the other way": Fault(
            'F.pad(x, [1, 0], data_format="NLC")[:, :-1]', 'F.pad(x, [0, 1], data_format="NLC")[:, 1:]'
        ),
        "no square": Fault("self.value(key**2)", "self.value(key)"),
        "bonus in the state": Fault(
            "paddle.exp(largest + decay - top), paddle.exp(k - top)",
            "paddle.exp(largest + decay - top), paddle.exp(current - top)",
        ),
        "detached state": Fault(
            "past * numerator + present * v, past * denominator + present",
            "(past * numerator + present * v).detach(), past * denominator + present",
        ),
        "receptance without sigmoid": Fault("return receptance * self.value", "return self.value"),
    },
    "deberta_v2": {
        "scale of plain attention": Fault(
            "math.sqrt(HEAD_DIM * 3)", "math.sqrt(HEAD_DIM)", "scores = query @ key.transpose([0, 1, 3, 2]) / scale"
        ),
        "average over ignored labels": Fault(
            "F.cross_entropy(logits[is_labeled], labels[is_labeled]), logits",
            "F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100), logits",
        ),
        "keys not transposed": Fault("of_keys.transpose([0, 1, 3, 2]) / scale", "of_keys / scale"),
        "other epsilon": Fault(
            "self.embedding_norm, self.embedding_dropout = nn.LayerNorm(hidden_size, EPSILON)",
            "self.embedding_norm, self.embedding_dropout = nn.LayerNorm(hidden_size, 1e-12)",
        ),
        "sign of the position": Fault("(NUM_BUCKETS - buckets)", "(NUM_BUCKETS + buckets)"),
        "padding in the convolution": Fault("self.dropout(local * mask)", "self.dropout(local)"),
        "positions without dropout": Fault("self.pos_dropout(positions).unsqueeze(0)", "positions.unsqueeze(0)"),
    },
    "xlnet": {
        "shift off by one": Fault("place = length - paddle", "place = length - 1 - paddle"),
        "content does not see itself": Fault(
            "F.relu(hidden - paddle.eye(hidden.shape[-1], dtype=hidden.dtype))", "hidden", "hidden_to_others = hidden"
        ),
        "other bias of segments": Fault(
            "query + self.r_s_bias", "query + self.r_r_bias", 'segment = paddle.einsum("bind,snd->bnis"'
        ),
        "cosines first": Fault("[angles.sin(), angles.cos()]", "[angles.cos(), angles.sin()]"),
        "query without dropout": Fault("query = self.dropout(self.mask_emb", "query = (self.mask_emb"),
        "segments swapped": Fault("token_type_ids.unsqueeze(2) != token", "token_type_ids.unsqueeze(2) == token"),
    },
    "bilstm_crf": {
        "transitions transposed": Fault(
            "alpha.unsqueeze(2) + self.transitions", "alpha.unsqueeze(2) + self.transitions.t()"
        ),
        "padding in the score": Fault("(moved * mask[:, 1:]).sum(1)", "moved.sum(1)"),
        "end of the padding": Fault(
            'last = tags.take_along_axis(mask.sum(1, keepdim=True).astype("int64") - 1, 1).squeeze(1)',
            "last = tags[:, -1]",
        ),
        "sum over the next tag": Fault("paddle.logsumexp(paths, 1)", "paddle.logsumexp(paths, 2)"),
        "dropout behind the emissions": Fault(
            "self.emission(self.dropout(states))", "self.dropout(self.emission(states))"
        ),
        "sum of the examples": Fault(
            "self.score(emissions, tags, mask)).mean()", "self.score(emissions, tags, mask)).sum()"
        ),
    },
    "packed_rnn": {
        "without lengths": Fault("self.lstm(embedded, sequence_length=lengths)", "self.lstm(embedded)"),
        "average over the padding": Fault(
            "hidden.sum(1) / lengths.unsqueeze(1).astype(hidden.dtype)", "hidden.mean(1)"
        ),
        "directions swapped": Fault("[last[0], last[1], average]", "[last[1], last[0], average]"),
        "other epsilon": Fault("nn.LayerNorm(4 * hidden_size)", "nn.LayerNorm(4 * hidden_size, 1e-6)"),
        "dropout before the norm": Fault("self.dropout(self.norm(features))", "self.norm(self.dropout(features))"),
    },
    "llama_permuted": {
        "rotated halves": Fault("even, odd = x[..., 0::2], x[..., 1::2]", "even, odd = x.chunk(2, -1)"),
        "heads tiled": Fault(
            "part.repeat_interleave(NUM_HEADS // NUM_KEY_HEADS, axis=2)",
            "part.tile([1, 1, NUM_HEADS // NUM_KEY_HEADS, 1])",
        ),
        "sees what is ahead": Fault("is_causal=True", "is_causal=False"),
        "other epsilon": Fault("keepdim=True) + 1e-5)", "keepdim=True) + 1e-6)"),
        "gate and up swapped": Fault("F.silu(self.w1(x)) * self.w3(x)", "F.silu(self.w3(x)) * self.w1(x)"),
    },
}

#: Faults whose headline names the enclosing class or function instead of the faulty line.
NAMED_NEARBY = {
    "deepseek_v3": {"weights with the correction bias", "groups by the best expert"},
    "gpt_oss": {"no one added to up", "gate clamped from below", "gate and up as halves"},
    "qwen3_moe": {"detached router", "other theta"},
    "gemma2": {"scores without a cap"},
    "rwkv": {"sign of the decay", "detached state", "receptance without sigmoid"},
    "deberta_v2": {"keys not transposed", "sign of the position", "positions without dropout"},
    "xlnet": {"content does not see itself", "query without dropout"},
    "bilstm_crf": {"padding in the score", "end of the padding", "dropout behind the emissions"},
    "packed_rnn": {"without lengths"},
    "llama_permuted": {"heads tiled"},
}
HIDDEN_SCORES = "hidden scores are so large that all scores look like the reference's: what hides them is named"
#: Faults that are named at another place, and the reason.
NAMED_ELSEWHERE = {
    "deepseek_v3": {"rotated halves": HIDDEN_SCORES},
    "qwen3_moe": {
        "norm after the rotation": "a rotation keeps the length, so the norm's factor is right: its product is named",
        "balance of each layer": "the first wrong number is made in the function that is called for each layer",
    },
    "gemma2": {"embeddings without their scale": "the first that computes with them is the norm of the first block"},
    "xlnet": {
        "segments swapped": HIDDEN_SCORES,
        "cosines first": "the two halves of the table are the reference's in another order: what reads it is named",
    },
    "llama_permuted": {"rotated halves": "the rows of queries and keys are in another order anyway"},
}

#: Pair, code of its port, and equivalent code.
CORRECT_VARIANTS = [
    (
        "bilstm_crf",
        "paddle.logsumexp(paths, 1)",
        "(paths - paths.max(1, keepdim=True)).exp().sum(1).log() + paths.max(1)",
    ),
    (
        "deepseek_v3",
        "eligible.topk(NUM_CHOSEN_EXPERTS, -1)[1]",
        "eligible.topk(NUM_CHOSEN_EXPERTS, -1, sorted=False)[1]",
    ),
    (
        "gpt_oss",
        """weights = F.softmax(paddle.concat([scores, sinks], -1), -1)
        mixed = (weights[..., :-1] @ value)""",
        """total = paddle.logaddexp(paddle.logsumexp(scores, -1, keepdim=True), sinks)
        mixed = ((scores - total).exp() @ value)""",
    ),
    (
        "qwen3_moe",
        """weights, chosen = F.softmax(scores, -1).topk(NUM_CHOSEN, -1)
        weights = weights / weights.sum(-1, keepdim=True)
""",
        """top, chosen = scores.topk(NUM_CHOSEN, -1)
        weights = F.softmax(top, -1)
""",
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("pair", FAULTS)
def test_a_correct_port_passes(pair, command_line, tmp_path):
    status, out = run_gate(command_line, pair, PAIRS / pair / "port.py", tmp_path)
    assert status == 0 and out.startswith("PARITY "), out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pair", "original_code", "equivalent_code"), some(CORRECT_VARIANTS), ids=lambda value: value.split("(")[0]
)
def test_an_equivalent_port_passes(pair, original_code, equivalent_code, command_line, tmp_path):
    port = (PAIRS / pair / "port.py").read_text()
    assert port.count(original_code) == 1
    (tmp_path / "port.py").write_text(port.replace(original_code, equivalent_code))
    status, out = run_gate(command_line, pair, tmp_path / "port.py", tmp_path)
    assert status == 0, out


@pytest.mark.slow
@pytest.mark.parametrize(("pair", "name"), some([(pair, name) for pair in FAULTS for name in FAULTS[pair]], 4))
def test_a_fault_is_named(pair, name, command_line, tmp_path):
    fault = FAULTS[pair][name]
    port, faulty = fault.put_into(pair, tmp_path)
    status, out = run_gate(command_line, pair, port, tmp_path, "--dtype", "float64")
    assert status == 1 and out.startswith("DRIFT "), out
    code = fault.line or fault.faulty.splitlines()[-1]
    [line] = (number for number, text in enumerate(faulty.splitlines(), 1) if code in text)
    lines = named_lines(out.splitlines()[0])
    if name in NAMED_NEARBY.get(pair, ()):
        block = list_enclosing_blocks(faulty)[line - 1]
        assert block is not None and any(
            list_enclosing_blocks(faulty)[line_in_block - 1] == block for line_in_block in lines
        ), out
    elif name not in NAMED_ELSEWHERE.get(pair, ()):
        assert line in lines, out


def list_enclosing_blocks(source: str) -> list[str | None]:
    """Return for each line of a file the name of the class or module-level function that holds it; None outside."""
    blocks: list[str | None] = [None] * len(source.splitlines())
    for node in ast.parse(source).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            blocks[node.lineno - 1 : node.end_lineno] = [node.name] * (node.end_lineno - node.lineno + 1)
    return blocks
