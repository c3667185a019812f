"""Data: whatever the source, the same columns come out; whatever is wrong with it is said at the recipe's line."""

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
    """A recipe over json files of these rows (all of them 20 rows by default), with more lines for the data section."""

    def make(more: str = "", overrides: tuple[str, ...] = (), **splits: list[dict]) -> Recipe:
        splits = splits or {"train": ROWS, "validation": ROWS}
        lines = HEAD + "  dataset: json\n  files:\n"
        lines += "".join(
            f"    {split}: {jsonl(tmp_path / (split + '.jsonl'), rows)}\n" for split, rows in splits.items()
        )
        (tmp_path / "x.yaml").write_text(lines + more)
        return load_recipe(tmp_path / "x.yaml", overrides)

    return make


def problem(recipe: Recipe) -> str:
    with pytest.raises(UserError) as raised:
        classification.load_splits(recipe)
    return str(raised.value).removeprefix(str(recipe.path))


def test_json_lines_become_texts_and_labels(recipe):
    splits = classification.load_splits(recipe(train=ROWS, validation=ROWS[:4], test=ROWS[:6]))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 20, "validation": 4, "test": 6}
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
    splits = classification.load_splits(load_recipe(tmp_path / "x.yaml"))  # t.csv stands beside the recipe
    assert splits["train"]["text"][:] == ["hello", "", "bye"]
    assert splits["train"].features["label"].names == ["NA", "null"]


def test_a_folder_of_data_files_works_as_a_hub_data_set_does(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "validation", "test"):
        jsonl(folder / f"{split}.jsonl", ROWS)
    (tmp_path / "x.yaml").write_text(HEAD + f"  dataset: {folder}\n")
    assert set(classification.load_splits(load_recipe(tmp_path / "x.yaml"))) == {"train", "validation", "test"}


def test_the_built_in_corpus_needs_no_file(tmp_path):
    options = "  dataset: cldr_languages\n  options: {languages: [fi, no, ka], train: 3, validation: 2, test: 1}\n"
    (tmp_path / "x.yaml").write_text(HEAD + options)
    splits = classification.load_splits(load_recipe(tmp_path / "x.yaml"))
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 9, "validation": 6, "test": 3}
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
    alone = classification.load_splits(recipe("  validation_fraction: 0.2\n", train=rows))
    assert alone["validation"]["text"][:] == splits["validation"]["text"][:]


def test_validation_is_held_out_evenly_and_repeatably(recipe):
    rows = [{"text": f"t{index}", "label": int(index < 40)} for index in range(200)]
    one = classification.load_splits(recipe("  validation_fraction: 0.2\n", train=rows))
    two = classification.load_splits(recipe("  validation_fraction: 0.2\n", train=rows))
    other = classification.load_splits(recipe("  validation_fraction: 0.2\n", ("seed=1",), train=rows))
    assert Counter(one["validation"]["label"]) == {0: 32, 1: 8}
    assert not set(one["train"]["text"]) & set(one["validation"]["text"])
    assert len(one["train"]) + len(one["validation"]) == 200
    assert one["validation"]["text"][:] == two["validation"]["text"][:] != other["validation"]["text"][:]


def test_a_limit_draws_rows_by_the_seed_and_leaves_their_order(recipe):
    rows = [{"text": f"text {index:03}", "label": ["no", "yes"][index % 2]} for index in range(100)]

    def drawn(*overrides: str) -> list[str]:
        limit = "  limit: {train: 10, validation: 10}\n"
        splits = classification.load_splits(recipe(limit, overrides, train=rows, validation=rows))
        assert splits["train"]["text"][:] != splits["validation"]["text"][:]
        return splits["train"]["text"][:]

    first, again, other = drawn(), drawn(), drawn("seed=7")
    assert first == again == sorted(first) and len(set(first)) == 10
    assert first != other and first != [row["text"] for row in rows[:10]]


def test_a_limit_takes_examples_of_every_label_from_a_sorted_file(recipe):
    rows = [{"text": f"t{index}", "label": index // 100} for index in range(200)]
    splits = classification.load_splits(recipe("  limit: {train: 40}\n", train=rows, validation=rows))
    assert len(splits["train"]) == 40 and len(splits["validation"]) == 200
    counts = Counter(splits["train"]["label"])
    assert set(counts) == {0, 1} and min(counts.values()) > 8


@pytest.mark.parametrize(
    ("more", "rows", "expected"),
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
def test_what_is_wrong_with_the_data_is_said_at_the_line(recipe, more, rows, expected):
    assert expected in problem(recipe(more, train=rows, validation=ROWS))


def test_a_missing_file_is_said_at_its_line(recipe, tmp_path):
    made = recipe()
    (tmp_path / "validation.jsonl").unlink()
    assert problem(made).startswith(f":10: data.files.validation: {tmp_path / 'validation.jsonl'}: no such file")
    relative = recipe(overrides=("data.files.train=gone.jsonl",))
    assert f"gone.jsonl: no such file here ({Path.cwd()}) or beside the recipe ({tmp_path})" in problem(relative)


def test_a_file_of_another_kind_is_said_at_its_line(recipe, tmp_path):
    made = recipe()
    (tmp_path / "train.jsonl").write_text('{"text": "a", "label"')
    assert problem(made).startswith(f":9: data.files.train: {tmp_path / 'train.jsonl'}:1: row 1 is not JSON: ")


def test_a_label_that_training_never_sees_is_refused(recipe):
    rows = [*ROWS, {"text": "a", "label": "maybe"}]
    assert "1 rows of the validation split have the label 'maybe'" in problem(recipe(train=ROWS, validation=rows))
    assert "known: no, yes" in problem(recipe(train=ROWS, validation=ROWS, test=rows))


def test_no_validation_data_at_all_is_refused(recipe):
    assert ":5: data.validation_fraction: missing" in problem(recipe(train=ROWS))
    assert "0.01 of 20 rows is none" in problem(recipe("  validation_fraction: 0.01\n", train=ROWS))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("{languages: [fi, xx]}", "data.options.languages: 'xx' is not a language"),
        ("{trian: 3}", "data.options.trian: unknown option; known: languages, train"),
        ("{train: 0}", "data.options.train: Input should be greater than 0"),
    ],
)
def test_a_wrong_option_of_the_built_in_corpus_is_said_at_its_line(tmp_path, options, expected):
    (tmp_path / "x.yaml").write_text(HEAD + f"  dataset: cldr_languages\n  options: {options}\n")
    assert f":8: {expected}" in problem(load_recipe(tmp_path / "x.yaml"))


def test_a_hub_data_set_is_not_fetched_by_a_check(recipe, tmp_path):
    (tmp_path / "x.yaml").write_text(HEAD + "  dataset: somebody/something\n")
    notes = check_data(load_recipe(tmp_path / "x.yaml"))
    assert notes == ["data.dataset: somebody/something is a hub data set; it is fetched and checked when a run starts"]


def test_examples_are_padded_tokens_of_the_texts(recipe):
    made = recipe(train=[*ROWS, {"text": "x" * 40, "label": "no"}], validation=ROWS)
    splits = classification.load_splits(made)
    prepared = classification.prepare(made, data.build_tokenizer(made, splits["train"]["text"]), splits)
    batch = collate([prepared.train[0], prepared.train[20]])
    assert {key: (value.shape, value.dtype) for key, value in batch.items()} == {
        "input_ids": ((2, 32), np.int64),
        "attention_mask": ((2, 32), np.int64),
        "labels": ((2,), np.int64),
    }
    expected = [byte + 2 for byte in b"text number 0"]
    assert batch["input_ids"][0].tolist() == expected + [0] * (32 - len(expected))
    assert batch["attention_mask"].sum(axis=1).tolist() == [len(expected), 32]
    assert prepared.num_truncated == {"train": 1, "validation": 0}
    assert prepared.label_names == ["no", "yes"]
    assert prepared.test is None
    assert np.asarray(prepared.train["labels"]).tolist() == [0, 1] * 10 + [0]


def test_tokens_are_computed_once_for_the_same_content(recipe, monkeypatch):
    made = recipe()
    splits = classification.load_splits(made)
    tokenizer = data.build_tokenizer(made, splits["train"]["text"])
    classification.prepare(made, tokenizer, splits)
    calls = []
    original = type(tokenizer).encode_batch
    monkeypatch.setattr(
        type(tokenizer), "encode_batch", lambda self, texts: calls.append(len(texts)) or original(self, texts)
    )
    classification.prepare(made, tokenizer, classification.load_splits(recipe()))
    assert calls == []
    changed = [dict(ROWS[0], text="another text"), *ROWS[1:]]
    again = classification.prepare(made, tokenizer, classification.load_splits(recipe(train=changed, validation=ROWS)))
    assert calls == [20]
    assert tokenizer.decode(again.train[0]["input_ids"]) == "another text"
    classification.prepare(recipe(overrides=("data.max_length=16",)), tokenizer, splits)
    assert calls == [20, 20]  # train and validation hold the same rows


def written(folder: Path) -> dict[Path, int]:
    """When each file of a part of the cache was written, but for those that say when an entry was used last."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.name != "entry.txt"}


def test_a_tokenizer_is_trained_on_the_training_text_once(recipe, cache):
    rows = [{"text": f"the quick brown fox number {index} jumps", "label": index % 2} for index in range(40)]
    made = recipe("tokenizer: {kind: sentencepiece, vocab_size: 40}\n", train=rows, validation=rows)
    train = classification.load_splits(made)["train"]["text"]
    first = data.build_tokenizer(made, train)
    stored = written(cache / "tokenizers")
    assert first.vocab_size == 40
    assert data.build_tokenizer(made, train).fingerprint() == first.fingerprint()
    assert written(cache / "tokenizers") == stored
    assert not [name for name in os.listdir(cache / "tokenizers") if name.startswith(".")]


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        ("{kind: sentencepiece, path: gone.model}", "tokenizer.path: cannot read gone.model: No such file"),
        ("{kind: sentencepiece, path: train.jsonl}", "tokenizer.path: train.jsonl: not a SentencePiece model"),
        ("{kind: sentencepiece, vocab_size: 5000}", "tokenizer.vocab_size: cannot train 5000 pieces on these texts"),
    ],
)
def test_a_tokenizer_that_cannot_be_made_is_said_at_its_line(recipe, tokenizer, expected):
    made = recipe(f"tokenizer: {tokenizer}\n")
    with pytest.raises(UserError, match=r":11: " + expected):
        data.build_tokenizer(made, classification.load_splits(made)["train"]["text"])


def test_the_checkpoint_s_tokenizer_is_taken_from_its_folder(recipe, tmp_path):
    from models.reformer.tokenizer import ByteTokenizer

    (tmp_path / "weights").mkdir()
    ByteTokenizer().save(tmp_path / "weights")
    made = recipe("tokenizer: {kind: checkpoint}\n", (f"model.weights={tmp_path / 'weights'}",))
    assert data.build_tokenizer(made).fingerprint() == ByteTokenizer().fingerprint()
    made = recipe("tokenizer: {kind: checkpoint}\n", (f"model.weights={tmp_path / 'cache'}",))
    (tmp_path / "cache").mkdir(exist_ok=True)
    with pytest.raises(UserError, match=r"tokenizer.kind: .* holds no tokenizer"):
        data.build_tokenizer(made)
    made = recipe("tokenizer: {kind: checkpoint}\n", ("model.weights=nowhere/at/all",))
    with pytest.raises(UserError, match=r"model\.weights: nowhere/at/all is neither a folder nor the name of a hub"):
        data.build_tokenizer(made)


@pytest.mark.shared_data
def test_the_movie_reviews_recipe_loads(shared_data, monkeypatch):
    monkeypatch.chdir(Path(__file__).parents[2])
    files = [f"data.files.{split}={shared_data / 'movie_reviews' / split}.jsonl" for split in ("train", "test")]
    pieces = [f"tokenizer.path={shared_data / 'reformer-tokenizer' / 'spiece.model'}", "tokenizer.vocab_size=null"]
    made = load_recipe("recipes/reformer_cls_movie_reviews.yaml", ["data.limit.train=200", *files, *pieces])
    splits = classification.load_splits(made)
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 200, "validation": 160, "test": 400}
    prepared = classification.prepare(made, data.build_tokenizer(made, splits["train"]["text"]), splits)
    assert prepared.label_names == ["0", "1"]
    assert prepared.test[0]["input_ids"].shape == (4096,)


ROOT = Path(__file__).parents[2]
SMALL_CORPUS = ["data.options.languages=[de, fi]", "data.options.train=3", "data.options.test=2"]


def test_rows_of_built_in_data_are_kept_as_they_were_made(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    recipe = load_recipe(ROOT / "recipes" / "reformer_cls.yaml", SMALL_CORPUS)
    made = cldr_languages.load(cldr_languages.Options.model_validate(recipe.data.options))
    first = load_built_in(recipe, cldr_languages.__name__)
    monkeypatch.setattr(cldr_languages, "load", None)  # what is kept is not made again
    again = load_built_in(recipe, cldr_languages.__name__)
    for kept in (first, again):
        assert list(kept) == list(made)
        for split, rows in made.items():
            assert kept[split].features == rows.features and kept[split].to_dict() == rows.to_dict()


def test_a_check_of_built_in_data_makes_none_and_sees_what_only_rows_can_show(tmp_path, monkeypatch):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / "empty"))
    path = ROOT / "recipes" / "reformer_cls.yaml"
    assert needs_only_option_checks(load_recipe(path, SMALL_CORPUS), cldr_languages.__name__)
    assert check_data(load_recipe(path, SMALL_CORPUS)) == [] and not (tmp_path / "empty").exists()
    for changed, said in (
        ("data.text=words", "no column words in the train split"),
        ("data.validation_fraction=0.1", "has a validation split of its own"),
        ("data.options.languages=[de, xx]", "'xx' is not a language"),
    ):
        with pytest.raises(UserError, match=said):
            check_data(load_recipe(path, [*SMALL_CORPUS, changed]))
