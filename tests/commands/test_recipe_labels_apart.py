"""Test `toolkit recipe new` for labels outside of columns: before each text, as in fastText, or in another file."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_recipe_new import labels, run, table, texts  # noqa: F401

from toolkit.commands.recipe_new import recipe_new
from toolkit.commands.recipe_new.parallel import find_parallel
from toolkit.files.csv_rows import split_labels_and_text
from toolkit.machine.disk import WriteError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification


@pytest.mark.parametrize(
    ("line", "expected_result"),
    [
        ("__label__a so it is", ["a", "so it is"]),
        ("__label__a __label__b so it is", ["a b", "so it is"]),
        ("__label__a\t__label__b\tso it is", ["a b", "so it is"]),
        ("__label__a, __label__b so it is", ["a b", "so it is"]),
        ("__label__a,__label__b so it is", ["a b", "so it is"]),
        ("__label__a-b:c so, it", ["a-b:c", "so, it"]),
        ("__label__a", ["a", ""]),
        ("so it __label__a is", ["", "so it __label__a is"]),
        ("so it is __label__a", ["a", "so it is"]),
        ("so it is\t__label__a __label__b ", ["a b", "so it is"]),
        ("so it is __label__a, __label__b", ["a b", "so it is"]),
        ("so it is__label__a", ["", "so it is__label__a"]),
        ("__label__ a", ["", "__label__ a"]),
    ],
)
def test_the_labels_of_a_line_of_fasttext(line, expected_result):
    assert split_labels_and_text(line) == expected_result


def write_fasttext(path: Path, labels: list[str], end: str = "\n", line: str = "{label} {text}") -> Path:
    lines = [line.format(label=labels[number % len(labels)], text=text) + end for number, text in enumerate(texts(60))]
    path.write_text("".join(lines), newline="")
    return path


@pytest.mark.parametrize("name", ["q.train", "q.txt", "q", "q.ft"])
@pytest.mark.parametrize(
    ("end", "line"), [("\n", "{label} {text}"), ("\r\n", "{label} {text}"), ("\n", "{text}\t{label}")]
)
def test_fasttext_is_read_with_any_suffix(run, tmp_path, name, end, line):  # noqa: F811
    write_fasttext(tmp_path / name, ["__label__good", "__label__not-good"], end, line)
    status, _, err = run("recipe", "new", name, "-o", "a.yaml")
    assert (status, err) == (0, "")
    splits = classification.load_splits(load_recipe("a.yaml"))
    assert splits["train"].features["label"].names == ["good", "not-good"]
    assert set(splits["train"]["text"][:]) | set(splits["validation"]["text"][:]) == set(texts(60))


@pytest.mark.parametrize("single", [0, 3000])
def test_several_labels_of_fasttext_are_several_labels(run, tmp_path, single):  # noqa: F811
    write_fasttext(tmp_path / "q.txt", ["__label__good", "__label__good __label__food", "__label__bad"])
    lines = [f"__label__good {text}\n" for text in texts(single)] if single else []
    (tmp_path / "q.txt").write_text("".join(lines) + (tmp_path / "q.txt").read_text())
    status, out, err = run("recipe", "new", "q.txt")
    assert (status, err) == (0, "") and "3 labels, of which a text may have several: good" in out
    recipe = load_recipe("q.yaml")
    assert (recipe.data.problem_type, recipe.data.label_separator) == ("multi_label", " ")
    splits = classification.load_splits(recipe)
    assert splits["train"].features["label"].feature.names == ["bad", "food", "good"]
    assert [1, 2] in splits["train"]["label"][:]


NAMES = ["sports", "world"]


def write_parallel_files(folder: Path, files: dict[str, list[str]]) -> None:
    for name, lines in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("".join(f"{line}\n" for line in lines))


LAYOUTS = {
    "tweeteval": {
        **{f"{split_name}_text.txt": texts(60) for split_name in ("train", "val", "test")},
        **{f"{split_name}_labels.txt": ["0", "1"] * 30 for split_name in ("train", "val", "test")},
        "mapping.txt": ["0\tsports", "1\tworld"],
    },
    "atis": {
        **{f"{split_name}/seq.in": texts(60) for split_name in ("train", "valid", "test")},
        **{f"{split_name}/seq.out": ["O O"] * 60 for split_name in ("train", "valid", "test")},
        **{f"{split_name}/label": NAMES * 30 for split_name in ("train", "valid", "test")},
    },
    "lotclass": {
        **{f"{split_name}.txt": texts(60) for split_name in ("train", "dev", "test")},
        **{f"{split_name}_labels.txt": ["0", "1"] * 30 for split_name in ("train", "dev", "test")},
        "label_names.txt": NAMES,
    },
    "x_and_y": {
        **{f"x_{split_name}.txt": texts(60) for split_name in ("train", "valid", "test")},
        **{f"y_{split_name}.txt": NAMES * 30 for split_name in ("train", "valid", "test")},
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_texts_and_labels_in_two_files_are_joined(run, tmp_path, layout):  # noqa: F811
    write_parallel_files(tmp_path / "set", LAYOUTS[layout])
    status, out, err = run("recipe", "new", "set", "-o", "my_training_set.yaml")
    assert (status, err) == (0, "") and "train-my_training_set.csv joins the 60 lines of " in out
    recipe = load_recipe("my_training_set.yaml")
    assert recipe.task == "classification"
    splits = classification.load_splits(recipe)
    assert set(splits) == {"train", "validation", "test"}
    for rows in splits.values():
        assert rows["text"][:] == texts(60)
        assert rows.features["label"].names == NAMES and rows["label"][:] == [0, 1] * 30
    assert run("recipe", "check", "my_training_set.yaml")[0] == 0


@pytest.mark.parametrize(
    "files", [("pos.txt", "neg.txt"), ("rt-polarity.pos", "rt-polarity.neg"), ("train_pos.txt", "train_neg.txt")]
)
def test_lines_of_a_file_named_after_a_label_have_this_label(run, tmp_path, files):  # noqa: F811
    lines = dict(zip(files, (texts(60)[:30], texts(60)[30:]), strict=True))
    write_parallel_files(tmp_path / "set", lines)
    status, out, err = run("recipe", "new", "set", "-o", "a.yaml")
    assert (status, err) == (0, "") and "train-a.csv joins the 60 lines from " in out
    splits = classification.load_splits(load_recipe("a.yaml"))
    assert splits["train"].features["label"].names == ["neg", "pos"]
    for rows in splits.values():
        assert all(text in lines[files[1 - label]] for text, label in zip(rows["text"], rows["label"], strict=True))


@pytest.mark.parametrize("extra", ["notes.txt", "sports.txt", "pos.csv"])
def test_a_file_with_another_name_is_not_a_label(tmp_path, extra):
    write_parallel_files(tmp_path, {name: ["a b", "c d"] for name in ("pos.txt", "neg.txt", extra)})
    assert find_parallel(tmp_path) == {}


def test_one_of_two_such_files_finds_the_other(run, tmp_path):  # noqa: F811
    write_parallel_files(tmp_path, {"my_text.txt": texts(600, words=40), "my_labels.txt": NAMES * 300})
    assert run("recipe", "new", "my_text.txt", "-o", "a.yaml")[0] == 0
    assert load_recipe("a.yaml").task == "classification"
    status, _, _ = run("recipe", "new", "my_text.txt", "-o", "b.yaml", "--task", "language_modeling")
    assert status == 0 and load_recipe("b.yaml").task == "language_modeling"


@pytest.mark.parametrize(
    ("files", "expected_error"),
    [
        ({"train_text.txt": texts(60), "train_labels.txt": NAMES * 29},
         "train_text.txt has 60 lines and train_labels.txt 58; each line of texts needs its label on the same line"),
        ({"test_text.txt": texts(60), "test_labels.txt": NAMES * 30},
         "test_labels.txt has the labels of test_text.txt, and no such file has those of a split to train on; add one"),
    ],
)  # fmt: skip
def test_two_files_that_do_not_match_are_refused(run, tmp_path, files, expected_error):  # noqa: F811
    write_parallel_files(tmp_path / "set", files)
    status, _, err = run("recipe", "new", "set")
    assert status == 2 and expected_error in err and len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_tables_are_removed_if_no_recipe_is_written(run, tmp_path):  # noqa: F811
    write_parallel_files(tmp_path / "set", LAYOUTS["tweeteval"])
    status, _, err = run("recipe", "new", "set", "--text", "nothing")
    assert status == 2 and "has no column nothing" in err
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


@pytest.mark.parametrize("refused_number", [1, 2, 4])
def test_nothing_is_left_if_one_of_several_files_cannot_be_written(run, tmp_path, monkeypatch, refused_number):  # noqa: F811
    """The fourth file is the recipe of the joined tables."""
    write_parallel_files(tmp_path / "set", LAYOUTS["tweeteval"])
    written_files = refuse_to_write(monkeypatch, refused_number)
    status, _, err = run("recipe", "new", "set")
    assert status == 1 and "No space left on device" in err and len(err.splitlines()) == 1
    assert len(written_files) == refused_number and [path.name for path in tmp_path.iterdir()] == ["set"]


def test_a_pretraining_recipe_is_removed_if_the_second_recipe_fails(run, tmp_path, monkeypatch):  # noqa: F811
    table(tmp_path / "a.csv", {"text": texts(60), "label": labels(60, 3)})
    (tmp_path / "more.txt").write_text("\n".join(texts(400)))
    written_files = refuse_to_write(monkeypatch, 2)
    status, _, err = run("recipe", "new", "a.csv", "--pretrain", "more.txt")
    assert status == 1 and "No space left on device" in err and len(err.splitlines()) == 1
    assert [path.name for path in written_files] == ["a-pretrain.yaml", "a.yaml"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "more.txt"]


def refuse_to_write(monkeypatch, number: int) -> list[Path]:
    """Make writing file `number` (from 1) fail; return a list to which all written files are added.

    A recipe that is only tested, in a scratch folder, does not count.
    """
    written_files: list[Path] = []

    def write(path: Path, content: str) -> None:
        if Path.cwd() in path.absolute().parents:
            written_files.append(path)
        if written_files[-1:] == [path] and len(written_files) == number:
            raise WriteError(f"{path}: No space left on device")
        path.write_text(content)

    monkeypatch.setattr(recipe_new, "write_text", write)
    return written_files
