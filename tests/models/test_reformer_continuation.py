"""Test that a Reformer continues texts token by token like its plain layers if earlier positions keep their inputs."""

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
#: A narrower google/reformer-crime-and-punishment.
CRIME_AND_PUNISHMENT = {
    "attn_layers": ["local", "lsh"] * 3, "local_attn_chunk_length": 64, "lsh_attn_chunk_length": 64, "num_hashes": 1,
    "num_buckets": [64, 128], "axial_pos_shape": [16, 32], "max_position_embeddings": 512,
}  # fmt: skip


def make_reformer(dtype: str = "float64", **keys) -> ReformerModelWithLMHead:
    table = {"axial_pos_shape": [8, 6], "max_position_embeddings": 48, "hash_seed": 3}
    return decoder(dtype, **{**table, **keys})


class ContinuationOracle:
    """Oracle that computes each text so far as a whole.

    At earlier positions, each attention keeps its original inputs.
    """

    def __init__(self, model: ReformerModelWithLMHead) -> None:
        self.model = model
        self.inputs_by_attention: dict[paddle.nn.Layer, paddle.Tensor] = {}

    def __call__(self, tokens: np.ndarray) -> np.ndarray:
        """Return the logits of the next token, (B, vocabulary), for tokens of shape (B, T)."""
        length = tokens.shape[1]
        missing = lengths.evaluation_length(vars(self.model.config), length) - length

        def replace_input(attention, inputs):
            earlier_inputs = self.inputs_by_attention.get(attention, inputs[0][:, :0])
            all_inputs = paddle.concat([earlier_inputs, inputs[0][:, earlier_inputs.shape[1] :]], axis=1)
            self.inputs_by_attention[attention] = all_inputs[:, :length]
            return (all_inputs, *inputs[1:])

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
        self.inputs_by_attention = {attention: inputs[rows] for attention, inputs in self.inputs_by_attention.items()}


def compare_continuation(keys, start: int, end: int = 48, texts: int = 3) -> None:
    """Compare each text, token by token, while the texts change places."""
    model, oracle = make_reformer(**keys), ContinuationOracle(make_reformer(**keys))
    draw = np.random.default_rng(0)
    tokens = draw.integers(0, model.config.vocab_size, (texts, end))
    with paddle.no_grad():
        logits, continuation_model = model.begin(paddle.to_tensor(tokens[:, :start]))
        np.testing.assert_allclose(logits.numpy(), oracle(tokens[:, :start]), rtol=1e-12, atol=1e-12)
        for length in range(start + 1, end + 1):
            if length % 5 == 0:
                rows = draw.integers(0, texts, texts)
                tokens = tokens[rows]
                for model_or_oracle in (continuation_model, oracle):
                    model_or_oracle.select_texts(paddle.to_tensor(rows))
            next_logits = continuation_model(paddle.to_tensor(tokens[:, length - 1 : length])).numpy()
            np.testing.assert_allclose(
                next_logits, oracle(tokens[:, :length]), rtol=1e-12, atol=1e-12, err_msg=str(length)
            )


@pytest.mark.parametrize("start", [1, 4, 7, 24])
@pytest.mark.parametrize("layers", [["local"] * 2, ["lsh"] * 2, ["local", "lsh", "local"]])
def test_each_kind_of_layer_continues_from_below_at_and_beyond_a_chunk(layers, start):
    compare_continuation({"attn_layers": layers}, start)


@pytest.mark.parametrize(
    "keys",
    [
        {"num_hashes": 1},
        {"num_hashes": 4},
        {"num_buckets": None},
        {"num_buckets": [2, 4]},
        {"local_num_chunks_before": 0, "lsh_num_chunks_before": 0},
        {"local_num_chunks_before": 2, "lsh_num_chunks_before": 3},  # in a ring of two chunks, some are seen twice
        {"lsh_attn_chunk_length": 64, "local_attn_chunk_length": 64},
        {"chunk_size_lm_head": 8, "chunk_size_feed_forward": 3},
        {"axial_pos_embds": False},
        {"hidden_act": "gelu", "residual": "plain"},
    ],
    ids=str,
)
def test_every_setting_continues_like_the_oracle(keys):
    compare_continuation(keys, 3)


def test_the_shipped_layouts_continue_like_the_oracle():
    recipe = yaml.safe_load(RECIPE.read_text())["model"]["config"]
    compare_continuation({**recipe, "max_position_embeddings": 256, "initializer_range": 0.1}, 30, 70, texts=1)
    compare_continuation(CRIME_AND_PUNISHMENT, 62, 68, texts=2)
    compare_continuation(CRIME_AND_PUNISHMENT, 127, 131, texts=1)


@pytest.mark.parametrize("layers", [["local", "local"], ["lsh"], ["local", "lsh"]])
@pytest.mark.parametrize("options", [{}, {"beams": 3}, {"sample": True, "temperature": 0.7, "top_k": 9}], ids=str)
def test_the_cache_changes_no_token_if_no_attention_follows_lsh(layers, options):
    """A position's own result equals the result on the whole text.

    Only a later attention would read other positions again.
    """
    model, decoding = make_reformer("float32", attn_layers=layers), Decoding(39, stop=7, **options)
    with_cache, without_cache = NextToken(model), NextToken(model, use_cache=False)
    assert with_cache.use_cache
    token_lists = [list(generate(with_cache, [3, 1, 4], decoding)) for _ in range(2)]
    assert token_lists[0] == token_lists[1] == list(generate(without_cache, [3, 1, 4], decoding))
    assert len(set(token_lists[0])) > 3
    prompts = [[3, 1, 4], [9, 9, 2], [0, 8, 5]]
    together = generate_together(NextToken(model), prompts, decoding, [0, 1, 2])
    assert together == generate_together(without_cache, prompts, decoding, [0, 1, 2])


def fix_buckets(model: ReformerModelWithLMHead) -> None:
    """Replace the hashes of continued texts by these buckets, whatever the vectors."""
    for layer in model.sublayers():
        if isinstance(layer, LSHSelfAttention):
            layer.__dict__["hash_vectors"] = make_fixed_hash(layer)


def make_fixed_hash(layer: LSHSelfAttention):
    original, count = layer.hash_vectors, 0
    rounds, heads = layer.num_hashes, layer.num_attention_heads
    buckets = np.random.default_rng(1).integers(0, 4, [heads, rounds, 90]) + 4 * np.arange(rounds)[:, None]

    def hash_vectors(vectors, rotations, batch, mask):
        nonlocal count
        if mask is not None:  # the mask of the prefixes
            return original(vectors, rotations, batch, mask)
        length = len(vectors) // (batch * heads)
        count += length
        next_buckets = np.broadcast_to(buckets[..., count - length : count], [batch, heads, rounds, length])
        return paddle.to_tensor(next_buckets.reshape([batch, heads, -1]))

    return hash_vectors


@pytest.mark.skipif(not kernels.can_compile(), reason="needs Numba")
@pytest.mark.parametrize("texts", [1, 3])
@pytest.mark.parametrize("are_buckets_known", [False, True], ids=["hashed", "given"])
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
def test_the_loop_of_plain_layers_equals_paddles_operations(keys, are_buckets_known, texts, monkeypatch):
    """Continue beyond the capacity of a cache, with texts that change places."""
    long = {"axial_pos_shape": [16, 8], "max_position_embeddings": 128}
    draw = np.random.default_rng(0)
    tokens, rows = draw.integers(0, VOCABULARY, (texts, 80)), draw.integers(0, texts, texts)
    batch_sizes: list[int] = []
    original_step = compiled.reversible_step
    monkeypatch.setattr(
        compiled, "reversible_step", lambda x, *more: batch_sizes.append(len(x)) or original_step(x, *more)
    )

    def continue_texts() -> tuple[list[np.ndarray], list[np.ndarray]]:
        model = make_reformer("float32", **{**long, **keys})
        if are_buckets_known:
            fix_buckets(model)
        with paddle.no_grad():
            _, continued_model = model.begin(paddle.to_tensor(tokens[:, :5]))
            logits = []
            for position in range(5, 80):
                if position == 60:
                    continued_model.select_texts(paddle.to_tensor(rows))
                logits.append(continued_model(paddle.to_tensor(tokens[:, position : position + 1])).numpy())
            for attention in continued_model._attentions:
                attention.remove_room()
            caches = [
                getattr(attention, name) for attention in continued_model._attentions for name in attention.CACHE_AXES
            ]
            return logits, [our_array.numpy() for our_array in caches if our_array is not None]

    loop_results = continue_texts()
    assert batch_sizes == [texts] * 75
    monkeypatch.setattr(continuation, "_has_plain_layers", lambda model: False)
    for ours, theirs in zip(loop_results, continue_texts(), strict=True):
        for our_array, their_array in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(our_array, their_array, rtol=1e-4, atol=3e-5)


def test_all_tokens_are_hashed_with_the_same_rotations_without_a_seed():
    """Otherwise no two tokens would get the same bucket for being similar."""
    model = make_reformer(hash_seed=None)
    tokens = paddle.to_tensor(np.arange(40)[None] % 7)
    with paddle.no_grad():
        paddle.seed(0)
        _, continued_model = model.begin(tokens[:, :30])
        continued_model(tokens[:, 30:31])
        random_number = paddle.rand([1])
        paddle.seed(0)
        _, continued_model = model.begin(tokens[:, :30])
        for position in range(30, 40):
            continued_model(tokens[:, position : position + 1])
        assert float(random_number) == float(paddle.rand([1]))


def add_random_adapter(model) -> contextlib.AbstractContextManager:
    add_adapter(model, LoRA(rank=2, alpha=4.0, dropout=0.0, targets=("query", "query_key", "value", "dense")))
    for name, value in model.named_parameters():
        if "lora_B" in name:
            value.set_value(paddle.full_like(value, 0.3))
    model.eval()
    return contextlib.nullcontext()


@pytest.mark.parametrize(
    ("change_model", "rounding"),
    [(add_random_adapter, 1e-4), (lambda model: precision.cast_to_bfloat16(), 0.2)],
    ids=["adapter", "bfloat16"],
)
def test_the_cache_works_with_an_adapter_and_mixed_precision(change_model, rounding):
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (2, 20))

    def compute_scores(model, use_cache: bool) -> np.ndarray:
        scores = NextToken(model, use_cache=use_cache)
        return np.stack([scores(tokens[:, :length], np.arange(2) if length > 8 else None) for length in range(8, 21)])

    model = make_reformer("float32", attn_layers=["local", "lsh"])
    original_scores = compute_scores(model, use_cache=True)
    with change_model(model):
        np.testing.assert_allclose(
            compute_scores(model, True), compute_scores(model, False), rtol=rounding, atol=rounding
        )
        assert np.abs(compute_scores(model, True) - original_scores).max() > 1e-3


def test_a_text_cannot_exceed_the_models_positions():
    model = make_reformer()
    tokens = paddle.ones([1, 48], "int64")
    with paddle.no_grad():
        _, continued_model = model.begin(tokens)
        with pytest.raises(ValueError, match="49 positions, padded to 60, are more than the model's 48"):
            continued_model(tokens[:, :1])
