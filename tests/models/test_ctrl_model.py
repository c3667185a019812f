"""Test CTRL's port without its reference: cache, masks, recomputation, loading and saving weights, configuration."""

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


def make_model(head: str = "causal_lm", dtype: str = "float64", **keys):
    """Return a port in evaluation mode with synthetic weights."""
    model = CLASSES[head](CTRLConfig(**{**SMALL, **keys}))
    model.to(dtype=dtype)
    load(model, SyntheticWeights(model.config, head, 0, "random", "ctrl"))
    model.eval()
    return model


def make_tokens(rows: int = 2, length: int = 24) -> paddle.Tensor:
    return paddle.to_tensor(np.random.default_rng(0).integers(1, SMALL["vocab_size"], (rows, length)))


def test_the_cache_does_not_change_the_logits():
    model, tokens = make_model(), make_tokens()
    full_logits = model(tokens).logits.numpy()
    partial_logits, cache = [], None
    for start, end in ((0, 7), (7, 8), (8, 24)):
        output = model(tokens[:, start:end], past_key_values=cache, use_cache=True)
        partial_logits.append(output.logits.numpy())
        cache = output.past_key_values
    np.testing.assert_allclose(np.concatenate(partial_logits, 1), full_logits, rtol=1e-12, atol=1e-13)
    assert len(cache) == 2 and cache[0][0].shape == [2, 4, 24, 8]


def test_a_position_does_not_depend_on_later_tokens_or_padding():
    model, tokens = make_model(), make_tokens()
    logits = model(tokens).logits.numpy()
    other_future = tokens.clone()
    other_future[:, 12:] = 1
    np.testing.assert_array_equal(model(other_future).logits.numpy()[:, :12], logits[:, :12])
    mask = (paddle.arange(24) >= 5).astype("int64").expand([2, 24])
    other_padding = tokens.clone()
    other_padding[:, :5] = 3
    ours, same_logits = (model(x, attention_mask=mask).logits.numpy()[:, 5:] for x in (tokens, other_padding))
    np.testing.assert_array_equal(ours, same_logits)


def test_recomputed_layers_with_dropout_have_the_gradients_of_plain_autograd():
    gradients = []
    for recompute in (False, True):
        model = make_model(resid_pdrop=0.3, embd_pdrop=0.3)
        model.train()
        model.transformer.enable_recompute = recompute
        paddle.seed(5)
        model(make_tokens(), labels=make_tokens()).loss.backward()
        gradients.append({name: parameter.grad.numpy() for name, parameter in model.named_parameters()})
    for name, value in gradients[0].items():
        np.testing.assert_array_equal(gradients[1][name], value, err_msg=name)


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("length", [1, 5])
def test_heads_are_split_and_merged_like_by_transposing(length):
    """Compare values and gradients bit for bit, because numbers only change places."""
    draw = np.random.default_rng(0)
    values, upstream = draw.standard_normal((2, length, 12)), draw.standard_normal((2, 3, length, 4))
    ours, theirs = (paddle.to_tensor(values, stop_gradient=False) for _ in range(2))
    split_values, transposed_values = split_heads(ours, 3), theirs.reshape([2, length, 3, 4]).transpose([0, 2, 1, 3])
    np.testing.assert_array_equal(split_values.numpy(), transposed_values.numpy())
    merged_values = merge_heads(split_values * paddle.to_tensor(upstream)).reshape([2, length, 12])
    merged_transposed = (
        (transposed_values * paddle.to_tensor(upstream)).transpose([0, 2, 1, 3]).reshape([2, length, 12])
    )
    np.testing.assert_array_equal(merged_values.numpy(), merged_transposed.numpy())
    for result in (merged_values, merged_transposed):
        (result * paddle.to_tensor(values)).sum().backward()
    np.testing.assert_array_equal(ours.grad.numpy(), theirs.grad.numpy())


@pytest.mark.parametrize(("past", "length"), [(0, 4), (3, 1), (2, 3)])
def test_later_tokens_and_padding_are_masked_for_a_query(past, length):
    total, lowest = past + length, np.finfo("float32").min
    mask = np.ones((2, total), np.int64)
    mask[1, :2] = 0
    plain_bias = attention_bias(past, length, None, "float32").numpy()
    padded_bias = attention_bias(past, length, paddle.to_tensor(mask), "float32").numpy()
    assert plain_bias.shape == (length, total) and padded_bias.shape == (2, 1, length, total)
    for query in range(length):
        for key in range(total):
            future_bias = np.float32(FUTURE_BIAS if key > past + query else 0.0)
            assert plain_bias[query, key] == padded_bias[0, 0, query, key] == future_bias
            assert padded_bias[1, 0, query, key] == future_bias + np.float32(0.0 if mask[1, key] else lowest)


def test_positions_and_token_types_can_be_passed():
    model, tokens = make_model(), make_tokens()
    positions = paddle.arange(24).unsqueeze(0)
    np.testing.assert_array_equal(model(tokens, position_ids=positions).logits.numpy(), model(tokens).logits.numpy())
    shifted_logits = model(tokens, position_ids=positions + 1).logits.numpy()
    assert np.abs(shifted_logits - model(tokens).logits.numpy()).max() > 1e-3
    typed_logits = model(tokens, token_type_ids=paddle.zeros_like(tokens)).logits.numpy()
    assert np.abs(typed_logits - model(tokens).logits.numpy()).max() > 1e-3


def test_ignored_labels_and_the_last_position_do_not_count():
    model, tokens = make_model(), make_tokens(1)
    labels = tokens.clone()
    labels[0, :20] = -100
    output = model(tokens, labels=labels)
    scores = output.logits.numpy()[0]
    scores = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
    expected_loss = -np.mean([scores[t - 1, int(tokens[0, t])] for t in range(20, 24)])
    assert float(output.loss) == pytest.approx(expected_loss, rel=1e-13)


def test_a_text_is_classified_at_its_last_token_that_is_not_padding():
    model, tokens = make_model("sequence_classification"), make_tokens()
    tokens[1, 10:] = 0
    logits = model(tokens).logits.numpy()
    np.testing.assert_allclose(logits[1], model(tokens[1:, :10]).logits.numpy()[0], rtol=1e-12)
    with pytest.raises(schema.ConfigError, match="pad_token_id"):
        CTRLForSequenceClassification(CTRLConfig(**{**SMALL, "pad_token_id": None}))(make_tokens())


def test_more_positions_than_the_table_has_are_rejected():
    with pytest.raises(ValueError, match="65 positions are more than n_positions 64"):
        make_model()(make_tokens(1, 65))


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
    ("head", "is_tied"), [("causal_lm", True), ("causal_lm", False), ("sequence_classification", True)]
)
def test_transformers_loads_a_sharded_folder_and_gives_the_same_logits(tmp_path, head, is_tied):
    """Compare the port's float64 logits with the reference's, which runs in a separate process."""
    model = make_model(head, tie_word_embeddings=is_tied)
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
    np.save(tmp_path / "ids.npy", make_tokens().numpy())
    process = subprocess.run([sys.executable, "-c", script, CLASSES[head].__name__, str(tmp_path)], capture_output=True)
    assert process.returncode == 0, process.stderr.decode()
    # The reference's position table may differ from ours by a unit in the last place of float32.
    table = np.load(tmp_path / "table.npy")
    np.testing.assert_allclose(model.transformer.pos_encoding, table, atol=64 * 2.0**-22)
    model.hold_constants({"transformer.pos_encoding": table})
    np.testing.assert_allclose(
        model(make_tokens()).logits.numpy(), np.load(tmp_path / "logits.npy"), rtol=1e-12, atol=1e-13
    )


def test_a_saved_model_keeps_its_weights_and_its_position_table(tmp_path):
    model = make_model(dtype="float32")
    table = np.nextafter(model.transformer.pos_encoding, np.float32(2))
    model.hold_constants({"transformer.pos_encoding": table})
    model.save_pretrained(tmp_path, shard_bytes=20_000)
    loaded_model = CTRLLMHeadModel.from_pretrained(tmp_path)
    assert loaded_model.new_weights == []
    for (name, ours), (_, theirs) in zip(loaded_model.named_parameters(), model.named_parameters(), strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy(), err_msg=name)
    np.testing.assert_array_equal(loaded_model.transformer.pos_encoding, table)
    with pytest.raises(ValueError, match=r"pos_encoding: float64 \(64, 32\), but the model has float32"):
        model.hold_constants({"transformer.pos_encoding": table.astype("float64")})


def test_a_tied_output_layer_of_a_checkpoint_must_equal_the_embedding():
    config = schema.resolve(SMALL)
    tensors = weights.initial_weights(config, "causal_lm", 0)
    table = tensors["transformer.w.weight"]
    selected_weights = weights.select([*tensors.items(), ("lm_head.weight", table)], config, "causal_lm")
    assert selected_weights.keys() == tensors.keys()
    with pytest.raises(weights.WeightsError, match=r"transformer\.w\.weight: occurs twice"):
        weights.select([*tensors.items(), ("lm_head.weight", table + 1)], config, "causal_lm")


def test_a_body_without_prefix_is_loaded_and_a_missing_head_is_left_out():
    config = schema.resolve(SMALL)
    tensors = weights.initial_weights(config, "causal_lm", 0)
    bare = {name.removeprefix("transformer."): value for name, value in tensors.items() if "lm_head" not in name}
    selected_weights = weights.select(bare.items(), config, "causal_lm")
    assert tensors.keys() - selected_weights.keys() == {"lm_head.bias"}
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
def test_an_unsupported_key_is_rejected_by_name(keys, message):
    with pytest.raises(schema.ConfigError, match=message):
        CTRLConfig(**keys)


def test_the_published_configuration_is_accepted():
    """Use the keys of config.json of Salesforce/ctrl."""
    published_config = {
        "architectures": ["CTRLLMHeadModel"], "attn_pdrop": 0.1, "dff": 8192, "embd_pdrop": 0.1, "from_tf": False,
        "initializer_range": 0.02, "layer_norm_epsilon": 1e-06, "model_type": "ctrl", "n_ctx": 512, "n_embd": 1280,
        "n_head": 16, "n_layer": 48, "n_positions": 50000, "num_labels": 1, "output_past": True, "pruned_heads": {},
        "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_type": "cls_index",
        "torchscript": False, "use_bfloat16": False, "vocab_size": 246534,
    }  # fmt: skip
    config = schema.resolve(published_config)
    assert config["n_positions"] == 50000
    assert sum(np.prod(shape) for shape, _ in weights.parameters(config, "causal_lm").values()) == 1_637_964_550


def test_a_saved_configuration_has_hugging_faces_keys(tmp_path):
    CTRLLMHeadModel(CTRLConfig(**SMALL)).save_pretrained(tmp_path)
    saved_config = json.loads((tmp_path / "config.json").read_text())
    assert (
        saved_config["architectures"] == ["CTRLLMHeadModel"]
        and saved_config["n_embd"] == 32
        and saved_config["model_type"] == "ctrl"
    )
