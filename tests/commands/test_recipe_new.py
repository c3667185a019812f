"""Test `toolkit recipe new`: its recipes are valid, it lists its assumptions, and it refuses useless data."""

from __future__ import annotations

import csv
import json
import random
from pathlib import Path

import pytest
from datasets import Dataset

from toolkit.commands.recipe_new.choose import (
    MAX_PIECES,
    choose_epochs,
    choose_held_out_share,
    choose_steps,
    choose_tokens,
)
from toolkit.commands.recipe_new.write import format_scalar
from toolkit.data.rows import call_without_progress
from toolkit.recipe.load import load_recipe
from toolkit.recipe.yaml_source import read

WORDS = ["good", "bad", "very", "film", "the", "plot", "Größe", "is", "long", "dull", "fine", "a", "was", "not", "it"]


@pytest.fixture
def run(command_line, monkeypatch, tmp_path):
    """Return a function that runs `toolkit ARGUMENTS` in an empty folder and returns exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    return command_line


def texts(count: int, words: int = 8) -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=words)) + f" {number}" for number in range(count)]


def table(path: Path, columns: dict[str, list], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    with open(path, "w", newline="", encoding=encoding) as file:
        writer = csv.writer(file, delimiter=delimiter)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return path


def labels(count: int, kinds: int) -> list[str]:
    return [f"kind {number % kinds}" for number in range(count)]


def squad(path: Path, count: int = 40) -> Path:
    article = {"title": "t", "paragraphs": []}
    for number in range(count):
        answers = [{"text": "the sea", "answer_start": 15}]
        question = {"id": f"q{number}", "question": f"Where is house {number}?", "answers": answers}
        article["paragraphs"].append({"context": f"House {number:02} is at the sea, and not here.", "qas": [question]})
    path.write_text(json.dumps({"version": "1.1", "data": [article]}))
    return path


def class_table(folder: Path, name: str) -> Path:
    """Write a table of each usual kind."""
    rows, path = 60, folder / name
    columns = {"text": texts(rows), "label": labels(rows, 3)}
    if name == "comma.csv":
        return table(path, columns)
    if name == "semicolon.csv":
        commas = [f"{text}, and so on, and on" for text in columns["text"]]
        return table(path, {"id": list(range(rows)), "Kommentar": commas, "Sterne": [1, 2, 5] * 20}, ";", "cp1252")
    if name == "tabs.tsv":
        return table(path, columns, "\t")
    if name == "pipe.csv":
        return table(path, {"y": labels(rows, 2), "what was said": columns["text"]}, "|", "utf-16")
    if name == "many.csv":
        return table(path, {"category": labels(231, 77), "utterance": texts(231)})
    if name == "quotes.csv":
        quoted_texts = [f'He said: "{text}",\nand then {{}} #: [it]' for text in columns["text"]]
        links = [f"https://example.org/{number}/a-very-long-address" * 4 for number in range(rows)]
        return table(path, {"a: b #c": quoted_texts, 'the "label"': labels(rows, 2), "url": links})
    if name == "rare.csv":
        return table(path, {"text": texts(200), "label": ["no"] * 197 + ["yes", "yes", "yes"]})
    if name == "chinese.csv":
        quoted_texts = [f"这部电影很好看第{n}次我喜欢" for n in range(rows)]
        return table(path, {"评论": quoted_texts, "标签": [0, 1] * 30})
    if name == "long.jsonl":
        long = [" ".join(texts(40)) for _ in range(rows)]
        lines = [{"body": text, "stars": number % 5, "id": f"{number:032x}"} for number, text in enumerate(long)]
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if name == "list.json":
        lines = [{"text": text, "spam": number % 2 == 0} for number, text in enumerate(columns["text"])]
        path.write_text(json.dumps(lines))
    if name == "rows.parquet":
        call_without_progress(Dataset.from_dict({**columns, "n": [0.5] * rows}).to_parquet, str(path))
    return path


TABLES = ["comma.csv", "semicolon.csv", "tabs.tsv", "pipe.csv", "many.csv", "quotes.csv", "rare.csv", "chinese.csv",
          "long.jsonl", "list.json", "rows.parquet"]  # fmt: skip
EXPECTED_COLUMNS = {
    "semicolon.csv": ("Kommentar", "Sterne"), "pipe.csv": ("what was said", "y"), "many.csv": ("utterance", "category"),
    "quotes.csv": ("a: b #c", 'the "label"'), "chinese.csv": ("评论", "标签"), "long.jsonl": ("body", "stars"),
    "list.json": ("text", "spam"),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLES)
def test_the_recipe_of_a_table_is_valid(run, tmp_path, name):
    status, out, err = run("recipe", "new", class_table(tmp_path, name).name)
    path = f"{Path(name).stem}.yaml"
    assert (status, err) == (0, "") and out.endswith(f"wrote {path}; next: toolkit finetune {path}\n")
    assert run("recipe", "check", path)[::2] == (0, "")
    recipe = load_recipe(path)
    assert (recipe.data.text, recipe.data.label) == EXPECTED_COLUMNS.get(name, ("text", "label"))
    for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
        assert not line or line.endswith(":") or "# " in line, f"{path}:{number} has no comment"


def test_assumptions_are_printed_and_written_into_the_recipe(run, tmp_path):
    class_table(tmp_path, "semicolon.csv")
    _, out, _ = run("recipe", "new", "semicolon.csv")
    assert "semicolon.csv is not utf-8 (byte " in out and "it seems to be cp1252 ('Größe')" in out
    assert "the columns are parted by ';'" in out
    assert "60 rows; texts in the column Kommentar (all Latin letters), labels in Sterne; not used: id" in out
    assert "3 labels: 1 33%, 2 33%, 5 33%" in out and "of the rows are held out to validate on" in out
    assert "no test file, so no final figure: add data.files.test" in out
    recipe = load_recipe("semicolon.yaml")
    assert (recipe.data.delimiter, recipe.data.encoding) == (";", "cp1252")
    assert "# 3 labels: 1 33%, 2 33%, 5 33%." in Path("semicolon.yaml").read_text()


def test_a_rare_label_is_reported(run, tmp_path):
    class_table(tmp_path, "rare.csv")
    assert "yes is rare: watch macro_f1" in run("recipe", "new", "rare.csv")[1]


def test_files_next_to_a_training_file_are_its_other_splits(run, tmp_path):
    for split_name in ("train", "dev", "test"):
        table(tmp_path / "reviews" / f"my_{split_name}.csv", {"text": texts(30), "label": labels(30, 2)})
    assert run("recipe", "new", "reviews/my_train.csv")[0] == 0
    files = load_recipe("my_train.yaml").data.files
    names = ("reviews/my_train.csv", "reviews/my_dev.csv", "reviews/my_test.csv")
    assert files and (files.train, files.validation, files.test) == names
    assert load_recipe("my_train.yaml").data.validation_fraction is None
    assert run("recipe", "new", "reviews", "-o", "whole.yaml")[0] == 0
    assert run("recipe", "check", "whole.yaml")[0] == 0
    assert load_recipe("whole.yaml").data.files == files


def test_a_file_with_a_general_name_gives_the_recipe_the_name_of_its_folder(run, tmp_path):
    table(tmp_path / "reviews 2024" / "train.csv", {"text": texts(30), "label": labels(30, 2)})
    assert "wrote reviews_2024.yaml" in run("recipe", "new", "reviews 2024/train.csv")[1]
    (tmp_path / "elsewhere").mkdir()
    assert run("recipe", "new", "reviews 2024/train.csv", "-o", "elsewhere/x.yaml")[0] == 0
    assert load_recipe("elsewhere/x.yaml").data.files.train == str(tmp_path / "reviews 2024" / "train.csv")


def test_columns_can_be_named(run, tmp_path):
    table(tmp_path / "a.csv", {"text": texts(40, 20), "title": texts(40, 3), "label": labels(40, 2), "n": [1, 2] * 20})
    assert run("recipe", "new", "a.csv", "--text", "title", "--label", "n")[0] == 0
    assert (load_recipe("a.yaml").data.text, load_recipe("a.yaml").data.label) == ("title", "n")


def test_questions_texts_and_folders_of_texts(run, tmp_path):
    squad(tmp_path / "questions.json")
    assert run("recipe", "new", "questions.json")[::2] == (0, "")
    assert run("recipe", "check", "questions.yaml")[0] == 0
    assert load_recipe("questions.yaml").task == "question_answering"
    misplaced_answers = squad(tmp_path / "moved.json").read_text().replace('"answer_start": 15', '"answer_start": 14')
    (tmp_path / "moved.json").write_text(misplaced_answers)
    status, out, err = run("recipe", "new", "moved.json")
    assert (status, err) == (0, "") and "40 of 40 questions have answers that do not stand where answer_start" in out
    assert run("recipe", "check", "moved.yaml")[0] == 0
    rows = {
        "id": [f"q{number}" for number in range(20)],
        "question": ["Where is it?"] * 20,
        "context": [f"At the sea, {number}." for number in range(20)],
    }
    answers = [{"text": ["the sea"], "answer_start": [3]}] * 20
    call_without_progress(Dataset.from_dict({**rows, "answers": answers}).to_parquet, str(tmp_path / "flat.parquet"))
    assert run("recipe", "new", "flat.parquet")[::2] == (0, "")
    assert run("recipe", "check", "flat.yaml")[0] == 0
    one_context = {**rows, "context": ["At the sea."] * 20, "answers": answers}
    call_without_progress(Dataset.from_dict(one_context).to_parquet, str(tmp_path / "one.parquet"))
    assert "one.parquet: all questions are about one text" in run("recipe", "new", "one.parquet")[2]
    prose = "\n\n".join(texts(3000))
    for name in ("the-novel.txt", "novels/first part.txt", "novels/2.txt", "kinds/plays/a.txt", "kinds/poems/b.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_bytes(prose.encode("cp1252"))
    for name, codes in (("the-novel.txt", ["TheNovel"]), ("novels", ["2", "FirstPart"]), ("kinds", ["Plays", "Poems"])):
        status, out, err = run("recipe", "new", name)
        assert (status, err) == (0, ""), err
        path = out.split("wrote ")[1].partition(";")[0]
        assert run("recipe", "check", path)[0] == 0
        recipe = load_recipe(path)
        assert list(recipe.data.sources) == codes and recipe.data.encoding == "cp1252"


def test_a_folder_of_texts_for_each_label_is_a_classifier_or_on_demand_a_language_model(run, tmp_path):
    for number, text in enumerate(texts(40, 300)):
        file = tmp_path / "mails [1]" / ["not spam", "yes"][number % 2] / f"{number}.txt"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text(text, encoding="cp1252")
    status, out, err = run("recipe", "new", "mails [1]")
    assert (status, err) == (0, "") and "each of the 2 folders is a label, each file in them a text" in out
    assert "40 texts (all Latin letters): each" in out and "2 labels: not spam 50%, yes 50%" in out
    assert run("recipe", "check", "mails_1.yaml")[0] == 0
    recipe = load_recipe("mails_1.yaml")
    assert (recipe.task, list(recipe.data.sources)) == ("classification", ["not spam", "yes"])
    assert run("recipe", "new", "mails [1]", "--task", "language_modeling", "-o", "x.yaml")[0] == 0
    assert list(load_recipe("x.yaml").data.sources) == ["NotSpam", "Yes"]


BAD = {
    "empty.csv": (b"", "empty.csv is empty"),
    "header.csv": (b"text,label\n", "header.csv: holds no rows"),
    "one.csv": (b"text,label\n" + b"some words here,yes\n" * 30, "all 30 rows have the same label"),
    "notext.csv": (b"a,b\n" + b"1,2\n3,4\n" * 20, "notext.csv: has no column of texts; it has a, b"),
    "alone.csv": (
        b"text\n" + b"some words here\nand more\n" * 20,
        "beside the texts in text: there is no other column",
    ),
    "unique.csv": (
        b"text,name\n" + b"".join(b"some words %d,name%d\n" % (n, n) for n in range(30)),
        "unique.csv: has no column of labels beside the texts in text: every value of name is another; name one",
    ),
    "broken.json": (b'{"text": "a", ', "broken.json"),
    "bytes.csv": (bytes(range(256)) * 40, "bytes.csv"),
    "short.txt": (b"zu kurz", "short.txt: "),
    "rows.xlsx": (b"PK\x03\x04", "rows.xlsx is no sheet of Excel (.xlsx); save it as one, or as csv"),
    "squad.json": (b'{"data": [{"paragraphs": [{"context": "a", "qas": [{"id": "1"}]}]}]}', "squad.json"),
}


@pytest.mark.parametrize("name", BAD)
def test_useless_data_is_reported_in_one_line_and_nothing_is_written(run, tmp_path, name):
    content, expected_error = BAD[name]
    (tmp_path / name).write_bytes(content)
    status, out, err = run("recipe", "new", name)
    assert status == 2 and expected_error in err and err.count("\n") == 1 and "Traceback" not in out + err
    assert str(tmp_path.parent) not in err and [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (["nowhere.csv"], "nowhere.csv: no such file or folder"),
        (["folder"], "folder/below: holds no data; it should hold files that end in one of .csv"),
        (["a.csv", "-o", "there.yaml"], "there.yaml: exists and is not overwritten"),
        (["a.csv", "-o", "none/x.yaml"], "there is no folder none"),
        (["a.csv", "--label", "lable"], "a.csv: has no column lable, did you mean label?"),
        (["a.csv", "--label", "text", "--text", "text"], "text cannot be both the text and the label"),
        (["a.csv", "--label", "id"], "each of the 40 rows has another id, so it is no label"),
        (["a.csv", "--task", "language_modeling"], "a.csv: is a table; for a language model, give text files"),
        (
            ["a.csv", "--task", "question_answering"],
            "that wants the columns question, context and answer (or of like names)",
        ),
        (["a.txt", "--task", "classification"], "a.txt: is plain text without labels or questions"),
        (["a.txt", "--label", "x"], "--missing-labels are for classification, not for language_modeling"),
    ],
)
def test_wrong_arguments_are_reported_in_one_line(run, tmp_path, arguments, expected_error):
    columns = {"id": list(range(40)), "text": texts(40), "label": labels(40, 2)}
    table(tmp_path / "a.csv", columns)
    (tmp_path / "a.txt").write_text("words")
    (tmp_path / "there.yaml").write_text("mine")
    (tmp_path / "folder" / "below").mkdir(parents=True)
    initial_paths = sorted(tmp_path.rglob("*"))
    status, _, err = run("recipe", "new", *arguments)
    assert status == 2 and expected_error in err and err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == initial_paths and (tmp_path / "there.yaml").read_text() == "mine"


@pytest.mark.parametrize(
    "value",
    ["a b", "yes", "null", "1", "a: b", "# x", 'say "x" \\', "é\n\t\x85\u2028", "", "- a", "Ω", "\x1b[0m", 'a"\x07\\',
     [1, "a, b"], {"a": None}, 0.0015, 1e-5],
)  # fmt: skip
def test_every_value_survives_a_round_trip(tmp_path, value):
    (tmp_path / "x.yaml").write_text(f"key: {format_scalar(value)}\n", encoding="utf-8", newline="")
    values, _ = read(tmp_path / "x.yaml", ())
    assert values == {"key": value}


def test_steps_take_minutes_for_small_and_large_data():
    for rows in (10, 100, 1000, 10_000, 10**5, 10**6, 10**7):
        for length in (32, 64, 256, 1024):
            steps = choose_steps(rows, length)
            assert (steps.epochs is None) != (steps.max_steps is None) and steps.seconds < 600
    assert choose_steps(10**7, 64).max_steps and choose_steps(100, 64).epochs == 20


def test_few_labels_get_few_passes_and_little_data_the_steps_to_learn_anything():
    assert choose_epochs(2, 8529, 64) == 3 and choose_epochs(77, 9003, 64) == 10
    assert choose_epochs(2, 1440, 1024) == 8 and choose_epochs(2, 200, 64) > 20


def test_the_number_of_pieces_depends_on_the_texts():
    from models.reformer.tokenizer import train_sentencepiece

    numbers_of_pieces = []

    def train(texts, pieces, folder):
        numbers_of_pieces.append(pieces)
        return train_sentencepiece(texts, pieces, folder)

    words = ["".join(random.Random(number).choices("abcdefghijklmnop", k=7)) for number in range(1500)]
    texts = [f"{words[number % 1500]} and {words[number % 1499]}" for number in range(20_000)]
    tokens = choose_tokens(texts, 10**6, train)
    assert numbers_of_pieces[0] == MAX_PIECES and len(numbers_of_pieces) > 1 and tokens.pieces == numbers_of_pieces[-1]
    equal_texts = ["the same few words"] * 1000
    assert choose_tokens(equal_texts, 10**6, train).pieces is None


@pytest.mark.parametrize("counts", [[2, 2], [2, 1], [3, 1, 1], [500, 500], [197, 3], [10**6, 5], [30] * 77])
def test_some_rows_of_every_data_set_are_held_out(counts):
    share = choose_held_out_share(counts)
    assert 0 < share < 1 and any(min(round(count * share), count - 1) for count in counts)


@pytest.mark.slow
def test_a_new_recipe_trains(run, tmp_path):
    draw = random.Random(1)
    rows = [(draw.choice(["good", "bad"]), " ".join(draw.choices(WORDS[2:], k=6))) for _ in range(400)]
    table(
        tmp_path / "told.csv", {"text": [f"{word} {rest}" for word, rest in rows], "mood": [word for word, _ in rows]}
    )
    assert run("recipe", "new", "told.csv")[0] == 0
    assert run("finetune", "told.yaml", "--skip-parity", "a trial", "train.max_steps=60")[0] == 0
    best = json.loads(Path("runs/told/metrics.json").read_text())
    assert best["validation"]["accuracy"] > 0.9


def test_two_recipes_pretrain_on_texts_and_start_from_their_model(run, tmp_path):
    """Test plain text, files and folders of text, and the table itself; the second recipe needs a trained model."""
    table(tmp_path / "few.csv", {"text": texts(40), "label": labels(40, 2)})
    (tmp_path / "more").mkdir()
    for number in range(10):
        (tmp_path / "more" / f"{number}.txt").write_text("\n\n".join(texts(300 * number + 300)[-300:]))
    (tmp_path / "other.txt").write_text("\n\n".join(texts(300, words=6)))
    status, out, err = run("recipe", "new", "few.csv", "--pretrain", "more", "--pretrain", "other.txt")
    assert (status, err) == (0, "")
    assert "of text, about" in out and out.endswith(
        "wrote few-pretrain.yaml; first: toolkit finetune few-pretrain.yaml\n"
        "wrote few.yaml; next: toolkit finetune few.yaml\n"
    )
    first, second = load_recipe("few-pretrain.yaml"), load_recipe("few.yaml")
    assert first.task == "masked_language_modeling" and first.data.sources == {
        "More": "more/*.txt",
        "Other": "other.txt",
    }
    assert run("recipe", "check", "few-pretrain.yaml")[::2] == (0, "")
    assert second.model.weights == f"{first.output_dir}/model" and second.tokenizer.kind == "checkpoint"
    assert first.data.max_length == second.data.max_length
    assert "if a run is to make it, train that first" in run("recipe", "check", "few.yaml")[2]
    for path in ("few-pretrain.yaml", "few.yaml"):
        for line in Path(path).read_text().splitlines():
            assert not line or line.endswith(":") or "# " in line
    assert run("recipe", "new", "few.csv", "-o", "own.yaml", "--pretrain", "few.csv")[0] == 0
    own_data = load_recipe("own-pretrain.yaml").data
    assert own_data.files and (own_data.files.train, own_data.text) == ("few.csv", "text")


def test_both_recipes_train_one_after_the_other(run, tmp_path):
    squad(tmp_path / "asked.json")
    table(tmp_path / "few.csv", {"text": texts(40), "label": labels(40, 2)})
    (tmp_path / "prose.txt").write_text("\n\n".join(texts(300)))
    for data in ("few.csv", "asked.json"):
        name = Path(data).stem
        assert run("recipe", "new", data, "--pretrain", "prose.txt")[0] == 0
        short = ("train.epochs=null", "train.max_steps=2", "train.eval_steps=2", "--skip-parity", "a test")
        assert run("finetune", f"{name}-pretrain.yaml", *short)[0] == 0
        status, out, _ = run("finetune", f"{name}.yaml", *short)
        assert status == 0 and "(new: " in out and "embeddings" not in out


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (["few.csv", "--pretrain", "nothing.txt"], "nothing.txt: no such file or folder"),
        (["few.csv", "--pretrain", "few.csv", "--pretrain", "a.txt"], "few.csv: is a table; --pretrain takes text"),
        (["few.csv", "--pretrain", "asked.json"], "asked.json: holds questions; --pretrain takes"),
        (["a.txt", "--pretrain", "a.txt"], "a.txt: --pretrain is for a recipe with labels"),
        (["few.csv", "--pretrain", "blank.txt"], "blank.txt"),
    ],
)
def test_texts_that_cannot_be_pretrained_on_are_refused_and_nothing_is_written(
    run, tmp_path, arguments, expected_error
):
    table(tmp_path / "few.csv", {"text": texts(40), "label": labels(40, 2)})
    squad(tmp_path / "asked.json")
    (tmp_path / "a.txt").write_text("\n\n".join(texts(300)))
    (tmp_path / "blank.txt").write_text(" \n")
    status, _, err = run("recipe", "new", *arguments)
    assert status == 2 and expected_error in err and not list(tmp_path.glob("*.yaml"))


def test_long_texts_are_read_in_windows(run, tmp_path):
    table(tmp_path / "long.csv", {"text": texts(60, 700), "label": labels(60, 3)})
    _, out, _ = run("recipe", "new", "long.csv")
    assert "max_length 256; 100% are longer and are read in windows" in out
    text = Path("long.yaml").read_text(encoding="utf-8")
    assert "long_texts: windows" in text and "longer ones in windows (100% of these)" in text
    recipe = load_recipe("long.yaml")
    assert (recipe.data.max_length, recipe.data.long_texts) == (256, "windows")
    table(tmp_path / "two.csv", {"text": texts(60, 700), "text_b": texts(60, 700), "label": labels(60, 3)})
    _, out, _ = run("recipe", "new", "two.csv", "--text", "text", "--text", "text_b")
    recipe = load_recipe("two.yaml")
    assert (recipe.data.max_length, recipe.data.long_texts) == (1024, "cut") and "max_length 1,024; 100%" in out
    table(tmp_path / "short.csv", {"text": texts(60, 60), "label": labels(60, 3)})
    _, out, _ = run("recipe", "new", "short.csv")
    assert "max_length 256;" not in out and load_recipe("short.yaml").data.long_texts == "cut"
