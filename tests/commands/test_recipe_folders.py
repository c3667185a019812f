"""Test `toolkit recipe new` with the usual published folders.

These are folders saved by `datasets`, a clone of a hub repository, the files of a competition, and folders of texts by
split and label.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from datasets import ClassLabel, Dataset, DatasetDict
from test_recipe_new import labels, run, table, texts  # noqa: F401

from toolkit.data.rows import call_without_progress
from toolkit.recipe.load import load_recipe
from toolkit.tasks import task_of


def rows(count: int = 60) -> Dataset:
    plain = Dataset.from_dict({"text": texts(count), "label": [number % 2 for number in range(count)]})
    return call_without_progress(plain.cast_column, "label", ClassLabel(names=["bad", "good"]))


def splits_of(path: str) -> DatasetDict:
    """Return the splits of a run of the recipe."""
    recipe = load_recipe(path)
    return task_of(recipe).load_splits(recipe)


def write_texts(folder: Path, sentences: list[str], ending: str = ".txt", encoding: str = "utf-8") -> None:
    folder.mkdir(parents=True)
    for number, text in enumerate(sentences):
        (folder / f"{number}{ending}").write_text(text, encoding=encoding)


def test_a_saved_data_set_is_read_with_its_splits_and_label_names(run, tmp_path):  # noqa: F811
    saved_splits = DatasetDict({"train": rows(), "test": rows(10), "other": rows(5)})
    call_without_progress(
        saved_splits.save_to_disk, str(tmp_path / "saved [1]"), num_shards={"train": 3, "test": 1, "other": 1}
    )
    status, out, err = run("recipe", "new", "saved [1]", "-o", "x.yaml")
    assert (status, err) == (0, "")
    assert "test is the test split" in out and "2 labels: bad 50%, good 50%" in out and "60 rows" in out
    assert "not used: other, since a recipe has train, validation and test alone" in out
    splits = splits_of("x.yaml")
    assert (len(splits["train"]) + len(splits["validation"]), len(splits["test"])) == (60, 10)
    assert splits["test"].features["label"].names == ["bad", "good"] and splits["test"]["text"][:] == texts(10)
    call_without_progress(rows().save_to_disk, str(tmp_path / "one"))
    status, out, err = run("recipe", "new", "one")
    assert (status, err) == (0, "") and "not used" not in out
    assert list(splits_of("one.yaml")) == ["train", "validation"]
    call_without_progress(DatasetDict({"first": rows()}).save_to_disk, str(tmp_path / "none"))
    assert run("recipe", "new", "none")[2].startswith("error: none: has no split called train; it has first")


def test_a_clone_of_a_hub_repository_has_its_parts_in_a_folder(run, tmp_path):  # noqa: F811
    (tmp_path / "clone/data").mkdir(parents=True)
    (tmp_path / "clone/README.md").write_text("---\nlicense: mit\n---\n")
    for part in range(3):
        call_without_progress(
            rows().shard(3, part).to_parquet, str(tmp_path / f"clone/data/train-{part:05}-of-00003.parquet")
        )
    call_without_progress(rows(10).to_parquet, str(tmp_path / "clone/data/test-00000-of-00001.parquet"))
    status, out, err = run("recipe", "new", "clone")
    assert (status, err) == (0, "") and "3 files like train-00000-of-00003.parquet are the training split" in out
    splits = splits_of("clone.yaml")
    assert (len(splits["train"]) + len(splits["validation"]), len(splits["test"])) == (60, 10)
    assert run("recipe", "new", "clone/data/train-00001-of-00003.parquet", "-o", "part.yaml")[::2] == (0, "")
    assert load_recipe("part.yaml").data.files == load_recipe("clone.yaml").data.files
    (tmp_path / "two/a").mkdir(parents=True), (tmp_path / "two/b").mkdir()
    assert "two: holds no data but in its folders (a, b); name one" in run("recipe", "new", "two")[2]


def test_the_files_of_a_competition_whose_test_has_no_labels(run, tmp_path):  # noqa: F811
    table(tmp_path / "game/train.csv", {"id": list(range(60)), "text": texts(60), "target": labels(60, 2)})
    table(tmp_path / "game/test.csv", {"id": list(range(60, 70)), "text": texts(10)})
    status, out, err = run("recipe", "new", "game")
    assert (status, err) == (0, "")
    assert "test.csv is not used: it has no column target" in out and "is the test split" not in out
    assert "no test file, so no final figure" in out and load_recipe("game.yaml").data.files.test is None


@pytest.mark.parametrize("name", ["valid", None])
def test_texts_in_folders_of_splits_and_labels_keep_both(run, tmp_path, name):  # noqa: F811
    sentences = texts(30)
    for label in ("neg", "pos"):
        write_texts(tmp_path / "films/train" / label, [f"{label} {text}" for text in sentences])
        write_texts(tmp_path / "films/test" / label, [f"{label} test {text}" for text in sentences[:7]])
        if name:
            write_texts(tmp_path / f"films/{name}" / label, sentences[:5])
    write_texts(tmp_path / "films/train/unsup", sentences)
    (tmp_path / "films/train/urls_neg.txt").write_text("https://example.org\n")
    (tmp_path / "films/films.vocab").write_text("the\n")
    status, out, err = run("recipe", "new", "films")
    assert (status, err) == (0, "")
    assert "unsup is no label: --pretrain films/train/unsup reads it" in out and "test is the test split" in out
    assert "no test" not in out and "60 texts" in out
    splits = splits_of("films.yaml")
    assert splits["test"]["text"][:] == [f"{label} test {text}" for label in ("neg", "pos") for text in sentences[:7]]
    assert splits["test"]["label"][:] == [0] * 7 + [1] * 7
    assert len(splits["train"]) + (0 if name else len(splits["validation"])) == 60
    assert run("recipe", "check", "films.yaml")[0] == 0


def test_faulty_test_sources_are_refused_at_their_line(run, tmp_path):  # noqa: F811
    for split_name, label in (("train", "a"), ("train", "b"), ("test", "a"), ("test", "b")):
        write_texts(tmp_path / "x" / split_name / label, texts(10))
    assert run("recipe", "new", "x")[0] == 0
    recipe_text = (tmp_path / "x.yaml").read_text()
    text_with_wrong_label = recipe_text.replace('    a: "x/test', '    c: "x/test').replace(
        "    a: x/test", "    c: x/test"
    )
    assert text_with_wrong_label != recipe_text
    (tmp_path / "x.yaml").write_text(text_with_wrong_label)
    status, _, err = run("recipe", "check", "x.yaml")
    assert status == 2 and "'c'" in err and err.startswith("error: x.yaml:")
    write_texts(tmp_path / "x/test/c", texts(3))
    assert "'c'" in run("recipe", "new", "x", "-o", "y.yaml")[2] and not (tmp_path / "y.yaml").exists()
    changed_text = recipe_text.replace("x/test/a", "x/test/gone")
    (tmp_path / "x.yaml").write_text(changed_text)
    line = 1 + next(number for number, text in enumerate(changed_text.splitlines()) if "gone" in text)
    assert f"x.yaml:{line}: data.test_sources.a: x/test/gone/*.txt: no such file" in run("recipe", "check", "x.yaml")[2]
    table(tmp_path / "a.csv", {"text": texts(60), "label": labels(60, 2)})
    assert run("recipe", "new", "a.csv")[0] == 0
    status, _, err = run("recipe", "check", "a.yaml", "data.test_sources={a: a.txt}")
    assert status == 2 and "data.test_sources: is for dataset: text, not for csv; remove it" in err


def test_mails_without_suffixes_in_ascii_and_latin_1_are_texts(run, tmp_path):  # noqa: F811
    write_texts(tmp_path / "news/sci.space", texts(10, 30), "", "latin-1")
    write_texts(tmp_path / "news/rec.autos", ["plain words", "of ASCII", "alone"], "")
    status, out, err = run("recipe", "new", "news")
    assert (status, err) == (0, "") and out.count("is not utf-8") == 1 and "as are 8 other texts" in out
    assert len(splits_of("news.yaml")["train"]) + len(splits_of("news.yaml")["validation"]) == 13
    (tmp_path / "news/rec.autos/3").write_text("Größe")
    assert (
        "news/rec.autos: the texts are in several encodings (cp1252, utf-8)"
        in run("recipe", "new", "news", "-o", "y")[2]
    )


def test_json_tables_of_pandas_get_a_recipe(run, tmp_path):  # noqa: F811
    frame = rows().to_pandas()
    for orient in ("columns", "index", "split", "records"):
        frame.to_json(tmp_path / f"{orient}.json", orient=orient)
        assert run("recipe", "new", f"{orient}.json")[::2] == (0, "")
        splits = splits_of(f"{orient}.yaml")
        assert len(splits["train"]) + len(splits["validation"]) == 60


def test_a_folder_of_markdown_is_text_without_its_readme(run, tmp_path):  # noqa: F811
    (tmp_path / "notes").mkdir()
    for name in ("a.md", "b.md", "README.md"):
        (tmp_path / "notes" / name).write_text("\n\n".join(texts(600)), encoding="utf-8")
    assert run("recipe", "new", "notes")[::2] == (0, "")
    assert load_recipe("notes.yaml").data.sources == {"A": "notes/a.md", "B": "notes/b.md"}


def test_folders_of_splits_are_not_labels(run, tmp_path):  # noqa: F811
    for split_name in ("train", "test"):
        write_texts(tmp_path / "prose" / split_name, ["\n\n".join(texts(1000))] * 4)
    status, out, err = run("recipe", "new", "prose")
    assert (status, err) == (0, "") and "not used: test, since a language model's texts have no splits" in out
    recipe = load_recipe("prose.yaml")
    assert recipe.task == "language_modeling"
    assert recipe.data.sources == {"Prose": [f"prose/train/{number}.txt" for number in range(4)]}


def test_a_foreign_state_file_next_to_a_table_is_not_of_datasets(run, tmp_path):  # noqa: F811
    table(tmp_path / "run/train.csv", {"text": texts(60), "label": labels(60, 2)})
    (tmp_path / "run/state.json").write_text('{"step": 3}')
    assert run("recipe", "new", "run", "-o", "x.yaml")[::2] == (0, "")
    assert load_recipe("x.yaml").data.dataset == "csv"


def test_the_reason_for_a_missing_recipe_is_reported(run, tmp_path):  # noqa: F811
    lines = [f"__label__a {'__label__b ' * (number % 2)}{text}" for number, text in enumerate(texts(20))]
    (tmp_path / "tags.txt").write_text("\n".join(lines))
    with tarfile.open(tmp_path / "texts.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "tags.txt", "tags.txt")
    assert run("recipe", "new", "texts.tar.gz")[2] == "error: texts.tar.gz: is an archive; unpack it\n"


def test_folders_of_labels_whose_names_contain_their_split(run, tmp_path):  # noqa: F811
    for split_name in ("train", "test"):
        for label in ("sport", "food"):
            for place, text in enumerate(texts(12)):
                path = tmp_path / "news" / f"news-bydate-{split_name}" / label / str(place)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    status, out, err = run("recipe", "new", "news")
    assert status == 0 and "news-bydate-test is the test split" in out, err
    recipe = load_recipe(tmp_path / "news.yaml")
    assert recipe.data.sources.keys() == recipe.data.test_sources.keys() == {"food", "sport"}


def test_the_other_splits_of_a_text_are_not_trained_on(run, tmp_path):  # noqa: F811
    """Three files whose names differ only in the split would have the same control code."""
    (tmp_path / "wiki").mkdir()
    for name in ("wiki.train.txt", "wiki.valid.txt", "wiki.test.txt", "more.txt", "more.second.txt"):
        (tmp_path / "wiki" / name).write_text("\n\n".join(f"{name} {text}." for text in texts(80, 40)))
    status, out, err = run("recipe", "new", "wiki")
    assert status == 0 and "not used: wiki.test.txt, wiki.valid.txt, since a language model's texts" in out, err
    sources = load_recipe(tmp_path / "wiki.yaml").data.sources
    assert {code: len(paths) if isinstance(paths, list) else 1 for code, paths in sources.items()} == {
        "More": 2,
        "Wiki": 1,
    }


@pytest.mark.parametrize("path", ["novel", "novel/one.tokens"])
def test_texts_with_any_suffix_are_read_on_request(run, tmp_path, path):  # noqa: F811
    (tmp_path / "novel").mkdir()
    (tmp_path / "novel" / "one.tokens").write_text("\n\n".join(texts(80, 40)))
    status, _, err = run("recipe", "new", path)
    assert status == 2 and "--task language_modeling reads it" in err and err.count("\n") == 1
    status, _, err = run("recipe", "new", path, "--task", "language_modeling", "--output", "new.yaml")
    assert status == 0, err
    assert run("recipe", "check", "new.yaml")[0] == 0
