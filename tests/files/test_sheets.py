"""Test sheets of Excel: the position of the table in a file, and written sheets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from models.files.plain import UnreadableFileError
from toolkit.errors import UserError
from toolkit.files.sheet_rows import SheetTable, find_sheet_table, read_sheet_rows
from toolkit.files.table_writer import open_table_writer
from toolkit.files.tables import read_table
from toolkit.recipe.load import load_recipe

HEADER = ["Nr", "Text", "Label"]
ROWS = [[number, f"text {number}", "ab"[number % 2]] for number in range(6)]
READ = [[str(cell) for cell in row] for row in ROWS]


def book_of(path: Path, **sheets: Sequence[Sequence[Any]]) -> Path:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    book.save(path)
    return path


@pytest.mark.parametrize(
    ("above", "titles"),
    [
        ([], []),
        ([["Export of May"]], ["Export of May"]),
        ([["Export of May"], []], ["Export of May"]),
        ([["Export of May"], ["internal"], []], ["Export of May", "internal"]),
        ([[None, "Answers"], []], ["Answers"]),
        ([["Export"], ["made", "in May"], []], ["Export", "made in May"]),
    ],
)
def test_titles_above_a_table_are_omitted(tmp_path, above, titles):
    path = book_of(tmp_path / "a.xlsx", Sheet=[*above, HEADER, *ROWS])
    assert list(read_sheet_rows(path)) == [HEADER, *READ]
    assert find_sheet_table(path).titles == titles and len(find_sheet_table(path).notes) == bool(titles)
    assert list(read_sheet_rows(path, tuple(HEADER))) == [HEADER, *READ]
    other_header = ("a", "b", "c")
    assert list(read_sheet_rows(path, other_header)) == [list(other_header), HEADER, *READ]


@pytest.mark.parametrize(
    "rows",
    [
        [["Nr", "Text"], *ROWS],  # a name is missing
        [["Nr", "Text"], ROWS[0], [], *ROWS],
        [["Text"], ["text 0", "a"], ["text 1", "b"], ["text 2", "a"]],
    ],
)
def test_a_header_with_a_missing_name_is_not_a_title(tmp_path, rows):
    path = book_of(tmp_path / "a.xlsx", Sheet=rows)
    with pytest.raises(UnreadableFileError, match=rf"a.xlsx:2: row 1 has {len(rows[1])} fields and the header"):
        list(read_sheet_rows(path))


def test_an_empty_cell_of_a_row_does_not_move_the_header(tmp_path):
    rows = [HEADER, [0, None, "a"], [1, "text 1"], *ROWS]
    path = book_of(tmp_path / "a.xlsx", Sheet=rows)
    assert next(read_sheet_rows(path)) == HEADER and not find_sheet_table(path).notes
    one_column_book = book_of(tmp_path / "b.xlsx", Sheet=[["text"], ["a"], ["b"]])
    assert list(read_sheet_rows(one_column_book)) == [["text"], ["a"], ["b"]]


def test_a_note_quotes_the_beginning_of_long_names():
    (note,) = SheetTable(["n" * 9999, "Data"], index=0, titles=[], first_line=1).notes
    assert note == f"the sheet {'n' * 40} of 2 ({'n' * 40}, Data) is read; to read another, save it as csv"


def test_the_sheet_with_rows_is_read_and_named(tmp_path):
    path = book_of(tmp_path / "a.xlsx", About=[["Export of May"]], Empty=[], Data=[HEADER, *ROWS], More=[HEADER, *ROWS])
    assert list(read_sheet_rows(path)) == [HEADER, *READ]
    assert find_sheet_table(path).notes == [
        "the sheet Data of 4 (About, Empty, Data, More) is read; to read another, save it as csv"
    ]
    keys = book_of(tmp_path / "c.xlsx", About=[["made by", "me"], ["on", "May"]], Data=[HEADER, *ROWS])
    assert list(read_sheet_rows(keys)) == [HEADER, *READ]
    alike = book_of(tmp_path / "d.xlsx", First=[HEADER, *ROWS], Second=[["a", *HEADER], *([0, *row] for row in ROWS)])
    assert list(read_sheet_rows(alike)) == [HEADER, *READ]
    empty = book_of(tmp_path / "b.xlsx", A=[], B=[])
    with pytest.raises(UnreadableFileError, match="holds nothing but empty rows"):
        list(read_sheet_rows(empty))


def test_omitted_rows_are_noted_and_a_wrong_format_is_an_error(tmp_path, monkeypatch):
    from toolkit.commands.recipe_check import check_data

    monkeypatch.chdir(tmp_path)
    book_of(tmp_path / "a.xlsx", Sheet=[["Export of May"], [], HEADER, *ROWS * 4])
    data = "{dataset: KIND, files: {train: a.xlsx}, text: Text, label: Label, max_length: 32, validation_fraction: 0.3}"
    for kind in ("xlsx", "csv"):
        text = f"train: {{epochs: 1, learning_rate: 1e-3}}\ndata: {data.replace('KIND', kind)}\n"
        (tmp_path / f"{kind}.yaml").write_text(text)
    assert "a.xlsx: the table begins in row 3; the row above it is left out (Export of May)" in check_data(
        load_recipe("xlsx.yaml")
    )
    with pytest.raises(UserError, match=r"csv.yaml:2: data.dataset: csv: \S*a.xlsx is not csv by its name; set data"):
        check_data(load_recipe("csv.yaml"))


def test_written_sheets_are_read_back_equally(tmp_path):
    cells = ["=1+1", "001", "12", "-3.5", "1e5", "12345678901234567", "", "a\x01b", "@x", "TRUE", "2024-01-02"]
    source = tmp_path / "a.csv"
    source.write_text("text,n\n" + "".join(f'"{cell}",{number}\n' for number, cell in enumerate(cells)), newline="")
    table = read_table(source, ["text"])
    target = tmp_path / "b.xlsx"
    with open_table_writer(target, table, {"label": str, "score": float}) as writer:
        for rows in table.chunks():
            writer.write(rows, [["=x"] * len(rows), [0.25] * len(rows)])
    header, *written_rows = read_sheet_rows(target)
    assert header == ["text", "n", "label", "score"]
    assert [row[0] for row in written_rows] == [cell.replace("\x01", "\ufffd") for cell in cells]
    assert {tuple(row[2:]) for row in written_rows} == {("=x", "0.25")}
    sheet = openpyxl.load_workbook(target).active
    assert not [cell for row in sheet.iter_rows() for cell in row if cell.data_type == "f"]
    assert [sheet.cell(row, 1).value for row in (3, 4, 5)] == ["001", 12, -3.5]


def test_a_too_long_text_for_a_sheet_is_refused(tmp_path):
    source = tmp_path / "a.csv"
    source.write_text(f"text\n{'x' * 2**15}\n")
    table = read_table(source, ["text"])
    expected_error = (
        r"b.xlsx: a sheet of Excel cannot hold a text of more than 32,767 characters; end the output in .csv"
    )
    with (
        pytest.raises(UserError, match=expected_error),
        open_table_writer(tmp_path / "b.xlsx", table, {"label": str}) as writer,
    ):
        for rows in table.chunks():
            writer.write(rows, [["y"]])
    assert not (tmp_path / "b.xlsx").exists()
