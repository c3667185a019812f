"""Test the model section of a recipe: every mistake is reported at its line before anything is loaded."""

from __future__ import annotations

import json

import pytest

from models.reformer.tokenizer import ByteTokenizer
from toolkit.errors import UserError
from toolkit.finetune import model_config
from toolkit.recipe.load import load_recipe

RECIPE = """\
model:
  config:
    axial_pos_shape: [32, 32]
    hidden_size: 128
    axial_pos_embds_dim: [32, 96]
    attn_layers: [local, lsh]
data:
  dataset: cldr_languages
  max_length: 1024
train: {epochs: 1, learning_rate: 1e-3}
"""

TOO_LONG = (
    ":9: data.max_length: 1030: model.config.axial_pos_shape: 1,030 tokens are more than the 1,024 positions of "
    "axial_pos_shape [32, 32]; set data.max_length to 1024, or model.config.axial_pos_shape to [32, 34]"
)


@pytest.fixture
def recipe(tmp_path):
    def make(*overrides: str, text: str = RECIPE):
        (tmp_path / "x.yaml").write_text(text)
        return load_recipe(tmp_path / "x.yaml", overrides)

    return make


def error_of(recipe) -> str:
    with pytest.raises(UserError) as error_info:
        model_config.check_model(recipe)
    return str(error_info.value).removeprefix(str(recipe.path))


def test_a_recipe_that_fits_has_nothing_to_note(recipe):
    assert model_config.check_model(recipe()) == []


@pytest.mark.parametrize(
    ("old_text", "new_text", "expected_error"),
    [
        ("max_length: 1024", "max_length: 1030", TOO_LONG),
        ("hidden_size: 128", "hiden_size: 128", ":4: model.config.hiden_size: unknown key, did you mean hidden_size?"),
        ("hidden_size: 128", "hidden_size: wide", ":4: model.config.hidden_size: 'wide' should be a whole number"),
        ("[local, lsh]", "[local, global]", ":6: model.config.attn_layers: "),
        ("[32, 96]", "[32, 32]", ":5: model.config.axial_pos_embds_dim: [32, 32] should be two numbers with the sum"),
        ("hidden_size: 128", "num_labels: 3", ":4: model.config.num_labels: follows from the data"),
        ("[local, lsh]", "[local]\n    is_decoder: true", ":7: model.config.is_decoder: the classification head reads"),
        ("[local, lsh]", "[local]\n    local_attn_chunk_length: 96", ":10: data.max_length: 1024: model.config.axial_"),
    ],
)  # fmt: skip
def test_a_faulty_model_section_is_reported_at_its_line(recipe, old_text, new_text, expected_error):
    assert error_of(recipe(text=RECIPE.replace(old_text, new_text))).startswith(expected_error)


def test_a_length_below_the_table_s_uses_its_first_rows(recipe):
    assert model_config.check_model(recipe("data.max_length=1000")) == [
        "texts of up to 1,000 tokens are padded to 1,024: a multiple of the 32 columns of axial_pos_shape and the "
        "attention chunks of 64"
    ]
    assert model_config.check_model(recipe("data.max_length=960")) == [
        "positions: the first 30 of 32 rows of the model's table (960 of 1,024 tokens)"
    ]


def test_learned_positions_need_no_axial_shape(recipe):
    assert model_config.check_model(recipe("model.config.axial_pos_embds=false")) == []
    assert "max_position_embeddings" in error_of(
        recipe("model.config.axial_pos_embds=false", "model.config.max_position_embeddings=512")
    )


def test_labels_and_vocabulary_follow_from_the_data(recipe):
    keys = model_config.resolve(recipe(), {}, ByteTokenizer(), ["fi", "et"])
    assert keys["vocab_size"] == 258
    assert keys["id2label"] == {0: "fi", 1: "et"} and keys["label2id"] == {"fi": 0, "et": 1}
    assert model_config.resolve(recipe("model.config.vocab_size=320"), {}, ByteTokenizer())["vocab_size"] == 320
    with pytest.raises(UserError, match=r"command line: model\.config\.vocab_size: a vocabulary of 99 is too small"):
        model_config.resolve(recipe("model.config.vocab_size=99"), {}, ByteTokenizer())


def checkpoint(folder, **keys) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({"model_type": "reformer", "attn_layers": ["local"], **keys}))
    return f"model.weights={folder}"


def test_a_recipe_overrides_a_checkpoint_s_configuration(recipe, tmp_path):
    weights = checkpoint(tmp_path / "w", axial_pos_shape=[16, 32], is_decoder=True, id2label={"0": "a"})
    text = RECIPE.replace("    axial_pos_shape: [32, 32]\n", "    is_decoder: false\n")
    assert "more than the 512 positions of axial_pos_shape [16, 32]; set data.max_length to 512" in error_of(
        recipe(weights, text=text)
    )
    assert model_config.check_model(recipe(weights, "data.max_length=512", text=text)) == []
    keys = model_config.resolve(
        recipe(weights, "data.max_length=512", text=text),
        json.loads((tmp_path / "w" / "config.json").read_text()),
        ByteTokenizer(),
        ["x", "y"],
    )
    assert keys["id2label"] == {0: "x", 1: "y"} and keys["is_decoder"] is False


@pytest.mark.parametrize(
    ("keys", "expected_error"),
    [
        ({"model_type": "bert"}, "does not describe a Reformer"),
        ({"hidden_size": -1}, "the checkpoint's config.json: hidden_size: -1"),
    ],
)
def test_an_unsuitable_checkpoint_is_reported_at_its_line(recipe, tmp_path, keys, expected_error):
    text = RECIPE.replace("    hidden_size: 128\n", "")
    message = error_of(recipe(checkpoint(tmp_path / "w", **keys), text=text))
    assert message.startswith("command line: model.weights: ") and expected_error in message


def test_missing_weights_are_distinguished_from_weights_to_download(recipe, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    notes = model_config.check_model(recipe("model.weights=somebody/reformer"))
    assert notes and "somebody/reformer is not on this machine" in notes[0]
    assert "neither a folder nor a hub repository" in error_of(recipe("model.weights=./gone"))
    assert "neither a folder nor a hub repository" in error_of(recipe("model.weights=a/b/c"))
    (tmp_path / "empty").mkdir()
    assert "holds no config.json" in error_of(recipe(f"model.weights={tmp_path / 'empty'}"))
    assert "did you mean hidden_size?" in error_of(recipe("model.weights=a/b", "model.config.hiden_size=3"))
