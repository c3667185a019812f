"""Test recipes: errors name their line, and a correct recipe survives a round trip."""

from __future__ import annotations

import math
from pathlib import Path

import pydantic
import pytest

from toolkit.errors import UserError
from toolkit.recipe.load import all_keys, load_recipe

RECIPE = """\
seed: 7
data:
  dataset: cldr_languages
  max_length: 1024
  options:
    languages: [no, fi]
model:
  config:
    layer_norm_eps: 1e-12
train:
  epochs: 2
  learning_rate: 1e-3
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "x.yaml") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


def error_of(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as error_info:
        load_recipe(path, overrides)
    return str(error_info.value)


def test_the_evaluation_batch_is_a_micro_batch_or_the_set_size(write):
    training = ["train.batch_size=4", "train.gradient_accumulation_steps=3"]
    assert load_recipe(write(RECIPE), training).train.eval_batch_size == 4
    assert load_recipe(write(RECIPE), [*training, "train.eval_batch_size=32"]).train.eval_batch_size == 32


def test_a_minimal_recipe_gets_every_default(write):
    recipe = load_recipe(write(RECIPE))
    assert recipe.train.batch_size == recipe.train.eval_batch_size == 8
    assert recipe.output_dir == Path("runs/x")
    assert recipe.parity.dtype == "both"
    assert (recipe.data.label, recipe.train.save_best) == ("label", "accuracy")
    assert (recipe.model.backward, recipe.tokenizer.kind) == ("auto", "bytes")


def test_numbers_and_words_read_as_a_person_reads_them(write):
    recipe = load_recipe(write(RECIPE))
    assert recipe.train.learning_rate == 1e-3
    assert recipe.model.config["layer_norm_eps"] == 1e-12
    assert recipe.data.options["languages"] == ["no", "fi"]  # Norwegian, not false


def test_the_command_line_wins_over_the_file(write):
    recipe = load_recipe(write(RECIPE), ["train.learning_rate=2e-4", "model.config.attn_layers=[local, lsh]", "seed=3"])
    assert recipe.train.learning_rate == 2e-4
    assert recipe.model.config == {"layer_norm_eps": 1e-12, "attn_layers": ["local", "lsh"]}
    assert recipe.seed == 3


@pytest.mark.parametrize(
    ("faulty_lines", "expected_error"),
    [
        ("  epochs: 2\n  batch_sise: 4\n", ":12: train.batch_sise: unknown key, did you mean batch_size?"),
        ("  epochs: 2\n  zzz: 4\n", ":12: train.zzz: unknown key; known: output_dir"),
        ("  epochs: two\n", ":11: train.epochs: 'two': input should be a valid number"),
        ("  epochs: -1\n", ":11: train.epochs: -1: input should be greater than 0"),
        ("  epochs: .nan\n", ":11: train.epochs: nan: input should be"),
        ("  epochs: 2\n  batch_size: '4'\n", ":12: train.batch_size: '4': input should be a valid integer"),
        ("  epochs: 2\n  lr_scheduler: linaer\n", ":12: train.lr_scheduler: 'linaer' is not one of linear, cosine"),
        ("  epochs: 2\n  max_steps: 9\n", ":12: train.max_steps: epochs is set too"),
        ("  batch_size: 4\n", ":10: train.epochs: missing; set epochs or max_steps"),
        ("  epochs: 2\n  epochs: 3\n", ":12: train.epochs: written twice, first at line 11"),
        ("  epochs: [2\n", ": not YAML: expected ',' or ']'"),
        ('  epochs: "\\U00110000"\n', ": not YAML: \\U00110000 is no character"),
        ('  epochs: "\\UFFFFFFFF"\n', ": not YAML: \\UFFFFFFFF is no character"),
        ("  epochs: &two 2\n  batch_size: *two\n", ":11: anchors and aliases"),
        ("  epochs: !!python/object/apply:os.getcwd []\n", ":11: train.epochs: the tag"),
        ("  ? [a]\n  : b\n", ":11: a key must be a word"),
    ],
)
def test_a_mistake_is_reported_at_its_line(write, faulty_lines, expected_error):
    path = write(RECIPE.replace("  epochs: 2\n", faulty_lines))
    assert error_of(path).startswith(f"{path}")
    assert expected_error in error_of(path)


def test_every_mistake_is_reported_in_the_order_of_the_file(write):
    path = write(RECIPE.replace("seed: 7", "sed: 7").replace("max_length", "max_lenght"))
    lines = error_of(path).splitlines()
    assert [line.split(": ")[0].rpartition(":")[2] for line in lines] == ["1", "2", "4"]
    assert "data.max_length: missing" in lines[1]


def test_a_mistake_on_the_command_line_is_reported_there(write):
    path = write(RECIPE)
    assert error_of(path, "train.batch_sise=4").startswith("command line: train.batch_sise: unknown key, did you mean")
    assert error_of(path, "seed.x=4") == "command line: seed.x: seed is the value 7, which has no keys"
    assert error_of(path, "--foo").startswith("command line: '--foo': expected key.path=value")
    assert error_of(path, "model.config.a=[1").startswith("command line: model.config.a:1: not YAML")
    assert error_of(path, "data.max_length=").startswith("command line: data.max_length: None")


@pytest.mark.parametrize(
    ("overrides", "expected_error"),
    [
        (["data.dataset=json"], "data.files: missing"),
        (
            ["data.files={train: a}"],
            "data.files: is for dataset json, csv, xlsx, parquet, arrow or text, not for cldr_languages",
        ),
        (["data.dataset=text", "data.files={train: a}"], "data.dataset: plain text has no labels"),
        (["tokenizer.kind=sentencepiece"], "tokenizer.kind: give path"),
        (["tokenizer.kind=sentencepiece", "tokenizer.path=a", "tokenizer.vocab_size=99"], "tokenizer.path: give path"),
        (["tokenizer.vocab_size=99"], "tokenizer.vocab_size: is for kind: sentencepiece"),
        (["tokenizer.kind=checkpoint"], "tokenizer.kind: checkpoint takes the tokenizer of model.weights"),
        (["data.sources={Books: a}"], "data.sources: is for dataset: text, not for cldr_languages; remove it"),
        (["model.name=ctrl", "model.residual=wide"], "model.residual: is for model reformer, not for ctrl"),
        (["train.momentum=0.5"], "train.momentum: is for optimizer sgd, not for adamw; remove it"),
        (["train.optimizer=sgd", "train.adam_beta1=0.5"], "train.adam_beta1: is for optimizer adamw or lion"),
        (["train.optimizer=lion", "train.sharding=stage1"], "train.sharding: is for optimizer adamw"),
        (["model.name=ctrl", "tokenizer.kind=bytes"], "tokenizer.kind: bytes is not for ctrl; bpe or checkpoint is"),
        (["tokenizer.kind=bpe"], "tokenizer.kind: bpe is not for reformer; bytes, sentencepiece or checkpoint is"),
        (
            ["train.save_best=acuracy"],
            "train.save_best: 'acuracy' is not one of accuracy, macro_f1, loss, did you mean",
        ),
    ],
)
def test_keys_that_contradict_each_other_are_refused(write, overrides, expected_error):
    assert expected_error in error_of(write(RECIPE), *overrides)


def test_a_file_that_is_not_a_recipe_is_refused(write, tmp_path):
    write(RECIPE, "reformer_cls.yaml")
    assert "did you mean" in error_of(tmp_path / "reformer_csl.yaml")
    assert "expected" not in error_of(tmp_path / "nowhere" / "x.yaml")
    assert error_of(write("- a\n")).endswith(":1: a recipe is a mapping of keys to values, not a list")
    assert "data: missing" in error_of(write(""))
    (tmp_path / "latin.yaml").write_bytes("seed: é".encode("latin-1"))
    assert "not UTF-8" in error_of(tmp_path / "latin.yaml")
    assert "is a folder, not a recipe; next, if it holds data: toolkit recipe new " in error_of(tmp_path)
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(2**40)  # an empty sparse file
    assert error_of(tmp_path / "huge.yaml").endswith(":1: a file of more than 4,194,304 bytes is no recipe")


@pytest.mark.parametrize(
    ("name", "content", "expected_error"),
    [
        ("news.csv", b"label,text\n" + b"1,a b c\n" * 10_000, "is data, not a recipe"),
        ("news.csv", b"", "is data, not a recipe"),
        ("table.xlsx", b"PK\x03\x04\xff", "is data, not a recipe"),
        ("rows.jsonl.gz", b"\x1f\x8b", "is data, not a recipe"),
        ("rows.json", b'[{"text": "a"}]', "a recipe is a mapping of keys to values, not a list; if it is data"),
        ("squad.json", b'{"version": "1", "data": []}', "has no section data, so it is not a recipe; if it is data"),
        ("texts.train", b"__label__a x y\n" * 999, "not the value '__label__a x y"),
        ("texts.train", b"a: b\n- c", "not YAML"),
        ("texts.train", b"\xff", "is not UTF-8 text"),
    ],
)
def test_data_instead_of_a_recipe_is_recognized(tmp_path, name, content, expected_error):
    path = tmp_path / name
    path.write_bytes(content)
    message = error_of(path)
    assert (
        expected_error in message
        and message.endswith(f"next: toolkit recipe new {path}")
        and len(message.splitlines()) == 1
    )
    assert len(message) < 200 + 2 * len(str(path))


def test_a_recipe_may_have_any_other_name(tmp_path):
    (tmp_path / "mine.json").write_text('{"data": {"dataset": "csv", "max_length": 8}}')
    assert "train: missing" in error_of(tmp_path / "mine.json")


@pytest.mark.parametrize(
    ("content", "line", "expected_error"),
    [
        (b"seed: 7\ndata:\n  text: gr\xf6\xdfe\n", 3, "is not UTF-8 text (byte 24); save it as UTF-8"),
        (b"\xef\xbb\xbfseed: 7\r\ndata:\r\n  text: \xff\r\n", 3, "is not UTF-8 text"),
        (b"seed: 7\rdata:\r  text: \xff\r", 3, "is not UTF-8 text"),
        ("seed: 7\n".encode("utf-16"), 1, "is not UTF-8 text (byte 0)"),
        (b"seed: 7\n# \xc3\xa4\nhere: \x07\n", 3, "not YAML: U+0007 is no character of a text; remove it"),
        (b"seed: 7\r\n\r\nhere: \x00\r\n", 3, "not YAML: U+0000 is no character"),
        (b"# x\n%YAML " + b"1" * 5000 + b".1\n---\nseed: 7\n", 2, "not YAML: Exceeds the limit"),
        (b"seed: 7\na:\n  " + b"- " * 900 + b"x\n", 3, "nested too deeply"),
        (b"a: \x0c\n" + b"[" * 1500, 2, "nested too deeply"),
        ("a: \u2028\nb: ".encode() + b"[" * 1500, 2, "nested too deeply"),
        (b"", 1, "data: missing"),
    ],
    ids=["western", "mark", "old_mac", "utf-16", "bell", "zero", "version", "deep", "feed", "separator", "empty"],
)  # fmt: skip
def test_a_file_that_cannot_be_read_to_its_end_is_refused_at_a_line(tmp_path, content, line, expected_error):
    path = tmp_path / "x.yaml"
    path.write_bytes(content)
    error_lines = error_of(path).splitlines()
    assert error_lines[0].startswith(f"{path}:{line}: ") and expected_error in error_lines[0]
    assert all(entry.startswith(f"{path}:") and entry.removeprefix(f"{path}:")[0].isdigit() for entry in error_lines)


def test_a_hostile_file_is_refused_and_not_expanded(write):
    assert "anchors" in error_of(write("a: &a [x]\nb: &b [*a, *a]\n"))
    assert "nested too deeply" in error_of(write("a: " + "[" * 1500 + "]" * 1500))


def test_a_later_stage_can_point_at_the_line(write):
    path = write(RECIPE)
    recipe = load_recipe(path, ["model.config.hidden_size=4"])
    assert str(recipe.error("data.max_length", "too long")) == f"{path}:4: data.max_length: too long"
    assert str(recipe.error("data.label", "absent")) == f"{path}:2: data.label: absent"
    assert str(recipe.error("tracking.wandb", "no")) == f"{path}:1: tracking.wandb: no"
    assert str(recipe.error("model.config.hidden_size", "odd")) == "command line: model.config.hidden_size: odd"
    assert str(recipe.error("model.config.layer_norm_eps", "odd")).startswith(f"{path}:9: ")


def test_a_section_replaced_on_the_command_line_loses_its_lines(write):
    recipe = load_recipe(write(RECIPE), ["model.config={}"])
    assert recipe.model.config == {}
    assert str(recipe.error("model.config.layer_norm_eps", "odd")).startswith("command line: ")


def test_the_resolved_recipe_survives_a_round_trip(write, tmp_path):
    recipe = load_recipe(write(RECIPE), ['data.label="1e3"', "data.text='null'", "data.options.x=0.1"])
    reloaded_recipe = load_recipe(write(recipe.to_yaml(), "resolved.yaml"))
    assert reloaded_recipe.to_yaml() == recipe.to_yaml()
    assert (reloaded_recipe.data.label, reloaded_recipe.data.text) == ("1e3", "null")
    assert reloaded_recipe.output_dir == (Path("runs") / "x").absolute()


def test_infinity_in_a_free_section_survives(write):
    recipe = load_recipe(write(RECIPE), ["data.options.x=-.inf"])
    assert load_recipe(write(recipe.to_yaml(), "again.yaml")).data.options["x"] == -math.inf


def test_a_path_is_relative_to_the_current_folder_or_to_the_recipe(write, tmp_path, monkeypatch):
    (tmp_path / "there").mkdir()
    path = write(RECIPE, "there/x.yaml")
    (tmp_path / "there" / "a.json").touch()
    monkeypatch.chdir(tmp_path)
    recipe = load_recipe(path)
    assert recipe.resolve("a.json") == tmp_path / "there" / "a.json"
    (tmp_path / "a.json").touch()
    assert recipe.resolve("a.json") == Path("a.json")
    assert recipe.resolve("missing.json") == Path("missing.json")


def test_the_card_s_license_and_languages_are_plain(write):
    recipe = load_recipe(write(RECIPE), ["card.license=apache-2.0", "card.language=[no, zh-Hant]"])
    assert (recipe.card.license, recipe.card.language) == ("apache-2.0", ["no", "zh-Hant"])
    path = write(f"{RECIPE}card:\n  license: |\n    MIT\n  language: [de, German language]\n")
    error_lines = error_of(path).splitlines()
    assert error_lines[0].startswith(f"{path}:14: card.license: 'MIT\\n': string should match pattern")
    assert error_lines[1].startswith(f"{path}:16: card.language.1: 'German language': string should match")
    assert "card.language: 'de': input should be a valid list" in error_of(write(RECIPE), "card.language=de")


def test_every_key_of_a_recipe_is_listed():
    keys = all_keys()
    assert {"task", "seed", "data.max_length", "train.batch_size", "card.license"} <= set(keys)
    assert "data" not in keys and len(set(keys)) == len(keys)


def test_a_copy_with_values_does_not_change_the_recipe(write):
    recipe = load_recipe(write(RECIPE))
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        recipe.train.batch_size = 3
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        recipe.seed = 3
    changed_recipe = recipe.with_values({"train.batch_size": 3})
    changed_recipe.findings.note("of the run")
    assert (changed_recipe.train.batch_size, recipe.findings.notes[-1]) == (
        3,
        "of the run",
    ) and recipe.train.batch_size != 3
