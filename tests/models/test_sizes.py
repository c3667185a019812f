"""Test the ports at the sizes of the released checkpoints, compared with NumPy.

Smaller tests do not reach these sizes: chunks of 64 to 256 positions, 65,536 and more positions, and more buckets than
fit into 16 bits.
"""

from __future__ import annotations

import numpy as np
import paddle
import pytest
from small_reformers import decoder
from test_ctrl_model import make_model
from test_reformer_continuation import ContinuationOracle

from models.ctrl import continuation as ctrl_continuation
from models.ctrl.layers import FUTURE_BIAS, attention_bias, position_table
from models.operations import compiled
from models.operations.rows import heads_first
from models.reformer.attention import MASKED, SELF_MASKED, LocalSelfAttention, LSHSelfAttention
from models.reformer.config import ReformerConfig
from models.reformer.modeling import AxialPositionEmbeddings, PositionEmbeddings, ReformerEmbeddings
from models.reformer.reversible import LayerRecord

#: Positions beyond the range of 8, 15, 16 and 24 bits; google/reformer-crime-and-punishment has 524,288.
CHUNK_POSITIONS = (0, 250, 32_760, 65_530, 524_200)
CHUNKS = (5, 64, 65, 128, 129, 256, 300)
#: Tolerance relative to the largest number: a few roundings of float32 over a few hundred keys.
TOLERANCE = 3e-6


@pytest.fixture
def draw() -> np.random.Generator:
    return np.random.default_rng(0)


def compute_attention(
    query, key, value, positions, keep_mask, num_chunks_before: int, is_causal: bool, hides_itself: bool
) -> np.ndarray:
    """Return the attention of each chunk to itself and the earlier chunks of its ring, in float64.

    The tensors have shape (rings, chunks, C, D).
    """
    rings, chunks, _, _ = query.shape
    result = np.empty(query.shape)
    for ring in range(rings):
        for chunk in range(chunks):
            chunk_numbers = [(chunk + step) % chunks for step in (range(-num_chunks_before, 1) if chunks > 1 else [0])]
            keys, values, places, visible = (
                np.concatenate(tensor[ring][chunk_numbers]) for tensor in (key, value, positions, keep_mask)
            )
            scores = query[ring, chunk] @ keys.T
            own_positions = positions[ring, chunk][:, None]
            is_hidden = ~visible[None] | ((places[None] > own_positions) if is_causal else False)
            scores = np.where(is_hidden, MASKED, scores)
            if hides_itself:
                scores = np.where(places[None] == own_positions, SELF_MASKED, scores)
            weights = np.exp(scores - scores.max(1, keepdims=True))
            result[ring, chunk] = weights / weights.sum(1, keepdims=True) @ values
    return result


@pytest.mark.parametrize("kernels", ["compiled", "composed"])
@pytest.mark.parametrize("kind", ["local", "lsh"])
@pytest.mark.parametrize("size", CHUNKS)
def test_chunks_of_every_length_attend_at_any_position(draw, monkeypatch, size, kind, kernels):
    monkeypatch.setenv("TOOLKIT_KERNELS", kernels)
    config = ReformerConfig(num_attention_heads=1, attention_head_size=4, is_decoder=True)
    layer = {"local": LocalSelfAttention, "lsh": LSHSelfAttention}[kind](config)
    layer.eval()
    shape = (len(CHUNK_POSITIONS), 3, size)
    query, key, value = draw.standard_normal((3, *shape, 4))
    positions = np.array(CHUNK_POSITIONS)[:, None, None] + draw.permuted(
        np.tile(np.arange(3 * size), (len(CHUNK_POSITIONS), 1)), axis=1
    ).reshape(shape)
    keep_mask = draw.random(shape) < 0.9
    tensors = (paddle.to_tensor(tensor.astype("float32")) for tensor in (query, key, value))
    outputs, _ = layer.attend(
        *tensors, paddle.to_tensor(positions), paddle.to_tensor(keep_mask), num_texts=len(CHUNK_POSITIONS)
    )
    exact = compute_attention(query, key, value, positions, keep_mask, layer.num_chunks_before, True, kind == "lsh")
    np.testing.assert_allclose(outputs.numpy(), exact, rtol=0, atol=TOLERANCE * np.abs(value).max())


def test_a_local_layer_attends_chunk_by_chunk_over_40_000_positions(draw):
    config = ReformerConfig(hidden_size=4, num_attention_heads=1, attention_head_size=4, is_decoder=True,
                            local_attn_chunk_length=100, axial_pos_embds_dim=[2, 2])  # fmt: skip
    layer = LocalSelfAttention(config)
    layer.eval()
    states = draw.standard_normal((1, 40_000, 4)).astype("float32")
    output = layer(paddle.to_tensor(states)).numpy()
    maps = (projection.weight.numpy().astype("float64") for projection in (layer.query, layer.key, layer.value))
    query, key, value = ((states[0] @ projection).reshape([1, 400, 100, 4]) for projection in maps)
    place = np.arange(40_000).reshape([1, 400, 100])
    exact = compute_attention(query, key / 2, value, place, place >= 0, 1, True, False)
    np.testing.assert_allclose(output, exact.reshape(output.shape), rtol=0, atol=TOLERANCE * np.abs(value).max())


@pytest.mark.parametrize("length", [96, 40_032])
def test_positions_beyond_16_bits_are_sorted_by_bucket_and_back(draw, length):
    config = ReformerConfig(num_attention_heads=2, attention_head_size=4, num_hashes=3, lsh_attn_chunk_length=32)
    buckets = draw.integers(0, 50, (1, 2, 3, length)) + 50 * np.arange(3)[:, None]
    place, sort, unsort = LSHSelfAttention(config).sort_by_bucket(paddle.to_tensor(buckets.reshape([1, 2, -1])), length)
    order = np.argsort(buckets.reshape([2, -1]), axis=1, kind="stable")
    np.testing.assert_array_equal(place.numpy(), (order % length).reshape([2, -1, 32]))
    np.testing.assert_array_equal(sort.index.numpy(), (order % length + np.arange(2)[:, None] * length).flatten())
    rows = np.arange(2 * 3 * length)
    np.testing.assert_array_equal((order + np.arange(2)[:, None] * 3 * length).flatten()[unsort.index.numpy()], rows)
    np.testing.assert_array_equal(sort.index.numpy()[sort.inverse.numpy()], np.tile(np.arange(2 * length), (3, 1)))


@pytest.mark.parametrize("kernels", ["compiled", "composed"])
@pytest.mark.parametrize(("factors", "length"), [(512, 64), ([64, 128], 64), ([256, 256], 36_000)])
def test_vectors_are_hashed_to_the_buckets_of_all_factors(draw, monkeypatch, factors, length, kernels):
    """Each of two rounds has 65,536 buckets; the rounds have none in common."""
    monkeypatch.setenv("TOOLKIT_KERNELS", kernels)
    config = ReformerConfig(num_attention_heads=1, attention_head_size=2, num_hashes=2, num_buckets=factors)
    vectors, sizes = draw.standard_normal((length, 2)).astype("float32"), np.atleast_1d(factors)
    rotations = draw.standard_normal((1, 2, 2, sizes.sum() // 2)).astype("float32")
    layer = LSHSelfAttention(config)
    buckets = (
        layer.hash_vectors(paddle.to_tensor(vectors), paddle.to_tensor(rotations), 1, None).numpy().reshape([2, -1])
    )
    for hash_round in range(2):
        rotated_vectors, expected_buckets, count = vectors @ rotations[0, :, hash_round], np.zeros(length, np.int64), 1
        for part, factor in zip(np.split(rotated_vectors, np.cumsum(sizes // 2)[:-1], axis=1), sizes, strict=True):
            expected_buckets, count = (
                expected_buckets + count * np.concatenate([part, -part], 1).argmax(1),
                count * factor,
            )
        assert (
            buckets[hash_round] == expected_buckets + hash_round * count
        ).mean() > 0.9999  # except for ties within rounding
        assert buckets[hash_round].max() < (hash_round + 1) * count


@pytest.mark.parametrize("largest", [0, 127, 255, 2**15 - 1, 2**15, 2**16 - 1, 2**16, 2**17])
def test_buckets_of_any_number_are_stored_exactly(largest):
    buckets = np.array([[[0, largest // 2, largest]]])
    record = LayerRecord(None, None, paddle.to_tensor(buckets)).compact()
    np.testing.assert_array_equal(record.wide_buckets().numpy(), buckets)
    assert record.wide_buckets().dtype == paddle.int64
    assert (record.buckets.dtype == paddle.int16) == (largest < 2**15)
    assert LayerRecord(None, None, None).compact().wide_buckets() is None


def test_heads_are_split_in_a_text_of_40_000_positions():
    order = heads_first(2, 40_000, 3)
    index = np.arange(240_000).reshape([2, 40_000, 3]).transpose([0, 2, 1]).flatten()
    np.testing.assert_array_equal(order.index.numpy(), index)
    np.testing.assert_array_equal(order.inverse.numpy()[0], np.argsort(index))


# -- positions --------------------------------------------------------------------------------------------------------

#: As in the checkpoint: 524,288 positions.
AXIAL = {"axial_pos_shape": [512, 1024], "max_position_embeddings": 524_288, "hidden_size": 4,
         "axial_pos_embds_dim": [1, 3]}  # fmt: skip


def test_a_position_has_its_row_and_its_column(draw):
    table = AxialPositionEmbeddings(ReformerConfig(**AXIAL))
    table.eval()
    rows, columns = (paddle.to_tensor(draw.standard_normal(weight.shape).astype("float32")) for weight in table.weights)
    for own, value in zip(table.weights, (rows, columns), strict=True):
        own.set_value(value)
    places = np.array([0, 1023, 1024, 32_767, 32_768, 65_536, 262_145, 524_287])
    expected_rows = np.concatenate([rows.numpy()[places // 1024, 0], columns.numpy()[0, places % 1024]], axis=1)
    np.testing.assert_array_equal(table(paddle.to_tensor(places[None])).numpy()[0], expected_rows)
    np.testing.assert_array_equal(np.stack([table.of_position(int(place)).numpy() for place in places]), expected_rows)


def test_a_text_of_40_000_tokens_has_their_positions(draw):
    config = ReformerConfig(**{**AXIAL, "axial_pos_embds": False, "max_position_embeddings": 40_000, "vocab_size": 9})
    embeddings = ReformerEmbeddings(config)
    embeddings.eval()
    assert isinstance(embeddings.position_embeddings, PositionEmbeddings)
    position_embeddings = embeddings.position_embeddings.embedding.weight
    position_embeddings.set_value(paddle.to_tensor(draw.standard_normal(position_embeddings.shape).astype("float32")))
    tokens = draw.integers(0, 9, (1, 40_000))
    expected_embeddings = embeddings.word_embeddings.weight.numpy()[tokens[0]] + position_embeddings.numpy()
    np.testing.assert_array_equal(embeddings(paddle.to_tensor(tokens)).numpy()[0], expected_embeddings)


@pytest.mark.parametrize("positions", [300, 50_000])
def test_ctrls_positions_are_sines_and_cosines_of_float32s_angles(positions):
    """Salesforce/ctrl has 50,000 positions."""
    table, places = position_table(positions, 8), np.arange(positions)
    rates = np.float32(1) / np.power(10_000.0, np.float32([0, 0.25, 0.5, 0.75]).astype("float64")).astype("float32")
    angles = (places[:, None].astype("float32") * rates).astype("float64")
    np.testing.assert_array_equal(table, np.concatenate([np.sin(angles), np.cos(angles)], 1).astype("float32"))


@pytest.mark.parametrize("past", [0, 250, 2_047, 33_000])
def test_ctrl_masks_later_tokens_after_any_past(past):
    bias = attention_bias(past, 3, None, "float32").numpy()
    assert bias.shape == (3, past + 3) and not bias[:, : past + 1].any()
    np.testing.assert_array_equal(bias[:, past:], np.triu(np.full((3, 3), FUTURE_BIAS, "float32"), 1))


# -- token by token ---------------------------------------------------------------------------------------------------


def make_long_decoder(dtype: str, length: int):
    """Return a Reformer of two layers with chunks of 64 for a text of some thousands of tokens."""
    keys = {
        "local_attn_chunk_length": 64,
        "lsh_attn_chunk_length": 64,
        "num_buckets": 8,
        "attn_layers": ["local", "lsh"],
    }
    table = {
        "axial_pos_shape": [-(-length // 64), 64],
        "max_position_embeddings": -(-length // 64) * 64,
        "hash_seed": 3,
    }
    return decoder(dtype, **{**keys, **table})


@pytest.mark.parametrize(("start", "end"), [(2_046, 2_051), pytest.param(32_766, 32_770, marks=pytest.mark.slow)])
def test_a_reformer_continues_after_thousands_of_tokens(start, end):
    model, oracle = make_long_decoder("float64", end), ContinuationOracle(make_long_decoder("float64", end))
    fast = make_long_decoder("float32", end)
    tokens = np.random.default_rng(0).integers(0, 50, (1, end))
    with paddle.no_grad():
        _, going_on = model.begin(paddle.to_tensor(tokens[:, :start]))
        _, in_a_loop = fast.begin(paddle.to_tensor(tokens[:, :start]))
        oracle(tokens[:, :start])
        for length in range(start + 1, end + 1):
            token = paddle.to_tensor(tokens[:, length - 1 : length])
            exact = oracle(tokens[:, :length])
            np.testing.assert_allclose(going_on(token).numpy(), exact, rtol=1e-11, atol=1e-11)
            np.testing.assert_allclose(in_a_loop(token).numpy(), exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("texts", [1, ctrl_continuation.MAX_COMPILED_TEXTS, ctrl_continuation.MAX_COMPILED_TEXTS + 1])
@pytest.mark.parametrize("start", [10, pytest.param(2_046, marks=pytest.mark.slow)])
def test_ctrl_continues_few_texts_in_a_loop_and_many_with_products(start, texts, monkeypatch):
    keys = {"n_positions": start + 10, "n_layer": 1, "n_head": 2, "n_embd": 8, "dff": 8}
    model, tokens = make_model(dtype="float32", **keys), np.random.default_rng(0).integers(1, 96, (texts, start + 5))
    ran, oracle = [], compiled.decoder_step
    monkeypatch.setattr(compiled, "decoder_step", lambda *given: ran.append(1) or oracle(*given))
    with paddle.no_grad():
        full_logits = model(paddle.to_tensor(tokens)).logits.numpy()[:, start:]
        _, continued_model = model.begin(paddle.to_tensor(tokens[:, :start]))
        logits = [
            continued_model(paddle.to_tensor(tokens[:, position : position + 1])).numpy()
            for position in range(start, start + 5)
        ]
    np.testing.assert_allclose(np.stack(logits, 1), full_logits, rtol=1e-4, atol=1e-4)
    assert bool(ran) == (texts <= ctrl_continuation.MAX_COMPILED_TEXTS and compiled.is_chosen())
