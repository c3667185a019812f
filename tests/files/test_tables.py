"""Test tables of every format: read in chunks, and written to every format with more columns."""

from __future__ import annotations

import csv
import datetime
import json
import os
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.errors import UserError
from toolkit.files import json_rows, tables
from toolkit.files.table_writer import check_target, open_table_writer
from toolkit.files.tables import read_table

NEW_COLUMNS = {"label": str, "share": float, "place": int}
#: Values that survive only if they are not interpreted.
ROWS = [
    {"id": "001", "text": "two\nlines, one \"quoted\"", "note": "NA"},
    {"id": "1e5", "text": "日本語 🙂\u2028", "note": ""},
    {"id": "-0", "text": "", "note": " padded "},
]  # fmt: skip
VALUES = [["a", None, "c, d"], [0.1, None, 1e-30], [0, None, 7]]


def write(path: Path, rows: list[dict], **options) -> Path:
    """Write rows with an independent library."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        options = {"delimiter": "\t" if path.suffix == ".tsv" else ",", **options}
        with open(path, "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, **options)
            writer.writerow(rows[0])
            writer.writerows(row.values() for row in rows)
    return path


def read(path: Path, **options) -> list[dict]:
    """Read rows with an independent library."""
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    if path.suffix == ".json":
        return json.loads(path.read_text())
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().split("\n") if line]
    options = {"delimiter": "\t" if path.suffix == ".tsv" else ",", **options}
    with open(path, newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file, **options))


def copy_table(source: Path, target: Path, required_columns: tuple[str, ...] = ("text",), new_values=VALUES) -> Path:
    table = read_table(source, required_columns, infers_schema=target.suffix == ".parquet")
    with open_table_writer(target, table, NEW_COLUMNS) as writer:
        for rows in table.chunks():
            part = slice(rows.first_number - 1, rows.first_number - 1 + len(rows))
            writer.write(rows, [values[part] for values in new_values])
    return target


TABULAR = [".csv", ".tsv", ".jsonl", ".json", ".parquet"]


@pytest.mark.parametrize("chunk", [1, 1024])
@pytest.mark.parametrize("target", TABULAR)
@pytest.mark.parametrize("source", TABULAR)
def test_every_format_is_copied_into_every_format_with_values_and_order(source, target, chunk, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_ROWS", chunk)
    copied_rows = read(copy_table(write(tmp_path / f"in{source}", ROWS), tmp_path / f"out{target}"))
    text = target in (".csv", ".tsv")
    new = [["a", "", "c, d"], ["0.1", "", "1e-30"], ["0", "", "7"]] if text else VALUES
    new_cells = [dict(zip(NEW_COLUMNS, values, strict=True)) for values in zip(*new, strict=True)]
    assert copied_rows == [{**row, **cells} for row, cells in zip(ROWS, new_cells, strict=True)]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([f"in{source}", f"out{target}"])


@pytest.mark.parametrize(
    ("name", "content", "expected_content"),
    [
        ("a.csv", b"id,text\r\n001,x\r\n", b"id,text,label,share,place\r\n001,x,a,0.1,0\r\n"),
        ("a.csv", b"\xef\xbb\xbftext\n\"x\ny\"\n", b'\xef\xbb\xbftext,label,share,place\n"x\ny",a,0.1,0\n'),
        ("a.csv", "id;text\n1,5;ä\n".encode(), "id;text;label;share;place\n1,5;ä;a;0.1;0\n".encode()),
        ("a.csv", b"text|b\n x |", b"text|b|label|share|place\n x ||a|0.1|0\n"),
        ("a.csv", b"text,text of b,b\n\n1,2,\n\n", b"text,text of b,b,label,share,place\n1,2,,a,0.1,0\n"),
        ("a.tsv", b"text\tb\nx, y\t\"\"\"\"\n", b'text\tb\tlabel\tshare\tplace\nx, y\t""""\ta\t0.1\t0\n'),
        ("a.jsonl", b'{"text": "x", "n": 1.50}', b'{"text": "x", "n": 1.50, "label": "a", "share": 0.1, "place": 0}\n'),
        ("a.jsonl", b'\xef\xbb\xbf{"text" :"\\ud83d" }\r\n',
         b'{"text" :"\\ud83d", "label": "a", "share": 0.1, "place": 0}\n'),
    ],
    ids=["CRLF", "byte order mark", "semicolon", "bar", "empty lines", "tabs", "JSON number", "JSON escape"],
)  # fmt: skip
def test_a_copy_is_equal_byte_for_byte(name, content, expected_content, tmp_path):
    (tmp_path / name).write_bytes(content)
    target = copy_table(tmp_path / name, tmp_path / f"out{Path(name).suffix}", new_values=[["a"], [0.1], [0]])
    assert target.read_bytes() == expected_content


def test_an_empty_line_is_a_row_in_a_table_of_one_column(tmp_path):
    (tmp_path / "a.csv").write_text("text\nx\n\ny\n")
    (tmp_path / "a.txt").write_text("x\n\ny")
    for name in ("a.csv", "a.txt"):
        table = read_table(tmp_path / name, ["text"])
        assert [rows.column(0) for rows in table.chunks()] == [["x", "", "y"]]


def test_keys_of_some_rows_are_columns_of_all_rows(tmp_path):
    (tmp_path / "a.json").write_text('[{"a": 1, "text": "x"}, {"text": null, "b": {"c": [2.5, true]}},\n{"text": "y"}]')
    assert read(copy_table(tmp_path / "a.json", tmp_path / "b.csv"))[1] == {
        "a": "", "text": "", "b": '{"c": [2.5, true]}', "label": "", "share": "", "place": "",
    }  # fmt: skip
    assert [row["a"] for row in read(copy_table(tmp_path / "a.json", tmp_path / "b.parquet"))] == [1, None, None]


@pytest.mark.parametrize("size", [1, 7, 64])
def test_json_is_read_completely_for_any_block_size(size, tmp_path, monkeypatch):
    monkeypatch.setattr(json_rows, "BLOCK_CHARACTERS", size)
    rows = [{"text": "long " * 30, "n": -1.5e-7}, {"text": '\\"]}', "n": None}, {"text": "ä", "n": [True, {}]}]
    for name in ("a.json", "a.jsonl"):
        table = read_table(write(tmp_path / name, rows), ["text"])
        assert [dict(zip(("text", "n"), row, strict=True)) for part in table.chunks()
                for row in zip(part.column(0), part.column(1), strict=True)] == rows  # fmt: skip


def test_the_types_and_metadata_of_parquet_are_kept(tmp_path):
    columns = {
        "text": pa.array(["x", None, "z"]).dictionary_encode(),
        "day": pa.array([datetime.date(2020, 1, 2)] * 3),
        "price": pa.array([Decimal("1.50"), None, Decimal("2.00")]),
        "small": pa.array([1, 2, None], pa.int8()),
    }
    original_table = pa.table(columns).replace_schema_metadata({"from": "a test"})
    pq.write_table(original_table, tmp_path / "a.parquet")
    copied_table = pq.read_table(copy_table(tmp_path / "a.parquet", tmp_path / "b.parquet"))
    assert copied_table.select(list(columns)).equals(original_table, check_metadata=True)
    assert read(copy_table(tmp_path / "a.parquet", tmp_path / "b.csv"))[0] == {
        "text": "x", "day": "2020-01-02", "price": "1.50", "small": "1", "label": "a", "share": "0.1", "place": "0",
    }  # fmt: skip
    assert read(copy_table(tmp_path / "a.parquet", tmp_path / "b.jsonl"))[0]["day"] == "2020-01-02"


def test_a_header_alone_is_a_table_without_rows(tmp_path):
    (tmp_path / "a.csv").write_text("text,b\n")
    assert copy_table(tmp_path / "a.csv", tmp_path / "b.csv").read_text() == "text,b,label,share,place\n"
    assert copy_table(tmp_path / "a.csv", tmp_path / "b.json").read_text() == "[]\n"
    assert read(copy_table(tmp_path / "a.csv", tmp_path / "b.parquet")) == []


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12\n"

BAD = [
    ("ragged.csv", b"text,b\nx,1\ny\n", r":3: row 2 has 1 field and the header 2; put .* of several lines$"),
    ("long.csv", b'text,b\n"x\n",1\ny,1,2\n', r":4: row 2 has 3 fields and the header 2; put .* holds ','$"),
    ("open.csv", b'text,b\nx,1\n"y,2\nz,3\n', r":3: row 2 opens a quote and does not close it; if quotes are"),
    ("open.tsv", b'text\n"y', r":2: row 1 opens a quote"),
    (
        "latin.csv",
        "text,b\nx,1\nüber,2\n".encode("latin-1"),
        r":3: is not utf-8 \(byte 11\); it seems to be cp1252 \('über,2'\): set --encoding cp1252$",
    ),
    ("utf16.csv", "text,b\nx,1\n".encode("utf-16"), r":1: is not utf-8 \(byte 0\); it seems to be utf-16: set --"),
    ("latin.txt", b"x\n\xff\n", r":2: is not utf-8 \(byte 2\)"),
    ("latin.jsonl", b'{"text": "x"}\n{"text": "\xff"}\n', r":2: is not utf-8 \(byte 24\)"),
    ("columns.csv", b"a,b\nx,1\n", r"has no column text; it has a, b$"),
    ("columns.jsonl", b'{"a": 1}\n{"b": 1}', r"has no column text; it has a, b$"),
    ("twice.csv", b"text,text\nx,1\n", r"has the column text more than once$"),
    ("blank.csv", b"\n\n", r"holds nothing but empty lines$"),
    ("nothing.csv", b"", r"is empty$"),
    ("pointer.csv", LFS, r"is a pointer of git-LFS"),
    ("pointer.parquet", LFS, r"is a pointer of git-LFS"),
    ("a.parquet", b"PAR1 and no more", r"cannot be read: .*[Pp]arquet"),
    ("cut.jsonl", b'{"text": "x"}\n{"text": "y', r":2: row 2 is not JSON: Unterminated string"),
    ("wrong.jsonl", b'{"text": "x"}\n{text: "y"}\n' + b" " * 100, r":2: row 2 is not JSON: Expecting property name"),
    ("number.jsonl", b'{"text": "x"}\n12\n', r"row 2 is no JSON object$"),
    ("typed.jsonl", b'{"text": "x"}\n{"text": 12}\n', r"has in row 2 12 for its text, which is no text$"),
    ("nan.jsonl", b'{"text": "x", "a": NaN}\n', r"row 1 is not JSON: NaN is no number of JSON$"),
    ("deep.jsonl", b'{"text": ' + b"[" * 99999, r"row 1 is nested too deeply$"),
    ("cut.json", b'[{"text": "x"},\n', r"ends within the list of its rows, after row 1$"),
    ("more.json", b'[{"text": "x"}] [1]', r"goes on behind the list of its rows$"),
    ("none.json", b"[]", r"holds no rows$"),
    ("squad.json", b'{"data": [], "version": "1.1"}', r"has no column text; it has data, version$"),
    ("cut.csv", "text\nx\nü".encode()[:-1], r":3: is not utf-8 \(byte 7\)"),
    ("a.docx", b"\0\1", r"its name should end in one of \.csv, \.tsv, \.tab, \.xlsx, \.jsonl, \.json, "),
]


@pytest.mark.parametrize(("name", "content", "expected_error"), BAD, ids=[f"{row[0]}-{row[2][:20]}" for row in BAD])
def test_a_faulty_file_is_reported_in_one_line_with_its_row(name, content, expected_error, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=expected_error) as problem:
        read_table(tmp_path / name, ["text"])
    assert str(problem.value).startswith(f"{tmp_path / name}") and "\n" not in str(problem.value)


def test_a_damaged_parquet_file_is_reported_in_one_line(tmp_path):
    valid_content = write(tmp_path / "a.parquet", ROWS).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(valid_content[: len(valid_content) // 2])
    invalid_texts = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    pq.write_table(pa.table({"text": invalid_texts}), tmp_path / "bytes.parquet")
    pq.write_table(pa.table({"text": [1, 2]}), tmp_path / "numbers.parquet")
    for name, expected_error in {
        "cut": "cannot be read: .*[Pp]arquet",
        "bytes": "cannot be read: .*UTF8",
        "numbers": "has in row 1 1 for its text, which is no text",
    }.items():
        with pytest.raises(UserError, match=expected_error):
            read_table(tmp_path / f"{name}.parquet", ["text"])


def test_a_folder_a_pipe_and_a_missing_file_are_refused(tmp_path):
    (tmp_path / "a.csv").mkdir()
    os.mkfifo(tmp_path / "b.csv")
    for name, expected_error in {"a": "is a folder", "b": "is no plain file", "c": "No such file"}.items():
        with pytest.raises(UserError, match=expected_error):
            read_table(tmp_path / f"{name}.csv", ["text"])


def test_values_that_the_output_format_cannot_hold_are_reported(tmp_path):
    (tmp_path / "mixed.jsonl").write_text('{"text": "x", "a": 1}\n{"text": "x", "a": "b"}\n')
    with pytest.raises(UserError, match=r"several types in its column a \(rows 1 to 2\), which parquet cannot; write"):
        copy_table(tmp_path / "mixed.jsonl", tmp_path / "out.parquet")
    pq.write_table(pa.table({"text": ["x"], "image": [b"\1"]}), tmp_path / "bytes.parquet")
    with pytest.raises(UserError, match="a column of the input holds bytes, which only parquet can"):
        copy_table(tmp_path / "bytes.parquet", tmp_path / "out.csv")
    assert not list(tmp_path.glob("out*")) and not list(tmp_path.glob(".*"))


def test_an_impossible_output_is_refused_before_any_work(tmp_path):
    (tmp_path / "in.csv").write_text("text\n")
    (tmp_path / "there.csv").write_text("mine")
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "in.csv")
    for name, overwrite, expected_error in [
        ("there.csv", False, r"exists; choose another output, or add --overwrite$"),
        ("in.csv", True, r"is the input"),
        ("link.csv", True, r"is the input"),
        ("folder.csv", True, r"is a folder"),
        ("no/where.csv", False, r"there is no folder .*no; make it first$"),
        ("there.csv/a.csv", False, r"there is no folder .*there\.csv"),
        ("labeled.txt", False, r"a text file has no columns; end it in"),
        ("labeled", False, r"its name should end in one of"),
        ("labeled.arrow", False, r"is not of a kind that is written; end it in \.csv, "),
        ("labeled.csv.gz", False, r"is not of a kind that is written; end it in \.csv, "),
    ]:
        with pytest.raises(UserError, match=expected_error):
            check_target(tmp_path / name, tmp_path / "in.csv", overwrite=overwrite)
    with pytest.raises(UserError, match="its folder /proc cannot be written"):
        check_target(Path("/proc/labeled.csv"), tmp_path / "in.csv", overwrite=False)
    check_target(tmp_path / "there.csv", tmp_path / "in.csv", overwrite=True)
    assert (tmp_path / "there.csv").read_text() == "mine"
