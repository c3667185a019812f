"""Test odd files of rows: a run, `predict --input` and `recipe new` read each file equally, or refuse it equally."""

from __future__ import annotations

import bz2
import datetime
import gzip
import io
import json
import lzma
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.commands.recipe_check import check_data
from toolkit.commands.recipe_new.look import DataFiles, inspect_data
from toolkit.data.load import load_splits
from toolkit.data.source_layout import find_source_layout
from toolkit.errors import UserError
from toolkit.files.compression import content_ending
from toolkit.files.csv_rows import Layout
from toolkit.files.kinds import KIND_BY_ENDING
from toolkit.files.tables import read_table
from toolkit.recipe.load import load_recipe
from toolkit.recipe.recipe import Recipe

HEAD = "train: {epochs: 1, learning_rate: 1e-3}\n"
BODY = "x,1\ny,2\n"
XY = (("text", "n"), ("x", "1"), ("y", "2"))
LINES = '{"text": "x", "n": "1"}\n{"text": "y", "n": "2"}\n'
#: A lone surrogate, which a file of Arrow cannot contain and a run replaces.
HALF = "\ufffd"


def parquet(column: Any) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["x", "y"], "n": column}), sink)
    return sink.getvalue().to_pybytes()


def arrow(kind: str) -> bytes:
    rows, sink = pa.table({"text": ["x", "y"], "n": ["1", "2"]}), pa.BufferOutputStream()
    with getattr(pa.ipc, f"new_{kind}")(sink, rows.schema) as writer:
        writer.write_table(rows)
    return sink.getvalue().to_pybytes()


def zip_files(**members: bytes) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/").replace("MAC", "__MACOSX"), content)
    return sink.getvalue()


def by_arrow(codec: str, content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as file:
        file.write(content)
    return sink.getvalue().to_pybytes()


def sheet(*rows: Sequence[Any]) -> bytes:
    book, sink = openpyxl.Workbook(), io.BytesIO()
    for row in rows:
        book.active.append(list(row))
    book.save(sink)
    return sink.getvalue()


#: Description -> a file's name, its content, and its header and rows or the message of its refusal.
FILES: dict[str, tuple[str, bytes, Any]] = {
    # The layout of csv.
    "commas": ("a.csv", f"text,n\n{BODY}".encode(), XY),
    "semicolons, with commas in the texts": ("a.csv", b"text;n\nx, y;1\ny;2\n", (XY[0], ("x, y", "1"), XY[2])),
    "bars": ("a.csv", b"text|n\nx|1\ny|2\n", XY),
    "tabs in .csv": ("a.csv", b"text\tn\nx\t1\ny\t2\n", XY),
    "tabs in .tsv": ("a.tsv", b"text\tn\nx\t1\ny\t2\n", XY),
    "tabs in .tab": ("a.tab", b"text\tn\nx\t1\ny\t2\n", XY),
    "commas in .TSV": ("a.TSV", f"text,n\n{BODY}".encode(), XY),
    "a delimiter in quotes": ("a.csv", b'text;n\n"x;y|z,";1\ny;2\n', (XY[0], ("x;y|z,", "1"), XY[2])),
    "one column": ("a.csv", b"text\nx\ny\n", (("text",), ("x",), ("y",))),
    "one column of sentences with commas": ("a.csv", b'text\n"x, y"\n"a, b"\n', (("text",), ("x, y",), ("a, b",))),
    "quotes and line breaks in quotes": ("a.csv", b'text,n\n"x ""y""\nz",1\ny,2\n', (XY[0], ('x "y"\nz', "1"), XY[2])),
    "quotes within a field": ("a.csv", b'text,n\nx "y" z,1\ny,2\n', (XY[0], ('x "y" z', "1"), XY[2])),
    "U+2028 and U+0085 in a text": (
        "a.csv", "text,n\nx\u2028\x85z,1\ny,2\n".encode(), (XY[0], ("x\u2028\x85z", "1"), XY[2]),
    ),
    "CRLF": ("a.csv", b"text,n\r\nx,1\r\ny,2\r\n", XY),
    "CR": ("a.csv", b"text,n\rx,1\ry,2\r", XY),
    "CR in a semicolon file": ("a.csv", b"text;n\rx;1\ry;2", XY),
    "no end of the last line": ("a.csv", b"text,n\nx,1\ny,2", XY),
    "blank lines": ("a.csv", b"\n\ntext,n\n\nx,1\n\r\ny,2\n\n\n", XY),
    "blank lines in one column": ("a.csv", b"text\nx\n\ny\n", (("text",), ("x",), ("",), ("y",))),
    "blanks": ("a.csv", b"text, n\n x ,1\ny, 2\n", (("text", " n"), (" x ", "1"), ("y", " 2"))),
    "empty fields, NA, numbers": ("a.csv", b"text,n\nNA,007\nnull,\n,1e3\n",
                                  (XY[0], ("NA", "007"), ("null", ""), ("", "1e3"))),
    "NUL": ("a.csv", b"text,n\nx\0y,1\ny,2\n", (XY[0], ("x\0y", "1"), XY[2])),
    "surplus delimiters at the end": ("a.csv", b"text,n\nx,1,\ny,2,,\n", XY),
    "no header, a label in front": (
        "a.tsv", b"1\tx\n2\ty y\n2\tz\n1\tw\n1\tv\n",
        (("column1", "column2"), ("1", "x"), ("2", "y y"), ("2", "z"), ("1", "w"), ("1", "v")),
    ),
    "no header, a text in front": ("a.csv", b'"x, y",a\ny,b\nz,b\nw,a\nv,a\n',
                                   (("column1", "column2"), ("x, y", "a"), *zip("yzwv", "bbaa", strict=True))),
    "a header of numbers": ("a.csv", b"0,1\nx,1\ny,1\nz,1\n", (("0", "1"), ("x", "1"), ("y", "1"), ("z", "1"))),
    "a word above numbers": ("a.csv", b"text,n\ntext,1\ntext,2\n", (XY[0], ("text", "1"), ("text", "2"))),
    "a header again and again": ("a.csv", b"text,n\nx,a\ntext,n\ny,a\n", (XY[0], ("x", "a"), XY[0], ("y", "a"))),
    "single quotes and semicolons": ("a.csv", b"text;n\n'x; it''s \"y\"';1\n'y\nz';2\n",
                                     (XY[0], ('x; it\'s "y"', "1"), ("y\nz", "2"))),
    "quotes that are text": ("a.tsv", b'text\tn\n"x\t1\ny "z\t2\nv\t3\n"w" u\t4\n',
                             (XY[0], ('"x', "1"), ('y "z', "2"), ("v", "3"), ('"w" u', "4"))),
    "apostrophes": ("a.csv", b"text,n\n'tis x,1\ny's,2\n", (XY[0], ("'tis x", "1"), ("y's", "2"))),
    "a label before each text": ("a.label", b'A:x "how, many ?\nB:y who is\n',
                                 (("label", "text"), ("A:x", '"how, many ?'), ("B:y", "who is"))),
    "fastText's labels": ("a.txt", b"__label__a x y\r\n__label__b z, w\r\n",
                          (("label", "text"), ("a", "x y"), ("b", "z, w"))),
    # Encodings.
    "a byte order mark": ("a.csv", f"\ufefftext,n\n{BODY}".encode(), XY),
    "a byte order mark before JSON": ("a.jsonl", f"\ufeff{LINES}".encode(), XY),
    "UTF-16": ("a.csv", "text;n\r\nü;1\r\ny;2\r\n".encode("utf-16"), (XY[0], ("ü", "1"), XY[2])),
    "UTF-16 in .tsv": ("a.tsv", "text\tn\nü\t1\ny\t2\n".encode("utf-16"), (XY[0], ("ü", "1"), XY[2])),
    "cp1252": ("a.csv", "text;n\ngröße, für;1\ny;2\n".encode("cp1252"), (XY[0], ("größe, für", "1"), XY[2])),
    "GBK": ("a.csv", "text,n\n店,1\n评论进球,2\n".encode("gbk"), (XY[0], ("店", "1"), ("评论进球", "2"))),
    "cp1252 in JSON": ("a.json", LINES.replace('"x"', '"größe"').encode("cp1252"), (XY[0], ("größe", "1"), XY[2])),
    # Compressed.
    "gzip": ("a.csv.gz", gzip.compress(f"text,n\n{BODY}".encode()), XY),
    "gzip, semicolons": ("a.csv.gz", gzip.compress(b"text;n\nx;1\ny;2\n"), XY),
    "bzip2, tabs": ("a.tsv.bz2", bz2.compress(b"text\tn\nx\t1\ny\t2\n"), XY),
    "xz": ("a.jsonl.xz", lzma.compress(LINES.encode()), XY),
    "gzip without its ending": ("a.csv", gzip.compress(f"text,n\n{BODY}".encode()), XY),
    "zstd": ("a.jsonl.zst", by_arrow("zstd", LINES.encode()), XY),
    "lz4": ("a.csv.lz4", by_arrow("lz4", f"text,n\n{BODY}".encode()), XY),
    "zip": ("a.csv.zip", zip_files(**{"a.csv": f"text,n\n{BODY}".encode()}), XY),
    "a zip of a Mac, tabs": (
        "a.zip", zip_files(MAC__x=b"\0", a__=b"", **{"a__._a.tsv": b"\0", "a__a.tsv": b"text\tn\nx\t1\ny\t2\n"}), XY,
    ),
    # Without a suffix of the format.
    "commas without an ending": ("a", f"text,n\n{BODY}".encode(), XY),
    "tabs in .label": ("a.label", b"text\tn\nx\t1\ny\t2\n", XY),
    "JSON without an ending": ("a", LINES.encode(), XY),
    "parquet without an ending": ("a", parquet(["1", "2"]), XY),
    "Excel's Unicode text": ("a.txt", "text\tn\r\nx\t1\r\ny\t2\r\n".encode("utf-16"), XY),
    "commas in .txt": ("a.txt", b"text,n\nx,1\ny,2\n", XY),
    # Other kinds.
    "a sheet": ("a.xlsx", sheet(["text", "n"], ["x", "1"], [None, None], ["y", "2"]), XY),
    "numbers, dates, truth and nothing in a sheet": (
        "a.xlsx", sheet(["text", "n", "m"], [1.0, 2.5, None], [datetime.date(2020, 1, 2), True, "NA"]),
        (("text", "n", "m"), ("1", "2.5", ""), ("2020-01-02", "TRUE", "NA")),
    ),
    "a sheet without a header": ("a.xlsx", sheet("ax", "by", "bz", "aw", "av"),
                                 (("column1", "column2"), *map(tuple, ("ax", "by", "bz", "aw", "av")))),
    "JSON lines": ("a.ndjson", LINES.encode(), XY),
    "a list in JSON": ("a.json", json.dumps([json.loads(line) for line in LINES.splitlines()], indent=1).encode(), XY),
    "JSON rows over several lines": ("a.json", LINES.replace(",", ",\n").encode(), XY),
    "JSON rows without a line break": ("a.json", LINES.replace("\n", " ").encode(), XY),
    "blank lines in JSON": ("a.jsonl", f"\n{LINES}".replace("\n", "\n\r\n").encode(), XY),
    "dates, large numbers, null in JSON": (
        "a.jsonl", b'{"text": "2020-01-02", "n": 9007199254740993}\n{"text": "2021-01-02T10:00:00Z", "n": null}\n',
        (XY[0], ("2020-01-02", 9007199254740993), ("2021-01-02T10:00:00Z", None)),
    ),
    "whole and other numbers in JSON": ("a.jsonl", b'{"text": "x", "n": 1}\n{"text": "y", "n": 2.5}\n',
                                        (XY[0], ("x", 1.0), ("y", 2.5))),
    "keys that only some rows have": ("a.jsonl", b'{"text": "x"}\n{"text": "y", "n": "2"}\n',
                                      (XY[0], ("x", None), XY[2])),
    "NUL in JSON": ("a.jsonl", LINES.replace('"x"', '"x\\u0000y"').encode(), (XY[0], ("x\0y", "1"), XY[2])),
    "half a character in JSON": ("a.jsonl", LINES.replace('"1"', '"\\ud83d"').encode(),
                                 (XY[0], ("x", HALF), XY[2])),
    "columns in columns of JSON": (
        "a.jsonl", b'{"text": "x", "doc": {"a": 1}}\n{"text": "y", "doc": {"a": null, "b": [1.5]}}\n',
        (("text", "doc"), ("x", {"a": 1}), ("y", {"b": [1.5]})),
    ),
    "values of several types in JSON": ("a.jsonl", LINES.replace('"1"', "[1]").encode(), (XY[0], ("x", [1]), XY[2])),
    "values of several types in columns of JSON": (
        "a.jsonl",
        b'{"text": "x", "doc": {"a": "z", "b": 1, "c": {"d": 1}}}\n{"text": "y", "doc": {"a": "w", "b": "v", "c": 2}}\n'
        b'{"text": "z", "doc": null}\n',
        (("text", "doc"), ("x", {"a": "z", "b": 1, "c": {"d": 1}}), ("y", {"a": "w", "b": "v", "c": 2}), ("z", None)),
    ),
    "numbers beyond 64 bits in JSON": ("a.jsonl", LINES.replace('"1"', f"{2**70}").replace('"2"', "2").encode(),
                                       (XY[0], ("x", 2**70), ("y", 2))),
    "texts in a list of JSON": ("a.json", b'["x",\n"y"]', (("text",), ("x",), ("y",))),
    "lists in a list of JSON": ("a.json", b'[["x", "1"],\n["y", null]]',
                                (("column1", "column2"), ("x", "1"), ("y", None))),
    "lists of lists of JSON": (
        "a.json", b'{"a": [["x", "1"], ["y", "2"]],\n"b": [], "c": [["z", 3.5]]}\n',
        (("split", "column1", "column2"), ("a", "x", "1"), ("a", "y", "2"), ("c", "z", 3.5)),
    ),
    "lists of objects of JSON": ("a.json", b'{"a": [{"text": "x"}], "b": [{"text": "y", "n": 1}]}',
                                 (("split", "text", "n"), ("a", "x", None), ("b", "y", 1))),
    "one list of objects of JSON": ("a.json", f'{{"data": [{LINES.strip()}]}}'.replace("\n", ", ").encode(), XY),
    "columns of JSON": ("a.json", b'{"text": ["x", "y"],\n"n": ["1", "2"]}', XY),
    "columns of JSON, as pandas has them": ("a.json", b'{"text": {"0": "x", "1": "y"}, "n": {"0": "1", "1": "2"}}', XY),
    "rows of JSON by their index": ("a.json", b'{"0": {"text": "x", "n": "1"}, "a": {"text": "y", "n": "2"}}', XY),
    "rows and columns of JSON apart": ("a.json", b'{"columns": ["text", "n"], "data": [["x", "1"], ["y", "2"]]}', XY),
    "a row that looks like columns": ("a.jsonl", b'{"m": [1, 2], "n": [3, 4]}', (("m", "n"), ([1, 2], [3, 4]))),
    "rows that look like columns": ("a.json", b'{"m": [1], "n": [2]}\n{"m": [3], "n": [4]}',
                                    (("m", "n"), ([1], [2]), ([3], [4]))),
    "rows that hold lists alone": ("a.jsonl", b'{"n": [["x"]]}\n{"n": [["y"]]}\n', (("n",), ([["x"]],), ([["y"]],))),
    "parquet": ("a.parquet", parquet(["1", "2"]), XY),
    "categories in parquet": ("a.parquet", parquet(pa.array(["1", "2"]).dictionary_encode()), XY),
    "Arrow, a stream": ("a.arrow", arrow("stream"), XY),
    "Arrow, a file": ("a.arrow", arrow("file"), XY),
    # Refused files.
    "a short row": ("a.csv", b"text,n\nx,1\ny\nz,3\n", ":3: row 2 has 1 field and the header 2"),
    "a long row": ("a.csv", b'text,n\n"x\n",1\ny,1,2\n', ":4: row 2 has 3 fields and the header 2"),
    "an unquoted line break": ("a.tsv", b"text\tn\nx\nz\t1\ny\t2\n", ":2: row 1 has 1 field and the header 2"),
    "a carriage return without quotes": (
        "a.tsv", b"text\tn\nx\rz\t1\ny\t2\n",
        ":2: row 1 has 1 field and the header 2; put quotes round a text that holds a carriage return",
    ),
    "a short row of a semicolon file": ("a.csv", b"text;n\nx;1\ny\nz;3\n", ":3: row 2 has 1 field and the header 2"),
    "a short row, packed": ("a.csv.gz", gzip.compress(b"text,n\nx,1\ny\n"), ":3: row 2 has 1 field and the header 2"),
    "an open quote": ("a.csv", b'text,n\nx,1\n"y,2\nz,3\n', ":3: row 2 opens a quote and does not close it"),
    "nothing": ("a.csv", b"", " is empty"),
    "blank lines alone": ("a.csv", b"\n\r\n\n", " holds nothing but empty lines"),
    "two columns of a name": ("a.csv", b"text,text,n\nx,1,a\ny,2,b\n", " has the column text more than once"),
    "what is not JSON": ("a.jsonl", LINES.encode() + b"{]\n", ":3: row 3 is not JSON"),
    "JSON that is cut": ("a.json", b'[{"text": "x",\n "n": "1"},', " ends within the list of its rows, after row 1"),
    "a list of another length": ("a.json", b'[["x", "1"],\n["y"]]',
                                 ":2: row 2 has 1 values and 2 columns are named (column1, column2)"),
    "a list of lists of another length": ("a.json", b'{"a": [["x", "1"]], "b": [["x", "1"], ["y", "2", "3"]]}',
                                          " row 2 of b has 3 values and 2 columns are named (column1, column2)"),
    "a number as a row": ("a.jsonl", LINES.encode() + b"12\n", ":3: row 3 is no JSON object"),
    "deep JSON": ("a.jsonl", LINES.encode() + b'{"text": "x", "n": ' + b"[" * 300 + b"]" * 300 + b"}\n",
                  ":3: row 3 is nested too deeply"),
    "bytes that are no text, packed": ("a.csv.gz", gzip.compress(b"text,n\nx,1\n\xe4,2\n"), ":3: is not UTF-8"),
    "a cut archive": ("a.csv.gz", gzip.compress(f"text,n\n{BODY * 99}".encode())[:-9], " cannot be unpacked"),
    "no archive": ("a.csv.gz", f"text,n\n{BODY}".encode(), " is not packed"),
    "a zip of several tables": ("a.zip", zip_files(**{"a.csv": b"text,n\nx,1\n", "b.csv": b"text,n\nx,1\n"}),
                                " cannot be unpacked: it holds 2 files (a.csv, b.csv), where one is to be; unpack it"),
    "a damaged zst": ("a.csv.zst", b"\x28\xb5\x2f\xfdxxxx", " cannot be unpacked: ZSTD"),
    "no sheet": ("a.xlsx", zip_files(**{"a.csv": b"text,n\nx,1\n"}), " is no sheet of Excel (.xlsx)"),
    "a wide row of a sheet": ("a.xlsx", sheet(["text", "n"], ["x", "1"], ["y", "2", "3"]),
                              ":3: row 2 has 3 fields and the header 2"),
    "no parquet": ("a.parquet", b"PAR1 and no more", " cannot be read"),
}  # fmt: skip

#: The keys of a recipe for the layout of a file.
LAYOUT = ("delimiter", "encoding", "quote", "columns")
#: The delimiters of files that `recipe new` refuses.
DELIMITERS = {"a short row of a semicolon file": ";"}


def plain_value(value: Any) -> Any:
    """Return a value without Arrow's None for missing keys, and with a lone surrogate replaced."""
    if isinstance(value, dict):
        return {key: plain_value(item) for key, item in value.items() if item is not None}
    return HALF if value == "\ud83d" else value


def as_rows(names: Iterable[str], rows: Iterable[Iterable[Any]]) -> tuple[tuple[Any, ...], ...]:
    return (tuple(names), *(tuple(map(plain_value, row)) for row in rows))


def trained_on(path: Path, kind: str, layout: Mapping[str, Any]) -> Any:
    """Return the header and rows of a file as a run reads it, with the layout that `recipe new` writes."""
    files = {"train": str(path)}
    data = {"dataset": kind, "files": files, "max_length": 32, **layout}
    (path.parent / "x.yaml").write_text(f"{HEAD}data: {json.dumps(data | {'label': 'n'})}\n")
    rows = load_splits(load_recipe(path.parent / "x.yaml"), {})["train"]
    return as_rows(rows.column_names, (row.values() for row in rows))


def read_for_prediction(
    path: Path, recipe: Recipe, required_columns: Sequence[str] = ("text",), **layout: str | None
) -> Any:
    """Return the header and rows of a file as `predict --input` reads it."""
    kind, delimiter, rest = find_source_layout(recipe, path, required_columns, **layout)
    table = read_table(path, required_columns, delimiter, layout=rest, kind=kind)
    parts = ([part.column(index) for index in range(len(table.names))] for part in table.chunks())
    return as_rows(table.names, (row for columns in parts for row in zip(*columns, strict=True)))


def content_or_error(path: Path, read: Callable[[], Any]) -> Any:
    """Return the content of a file, or the message about it without its name."""
    try:
        return read()
    except UserError as problem:
        assert "\n" not in str(problem)
        return str(problem).partition(str(path))[2]


@pytest.mark.parametrize("description", FILES)
def test_runs_predictions_and_new_recipes_read_or_refuse_a_file_equally(tmp_path, description):
    name, content, expected_outcome = FILES[description]
    path = tmp_path / name
    path.write_bytes(content)
    (tmp_path / "plain.yaml").write_text(f"{HEAD}data: {{dataset: csv, max_length: 32, files: {{train: {path}}}}}\n")
    data_files: list[DataFiles] = []

    def read_draft() -> Any:
        data_files.append(inspect_data(path))
        rows = data_files[0].rows
        assert rows is not None
        return as_rows(rows.column_names, (row.values() for row in rows))

    new = content_or_error(path, read_draft)
    layout = (
        {key: getattr(data_files[0], key) for key in LAYOUT}
        if data_files
        else {"delimiter": DELIMITERS.get(description)}
    )
    kind = data_files[0].kind if data_files else KIND_BY_ENDING.get(content_ending(path), "csv")
    run = content_or_error(path, lambda: trained_on(path, kind, layout))
    columns = layout.get("columns")
    layout_options = {key: layout.get(key) for key in ("encoding", "quote")} | {
        "columns": columns and ",".join(columns)
    }
    if name.endswith((".label", ".txt")):  # for other files, the default delimiter is correct
        layout_options["delimiter"] = layout.get("delimiter")
    required_columns = ("text",) if isinstance(new, str) or "text" in new[0] else ()
    prediction = content_or_error(
        path,
        lambda: read_for_prediction(path, load_recipe(tmp_path / "plain.yaml"), required_columns, **layout_options),
    )
    assert new == run == prediction
    assert new == expected_outcome or (isinstance(expected_outcome, str) and new.startswith(expected_outcome))


def test_a_file_with_only_a_header_has_no_rows_to_learn(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,n\n")
    assert read_table(path, ["text"]).size == 0
    assert content_or_error(path, lambda: inspect_data(path)) == ": holds no rows"
    with pytest.raises(UserError, match=r"x.yaml:2: data.files.train: the train split is empty$"):
        trained_on(path, "csv", {})


def test_unnamed_columns_get_names_in_a_run_but_not_in_a_labeled_file(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,n,,,z,z\nx,1,,2,3,4\n")
    assert trained_on(path, "csv", {})[0] == ("text", "n", "Unnamed: 2", "Unnamed: 3", "z", "z.1")
    assert read_table(path, ["text"]).names == ("text", "n", "", "", "z", "z")


@pytest.mark.parametrize(
    ("name", "content", "expected_error"),
    [
        ("a.docx", b"\0\1\2\3", ": its name should end in one of .csv, .tsv"),
        ("a", b"To be, or not to be\nWhether, as, it, is\n", ": its name should end in one of .csv, .tsv"),
        ("a.xls", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", ": is a sheet of an Excel before 2007, or has a password"),
    ],
)
def test_another_kind_of_file_is_refused_equally(tmp_path, name, content, expected_error):
    path = tmp_path / name
    path.write_bytes(content)
    messages = [
        content_or_error(path, read) for read in (lambda: inspect_data(path), lambda: read_table(path, ["text"]))
    ]
    assert messages[1].startswith(expected_error)
    assert (
        messages[0].partition("; --task language_modeling")[0] == messages[1]
    )  # an alternative that tables do not have


def test_a_text_with_a_few_commas_or_tabs_is_not_a_table(tmp_path):
    texts = ["Enter Hamlet, Horatio\nExit Hamlet, Horatio\n" * 9, "a\tb\nc\n", "a,b\n", "one\ntwo\n"]
    for content in [*texts, "Of __label__a __label__b x\n" * 2]:
        (tmp_path / "a.txt").write_text(content)
        assert inspect_data(tmp_path / "a.txt").kind == "text"
    (tmp_path / "a.txt").write_text("a\tb\nc\td\n")
    assert inspect_data(tmp_path / "a.txt").notes[0] == (
        "a.txt is read as csv, as its content looks; --task language_modeling reads it as text"
    )
    assert inspect_data(tmp_path / "a.txt", as_text=True).kind == "text"


def test_a_text_file_to_label_is_a_table_if_it_has_the_columns(tmp_path):
    (tmp_path / "r.yaml").write_text(f"{HEAD}data: {{dataset: csv, max_length: 32, files: {{train: t.csv}}}}\n")
    recipe, path = load_recipe(tmp_path / "r.yaml"), tmp_path / "a.txt"
    for content, kind in {"text\tn\nx\t1\n": "csv", "a\tn\nx\t1\n": "text", "text\nx\n": "text"}.items():
        path.write_text(content)
        assert find_source_layout(recipe, path, ["text"]).kind == kind
    assert find_source_layout(recipe, path, ["text"], columns="text").kind == "csv"
    recipe_with_columns = load_recipe(tmp_path / "r.yaml", ["data.columns=[n, text]"])
    path.write_text("1\tx\n2\ty\n")
    assert find_source_layout(recipe_with_columns, path, ["text"])[0::2] == ("csv", Layout(columns=("n", "text")))


def test_a_missing_column_and_header_are_reported(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("spam,x\nham,y\nspam,z\nspam,w\nham,v\n")
    hint = "; its first row looks like data: name the columns with"
    with pytest.raises(UserError, match=rf"has no column text; it has spam, x{hint} --columns$"):
        read_table(path, ["text"])
    recipe = tmp_path / "x.yaml"
    recipe.write_text(
        f"{HEAD}data: {{dataset: csv, max_length: 32, validation_fraction: 0.5, files: {{train: {path}}}}}\n"
    )
    with pytest.raises(UserError, match=rf"data.text: no column text .* it has spam, x{hint} data.columns$"):
        check_data(load_recipe(recipe))
