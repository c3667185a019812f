"""Test data sources: each gives the same columns, and its errors name the line of the recipe."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from toolkit.commands.recipe_check import check_data
from toolkit.data import load as data
from toolkit.data.batches import collate
from toolkit.data.built_in import load_built_in, needs_only_option_checks
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.classification import task as classification
from toolkit.tasks.corpora import cldr_languages

HEAD = """\
train: {epochs: 1, learning_rate: 1e-3}
model:
  config:
    axial_pos_shape: [4, 8]
data:
  max_length: 32
"""
ROWS = [{"text": f"text number {index}", "label": ["no", "yes"][index % 2]} for index in range(20)]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def recipe(tmp_path):
    """Return a function that writes a recipe over json files of rows (20 each by default) with more data keys."""

    def make(more: str = "", overrides: tuple[str, ...] = (), **splits: list[dict]) -> Recipe:
        splits = splits or {"train": ROWS, "validation": ROWS}
        lines = HEAD + "  dataset: json\n  files:\n"
        lines += "".join(
            f"    {split_name}: {jsonl(tmp_path / (split_name + '.jsonl'), rows)}\n"
            for split_name, rows in splits.items()
        )
        (tmp_path / "x.yaml").write_text(lines + more)
        return load_recipe(tmp_path / "x.yaml", overrides)

    return make


def error_of(recipe: Recipe) -> str:
    with pytest.raises(UserError) as error_info:
        classification.load_splits(recipe)
    return str(error_info.value).removeprefix(str(recipe.path))


def test_json_lines_become_texts_and_labels(recipe):
    splits = classification.load_splits(recipe(train=ROWS, validation=ROWS[:4], test=ROWS[:6]))
    assert {split_name: len(rows) for split_name, rows in splits.items()} == {"train": 20, "validation": 4, "test": 6}
    assert splits["train"].column_names == ["text", "label"]
    assert splits["test"].features["label"].names == ["no", "yes"]
    assert splits["train"][1] == {"text": "text number 1", "label": 1}


def test_other_columns_and_whole_numbers_work(recipe):
    rows = [{"body": f"a{index}", "text": index, "stars": index % 3 * 10, "more": None} for index in range(9)]
    splits = classification.load_splits(recipe("  text: body\n  label: stars\n", train=rows, validation=rows))
    assert splits["train"].features["label"].names == ["0", "10", "20"]
    assert splits["train"][4] == {"text": "a4", "label": 1}


def test_numbers_are_ordered_as_numbers_and_truth_values_have_names(recipe):
    rows = [{"text": "a", "label": value} for value in (9, 10, 9)]
    assert classification.load_splits(recipe(train=rows, validation=rows))["train"].features["label"].names == [
        "9",
        "10",
    ]
    rows = [{"text": "a", "label": value} for value in (True, False)]
    assert classification.load_splits(recipe(train=rows, validation=rows))["train"].features["label"].names == [
        "false",
        "true",
    ]
    rows = [{"text": "a", "label": value} for value in (1.0, 0.0)]
    assert classification.load_splits(recipe(train=rows, validation=rows))["train"].features["label"].names == [
        "0",
        "1",
    ]


def test_csv_takes_empty_texts_and_the_word_na(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\nhello,NA\n,null\nbye,NA\n")
    (tmp_path / "x.yaml").write_text(HEAD + "  dataset: csv\n  files: {train: t.csv, validation: t.csv}\n")
    splits = classification.load_splits(load_recipe(tmp_path / "x.yaml"))  # t.csv is next to the recipe
    assert splits["train"]["text"][:] == ["hello", "", "bye"]
    assert splits["train"].features["label"].names == ["NA", "null"]


def test_a_folder_of_data_files_works_like_a_data_set_of_the_hub(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split_name in ("train", "validation", "test"):
        jsonl(folder / f"{split_name}.jsonl", ROWS)
    (tmp_path / "x.yaml").write_text(HEAD + f"  dataset: {folder}\n")
    assert set(classification.load_splits(load_recipe(tmp_path / "x.yaml"))) == {"train", "validation", "test"}


def test_the_built_in_corpus_needs_no_file(tmp_path):
    options = "  dataset: cldr_languages\n  options: {languages: [fi, no, ka], train: 3, validation: 2, test: 1}\n"
    (tmp_path / "x.yaml").write_text(HEAD + options)
    splits = classification.load_splits(load_recipe(tmp_path / "x.yaml"))
    assert {split_name: len(rows) for split_name, rows in splits.items()} == {"train": 9, "validation": 6, "test": 3}
    assert splits["train"].features["label"].names == ["fi", "no", "ka"]


def test_a_test_split_is_held_out_with_the_same_share_of_each_label(recipe):
    rows = [{"text": f"text {n}", "label": "rare" if n % 5 == 0 else "common"} for n in range(100)]
    shares = "  validation_fraction: 0.2\n  test_fraction: 0.1\n"
    splits = classification.load_splits(recipe(shares, train=rows))
    assert {name: Counter(part["label"]) for name, part in splits.items()} == {
        "train": {0: 56, 1: 14},
        "validation": {0: 16, 1: 4},
        "test": {0: 8, 1: 2},
    }
    assert len({text for part in splits.values() for text in part["text"]}) == 100
    splits_without_test = classification.load_splits(recipe("  validation_fraction: 0.2\n", train=rows))
    assert splits_without_test["validation"]["text"][:] == splits["validation"]["text"][:]


def test_validation_is_held_out_evenly_and_repeatably(recipe):
    rows = [{"text": f"t{index}", "label": int(index < 40)} for index in range(200)]
    first = classification.load_splits(recipe("  validation_fraction: 0.2\n", train=rows))
    two = classification.load_splits(recipe("  validation_fraction: 0.2\n", train=rows))
    other_seed = classification.load_splits(recipe("  validation_fraction: 0.2\n", ("seed=1",), train=rows))
    assert Counter(first["validation"]["label"]) == {0: 32, 1: 8}
    assert not set(first["train"]["text"]) & set(first["validation"]["text"])
    assert len(first["train"]) + len(first["validation"]) == 200
    assert first["validation"]["text"][:] == two["validation"]["text"][:] != other_seed["validation"]["text"][:]


def test_a_limit_draws_rows_by_the_seed_and_keeps_their_order(recipe):
    rows = [{"text": f"text {index:03}", "label": ["no", "yes"][index % 2]} for index in range(100)]

    def draw_texts(*overrides: str) -> list[str]:
        limit = "  limit: {train: 10, validation: 10}\n"
        splits = classification.load_splits(recipe(limit, overrides, train=rows, validation=rows))
        assert splits["train"]["text"][:] != splits["validation"]["text"][:]
        return splits["train"]["text"][:]

    first, repeated_draw, other_seed = draw_texts(), draw_texts(), draw_texts("seed=7")
    assert first == repeated_draw == sorted(first) and len(set(first)) == 10
    assert first != other_seed and first != [row["text"] for row in rows[:10]]


def test_a_limit_takes_examples_of_every_label_from_a_sorted_file(recipe):
    rows = [{"text": f"t{index}", "label": index // 100} for index in range(200)]
    splits = classification.load_splits(recipe("  limit: {train: 40}\n", train=rows, validation=rows))
    assert len(splits["train"]) == 40 and len(splits["validation"]) == 200
    counts = Counter(splits["train"]["label"])
    assert set(counts) == {0, 1} and min(counts.values()) > 8


@pytest.mark.parametrize(
    ("more", "rows", "expected_error"),
    [
        ("  text: body\n", ROWS, ":11: data.text: no column body in the train split; it has text, label"),
        ("  label: stars\n", ROWS, ":11: data.label: no column stars in the train split; it has text, label"),
        ("  label: text\n", ROWS, ":11: data.label: text is the text column as well"),
        ("", [], ":9: data.files.train: "),
        (
            "",
            [{"text": 1, "label": 0}],
            ":5: data.text: the column text of the train split holds int64 values, not text",
        ),
        ("", [{"text": ["a"], "label": 0}], ":5: data.text: the column text of the train split holds"),
        ("", [{"text": None, "label": 0}, {"text": "a", "label": 1}], "1 of 2 rows of the train split have no text"),
        (
            "",
            [{"text": "a", "label": None}, {"text": "a", "label": 1}],
            "data.label: 1 of 2 rows of the train split have no",
        ),
        (
            "",
            [{"text": "a", "label": ""}, {"text": "a", "label": "x"}],
            "1 of 2 rows of the train split have no label, the first is row 1",
        ),
        (
            "",
            [{"text": "a", "label": 0.5}, {"text": "a", "label": 1}],
            "holds 0.5: a label is a word or a whole number",
        ),
        ("", [{"text": "a", "label": [1]}], "holds [1]: a label is a word or a whole number"),
        ("", [{"text": "a", "label": 1}] * 3, "all 3 rows of the train split have the same label"),
        ("  options: {x: 1}\n", ROWS, ":11: data.options: is for dataset: cldr_languages"),
        ("  validation_fraction: 0.1\n", ROWS, ":11: data.validation_fraction: the data has a validation split"),
    ],
)
def test_faulty_data_is_reported_at_the_line(recipe, more, rows, expected_error):
    assert expected_error in error_of(recipe(more, train=rows, validation=ROWS))


def test_a_missing_file_is_reported_at_its_line(recipe, tmp_path):
    loaded_recipe = recipe()
    (tmp_path / "validation.jsonl").unlink()
    assert error_of(loaded_recipe).startswith(
        f":10: data.files.validation: {tmp_path / 'validation.jsonl'}: no such file"
    )
    relative = recipe(overrides=("data.files.train=gone.jsonl",))
    assert f"gone.jsonl: no such file here ({Path.cwd()}) or beside the recipe ({tmp_path})" in error_of(relative)


def test_a_file_of_another_kind_is_reported_at_its_line(recipe, tmp_path):
    loaded_recipe = recipe()
    (tmp_path / "train.jsonl").write_text('{"text": "a", "label"')
    assert error_of(loaded_recipe).startswith(
        f":9: data.files.train: {tmp_path / 'train.jsonl'}:1: row 1 is not JSON: "
    )


def test_a_label_that_training_never_sees_is_refused(recipe):
    rows = [*ROWS, {"text": "a", "label": "maybe"}]
    assert "1 rows of the validation split have the label 'maybe'" in error_of(recipe(train=ROWS, validation=rows))
    assert "known: no, yes" in error_of(recipe(train=ROWS, validation=ROWS, test=rows))


def test_no_validation_data_at_all_is_refused(recipe):
    assert ":5: data.validation_fraction: missing" in error_of(recipe(train=ROWS))
    assert "0.01 of 20 rows is none" in error_of(recipe("  validation_fraction: 0.01\n", train=ROWS))


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [
        ("{languages: [fi, xx]}", "data.options.languages: 'xx' is not a language"),
        ("{trian: 3}", "data.options.trian: unknown option; known: languages, train"),
        ("{train: 0}", "data.options.train: Input should be greater than 0"),
    ],
)
def test_an_unknown_option_of_the_built_in_corpus_is_reported_at_its_line(tmp_path, options, expected_error):
    (tmp_path / "x.yaml").write_text(HEAD + f"  dataset: cldr_languages\n  options: {options}\n")
    assert f":8: {expected_error}" in error_of(load_recipe(tmp_path / "x.yaml"))


def test_a_hub_data_set_is_not_fetched_by_a_check(recipe, tmp_path):
    (tmp_path / "x.yaml").write_text(HEAD + "  dataset: somebody/something\n")
    notes = check_data(load_recipe(tmp_path / "x.yaml"))
    assert notes == ["data.dataset: somebody/something is a hub data set; it is fetched and checked when a run starts"]


def test_examples_are_padded_tokens_of_the_texts(recipe):
    loaded_recipe = recipe(train=[*ROWS, {"text": "x" * 40, "label": "no"}], validation=ROWS)
    splits = classification.load_splits(loaded_recipe)
    examples = classification.prepare(
        loaded_recipe, data.build_tokenizer(loaded_recipe, splits["train"]["text"]), splits
    )
    batch = collate([examples.train[0], examples.train[20]])
    assert {key: (value.shape, value.dtype) for key, value in batch.items()} == {
        "input_ids": ((2, 32), np.int64),
        "attention_mask": ((2, 32), np.int64),
        "labels": ((2,), np.int64),
    }
    expected_tokens = [byte + 2 for byte in b"text number 0"]
    assert batch["input_ids"][0].tolist() == expected_tokens + [0] * (32 - len(expected_tokens))
    assert batch["attention_mask"].sum(axis=1).tolist() == [len(expected_tokens), 32]
    assert examples.num_truncated == {"train": 1, "validation": 0}
    assert examples.label_names == ["no", "yes"]
    assert examples.test is None
    assert np.asarray(examples.train["labels"]).tolist() == [0, 1] * 10 + [0]


def test_tokens_are_computed_once_for_the_same_content(recipe, monkeypatch):
    loaded_recipe = recipe()
    splits = classification.load_splits(loaded_recipe)
    tokenizer = data.build_tokenizer(loaded_recipe, splits["train"]["text"])
    classification.prepare(loaded_recipe, tokenizer, splits)
    calls = []
    original = type(tokenizer).encode_batch
    monkeypatch.setattr(
        type(tokenizer), "encode_batch", lambda self, texts: calls.append(len(texts)) or original(self, texts)
    )
    classification.prepare(loaded_recipe, tokenizer, classification.load_splits(recipe()))
    assert calls == []
    changed_rows = [dict(ROWS[0], text="another text"), *ROWS[1:]]
    repeated_examples = classification.prepare(
        loaded_recipe, tokenizer, classification.load_splits(recipe(train=changed_rows, validation=ROWS))
    )
    assert calls == [20]
    assert tokenizer.decode(repeated_examples.train[0]["input_ids"]) == "another text"
    classification.prepare(recipe(overrides=("data.max_length=16",)), tokenizer, splits)
    assert calls == [20, 20]  # train and validation hold the same rows


def file_times(folder: Path) -> dict[Path, int]:
    """Return the time at which each file of the cache was written, without the marks of last use."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "entry.txt"}


def test_a_tokenizer_is_trained_on_the_training_text_once(recipe, cache):
    rows = [{"text": f"the quick brown fox number {index} jumps", "label": index % 2} for index in range(40)]
    loaded_recipe = recipe("tokenizer: {kind: sentencepiece, vocab_size: 40}\n", train=rows, validation=rows)
    train = classification.load_splits(loaded_recipe)["train"]["text"]
    first = data.build_tokenizer(loaded_recipe, train)
    write_times = file_times(cache / "tokenizers")
    assert first.vocab_size == 40
    assert data.build_tokenizer(loaded_recipe, train).fingerprint() == first.fingerprint()
    assert file_times(cache / "tokenizers") == write_times
    assert not [name for name in os.listdir(cache / "tokenizers") if name.startswith(".")]


@pytest.mark.parametrize(
    ("tokenizer", "expected_error"),
    [
        ("{kind: sentencepiece, path: gone.model}", "tokenizer.path: cannot read gone.model: No such file"),
        ("{kind: sentencepiece, path: train.jsonl}", "tokenizer.path: train.jsonl: not a SentencePiece model"),
        ("{kind: sentencepiece, vocab_size: 5000}", "tokenizer.vocab_size: cannot train 5000 pieces on these texts"),
    ],
)
def test_an_impossible_tokenizer_is_reported_at_its_line(recipe, tokenizer, expected_error):
    loaded_recipe = recipe(f"tokenizer: {tokenizer}\n")
    with pytest.raises(UserError, match=r":11: " + expected_error):
        data.build_tokenizer(loaded_recipe, classification.load_splits(loaded_recipe)["train"]["text"])


def test_the_checkpoint_s_tokenizer_is_taken_from_its_folder(recipe, tmp_path):
    from models.reformer.tokenizer import ByteTokenizer

    (tmp_path / "weights").mkdir()
    ByteTokenizer().save(tmp_path / "weights")
    loaded_recipe = recipe("tokenizer: {kind: checkpoint}\n", (f"model.weights={tmp_path / 'weights'}",))
    assert data.build_tokenizer(loaded_recipe).fingerprint() == ByteTokenizer().fingerprint()
    loaded_recipe = recipe("tokenizer: {kind: checkpoint}\n", (f"model.weights={tmp_path / 'cache'}",))
    (tmp_path / "cache").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=r"tokenizer.kind: .* holds no tokenizer"):
        data.build_tokenizer(loaded_recipe)
    loaded_recipe = recipe("tokenizer: {kind: checkpoint}\n", ("model.weights=nowhere/at/all",))
    with pytest.raises(UserError, match=r"model\.weights: nowhere/at/all is neither a folder nor the name of a hub"):
        data.build_tokenizer(loaded_recipe)


@pytest.mark.shared_data
def test_the_movie_reviews_recipe_loads(shared_data, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    files = [
        f"data.files.{split_name}={shared_data / 'movie_reviews' / split_name}.jsonl"
        for split_name in ("train", "test")
    ]
    pieces = [f"tokenizer.path={shared_data / 'reformer-tokenizer' / 'spiece.model'}", "tokenizer.vocab_size=null"]
    loaded_recipe = load_recipe("recipes/reformer_cls_movie_reviews.yaml", ["data.limit.train=200", *files, *pieces])
    splits = classification.load_splits(loaded_recipe)
    assert {split_name: len(rows) for split_name, rows in splits.items()} == {
        "train": 200,
        "validation": 160,
        "test": 400,
    }
    examples = classification.prepare(
        loaded_recipe, data.build_tokenizer(loaded_recipe, splits["train"]["text"]), splits
    )
    assert examples.label_names == ["0", "1"]
    assert examples.test[0]["input_ids"].shape == (4096,)


ROOT = Path(__file__).parents[2]
SMALL_CORPUS = ["data.options.languages=[de, fi]", "data.options.train=3", "data.options.test=2"]


def test_rows_of_built_in_data_are_cached_unchanged(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    recipe = load_recipe(ROOT / "recipes" / "reformer_cls.yaml", SMALL_CORPUS)
    generated_rows = cldr_languages.load(cldr_languages.Options.model_validate(recipe.data.options))
    first = load_built_in(recipe, cldr_languages.__name__)
    monkeypatch.setattr(cldr_languages, "load", None)  # cached rows are not generated again
    repeated_rows = load_built_in(recipe, cldr_languages.__name__)
    for cached_rows in (first, repeated_rows):
        assert list(cached_rows) == list(generated_rows)
        for split_name, rows in generated_rows.items():
            assert (
                cached_rows[split_name].features == rows.features
                and cached_rows[split_name].to_dict() == rows.to_dict()
            )


def test_a_check_of_built_in_data_finds_errors_without_generating_all_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "empty"))
    path = ROOT / "recipes" / "reformer_cls.yaml"
    assert needs_only_option_checks(load_recipe(path, SMALL_CORPUS), cldr_languages.__name__)
    assert check_data(load_recipe(path, SMALL_CORPUS)) == [] and not (tmp_path / "empty").exists()
    for override, error_pattern in (
        ("data.text=words", "no column words in the train split"),
        ("data.validation_fraction=0.1", "has a validation split of its own"),
        ("data.options.languages=[de, xx]", "'xx' is not a language"),
    ):
        with pytest.raises(UserError, match=error_pattern):
            check_data(load_recipe(path, [*SMALL_CORPUS, override]))
