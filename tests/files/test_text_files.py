"""Test csv with other delimiters than commas and text files that are not UTF-8.

The recipe names the delimiter and the encoding; otherwise an error proposes the correct value.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from models.reformer.tokenizer import ByteTokenizer
from toolkit.commands.recipe_check import check_data
from toolkit.commands.recipe_new.look import inspect_data
from toolkit.errors import UserError
from toolkit.files.text_encoding import WrongEncodingError, check_encoding, is_text_encoding, open_text
from toolkit.finetune.identity import identity_of
from toolkit.recipe.load import load_recipe
from toolkit.tasks import task_of

HEAD = "train: {epochs: 1, learning_rate: 1e-3}\n"
ROWS = [(f"Café, Straße; Nr. {number}", ["nein", "ja"][number % 2]) for number in range(20)]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Return a function that writes a recipe over a file with some content."""
    monkeypatch.chdir(tmp_path)

    def make(content: bytes | str, *overrides: str, name: str = "rows.csv", dataset: str = "csv"):
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        data = f"{{dataset: {dataset}, files: {{train: {name}}}, max_length: 32, validation_fraction: 0.5}}"
        (tmp_path / "x.yaml").write_text(HEAD + f"data: {data}\n")
        return load_recipe("x.yaml", overrides)

    return make


def rows_of(recipe) -> list[tuple[str, str]]:
    splits = task_of(recipe).load_splits(recipe)
    names = splits["train"].features["label"].names
    labeled_texts = [(row["text"], names[row["label"]]) for rows in splits.values() for row in rows]
    return sorted(labeled_texts, key=lambda row: (ROWS.index(row) if row in ROWS else -1, row))


def error_of(recipe) -> str:
    with pytest.raises(UserError) as problem:
        check_data(recipe)
    assert "\n" not in str(problem.value)
    return str(problem.value)


def table(delimiter: str, header: str = "text{}label") -> str:
    rows = "".join(f'"{text}"{delimiter}{label}\n' for text, label in ROWS)
    return header.format(delimiter) + "\n" + rows


@pytest.mark.parametrize("delimiter", [";", "\t", "|", ":", " "])
def test_any_delimiter_can_be_named(recipe, delimiter):
    assert rows_of(recipe(table(delimiter), f"data.delimiter={json.dumps(delimiter)}")) == ROWS


def test_a_tsv_file_is_read_with_tabs(recipe):
    assert rows_of(recipe(table("\t"), name="rows.tsv")) == ROWS
    compressed_table = gzip.compress(table("\t").encode())
    assert rows_of(recipe(compressed_table, name="rows.TSV.gz")) == ROWS
    assert rows_of(recipe(table(","), "data.delimiter=','", name="rows.tsv")) == ROWS


@pytest.mark.parametrize("delimiter", [";", "\t", "|"])
def test_a_missing_delimiter_is_proposed_and_the_proposal_works(recipe, delimiter):
    message = error_of(recipe(table(delimiter)))
    proposed_value = json.dumps(delimiter)
    assert message.startswith("x.yaml:2: data.delimiter: ") and message.endswith(
        f"set data.delimiter: {proposed_value}"
    )
    assert rows_of(recipe(table(delimiter), f"data.delimiter={proposed_value}")) == ROWS


def test_a_wrong_delimiter_is_detected_by_the_missing_column(recipe):
    message = error_of(recipe("text,label\na,b\nc,d\n", "data.delimiter=;"))
    assert message.startswith("command line: data.delimiter: ") and 'set data.delimiter: ","' in message
    message = error_of(recipe("id, long;text;label\n1;a;b\n2;c;d\n"))
    assert "x.yaml:2: data.delimiter: " in message and 'set data.delimiter: ";"' in message


def test_a_changed_delimiter_or_encoding_reads_the_file_again(recipe):
    content = "text,label;note\n" + "ä,b;x\nü,d;y\n" * 2
    by_comma = ["data.label=label;note", "data.delimiter=','"]
    assert rows_of(recipe(content, *by_comma)) == [("ä", "b;x")] * 2 + [("ü", "d;y")] * 2
    by_semicolon = ["data.label=note", "data.text='text,label'", "data.delimiter=;"]
    assert rows_of(recipe(content, *by_semicolon)) == [("ä,b", "x")] * 2 + [("ü,d", "y")] * 2
    assert rows_of(recipe(content, *by_comma, "data.encoding=latin-1")) == [("Ã¤", "b;x")] * 2 + [("Ã¼", "d;y")] * 2


@pytest.mark.parametrize("encoding", ["cp1252", "latin-1", "utf-16", "utf-16-be", "utf-8-sig", "utf-32"])
def test_files_are_read_in_the_encoding_of_the_recipe(recipe, encoding):
    assert rows_of(recipe(table(",").encode(encoding), f"data.encoding={encoding}")) == ROWS
    lines = "".join(json.dumps({"text": text, "label": label}, ensure_ascii=False) + "\n" for text, label in ROWS)
    loaded_recipe = recipe(lines.encode(encoding), f"data.encoding={encoding}", dataset="json", name="rows.jsonl")
    assert rows_of(loaded_recipe) == ROWS


@pytest.mark.parametrize(
    ("encoding", "proposed_value", "sample"),
    [("cp1252", "cp1252", "Café,"), ("latin-1", "cp1252", "Café,"), ("utf-16", "utf-16", "Café,")],
)
def test_another_encoding_than_utf_8_is_proposed_and_the_proposal_works(recipe, encoding, proposed_value, sample):
    message = error_of(recipe(table(",").encode(encoding)))
    assert message.startswith("x.yaml:2: data.encoding: rows.csv is not utf-8 (byte ")
    assert message.endswith(f": set {proposed_value}") and (sample in message or encoding == "utf-16")
    assert rows_of(recipe(table(",").encode(encoding), f"data.encoding={proposed_value}")) == ROWS


@pytest.mark.parametrize(
    ("text", "encoding", "likely_encodings"),
    [
        ("Это очень хороший фильм, мне понравился\n" * 9, "cp1251", {"cp1251"}),
        ("日本語のテキストです。これは映画の感想\n" * 9, "shift_jis", {"cp932", "shift_jis"}),
        ("这部电影很好看，我喜欢\n" * 9, "gb18030", {"gb18030", "gbk"}),
        ("Zażółć gęślą jaźń, bardzo dobry film\n" * 9, "cp1250", {"cp1250"}),
        ("„Grüß Gott“ – 5 €\n", "cp1252", {"cp1252"}),
    ],
)
def test_encodings_of_other_scripts_are_recognized_by_their_letters(tmp_path, text, encoding, likely_encodings):
    (tmp_path / "x").write_bytes(text.encode(encoding))
    with pytest.raises(WrongEncodingError) as problem:
        check_encoding(tmp_path / "x")
    assert problem.value.likely in likely_encodings
    with open_text(tmp_path / "x", str(problem.value.likely)) as file:
        assert file.read() == text


def test_a_wrong_encoding_deep_in_a_large_file_is_detected(tmp_path):
    (tmp_path / "x").write_bytes(b"a b\n" * 600_000 + "Café\n".encode("cp1252"))
    with pytest.raises(WrongEncodingError, match=r"\(byte 2,400,003\); it seems to be cp1252 \('Café'\): set cp1252"):
        check_encoding(tmp_path / "x")
    (tmp_path / "x").write_bytes(("ü" * 2_000_001).encode())
    check_encoding(tmp_path / "x")  # letters that cross the borders of blocks


def test_language_models_read_texts_in_the_recipe_s_encoding(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_bytes(("Über Flüsse und Bäche.\n\n" * 600).encode("cp1252"))
    lines = "task: language_modeling\nmodel: {name: ctrl}\ntokenizer: {vocab_size: 300}\n" + HEAD
    shares = "validation_fraction: 0.3, test_fraction: 0.3"
    Path("x.yaml").write_text(lines + f"data: {{dataset: text, sources: {{Books: a.txt}}, max_length: 8, {shares}}}\n")
    assert "set cp1252" in error_of(load_recipe("x.yaml"))
    recipe = load_recipe("x.yaml", ["data.encoding=cp1252"])
    # Equal documents go into one split; a number in each keeps them apart.
    numbered_text = "".join(f"{number} Über Flüsse und Bäche.\n\n" for number in range(900))
    (tmp_path / "a.txt").write_bytes(numbered_text.encode("cp1252"))
    splits = task_of(recipe).load_splits(recipe)
    assert "".join(sorted("".join(rows["text"][:]) for rows in splits.values())).count("Flüsse") == 900


@pytest.mark.parametrize(
    ("overrides", "expected_error"),
    [
        (["data.delimiter=ab"], "data.delimiter: 'ab' is none; it should be one character"),
        (["data.delimiter=a"], "data.delimiter: 'a' is none"),
        (["data.delimiter='\"'"], "data.delimiter: '\"' is none"),
        (["data.dataset=json", "data.delimiter=;"], "data.delimiter: is for dataset: csv, not for json; remove it"),
        (["data.encoding=klingon"], "data.encoding: no encoding of text is called 'klingon'"),
        (["data.encoding=rot13"], "data.encoding: no encoding of text is called 'rot13'"),
        (["data.dataset=parquet", "data.encoding=cp1252"], "data.encoding: is for dataset: csv, json or text"),
    ],
)
def test_an_unknown_delimiter_or_encoding_is_refused_at_its_line(recipe, overrides, expected_error):
    with pytest.raises(UserError) as problem:
        recipe(table(","), *overrides)
    assert expected_error in str(problem.value) and "\n" not in str(problem.value)


def test_a_compressed_file_in_another_encoding_is_refused(recipe):
    compressed_table = gzip.compress(table(",").encode("cp1252"))
    message = error_of(recipe(compressed_table, "data.encoding=cp1252", name="rows.csv.gz"))
    assert "rows.csv.gz is packed, and cannot be read as cp1252; unpack it" in message


def test_names_of_encodings():
    assert [is_text_encoding(name) for name in ("utf-8", "cp1252", "nope", "a\0b", "hex", "undefined")] == [
        True, True, False, False, False, False,
    ]  # fmt: skip


def test_a_pattern_names_several_files_and_a_run_folder_s_recipe_finds_them(tmp_path, monkeypatch):
    (tmp_path / "beside" / "rows[1]").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    for number in range(3):
        rows = "".join(f'"{text}",{label}\n' for text, label in ROWS[number::3])
        (tmp_path / "beside" / "rows[1]" / f"part{number}.csv").write_text("text,label\n" + rows, encoding="utf-8")
    files = "{train: 'rows[[]1]/*.csv'}"
    text = HEAD + f"data: {{dataset: csv, files: {files}, max_length: 32, validation_fraction: 0.5}}\n"
    (tmp_path / "beside" / "x.yaml").write_text(text)
    recipe = load_recipe(tmp_path / "beside" / "x.yaml")
    assert rows_of(recipe) == ROWS
    identity = identity_of(recipe, {}, ByteTokenizer(), None)["files"]
    assert [Path(name).name for name in identity] == ["part0.csv", "part1.csv", "part2.csv"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    assert rows_of(load_recipe(tmp_path / "run" / "recipe.yaml")) == ROWS
    (tmp_path / "beside" / "rows[1]" / "part1.csv").write_text("text,other\na,b\n")
    message = error_of(recipe)
    assert "part1.csv has not the columns of " in message and message.endswith("they differ in label, other")
    assert "data.files.train: none/*.csv: no such file here" in error_of(
        load_recipe(tmp_path / "beside" / "x.yaml", ["data.files.train=none/*.csv"])
    )


def test_a_folder_of_texts_for_each_label(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for label in ("ja", "nein"):
        (tmp_path / "told" / label).mkdir(parents=True)
    for number, (text, label) in enumerate(ROWS):
        (tmp_path / "told" / label / f"{number}.txt").write_text(text, encoding="utf-8")
    sources = "{ja: told/ja/*.txt, nein: 'told/n*n/**/*.txt'}"
    Path("x.yaml").write_text(
        HEAD + f"data: {{dataset: text, sources: {sources}, max_length: 32, validation_fraction: 0.5}}\n"
    )
    assert check_data(load_recipe("x.yaml")) == []
    assert rows_of(load_recipe("x.yaml")) == ROWS
    assert "data.sources.ja: none/*: no such file here" in error_of(load_recipe("x.yaml", ["data.sources.ja=none/*"]))
    (tmp_path / "told" / "ja" / "1.txt").write_text(" \n")
    assert "data.sources.ja: told/ja/1.txt is empty" in error_of(load_recipe("x.yaml")).replace(f"{tmp_path}/", "")


#: Encoding -> a few words, as in a table.
EAST_ASIAN = {
    "gb18030": ["比赛进球教练,sport", "火车酒店地图,travel"],
    "big5": ["這家酒店的服務非常好,1", "味道一般,2"],
    "cp949": ["경기 골 감독,1", "기차 호텔 지도,2"],
    "cp932": ["配送がとても早い,1", "品質がひどい,2"],
    "euc_jp": ["配送がとても早い,1", "品質がひどい,2"],
}


@pytest.mark.parametrize("encoding", EAST_ASIAN)
@pytest.mark.parametrize("count", [1, 2])
def test_an_east_asian_encoding_is_recognized_by_the_decoded_text(tmp_path, encoding, count):
    lines = EAST_ASIAN[encoding][:count]
    (tmp_path / "t.csv").write_bytes("\n".join(lines).encode(encoding))
    with pytest.raises(WrongEncodingError) as problem:
        check_encoding(tmp_path / "t.csv")
    assert problem.value.likely == encoding
    assert f"it seems to be {encoding} ({lines[0].split()[0]!r}), not " in str(problem.value)


def test_two_equally_likely_encodings_are_both_shown_for_a_choice(tmp_path):
    path = tmp_path / "t.csv"
    path.write_bytes("text,label\n汤盐锅,盐锅\n盐汤锅,汤锅\n".encode("gbk"))
    expected_error = (
        r"is not utf-8 \(byte 11\); it may be gb18030 \('汤盐锅,盐锅'\) or .* \('.*'\): "
        "set --encoding to the one that reads right, if either does$"
    )
    with pytest.raises(UserError, match=expected_error):
        inspect_data(path)
    data_files = inspect_data(path, {"encoding": "gbk"})
    assert data_files.encoding == "gbk" and data_files.rows[0] == {"text": "汤盐锅", "label": "盐锅"}
    with pytest.raises(UserError, match=r"t.csv:2: is not ascii .*: set --encoding to"):
        inspect_data(path, {"encoding": "ascii"})
