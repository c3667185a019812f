"""Test published data sets: names of splits, splits without labels, configurations, and number-like labels."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from loopback_hub import LoopbackHub

from toolkit.commands.recipe_check import check_data
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe
from toolkit.tasks.classification import task as classification

HEAD = """\
train: {epochs: 1, learning_rate: 1e-3}
model: {config: {axial_pos_shape: [4, 8]}}
data:
  max_length: 32
"""
NAMES = ["bad", "good"]


def table(labels: list, texts: list[str] | None = None, has_names: bool = True) -> Dataset:
    """Return texts with labels; the labels have names unless `has_names` is False."""
    rows = {"text": texts or [f"text {index}" for index in range(len(labels))], "label": labels}
    label = ClassLabel(names=NAMES) if has_names else Value("int64")
    return Dataset.from_dict(rows, features=Features({"text": Value("string"), "label": label}))


@pytest.fixture
def corpus(tmp_path):
    """Return a function that writes a folder with a parquet file of each split, and a recipe over it."""

    def make(more: str = "", **splits: Dataset) -> Recipe:
        folder = tmp_path / "corpus"
        (folder / "data").mkdir(parents=True)
        for split_name, rows in splits.items():
            rows.to_parquet(folder / "data" / f"{split_name}-00000-of-00001.parquet")
        return write_recipe(tmp_path, f"  dataset: {folder}\n{more}")

    return make


def write_recipe(folder: Path, lines: str) -> Recipe:
    (folder / "x.yaml").write_text(HEAD + lines)
    return load_recipe(folder / "x.yaml")


def error_of(recipe: Recipe) -> str:
    with pytest.raises(UserError) as error_info:
        classification.load_splits(recipe)
    return str(error_info.value).removeprefix(str(recipe.path))


def sizes(recipe: Recipe) -> dict[str, int]:
    return {split_name: len(rows) for split_name, rows in classification.load_splits(recipe).items()}


# -- names of splits ------------------------------------------------------------------------------------------------

ROWS = table([0, 1, 0, 1])


def test_splits_are_used_under_the_names_that_the_recipe_gives(corpus):
    loaded_recipe = corpus(
        "  splits: {train: fit, validation: matched}\n", fit=ROWS, matched=table([0, 1]), other=table([1])
    )
    assert sizes(loaded_recipe) == {"train": 4, "validation": 2}


def test_a_split_that_is_null_is_not_used(corpus):
    loaded_recipe = corpus(
        "  splits: {validation: test, test: null}\n", train=ROWS, validation=table([1]), test=table([0, 1])
    )
    assert sizes(loaded_recipe) == {"train": 4, "validation": 2}


def test_a_split_that_replaces_another_is_used_only_once(corpus):
    loaded_recipe = corpus("  splits: {validation: test}\n", train=ROWS, test=table([0, 1]))
    assert sizes(loaded_recipe) == {"train": 4, "validation": 2}


@pytest.mark.parametrize(
    ("splits", "expected_error"),
    [
        (
            "{validation: holdout}",
            ":6: data.splits.validation: CORPUS has no split holdout; it has held_out, train, did ",
        ),
        ("{test: held_out, validation: held_out}", ":6: data.splits.validation: held_out is named as test too; set a"),
        ("{train: null}", ":6: data.splits.train: null: without it there is nothing to train on; name a split"),
        ("{dev: train}", ":6: data.splits.dev: 'dev' is not one of train, validation, test"),
        ("{validation: 3}", ":6: data.splits.validation: 3: input should be a valid string"),
        ("{validation: null}", ":3: data.validation_fraction: missing: the data has no validation split"),
    ],
)
def test_an_unknown_split_is_reported_at_its_line(corpus, tmp_path, splits, expected_error):
    with pytest.raises(UserError) as error_info:
        classification.load_splits(corpus(f"  splits: {splits}\n", train=ROWS, held_out=ROWS))
    message = str(error_info.value).replace(str(tmp_path / "corpus"), "CORPUS").removeprefix(str(tmp_path / "x.yaml"))
    assert message.startswith(expected_error)


def test_data_without_a_train_split_is_refused_with_the_existing_splits(corpus):
    assert error_of(corpus("", fit=ROWS, dev=ROWS)).endswith(
        "has no split train; it has dev, fit; name one in data.splits: {train: NAME}"
    )


def test_splits_are_for_folders_and_the_hub(tmp_path):
    with pytest.raises(
        UserError, match=r":5: data\.splits: is for folders and hub data sets; with csv, name the files"
    ):
        write_recipe(tmp_path, "  splits: {train: a}\n  dataset: csv\n  files: {train: t.csv}\n")
    with pytest.raises(UserError, match=r":5: data\.splits: is for folders and hub data sets, not for cldr_languages"):
        classification.load_splits(write_recipe(tmp_path, "  splits: {train: a}\n  dataset: cldr_languages\n"))


def test_a_recipe_with_splits_survives_a_round_trip(corpus, tmp_path):
    loaded_recipe = corpus(
        "  splits: {validation: test, test: null}\n", train=ROWS, validation=ROWS, test=table([0, 1])
    )
    (tmp_path / "again.yaml").write_text(loaded_recipe.to_yaml())
    assert sizes(load_recipe(tmp_path / "again.yaml")) == sizes(loaded_recipe) == {"train": 4, "validation": 2}


# -- rows without a label -------------------------------------------------------------------------------------------

UNLABELED_TEST_NOTE = "the test split has no labels (-1, or none, throughout); it is not measured"


@pytest.mark.parametrize("has_names", [True, False])
def test_a_test_split_without_labels_is_reported_and_not_evaluated(corpus, has_names):
    splits = {"train": [0, 1] * 3, "validation": [0, 1], "test": [-1, -1]}
    loaded_recipe = corpus("", **{name: table(labels, has_names=has_names) for name, labels in splits.items()})
    assert check_data(loaded_recipe) == [UNLABELED_TEST_NOTE]
    assert sizes(loaded_recipe) == {"train": 6, "validation": 2}
    assert loaded_recipe.findings.notes == [UNLABELED_TEST_NOTE]  # only once, although the data is read twice


def test_minus_one_is_a_normal_label_if_training_has_it(corpus):
    plain = table([-1, 1, -1, 1], has_names=False)
    loaded_recipe = corpus("", train=plain, validation=plain, test=table([-1, -1], has_names=False))
    assert sizes(loaded_recipe) == {"train": 4, "validation": 4, "test": 2}
    assert classification.load_splits(loaded_recipe)["train"].features["label"].names == ["-1", "1"]
    assert not loaded_recipe.findings.notes


def test_single_rows_without_a_label_are_omitted_and_counted(corpus):
    loaded_recipe = corpus("", train=table([0, -1, 1, -1, 0]), validation=table([0, 1]), test=table([1, -1]))
    splits = classification.load_splits(loaded_recipe)
    assert splits["train"]["text"][:] == ["text 0", "text 2", "text 4"]
    assert splits["train"]["label"][:] == [0, 1, 0]
    assert splits["test"]["label"][:] == [1]
    assert loaded_recipe.findings.notes == [
        "2 of 5 train rows have no label (-1) and are left out",
        "1 of 2 test rows have no label (-1) and are left out",
    ]


def test_a_validation_split_without_labels_is_refused(corpus):
    loaded_recipe = corpus("", train=ROWS, validation=table([-1, -1]), test=ROWS)
    assert (
        ": data.label: the validation split has no labels (-1 throughout); set data.splits: {validation: NAME}, or"
        in (error_of(loaded_recipe))
    )


# -- unchanged values ------------------------------------------------------------------------------------------------

NUMBER_LIKE_ROWS = "text,label\n007,001\n7,1\n1e3,10\nNA,9\n,9\nTrue,001\n1.50,1\n"


def test_labels_and_texts_of_csv_are_unchanged(tmp_path):
    (tmp_path / "t.csv").write_text(NUMBER_LIKE_ROWS)
    loaded_recipe = write_recipe(tmp_path, "  dataset: csv\n  files: {train: t.csv, validation: t.csv}\n")
    train = classification.load_splits(loaded_recipe)["train"]
    assert train["text"][:] == ["007", "7", "1e3", "NA", "", "True", "1.50"]
    assert train.features["label"].names == ["001", "1", "9", "10"]
    assert [train.features["label"].int2str(label) for label in train["label"]] == [
        *("001", "1", "10", "9", "9", "001", "1"),
    ]


def test_a_folder_of_csv_is_read_with_the_delimiter_of_its_card(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split_name in ("train", "validation"):
        (folder / f"{split_name}.csv").write_text(NUMBER_LIKE_ROWS.replace(",", ";"))
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  sep: ';'\n  data_files:\n"
        "  - {split: train, path: train.csv}\n  - {split: validation, path: validation.csv}\n---\n"
    )
    train = classification.load_splits(write_recipe(tmp_path, f"  dataset: {folder}\n"))["train"]
    assert train["text"][:] == ["007", "7", "1e3", "NA", "", "True", "1.50"]
    assert train.features["label"].names == ["001", "1", "9", "10"]


def test_labels_of_json_are_unchanged_and_mixed_types_are_refused(tmp_path):
    lines = "  dataset: json\n  files: {train: t.jsonl, validation: t.jsonl}\n"
    rows = [{"text": "007", "label": "001"}, {"text": "7", "label": "1"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = classification.load_splits(write_recipe(tmp_path, lines))["train"]
    assert (train["text"][:], train.features["label"].names) == (["007", "7"], ["001", "1"])
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "a", "label": 1}]))
    assert re.search(
        r"data\.label: the column label of the train split holds labels of several types|cannot be read as json",
        error_of(write_recipe(tmp_path, lines)),
    )


# -- configurations -------------------------------------------------------------------------------------------------


def test_the_former_name_of_the_configuration_is_accepted_with_a_note(tmp_path):
    loaded_recipe = write_recipe(tmp_path, "  config_name: a\n  dataset: o/n\n")
    assert loaded_recipe.data.config == "a"
    assert loaded_recipe.findings.notes == [f"{tmp_path / 'x.yaml'}:5: data.config_name is called data.config now"]
    assert "config_name" not in loaded_recipe.to_yaml()
    loaded_recipe = load_recipe(tmp_path / "x.yaml", ["data.config_name=b"])
    assert (loaded_recipe.data.config, loaded_recipe.findings.notes) == (
        "b",
        ["command line: data.config_name is called data.config now"],
    )
    assert not write_recipe(
        tmp_path, "  config_name: null\n  dataset: o/n\n"
    ).findings.notes  # as in recipes of earlier runs
    with pytest.raises(UserError, match=r":5: data\.config_name: is called data\.config now, which is set too; remove"):
        write_recipe(tmp_path, "  config_name: a\n  config: a\n  dataset: o/n\n")


CARD = """\
---
configs:
- config_name: fine
  data_files:
  - {{split: train, path: train.{0}}}
  - {{split: dev, path: dev.{0}}}
- config_name: coarse
  data_files: dev.{0}
---
"""


@pytest.mark.parametrize(
    ("lines", "expected_error"),
    [
        ("", ": data.config: missing; CORPUS has the configurations fine, coarse"),
        (
            "  config: corse\n",
            ":6: data.config: corse: CORPUS has no such configuration; it has fine, coarse, did you mean coarse?",
        ),
    ],
)
def test_errors_list_the_existing_configurations(tmp_path, lines, expected_error):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split_name in ("train", "dev"):
        (folder / f"{split_name}.csv").write_text(NUMBER_LIKE_ROWS)
    (folder / "README.md").write_text(CARD.format("csv"))
    message = error_of(write_recipe(tmp_path, f"  dataset: {folder}\n{lines}")).replace(str(folder), "CORPUS")
    assert message.endswith(expected_error)
    loaded_recipe = write_recipe(tmp_path, f"  dataset: {folder}\n  config: fine\n  splits: {{validation: dev}}\n")
    assert sizes(loaded_recipe) == {"train": 7, "validation": 7}


# -- the hub --------------------------------------------------------------------------------------------------------

#: The layout of GLUE on the hub: parquet files below a configuration's name, with the labels' names in the card.
GLUE = """\
---
configs:
- config_name: sst2
  data_files:
  - {split: train, path: sst2/train-*}
  - {split: validation, path: sst2/validation-*}
  - {split: test, path: sst2/test-*}
- config_name: cola
  data_files:
  - {split: train, path: sst2/train-*}
dataset_info:
- config_name: sst2
  features:
  - {name: text, dtype: string}
  - name: label
    dtype:
      class_label:
        names:
          '0': bad
          '1': good
- config_name: cola
  features:
  - {name: text, dtype: string}
  - name: label
    dtype:
      class_label:
        names:
          '0': bad
          '1': good
---
"""

LOAD = """
import json, sys
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task
for path in sys.argv[1:]:
    recipe = load_recipe(path)
    try:
        splits = task.load_splits(recipe)
        names = splits["train"].features["label"].names
        rows = {name: [part["text"][:], part["label"][:], names] for name, part in splits.items()}
        print(json.dumps([rows, recipe.findings.notes]))
    except UserError as problem:
        print(json.dumps(str(problem)))
"""


def load(environment: dict[str, str], recipes: list[Path]) -> list:
    """Return the data that the real clients load in a process with this environment."""
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", LOAD, *map(str, recipes)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_data_sets_of_the_hub_load_and_load_again_without_the_hub(tmp_path):
    files: dict[str, bytes | str | Path] = {"README.md": GLUE}
    for split_name, labels in {"train": [0, 1, -1, 1], "validation": [1, 0], "test": [-1, -1, -1]}.items():
        table(labels, has_names=False).to_parquet(tmp_path / f"{split_name}.parquet")
        files[f"sst2/{split_name}-00000-of-00001.parquet"] = tmp_path / f"{split_name}.parquet"
    recipes = []
    for name, lines in {
        "glue": "  dataset: a/glue\n  config: sst2\n",
        "missing": "  dataset: a/glue\n",
        "wrong": "  dataset: a/glue\n  config: sst-2\n",
        "other": "  dataset: a/glue\n  config: cola\n  splits: {validation: dev}\n",
        "csv": "  dataset: a/csv\n  config: fine\n  splits: {validation: dev}\n",
    }.items():
        recipes.append(tmp_path / f"{name}.yaml")
        recipes[-1].write_text(HEAD + lines)
    expected_sst2 = [
        {
            "train": [["text 0", "text 1", "text 3"], [0, 1, 1], NAMES],
            "validation": [["text 0", "text 1"], [1, 0], NAMES],
        },
        ["1 of 4 train rows have no label (-1) and are left out", UNLABELED_TEST_NOTE],
    ]
    with LoopbackHub() as hub:
        hub.add("a/glue", files, kind="dataset")
        hub.add(
            "a/csv",
            {"README.md": CARD.format("csv"), "train.csv": NUMBER_LIKE_ROWS, "dev.csv": NUMBER_LIKE_ROWS},
            kind="dataset",
        )
        glue, missing_config_error, wrong_config_error, wrong_split_error, csv = load(
            hub.environment(tmp_path / "home"), recipes
        )
        assert glue == expected_sst2
        assert missing_config_error.endswith(
            "missing.yaml:3: data.config: missing; a/glue has the configurations sst2, cola"
        )
        assert wrong_config_error.endswith(
            "wrong.yaml:6: data.config: sst-2: a/glue has no such configuration; it has sst2, cola, did you mean sst2?"
        )
        assert wrong_split_error.endswith("other.yaml:7: data.splits.validation: a/glue has no split dev; it has train")
        assert csv[0]["train"][0] == ["007", "7", "1e3", "NA", "", "True", "1.50"]
        assert csv[0]["train"][2] == ["001", "1", "9", "10"]
        environment = hub.environment(tmp_path / "home") | {"HF_HUB_OFFLINE": "1"}
    assert load(environment, [recipes[0], recipes[-1]]) == [glue, csv]
