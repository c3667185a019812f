"""Test the port without its reference: reversible backward, padding, chunking, weights, configuration."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import paddle
import pytest

from models.operations import losses, randomness
from models.port.weights import to_paddle
from models.reformer import schema, weights
from models.reformer.config import ReformerConfig
from models.reformer.modeling import (
    CLASSES,
    ReformerForMaskedLM,
    ReformerForSequenceClassification,
    ReformerModelWithLMHead,
)
from models.reformer.reversible import run_traced
from toolkit.parity.inputs.synthetic import SyntheticWeights


def make_model(
    config: dict, dtype: str = "float32", head: str = "sequence_classification", kind: str = "random", **settings
):
    """Return a port in train mode with synthetic weights."""
    model = CLASSES[head](ReformerConfig(**config, **settings))
    model.to(dtype=dtype)
    weights.load(model, SyntheticWeights(model.config, head, 0, kind))
    model.train()
    return model


def run_step(model, batch: dict[str, np.ndarray], seed: int = 3) -> tuple[float, dict[str, np.ndarray]]:
    """Return the loss and gradients of one training step."""
    paddle.seed(seed)
    loss = model(**{name: paddle.to_tensor(value) for name, value in batch.items()}).loss
    loss.backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}
    model.clear_gradients()
    return float(loss), gradients


def compute_relative_differences(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> dict[str, float]:
    return {n: float(np.linalg.norm(ours[n] - theirs[n]) / np.linalg.norm(theirs[n])) for n in theirs}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", ["random", "heavy-tailed", "large-gains"])
def test_the_reversible_backward_gives_the_gradients_of_plain_autograd(tiny_config, tiny_batch, dtype, kind):
    tiny_config["attn_layers"] = ["local", "lsh"] * 3
    loss, gradients = run_step(make_model(tiny_config, dtype, kind=kind), tiny_batch)
    plain_loss, plain_gradients = run_step(make_model(tiny_config, dtype, kind=kind, backward="autograd"), tiny_batch)
    assert loss == plain_loss
    assert max(compute_relative_differences(gradients, plain_gradients).values()) < 1e-5


def test_a_wide_residual_keeps_gradients_that_a_plain_residual_loses(tiny_config, tiny_batch):
    """The wide residual is needed, because the inputs recovered from grown plain streams are noise."""
    tiny_config["attn_layers"] = ["local", "lsh"] * 3
    _, plain_gradients = run_step(
        make_model(tiny_config, kind="large-gains", residual="plain", backward="autograd"), tiny_batch
    )
    _, narrow = run_step(make_model(tiny_config, kind="large-gains", residual="plain"), tiny_batch)
    assert max(compute_relative_differences(narrow, plain_gradients).values()) > 1e-3


def test_an_update_has_its_own_gradient_in_addition_to_the_streams():
    x, update = (paddle.ones([3]) for _ in range(2))
    x.stop_gradient = update.stop_gradient = False

    def layer(attention_stream, hidden_stream, mask, read):
        return attention_stream.plus(2.0 * update), hidden_stream, None

    total, start_stream = run_traced([layer], x, None, "wide")
    (total.sum() + (5.0 * start_stream).sum()).backward()
    assert (x.grad.tolist(), update.grad.tolist()) == ([6.0] * 3, [2.0] * 3)


def test_a_training_step_repeats_with_its_seed_and_differs_with_another(tiny_config, tiny_batch):
    model = make_model(tiny_config)
    first_step, repeated_step, other_step = (run_step(model, tiny_batch, seed) for seed in (3, 3, 4))
    assert first_step[0] == repeated_step[0] and all(
        (first_step[1][n] == repeated_step[1][n]).all() for n in first_step[1]
    )
    assert first_step[0] != other_step[0]


def test_a_recomputed_block_repeats_its_draws_and_restores_the_generator():
    x = paddle.ones([32, 32])
    paddle.seed(1)
    replay = randomness.Replay()
    first = randomness.dropout(x, 0.5, True).numpy()
    expected_next = randomness.dropout(x, 0.5, True).numpy()
    paddle.seed(1)
    randomness.dropout(x, 0.5, True)
    with replay:
        assert (randomness.dropout(x, 0.5, True).numpy() == first).all()
    assert (randomness.dropout(x, 0.5, True).numpy() == expected_next).all()


def test_a_hash_seed_fixes_the_rotations_and_disturbs_no_other_draw():
    first, second = (randomness.normal([4, 4], "float32", seed=5).numpy() for _ in range(2))
    assert (first == second).all()
    paddle.seed(2)
    expected_draw = randomness.normal([3], "float32").numpy()
    paddle.seed(2)
    randomness.normal([4, 4], "float32", seed=5)
    assert (randomness.normal([3], "float32").numpy() == expected_draw).all()


def test_frozen_embeddings_do_not_change_the_gradients_of_the_layers(tiny_config, tiny_batch):
    model = make_model(tiny_config)
    for parameter in model.reformer.embeddings.parameters():
        parameter.stop_gradient = True
    model(**{name: paddle.to_tensor(value) for name, value in tiny_batch.items()}).loss.backward()
    layer = model.reformer.encoder.layers[0]
    assert np.abs(layer.attention.self_attention.query.weight.grad.numpy()).sum() > 0
    assert model.reformer.embeddings.word_embeddings.weight.grad is None


def test_chunked_feed_forward_and_lm_head_compute_the_same(tiny_config, tiny_batch):
    config = {**tiny_config, "is_decoder": True, "hidden_dropout_prob": 0.0}
    batch = {**tiny_batch, "labels": tiny_batch["input_ids"]}
    full_step = run_step(make_model(config, "float64", "causal_lm"), batch)
    chunked_step = run_step(
        make_model({**config, "chunk_size_feed_forward": 32, "chunk_size_lm_head": 64}, "float64", "causal_lm"), batch
    )
    assert full_step[0] == pytest.approx(chunked_step[0], rel=1e-13)
    assert max(compute_relative_differences(chunked_step[1], full_step[1]).values()) < 1e-12


def test_evaluation_pads_to_the_chunk_length_and_cuts_back(tiny_config):
    model = make_model(tiny_config, "float64", "masked_lm")
    model.eval()
    ids = np.random.default_rng(0).integers(1, 64, (2, 50))
    paddle.seed(0)
    short = model(paddle.to_tensor(ids)).logits.numpy()
    padded_ids = np.zeros((2, 64), np.int64)
    padded_ids[:, :50] = ids
    mask = (np.arange(64) < 50).astype(np.int64)[None].repeat(2, 0)
    paddle.seed(0)
    long = model(paddle.to_tensor(padded_ids), paddle.to_tensor(mask)).logits.numpy()
    assert short.shape == (2, 50, 64)
    np.testing.assert_array_equal(short, long[:, :50])


@pytest.mark.parametrize(("length", "advice"), [(120, "128"), (64, r"\[8, 16\]")])
def test_an_unsuitable_training_length_is_rejected_with_advice(tiny_config, length, advice):
    model = make_model(tiny_config)
    with pytest.raises(ValueError, match=advice):
        model(paddle.zeros([1, length], "int64"), labels=paddle.zeros([1], "int64"))


def test_a_causal_model_does_not_see_the_future(tiny_config):
    model = make_model({**tiny_config, "is_decoder": True}, "float64", "causal_lm")
    model.eval()
    ids = np.random.default_rng(0).integers(1, 64, (1, 128))
    changed_ids = ids.copy()
    changed_ids[0, 100:] = 1
    paddle.seed(0)
    original_logits = model(paddle.to_tensor(ids)).logits.numpy()
    paddle.seed(0)
    changed_logits = model(paddle.to_tensor(changed_ids)).logits.numpy()
    # LSH sorts by bucket, and later tokens move chunk borders, so only local attention is exact.
    assert np.abs(original_logits - changed_logits)[0, 100:].max() > 1e-6
    local = make_model({**tiny_config, "attn_layers": ["local", "local"], "is_decoder": True}, "float64", "causal_lm")
    local.eval()
    first, second = (local(paddle.to_tensor(x)).logits.numpy() for x in (ids, changed_ids))
    np.testing.assert_array_equal(first[0, :100], second[0, :100])


def test_the_loss_is_the_mean_over_the_labels_that_count():
    logits = np.random.default_rng(0).standard_normal((6, 4))
    labels = np.array([1, -100, 3, -100, -100, 0])
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    expected_loss = -np.mean([log_probabilities[i, labels[i]] for i in (0, 2, 5)])
    assert float(losses.cross_entropy(paddle.to_tensor(logits), paddle.to_tensor(labels))) == pytest.approx(
        expected_loss, rel=1e-14
    )


@pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
def test_other_problem_types_have_their_losses(tiny_config, tiny_batch, problem):
    count = 1 if problem == "regression" else 3
    model = make_model({**tiny_config, "num_labels": count, "problem_type": problem})
    labels = np.array([0.5, -1.0], np.float32) if count == 1 else np.eye(3, dtype=np.float32)[:2]
    loss, gradients = run_step(model, {**tiny_batch, "labels": labels})
    assert np.isfinite(loss) and np.abs(gradients["classifier.out_proj.weight"]).sum() > 0


def test_a_saved_folder_is_loaded_to_the_last_bit(tiny_config, tmp_path):
    model = make_model(tiny_config)
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["ReformerForSequenceClassification"]
    loaded_model = ReformerForSequenceClassification.from_pretrained(tmp_path)
    assert loaded_model.new_weights == []
    for (name, ours), (_, theirs) in zip(loaded_model.named_parameters(), model.named_parameters(), strict=True):
        assert (ours.numpy() == theirs.numpy()).all(), name


@pytest.mark.parametrize("head", list(CLASSES))
def test_transformers_loads_a_saved_folder_and_gives_the_same_logits(tiny_config, tmp_path, head):
    """Compare the port's float64 logits in evaluation with the reference's, which runs in a separate process.

    The gate compares the head that transformers lacks.
    """
    config = {**tiny_config, "is_decoder": head == "causal_lm", "attn_layers": ["local", "local"], "num_labels": 2}
    model = make_model(config, head=head)
    model.save_pretrained(tmp_path)
    script = (
        "import importlib, sys, numpy, torch, transformers\n"
        "name, folder = sys.argv[1:]\n"
        "lacking = 'toolkit.parity.families.reformer.reference'\n"
        "kind = getattr(transformers, name, None) or getattr(importlib.import_module(lacking), name)\n"
        "model, found = kind.from_pretrained(folder, output_loading_info=True)\n"
        "assert not any(found.values()), found\n"
        "ids = torch.arange(128).reshape(2, 64) % 64\n"
        "numpy.save(folder + '/logits.npy', model.double().eval()(ids).to_tuple()[0].detach().numpy())\n"
    )
    process = subprocess.run([sys.executable, "-c", script, CLASSES[head].__name__, str(tmp_path)], capture_output=True)
    assert process.returncode == 0, process.stderr.decode()
    ours = make_model(config, "float64", head)
    ours.eval()
    logits = ours(paddle.arange(128).reshape([2, 64]) % 64).to_tuple()[0].numpy()
    np.testing.assert_allclose(logits, np.load(tmp_path / "logits.npy"), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["lm_head.bias", "lm_head.decoder.bias"])
def test_the_output_bias_is_found_under_both_names(tiny_config, name):
    config = schema.resolve({**tiny_config, "is_decoder": True})
    tensors = weights.initial_weights(config, "causal_lm", 0)
    bias = tensors.pop("lm_head.bias") + 1
    selected_weights = weights.select([*tensors.items(), (name, bias)], config, "causal_lm")
    assert (selected_weights["lm_head.bias"] == bias).all()
    twice = [*tensors.items(), ("lm_head.bias", bias), ("lm_head.decoder.bias", bias + 1)]
    with pytest.raises(weights.WeightsError, match="twice"):
        weights.select(twice, config, "causal_lm")


def test_a_checkpoint_of_another_head_loads_the_body_and_lists_new_weights(tiny_config, tmp_path):
    make_model({**tiny_config, "is_decoder": True}, head="causal_lm").save_pretrained(tmp_path)
    model = ReformerForSequenceClassification.from_pretrained(tmp_path, is_decoder=False, num_labels=5)
    assert [name.split(".")[0] for name in model.new_weights] == ["classifier"] * 4
    assert model.classifier.out_proj.weight.shape == [32, 5]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("reformer.encoder.layers.1.attention.self_attention.value.weight"), "1 missing.*layers.1"),
        (
            lambda w: w.update({"reformer.encoder.layers.9.attention.output.dense.weight": np.zeros((32, 32))}),
            "unknown",
        ),
        (lambda w: w.update({"reformer.encoder.layer_norm.weight": np.zeros(32, np.float32)}), r"shape \(32,\)"),
        (lambda w: w.update({"reformer.x.self_attention.mask_value_float32": np.float32(-1e4)}), "is not the"),
    ],
)
def test_weights_that_do_not_fit_one_to_one_are_rejected_by_name(tiny_config, change, message):
    config = schema.resolve(tiny_config)
    tensors = weights.initial_weights(config, "sequence_classification", 0)
    change(tensors)
    with pytest.raises(weights.WeightsError, match=message):
        weights.select(tensors.items(), config, "sequence_classification")


def test_a_square_weight_is_transposed_by_its_role(tiny_config):
    tiny_config.update(feed_forward_size=32)
    model = make_model(tiny_config)
    port_weight = model.reformer.encoder.layers[0].feed_forward.dense.dense.weight.numpy()
    reference_weight = SyntheticWeights(model.config, model.head, 0)[
        "reformer.encoder.layers.0.feed_forward.dense.dense.weight"
    ]
    assert (
        port_weight.shape == reference_weight.shape
        and (port_weight == reference_weight.T).all()
        and not (port_weight == reference_weight).all()
    )


def test_a_pickle_is_named_and_not_opened(tmp_path, tiny_config):
    ReformerConfig(**tiny_config).save_pretrained(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(FileNotFoundError, match=r"pytorch_model\.bin is a pickle"):
        ReformerForSequenceClassification.from_pretrained(tmp_path)


def test_randomly_initialized_weights_depend_only_on_the_seed(tiny_config):
    config = schema.resolve(tiny_config)
    first_weights, equal_weights, other_weights = (
        weights.initial_weights(config, "masked_lm", seed) for seed in (1, 1, 2)
    )
    name = "reformer.embeddings.word_embeddings.weight"
    assert (first_weights[name] == equal_weights[name]).all() and not (first_weights[name] == other_weights[name]).all()
    assert first_weights[name].std() == pytest.approx(config["initializer_range"], rel=0.05)
    assert (first_weights["lm_head.bias"] == 0).all() and (
        first_weights["reformer.encoder.layer_norm.weight"] == 1
    ).all()


def test_every_parameter_of_the_port_has_a_role_and_every_role_a_parameter(tiny_config):
    for head, model in CLASSES.items():
        config = ReformerConfig(**{**tiny_config, "is_decoder": head == "causal_lm", "num_labels": 2})
        assert {n: p.shape for n, p in model(config).named_parameters()} == {
            name: list(to_paddle(np.empty(shape), role).shape)
            for name, (shape, role) in weights.parameters(config, head).items()
        }


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_hash": 4}, "num_hash: unknown key, did you mean num_hashes"),
        ({"hidden_dropout_prob": 1.5}, "hidden_dropout_prob: 1.5"),
        ({"axial_pos_embds_dim": [1, 2]}, "sum hidden_size = 256"),
        ({"attn_layers": ["lsh", "global"]}, "attn_layers"),
        ({"sinusoidal_pos_embds": True}, "sinusoidal_pos_embds: True is not supported"),
        ({"hidden_act": "mish"}, "hidden_act: 'mish'"),
        ({"num_buckets": [3, 4]}, "even"),
        ({"num_buckets": [2**16, 2**16]}, "num_buckets: .* has too large a product"),
        ({"num_buckets": [2] * 1_000_000}, r"^num_buckets: \[2, [2, ]{1,400} \.\.\. [^.]{1,400}$"),
        ({"attn_layers": ["lsh"] * 1_000_000}, "attn_layers: 1000000 layers are too many; 10000 is the most"),
        ({"attn_layers": ["x"] * 1_000_000}, r"^attn_layers: .{1,500}$"),
        ({"id2label": {index: "a" for index in range(1_000_001)}}, "id2label: 1000001 labels are too many"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings"),
        ({"is_decoder": True, "lsh_num_chunks_after": 1}, "lsh_num_chunks_after: a causal model"),
        ({"num_labels": 3, "id2label": {0: "a"}}, "num_labels: 3 does not fit"),
    ],
)
def test_a_configuration_key_is_supported_or_rejected_by_name(keys, message):
    with pytest.raises(schema.ConfigError, match=message):
        ReformerConfig(**keys)


def test_the_published_configuration_is_accepted():
    """Use the keys of config.json of google/reformer-crime-and-punishment, including the inert keys."""
    published_config = {
        "architectures": ["ReformerModelWithLMHead"],
        "attention_head_size": 64,
        "attention_probs_dropout_prob": 0.1,
        "attn_layers": ["local", "lsh", "local", "lsh", "local", "lsh"],
        "axial_norm_std": 1.0,
        "axial_pos_embds": True,
        "axial_pos_embds_dim": [64, 192],
        "axial_pos_shape": [512, 1024],
        "intermediate_size": 3072,
        "is_decoder": True,
        "max_position_embeddings": 524288,
        "model_type": "reformer",
        "num_attention_heads": 2,
        "num_buckets": [64, 128],
        "num_chunks_after": 0,
        "num_hidden_layers": 6,
        "output_past": True,
        "sinusoidal_pos_embds": False,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 100}},
    }
    config = ReformerConfig(**published_config)
    assert config.num_buckets == [64, 128] and config.to_hf()["axial_pos_shape"] == [512, 1024]


def test_causal_and_masked_models_need_their_kind_of_attention(tiny_config):
    with pytest.raises(schema.ConfigError, match="is_decoder"):
        ReformerModelWithLMHead(ReformerConfig(**tiny_config))
    with pytest.raises(schema.ConfigError, match="is_decoder"):
        ReformerForMaskedLM(ReformerConfig(**tiny_config, is_decoder=True))


def test_the_number_of_buckets_is_chosen_once_and_saved(tiny_config, tiny_batch):
    model = make_model(tiny_config)
    run_step(model, tiny_batch)
    assert model.config.num_buckets == 16 and model.config.to_hf()["num_buckets"] == 16
