"""Data sets as they are found: other names of splits, splits without labels, configurations, labels and texts that look
like numbers."""

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


def table(labels: list, texts: list[str] | None = None, named: bool = True) -> Dataset:
    """Texts with labels, which have names unless they are to be plain numbers."""
    rows = {"text": texts or [f"text {index}" for index in range(len(labels))], "label": labels}
    label = ClassLabel(names=NAMES) if named else Value("int64")
    return Dataset.from_dict(rows, features=Features({"text": Value("string"), "label": label}))


@pytest.fixture
def corpus(tmp_path):
    """Makes a folder of parquet files, a split each, and a recipe over it."""

    def make(more: str = "", **splits: Dataset) -> Recipe:
        folder = tmp_path / "corpus"
        (folder / "data").mkdir(parents=True)
        for split, rows in splits.items():
            rows.to_parquet(folder / "data" / f"{split}-00000-of-00001.parquet")
        return written(tmp_path, f"  dataset: {folder}\n{more}")

    return make


def written(folder: Path, lines: str) -> Recipe:
    (folder / "x.yaml").write_text(HEAD + lines)
    return load_recipe(folder / "x.yaml")


def problem(recipe: Recipe) -> str:
    with pytest.raises(UserError) as raised:
        classification.load_splits(recipe)
    return str(raised.value).removeprefix(str(recipe.path))


def sizes(recipe: Recipe) -> dict[str, int]:
    return {split: len(rows) for split, rows in classification.load_splits(recipe).items()}


# -- names of splits ------------------------------------------------------------------------------------------------

ROWS = table([0, 1, 0, 1])


def test_splits_are_used_under_the_names_that_the_recipe_gives(corpus):
    made = corpus("  splits: {train: fit, validation: matched}\n", fit=ROWS, matched=table([0, 1]), other=table([1]))
    assert sizes(made) == {"train": 4, "validation": 2}


def test_a_split_that_is_null_is_not_used(corpus):
    made = corpus("  splits: {validation: test, test: null}\n", train=ROWS, validation=table([1]), test=table([0, 1]))
    assert sizes(made) == {"train": 4, "validation": 2}


def test_a_split_that_serves_as_another_is_not_used_again(corpus):
    made = corpus("  splits: {validation: test}\n", train=ROWS, test=table([0, 1]))
    assert sizes(made) == {"train": 4, "validation": 2}


@pytest.mark.parametrize(
    ("splits", "expected"),
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
def test_a_wrong_split_is_said_at_its_line(corpus, tmp_path, splits, expected):
    with pytest.raises(UserError) as raised:
        classification.load_splits(corpus(f"  splits: {splits}\n", train=ROWS, held_out=ROWS))
    found = str(raised.value).replace(str(tmp_path / "corpus"), "CORPUS").removeprefix(str(tmp_path / "x.yaml"))
    assert found.startswith(expected)


def test_data_without_a_train_split_is_told_what_there_is(corpus):
    assert problem(corpus("", fit=ROWS, dev=ROWS)).endswith(
        "has no split train; it has dev, fit; name one in data.splits: {train: NAME}"
    )


def test_splits_are_for_folders_and_the_hub(tmp_path):
    with pytest.raises(
        UserError, match=r":5: data\.splits: is for folders and hub data sets; with csv, name the files"
    ):
        written(tmp_path, "  splits: {train: a}\n  dataset: csv\n  files: {train: t.csv}\n")
    with pytest.raises(UserError, match=r":5: data\.splits: is for folders and hub data sets, not for cldr_languages"):
        classification.load_splits(written(tmp_path, "  splits: {train: a}\n  dataset: cldr_languages\n"))


def test_a_recipe_with_splits_means_the_same_written_out(corpus, tmp_path):
    made = corpus("  splits: {validation: test, test: null}\n", train=ROWS, validation=ROWS, test=table([0, 1]))
    (tmp_path / "again.yaml").write_text(made.to_yaml())
    assert sizes(load_recipe(tmp_path / "again.yaml")) == sizes(made) == {"train": 4, "validation": 2}


# -- rows without a label -------------------------------------------------------------------------------------------

UNMEASURED = "the test split has no labels (-1, or none, throughout); it is not measured"


@pytest.mark.parametrize("named", [True, False])
def test_a_test_split_without_labels_is_not_measured_and_that_is_said(corpus, named):
    made = corpus("", train=table([0, 1] * 3, named=named), validation=table([0, 1], named=named),
                  test=table([-1, -1], named=named))  # fmt: skip
    assert check_data(made) == [UNMEASURED]
    assert sizes(made) == {"train": 6, "validation": 2}
    assert made.found.notes == [UNMEASURED]  # once, though the data was read twice


def test_minus_one_is_a_label_like_any_other_where_training_has_it(corpus):
    plain = table([-1, 1, -1, 1], named=False)
    made = corpus("", train=plain, validation=plain, test=table([-1, -1], named=False))
    assert sizes(made) == {"train": 4, "validation": 4, "test": 2}
    assert classification.load_splits(made)["train"].features["label"].names == ["-1", "1"]
    assert not made.found.notes


def test_single_rows_without_a_label_are_left_out_and_counted(corpus):
    made = corpus("", train=table([0, -1, 1, -1, 0]), validation=table([0, 1]), test=table([1, -1]))
    splits = classification.load_splits(made)
    assert splits["train"]["text"][:] == ["text 0", "text 2", "text 4"]
    assert splits["train"]["label"][:] == [0, 1, 0]
    assert splits["test"]["label"][:] == [1]
    assert made.found.notes == [
        "2 of 5 train rows have no label (-1) and are left out",
        "1 of 2 test rows have no label (-1) and are left out",
    ]


def test_a_validation_split_without_labels_is_refused(corpus):
    made = corpus("", train=ROWS, validation=table([-1, -1]), test=ROWS)
    assert (
        ": data.label: the validation split has no labels (-1 throughout); set data.splits: {validation: NAME}, or"
        in (problem(made))
    )


# -- as they are written --------------------------------------------------------------------------------------------

WRITTEN = "text,label\n007,001\n7,1\n1e3,10\nNA,9\n,9\nTrue,001\n1.50,1\n"


def test_labels_and_texts_of_csv_stay_as_they_are_written(tmp_path):
    (tmp_path / "t.csv").write_text(WRITTEN)
    made = written(tmp_path, "  dataset: csv\n  files: {train: t.csv, validation: t.csv}\n")
    train = classification.load_splits(made)["train"]
    assert train["text"][:] == ["007", "7", "1e3", "NA", "", "True", "1.50"]
    assert train.features["label"].names == ["001", "1", "9", "10"]
    assert [train.features["label"].int2str(label) for label in train["label"]] == [
        *("001", "1", "10", "9", "9", "001", "1"),
    ]


def test_a_folder_of_csv_is_read_likewise_with_the_separator_of_its_card(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "validation"):
        (folder / f"{split}.csv").write_text(WRITTEN.replace(",", ";"))
    (folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  sep: ';'\n  data_files:\n"
        "  - {split: train, path: train.csv}\n  - {split: validation, path: validation.csv}\n---\n"
    )
    train = classification.load_splits(written(tmp_path, f"  dataset: {folder}\n"))["train"]
    assert train["text"][:] == ["007", "7", "1e3", "NA", "", "True", "1.50"]
    assert train.features["label"].names == ["001", "1", "9", "10"]


def test_labels_of_json_stay_as_they_are_written_and_two_types_are_refused(tmp_path):
    lines = "  dataset: json\n  files: {train: t.jsonl, validation: t.jsonl}\n"
    rows = [{"text": "007", "label": "001"}, {"text": "7", "label": "1"}]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train = classification.load_splits(written(tmp_path, lines))["train"]
    assert (train["text"][:], train.features["label"].names) == (["007", "7"], ["001", "1"])
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"text": "a", "label": 1}]))
    assert re.search(
        r"data\.label: the column label of the train split holds labels of several types|cannot be read as json",
        problem(written(tmp_path, lines)),
    )


# -- configurations -------------------------------------------------------------------------------------------------


def test_the_former_name_of_the_configuration_is_understood_and_said(tmp_path):
    made = written(tmp_path, "  config_name: a\n  dataset: o/n\n")
    assert made.data.config == "a"
    assert made.found.notes == [f"{tmp_path / 'x.yaml'}:5: data.config_name is called data.config now"]
    assert "config_name" not in made.to_yaml()
    made = load_recipe(tmp_path / "x.yaml", ["data.config_name=b"])
    assert (made.data.config, made.found.notes) == ("b", ["command line: data.config_name is called data.config now"])
    assert not written(
        tmp_path, "  config_name: null\n  dataset: o/n\n"
    ).found.notes  # as earlier runs' recipes have it
    with pytest.raises(UserError, match=r":5: data\.config_name: is called data\.config now, which is set too; remove"):
        written(tmp_path, "  config_name: a\n  config: a\n  dataset: o/n\n")


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
    ("lines", "expected"),
    [
        ("", ": data.config: missing; CORPUS has the configurations fine, coarse"),
        (
            "  config: corse\n",
            ":6: data.config: corse: CORPUS has no such configuration; it has fine, coarse, did you mean coarse?",
        ),
    ],
)
def test_the_configurations_that_exist_are_named(tmp_path, lines, expected):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split in ("train", "dev"):
        (folder / f"{split}.csv").write_text(WRITTEN)
    (folder / "README.md").write_text(CARD.format("csv"))
    found = problem(written(tmp_path, f"  dataset: {folder}\n{lines}")).replace(str(folder), "CORPUS")
    assert found.endswith(expected)
    made = written(tmp_path, f"  dataset: {folder}\n  config: fine\n  splits: {{validation: dev}}\n")
    assert sizes(made) == {"train": 7, "validation": 7}


# -- the hub --------------------------------------------------------------------------------------------------------

#: As GLUE is on the hub: parquet files below a configuration's name, with the labels' names in the card.
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
        print(json.dumps([rows, recipe.found.notes]))
    except UserError as problem:
        print(json.dumps(str(problem)))
"""


def load(environment: dict[str, str], recipes: list[Path]) -> list:
    """What the real clients load, in a process with this environment."""
    environment |= {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", LOAD, *map(str, recipes)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_data_sets_of_the_hub_load_as_they_are_and_again_without_it(tmp_path):
    files: dict[str, bytes | str | Path] = {"README.md": GLUE}
    for split, labels in {"train": [0, 1, -1, 1], "validation": [1, 0], "test": [-1, -1, -1]}.items():
        table(labels, named=False).to_parquet(tmp_path / f"{split}.parquet")
        files[f"sst2/{split}-00000-of-00001.parquet"] = tmp_path / f"{split}.parquet"
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
    expected = [
        {
            "train": [["text 0", "text 1", "text 3"], [0, 1, 1], NAMES],
            "validation": [["text 0", "text 1"], [1, 0], NAMES],
        },
        ["1 of 4 train rows have no label (-1) and are left out", UNMEASURED],
    ]
    with LoopbackHub() as hub:
        hub.add("a/glue", files, kind="dataset")
        hub.add("a/csv", {"README.md": CARD.format("csv"), "train.csv": WRITTEN, "dev.csv": WRITTEN}, kind="dataset")
        glue, missing, wrong, other, csv = load(hub.environment(tmp_path / "home"), recipes)
        assert glue == expected
        assert missing.endswith("missing.yaml:3: data.config: missing; a/glue has the configurations sst2, cola")
        assert wrong.endswith(
            "wrong.yaml:6: data.config: sst-2: a/glue has no such configuration; it has sst2, cola, did you mean sst2?"
        )
        assert other.endswith("other.yaml:7: data.splits.validation: a/glue has no split dev; it has train")
        assert csv[0]["train"][0] == ["007", "7", "1e3", "NA", "", "True", "1.50"]
        assert csv[0]["train"][2] == ["001", "1", "9", "10"]
        environment = hub.environment(tmp_path / "home") | {"HF_HUB_OFFLINE": "1"}
    assert load(environment, [recipes[0], recipes[-1]]) == [glue, csv]
