"""CTRL's port by itself: cache, masks, recompute, weights in and out, configuration."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import paddle
import pytest

from models.ctrl import schema, weights
from models.ctrl.config import CTRLConfig
from models.ctrl.heads import merge_heads, split_heads
from models.ctrl.layers import FUTURE_BIAS, attention_bias, position_table
from models.ctrl.modeling import CLASSES, CTRLForSequenceClassification, CTRLLMHeadModel
from models.port.weights import load, to_paddle
from toolkit.parity.inputs.synthetic import SyntheticWeights

SMALL = {"n_embd": 32, "n_head": 4, "dff": 48, "n_layer": 2, "n_positions": 64, "vocab_size": 96, "pad_token_id": 0}


def make(head: str = "causal_lm", dtype: str = "float64", **keys):
    """A port in evaluation with synthetic weights."""
    model = CLASSES[head](CTRLConfig(**{**SMALL, **keys}))
    model.to(dtype=dtype)
    load(model, SyntheticWeights(model.config, head, 0, "random", "ctrl"))
    model.eval()
    return model


def ids(rows: int = 2, length: int = 24) -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(0).integers(1, SMALL["vocab_size"], (rows, length)))


def test_with_the_cache_the_logits_are_those_without():
    model, tokens = make(), ids()
    whole = model(tokens).logits.numpy()
    parts, cache = [], None
    for start, end in ((0, 7), (7, 8), (8, 24)):
        output = model(tokens[:, start:end], past_key_values=cache, use_cache=True)
        parts.append(output.logits.numpy())
        cache = output.past_key_values
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-12, atol=1e-13)
    assert len(cache) == 2 and cache[0][0].shape == [2, 4, 24, 8]


def test_a_position_sees_nothing_of_the_future_and_nothing_of_padding():
    model, tokens = make(), ids()
    logits = model(tokens).logits.numpy()
    other = tokens.clone()
    other[:, 12:] = 1
    np.testing.assert_array_equal(model(other).logits.numpy()[:, :12], logits[:, :12])
    mask = (paddle.arange(24) >= 5).astype("int64").expand([2, 24])
    hidden = tokens.clone()
    hidden[:, :5] = 3
    ours, same = (model(x, attention_mask=mask).logits.numpy()[:, 5:] for x in (tokens, hidden))
    np.testing.assert_array_equal(ours, same)


def test_recomputed_layers_give_the_gradients_of_plain_autograd_with_dropout():
    gradients = []
    for recompute in (False, True):
        model = make(resid_pdrop=0.3, embd_pdrop=0.3)
        model.train()
        model.transformer.enable_recompute = recompute
        paddle.seed(5)
        model(ids(), labels=ids()).loss.backward()
        gradients.append({name: parameter.grad.numpy() for name, parameter in model.named_parameters()})
    for name, value in gradients[0].items():
        np.testing.assert_array_equal(gradients[1][name], value, err_msg=name)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("length", [1, 5])
def test_heads_are_split_and_merged_as_by_transposing(length):
    """Values and gradients, bit for bit: numbers change places alone."""
    draw = np.random.default_rng(0)
    given, upstream = draw.standard_normal((2, length, 12)), draw.standard_normal((2, 3, length, 4))
    ours, theirs = (paddle.to_tensor(given, stop_gradient=False) for _ in range(2))
    split, plain = split_heads(ours, 3), theirs.reshape([2, length, 3, 4]).transpose([0, 2, 1, 3])
    np.testing.assert_array_equal(split.numpy(), plain.numpy())
    merged = merge_heads(split * paddle.to_tensor(upstream)).reshape([2, length, 12])
    expected = (plain * paddle.to_tensor(upstream)).transpose([0, 2, 1, 3]).reshape([2, length, 12])
    np.testing.assert_array_equal(merged.numpy(), expected.numpy())
    for result in (merged, expected):
        (result * paddle.to_tensor(given)).sum().backward()
    np.testing.assert_array_equal(ours.grad.numpy(), theirs.grad.numpy())


@pytest.mark.parametrize(("past", "length"), [(0, 4), (3, 1), (2, 3)])
def test_a_query_is_masked_from_what_lies_ahead_of_it_and_from_padding(past, length):
    total, lowest = past + length, np.finfo("float32").min
    mask = np.ones((2, total), np.int64)
    mask[1, :2] = 0
    plain = attention_bias(past, length, None, "float32").numpy()
    padded = attention_bias(past, length, paddle.to_tensor(mask), "float32").numpy()
    assert plain.shape == (length, total) and padded.shape == (2, 1, length, total)
    for query in range(length):
        for key in range(total):
            ahead = np.float32(FUTURE_BIAS if key > past + query else 0.0)
            assert plain[query, key] == padded[0, 0, query, key] == ahead
            assert padded[1, 0, query, key] == ahead + np.float32(0.0 if mask[1, key] else lowest)


def test_positions_and_token_types_may_be_given():
    model, tokens = make(), ids()
    positions = paddle.arange(24).unsqueeze(0)
    np.testing.assert_array_equal(model(tokens, position_ids=positions).logits.numpy(), model(tokens).logits.numpy())
    moved = model(tokens, position_ids=positions + 1).logits.numpy()
    assert np.abs(moved - model(tokens).logits.numpy()).max() > 1e-3
    typed = model(tokens, token_type_ids=paddle.zeros_like(tokens)).logits.numpy()
    assert np.abs(typed - model(tokens).logits.numpy()).max() > 1e-3


def test_ignored_labels_and_the_last_position_do_not_count():
    model, tokens = make(), ids(1)
    labels = tokens.clone()
    labels[0, :20] = -100
    output = model(tokens, labels=labels)
    scores = output.logits.numpy()[0]
    scores = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    expected = -np.mean([scores[t - 1, int(tokens[0, t])] for t in range(20, 24)])
    assert float(output.loss) == pytest.approx(expected, rel=1e-13)


def test_a_text_is_classified_at_its_last_token_that_is_not_padding():
    model, tokens = make("sequence_classification"), ids()
    tokens[1, 10:] = 0
    logits = model(tokens).logits.numpy()
    np.testing.assert_allclose(logits[1], model(tokens[1:, :10]).logits.numpy()[0], rtol=1e-12)
    with pytest.raises(schema.ConfigError, match="pad_token_id"):
        CTRLForSequenceClassification(CTRLConfig(**{**SMALL, "pad_token_id": None}))(ids())


def test_more_positions_than_the_table_has_are_refused():
    with pytest.raises(ValueError, match="65 positions are more than n_positions 64"):
        make()(ids(1, 65))


def test_the_position_table_is_rounded_correctly():
    exact = np.arange(64, dtype=np.float64)[:, None] / 10000.0 ** (np.arange(0, 32, 2) / 32)
    table = position_table(64, 32)
    assert table.dtype == np.float32 and table.shape == (64, 32)
    np.testing.assert_allclose(table, np.concatenate([np.sin(exact), np.cos(exact)], 1), atol=64 * 2.0**-22)
    np.testing.assert_array_equal(table[0], [0.0] * 16 + [1.0] * 16)


def test_every_parameter_of_the_port_has_a_role_and_every_role_a_parameter():
    for head, kind in CLASSES.items():
        for tied in (True, False):
            config = CTRLConfig(**{**SMALL, "tie_word_embeddings": tied})
            assert {name: value.shape for name, value in kind(config).named_parameters()} == {
                name: list(to_paddle(np.empty(shape), role).shape)
                for name, (shape, role) in weights.parameters(config, head).items()
            }


@pytest.mark.parametrize(
    ("head", "tied"), [("causal_lm", True), ("causal_lm", False), ("sequence_classification", True)]
)
def test_transformers_loads_a_sharded_folder_and_gives_the_same_logits(tmp_path, head, tied):
    """The port's float64 logits against the reference's, in a process of its own."""
    model = make(head, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path, shard_bytes=20_000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    script = (
        "import sys, numpy, torch, transformers\n"
        "name, folder = sys.argv[1:]\n"
        "model, found = getattr(transformers, name).from_pretrained(folder, output_loading_info=True)\n"
        "assert not any(found.values()), found\n"
        "ids = torch.from_numpy(numpy.load(folder + '/ids.npy'))\n"
        "numpy.save(folder + '/table.npy', model.transformer.pos_encoding.numpy())\n"
        "numpy.save(folder + '/logits.npy', model.double().eval()(ids).logits.detach().numpy())\n"
    )
    np.save(tmp_path / "ids.npy", ids().numpy())
    done = subprocess.run([sys.executable, "-c", script, CLASSES[head].__name__, str(tmp_path)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    # The reference's own position table may differ from ours by a unit in the last place of float32.
    table = np.load(tmp_path / "table.npy")
    np.testing.assert_allclose(model.transformer.pos_encoding, table, atol=64 * 2.0**-22)
    model.hold_constants({"transformer.pos_encoding": table})
    np.testing.assert_allclose(model(ids()).logits.numpy(), np.load(tmp_path / "logits.npy"), rtol=1e-12, atol=1e-13)


def test_a_saved_model_comes_back_with_its_weights_and_the_table_that_it_was_given(tmp_path):
    model = make(dtype="float32")
    table = np.nextafter(model.transformer.pos_encoding, np.float32(2))
    model.hold_constants({"transformer.pos_encoding": table})
    model.save_pretrained(tmp_path, shard_bytes=20_000)
    again = CTRLLMHeadModel.from_pretrained(tmp_path)
    assert again.new_weights == []
    for (name, ours), (_, theirs) in zip(again.named_parameters(), model.named_parameters(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=name)
    np.testing.assert_array_equal(again.transformer.pos_encoding, table)
    with pytest.raises(ValueError, match=r"pos_encoding: float64 \(64, 32\), but the model has float32"):
        model.hold_constants({"transformer.pos_encoding": table.astype("float64")})


def test_a_tied_output_layer_may_stand_in_a_checkpoint_and_must_be_the_embedding():
    config = schema.resolve(SMALL)
    tensors = weights.initial_weights(config, "causal_lm", 0)
    table = tensors["transformer.w.weight"]
    found = weights.select([*tensors.items(), ("lm_head.weight", table)], config, "causal_lm")
    assert found.keys() == tensors.keys()
    with pytest.raises(weights.WeightsError, match=r"transformer\.w\.weight: occurs twice"):
        weights.select([*tensors.items(), ("lm_head.weight", table + 1)], config, "causal_lm")


def test_a_body_without_its_prefix_is_found_and_a_missing_head_is_left_to_the_caller():
    config = schema.resolve(SMALL)
    tensors = weights.initial_weights(config, "causal_lm", 0)
    bare = {name.removeprefix("transformer."): value for name, value in tensors.items() if "lm_head" not in name}
    found = weights.select(bare.items(), config, "causal_lm")
    assert tensors.keys() - found.keys() == {"lm_head.bias"}
    bare["h.0.ffn.0.wight"] = bare.pop("h.0.ffn.0.weight")
    with pytest.raises(weights.WeightsError, match=r"1 unknown: transformer.h.0.ffn.0.wight; 1 missing"):
        weights.select(bare.items(), config, "causal_lm")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n_heads": 4}, "n_heads: unknown key, did you mean n_head"),
        ({"hidden_size": 320, "n_embd": 32}, "n_embd: 32 contradicts n_embd: 320"),
        ({"n_head": 7}, "7 heads do not divide n_embd = 1280"),
        ({"n_embd": 33, "n_head": 3}, "n_embd: 33 is odd"),
        ({"resid_pdrop": 1.0}, "resid_pdrop: 1.0"),
        ({"pruned_heads": {"0": [1]}}, "pruned_heads"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings: 'no' should be true or false"),
    ],
)
def test_a_key_that_is_not_honoured_is_rejected_by_name(keys, message):
    with pytest.raises(schema.ConfigError, match=message):
        CTRLConfig(**keys)


def test_the_published_configuration_is_understood():
    """The keys of Salesforce/ctrl's config.json."""
    published = {
        "architectures": ["CTRLLMHeadModel"], "attn_pdrop": 0.1, "dff": 8192, "embd_pdrop": 0.1, "from_tf": False,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-06, "model_type": "ctrl", "n_ctx": 512, "n_embd": 1280,
        "n_head": 16, "n_layer": 48, "n_positions": 50000, "num_labels": 1, "output_past": True, "pruned_heads": {},
        "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_type": "cls_index",
        "torchscript": False, "use_bfloat16": False, "vocab_size": 246534,
    }  # fmt: skip
    resolved = schema.resolve(published)
    assert resolved["n_positions"] == 50000
    assert sum(np.prod(shape) for shape, _ in weights.parameters(resolved, "causal_lm").values()) == 1_637_964_550


def test_a_saved_configuration_has_hugging_faces_keys(tmp_path):
    CTRLLMHeadModel(CTRLConfig(**SMALL)).save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "config.json").read_text())
    assert stored["architectures"] == ["CTRLLMHeadModel"] and stored["n_embd"] == 32 and stored["model_type"] == "ctrl"
