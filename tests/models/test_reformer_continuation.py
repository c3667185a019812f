"""A Reformer goes on token by token as its plain layers do, if each position stays as it was when it was the last."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import paddle
import pytest
import yaml
from small_reformers import decoder

from models.operations import compiled, kernels, precision
from models.port.adapter import add_adapter
from models.port.lora import LoRA
from models.reformer import continuation, lengths
from models.reformer.attention import LSHSelfAttention
from models.reformer.modeling import ReformerModelWithLMHead
from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate, generate_together

RECIPE = Path(__file__).parents[2] / "recipes" / "reformer_lm.yaml"
VOCABULARY = 50
#: google/reformer-crime-and-punishment, less wide.
CRIME_AND_PUNISHMENT = {
    "attn_layers": ["local", "lsh"] * 3, "local_attn_chunk_length": 64, "lsh_attn_chunk_length": 64, "num_hashes": 1,
    "num_buckets": [64, 128], "axial_pos_shape": [16, 32], "max_position_embeddings": 512,
}  # fmt: skip


def reformer(dtype: str = "float64", **keys) -> ReformerModelWithLMHead:
    table = {"axial_pos_shape": [8, 6], "max_position_embeddings": 48, "hash_seed": 3}
    return decoder(dtype, **{**table, **keys})


class Plain:
    """The oracle: computes the texts so far whole, but with each attention's input at earlier positions as it was."""

    def __init__(self, model: ReformerModelWithLMHead) -> None:
        self.model = model
        self.kept: dict[paddle.nn.Layer, paddle.Tensor] = {}

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        """(B, T) -> logits (B, vocabulary)."""
        length = tokens.shape[1]
        missing = lengths.evaluation_length(vars(self.model.config), length) - length

        def replace_input(attention, given):
            before = self.kept.get(attention, given[0][:, :0])
            whole = paddle.concat([before, given[0][:, before.shape[1] :]], axis=1)
            self.kept[attention] = whole[:, :length]
            return (whole, *given[1:])

        hooks = [
            layer.attention.self_attention.register_forward_pre_hook(replace_input)
            for layer in self.model.reformer.encoder.layers
        ]
        ids, mask = (np.pad(x, ((0, 0), (0, missing))) for x in (tokens, np.ones_like(tokens)))
        with paddle.no_grad():
            logits = self.model(paddle.to_tensor(ids), paddle.to_tensor(mask)).logits[:, length - 1].numpy()
        for hook in hooks:
            hook.remove()
        return logits

    def select_texts(self, rows: paddle.Tensor) -> None:
        self.kept = {attention: kept[rows] for attention, kept in self.kept.items()}


def compared(keys, start: int, end: int = 48, texts: int = 3) -> None:
    """Text by text and token by token, with texts that change places."""
    model, plain = reformer(**keys), Plain(reformer(**keys))
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, model.config.vocab_size, (texts, end))
    with paddle.no_grad():
        logits, going_on = model.begin(paddle.to_tensor(tokens[:, :start]))
        np.testing.assert_allclose(logits.numpy(), plain(tokens[:, :start]), rtol=1e-12, atol=1e-12)
        for length in range(start + 1, end + 1):
            if length % 5 == 0:
                rows = draw.integers(0, texts, texts)
                tokens = tokens[rows]
                for one in (going_on, plain):
                    one.select_texts(paddle.to_tensor(rows))
            found = going_on(paddle.to_tensor(tokens[:, length - 1 : length])).numpy()
            np.testing.assert_allclose(found, plain(tokens[:, :length]), rtol=1e-12, atol=1e-12, err_msg=str(length))


@pytest.mark.parametrize("start", [1, 4, 7, 24])
@pytest.mark.parametrize("layers", [["local"] * 2, ["lsh"] * 2, ["local", "lsh", "local"]])
def test_each_kind_of_layer_goes_on_from_below_at_and_beyond_a_chunk(layers, start):
    compared({"attn_layers": layers}, start)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_hashes": 1},
        {"num_hashes": 4},
        {"num_buckets": None},
        {"num_buckets": [2, 4]},
        {"local_num_chunks_before": 0, "lsh_num_chunks_before": 0},
        {"local_num_chunks_before": 2, "lsh_num_chunks_before": 3},  # of a ring of two some are seen twice
        {"lsh_attn_chunk_length": 64, "local_attn_chunk_length": 64},
        {"chunk_size_lm_head": 8, "chunk_size_feed_forward": 3},
        {"axial_pos_embds": False},
        {"hidden_act": "gelu", "residual": "plain"},
    ],
    ids=str,
)
def test_so_does_every_setting(keys):
    compared(keys, 3)


def test_the_layouts_that_are_shipped_go_on():
    recipe = yaml.safe_load(RECIPE.read_text())["model"]["config"]
    compared({**recipe, "max_position_embeddings": 256, "initializer_range": 0.1}, 30, 70, texts=1)
    compared(CRIME_AND_PUNISHMENT, 62, 68, texts=2)
    compared(CRIME_AND_PUNISHMENT, 127, 131, texts=1)


@pytest.mark.parametrize("layers", [["local", "local"], ["lsh"], ["local", "lsh"]])
@pytest.mark.parametrize("how", [{}, {"beams": 3}, {"sample": True, "temperature": 0.7, "top_k": 9}], ids=str)
def test_where_no_attention_follows_lsh_the_cache_changes_no_token(layers, how):
    """A position's own result is that of the whole text; only an attention above would read the others' again."""
    model, decoding = reformer("float32", attn_layers=layers), Decoding(39, stop=7, **how)
    cached, plain = NextToken(model), NextToken(model, use_cache=False)
    assert cached.use_cache
    said = [list(generate(cached, [3, 1, 4], decoding)) for _ in range(2)]
    assert said[0] == said[1] == list(generate(plain, [3, 1, 4], decoding))
    assert len(set(said[0])) > 3
    prompts = [[3, 1, 4], [9, 9, 2], [0, 8, 5]]
    together = generate_together(NextToken(model), prompts, decoding, [0, 1, 2])
    assert together == generate_together(plain, prompts, decoding, [0, 1, 2])


def give_buckets(model: ReformerModelWithLMHead) -> None:
    """Let texts that go on be hashed into these buckets, whatever the vectors."""
    for layer in model.sublayers():
        if isinstance(layer, LSHSelfAttention):
            layer.__dict__["hash_vectors"] = known_buckets(layer)


def known_buckets(layer: LSHSelfAttention):
    plain, count = layer.hash_vectors, 0
    rounds, heads = layer.num_hashes, layer.num_attention_heads
    given = np.random.default_rng(1).integers(0, 4, [heads, rounds, 90]) + 4 * np.arange(rounds)[:, None]

    def hash_vectors(vectors, rotations, batch, mask):
        nonlocal count
        if mask is not None:  # of the beginnings
            return plain(vectors, rotations, batch, mask)
        length = len(vectors) // (batch * heads)
        count += length
        found = np.broadcast_to(given[..., count - length : count], [batch, heads, rounds, length])
        return paddle.to_tensor(found.reshape([batch, heads, -1]))

    return hash_vectors


@pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")
@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("given", [False, True], ids=["hashed", "given"])
@pytest.mark.parametrize(
    "keys",
    [
        {},
        {"num_hashes": 1, "num_buckets": [2, 4]},
        {"local_num_chunks_before": 2, "lsh_num_chunks_before": 3, "attn_layers": ["lsh", "local", "lsh"]},
        {"lsh_attn_chunk_length": 64, "local_attn_chunk_length": 64},
        {"axial_pos_embds": False, "hidden_size": 24, "num_hashes": 4},
    ],
    ids=str,
)
def test_plain_layers_are_one_loop_that_goes_on_as_paddles_operations(keys, given, texts, monkeypatch):
    """Beyond the room of a cache, and with texts that change places."""
    long = {"axial_pos_shape": [16, 8], "max_position_embeddings": 128}
    draw = np.random.default_rng(0)
    tokens, rows = draw.integers(0, VOCABULARY, (texts, 80)), draw.integers(0, texts, texts)
    ran: list[int] = []
    plain = compiled.reversible_step
    monkeypatch.setattr(compiled, "reversible_step", lambda x, *more: ran.append(len(x)) or plain(x, *more))

    def said() -> tuple[list[np.ndarray], list[np.ndarray]]:
        model = reformer("float32", **{**long, **keys})
        if given:
            give_buckets(model)
        with paddle.no_grad():
            _, going_on = model.begin(paddle.to_tensor(tokens[:, :5]))
            found = []
            for place in range(5, 80):
                if place == 60:
                    going_on.select_texts(paddle.to_tensor(rows))
                found.append(going_on(paddle.to_tensor(tokens[:, place : place + 1])).numpy())
            for attention in going_on._attentions:
                attention.remove_room()
            kept = [getattr(attention, name) for attention in going_on._attentions for name in attention.CACHE_AXES]
            return found, [one.numpy() for one in kept if one is not None]

    by_loop = said()
    assert ran == [texts] * 75
    monkeypatch.setattr(continuation, "_has_plain_layers", lambda model: False)
    for ours, others in zip(by_loop, said(), strict=True):
        for one, other in zip(ours, others, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=3e-5)


def test_without_a_seed_all_tokens_are_hashed_by_the_same_rotations():
    """Or no two of them would meet in a bucket because they are alike."""
    model = reformer(hash_seed=None)
    tokens = paddle.to_tensor(np.arange(40)[None] % 7)
    with paddle.no_grad():
        paddle.seed(0)
        _, going_on = model.begin(tokens[:, :30])
        going_on(tokens[:, 30:31])
        drawn = paddle.rand([1])
        paddle.seed(0)
        _, going_on = model.begin(tokens[:, :30])
        for place in range(30, 40):
            going_on(tokens[:, place : place + 1])
        assert float(drawn) == float(paddle.rand([1]))


def adapted(model) -> contextlib.AbstractContextManager:
    add_adapter(model, LoRA(rank=2, alpha=4.0, dropout=0.0, targets=("query", "query_key", "value", "dense")))
    for name, value in model.named_parameters():
        if "lora_B" in name:
            value.set_value(paddle.full_like(value, 0.3))
    model.eval()
    return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("changed", "rounding"),
    [(adapted, 1e-4), (lambda model: precision.cast_to_bfloat16(), 0.2)],
    ids=["adapter", "bfloat16"],
)
def test_an_adapter_and_mixed_precision_go_on_as_they_are(changed, rounding):
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (2, 20))

    def said(model, use_cache: bool) -> np.ndarray:
        scores = NextToken(model, use_cache=use_cache)
        return np.stack([scores(tokens[:, :length], np.arange(2) if length > 8 else None) for length in range(8, 21)])

    model = reformer("float32", attn_layers=["local", "lsh"])
    plain = said(model, use_cache=True)
    with changed(model):
        np.testing.assert_allclose(said(model, True), said(model, False), rtol=rounding, atol=rounding)
        assert np.abs(said(model, True) - plain).max() > 1e-3


def test_a_text_ends_with_the_models_positions():
    model = reformer()
    tokens = paddle.ones([1, 48], "int64")
    with paddle.no_grad():
        _, going_on = model.begin(tokens)
        with pytest.raises(ValueError, match="49 positions, padded to 60, are more than the model's 48"):
            going_on(tokens[:, :1])
