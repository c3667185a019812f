"""Test odd and damaged files of Excel: the rows of a valid sheet are read, or one line names the file."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import openpyxl
import pytest

from toolkit.errors import UserError
from toolkit.files import sheet_rows
from toolkit.files.tables import read_table

MAIN = "http://schemas.openxmlformats.org/spreadsheetml/2006/main"
PACKAGE = "http://schemas.openxmlformats.org/package/2006"
OFFICE = "http://schemas.openxmlformats.org/officeDocument/2006"
WORKBOOK, SHEET, STRINGS = "xl/workbook.xml", "xl/worksheets/sheet1.xml", "xl/sharedStrings.xml"
RELATIONS, TYPES, STYLES = "xl/_rels/workbook.xml.rels", "[Content_Types].xml", "xl/styles.xml"
#: Content types of the parts, by the suffix of their names.
KINDS = {WORKBOOK: "sheet.main", SHEET: "worksheet", STRINGS: "sharedStrings", STYLES: "styles"}


def cell(place: str, text: str) -> str:
    return f'<c r="{place}" t="inlineStr"><is><t>{text}</t></is></c>'


def row(number: object, *cells: str) -> str:
    return f'<row r="{number}">{"".join(cells)}</row>'


ROWS = row(1, cell("A1", "text")) + row(2, cell("A2", "cat"))


def sheet(rows: str = ROWS, prefix: str = "") -> str:
    return f'{prefix}<worksheet xmlns="{MAIN}"><sheetData>{rows}</sheetData></worksheet>'


def strings(items: str) -> str:
    return f'<sst xmlns="{MAIN}">{items}</sst>'


def styles(inner: str) -> str:
    return f'<styleSheet xmlns="{MAIN}">{inner}</styleSheet>'


def parts() -> dict[str, str | bytes | None]:
    """Return the parts of a small file of Excel."""
    kind = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    type_entries = (f'<Override PartName="/{part}" ContentType="{kind}.{name}+xml"/>' for part, name in KINDS.items())
    sheets = '<sheets><sheet name="S" sheetId="1" r:id="rId1"/></sheets>'
    relation = f'<Relationship Id="rId1" Type="{OFFICE}/relationships/worksheet" Target="worksheets/sheet1.xml"/>'
    return {
        TYPES: f'<Types xmlns="{PACKAGE}/content-types">{"".join(type_entries)}</Types>',
        WORKBOOK: f'<workbook xmlns="{MAIN}" xmlns:r="{OFFICE}/relationships">{sheets}</workbook>',
        RELATIONS: f'<Relationships xmlns="{PACKAGE}/relationships">{relation}</Relationships>',
        SHEET: sheet(),
        STRINGS: strings("<si><t>dog</t></si>"),
        STYLES: styles(""),
    }


def write(path: Path, changes: Mapping[str, str | bytes | None]) -> Path:
    """Write a file of Excel with other parts; None leaves a part out."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in {**parts(), **changes}.items():
            if content is not None:
                archive.writestr(name, content)
    return path


def texts(path: Path) -> list[str]:
    table = read_table(path, ["text"])
    return [text for rows in table.chunks() for text in rows.values("text")]


MERGED_CELLS = '<mergeCells><mergeCell ref="A2:XFD1048576"/></mergeCells></worksheet>'
LINK = '<externalReferences><externalReference r:id="rId9"/></externalReferences></workbook>'
READ = {
    "nothing odd": ({}, ["cat"]),
    "a dimension of the whole sheet": (
        {SHEET: sheet().replace("<sheetData>", '<dimension ref="A1:XFD1048576"/><sheetData>')},
        ["cat"],
    ),
    "merged cells of the whole sheet": (
        {SHEET: sheet().replace("</worksheet>", MERGED_CELLS)},
        ["cat"],
    ),
    "a row at the end": ({SHEET: sheet(ROWS + row(2**20, cell("A1048576", "cow")))}, ["cat", "cow"]),
    "rows without numbers": ({SHEET: sheet(re.sub(' r="[^"]*"', "", ROWS))}, ["cat"]),
    "a shared string": ({SHEET: sheet(ROWS + row(3, '<c r="A3" t="s"><v>0</v></c>'))}, ["cat", "dog"]),
    "rich text": (
        {
            SHEET: sheet(ROWS + row(3, '<c r="A3" t="s"><v>0</v></c>')),
            STRINGS: strings("<si><r><t>do</t></r><r><rPr><b/></rPr><t>g</t></r></si>"),
        },
        ["cat", "dog"],
    ),
    "a count of strings that lies": ({STRINGS: strings("").replace("<sst", '<sst count="999999999999"')}, ["cat"]),
    "an error and a boolean": (
        {SHEET: sheet(ROWS + row(3, '<c r="A3" t="e"><v>#DIV/0!</v></c>') + row(4, '<c r="A4" t="b"><v>1</v></c>'))},
        ["cat", "#DIV/0!", "TRUE"],
    ),
    "a formula without a value": ({SHEET: sheet(ROWS + row(3, '<c r="A3"><f>1+1</f></c>'))}, ["cat"]),
    "damaged properties": ({"docProps/core.xml": "<damaged"}, ["cat"]),
    "macros": ({"xl/vbaProject.bin": bytes(99)}, ["cat"]),
    "a link to another workbook": ({WORKBOOK: str(parts()[WORKBOOK]).replace("</workbook>", LINK)}, ["cat"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", READ)
def test_an_odd_sheet_is_read(kind, tmp_path, recwarn):
    changes, expected_texts = READ[kind]
    assert texts(write(tmp_path / "odd.xlsx", changes)) == expected_texts
    assert not recwarn.list


@pytest.mark.parametrize("first", [True, False])
def test_a_chart_sheet_is_skipped(first, tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["text"])
    book.active.append(["cat"])
    book.create_chartsheet("chart", 0 if first else 1)
    book.save(tmp_path / "chart.xlsx")
    assert texts(tmp_path / "chart.xlsx") == ["cat"]
    assert sheet_rows.find_sheet_table(tmp_path / "chart.xlsx").names == ["Sheet"]


DAMAGED_SHEETS = {
    "a row beyond the last": (
        {SHEET: sheet(ROWS + row(10**9, cell("A1000000000", "x")))},
        "has a row beyond 1,048,576",
    ),
    "the first row beyond the last": ({SHEET: sheet(ROWS + row(2**20 + 1, cell("A1048577", "x")))}, "1,048,576"),
    "a row without a number": ({SHEET: sheet(ROWS + row("x", cell("A3", "x")))}, "could not convert string to float"),
    "a column beyond the last": ({SHEET: sheet(ROWS + row(3, cell("ZZZZ3", "x")))}, "is not a valid column name"),
    "no sheet": ({WORKBOOK: f'<workbook xmlns="{MAIN}"/>'}, "has no sheet with cells"),
    "no part of the sheet": ({SHEET: None}, "has no sheet with cells"),
    "no content types": ({TYPES: None}, "There is no item named"),
    "no relations": ({RELATIONS: None}, "There is no item named"),
    "no strings": ({STRINGS: None}, "There is no item named 'xl/sharedStrings.xml'"),
    "another relation": ({RELATIONS: str(parts()[RELATIONS]).replace("rId1", "rId7")}, "is a damaged sheet of Excel"),
    "a string that is not there": ({SHEET: sheet(ROWS + row(3, '<c r="A3" t="s"><v>9</v></c>'))}, "out of range"),
    "a number that is none": ({SHEET: sheet(ROWS + row(3, '<c r="A3"><v>x</v></c>'))}, "invalid literal"),
    "a number of 5,000 digits": ({SHEET: sheet(ROWS + row(3, f'<c r="A3"><v>{"9" * 5000}</v></c>'))}, "4300 digits"),
    "a cut sheet": ({SHEET: sheet()[:-30]}, "is a damaged sheet of Excel"),
    "an empty part": ({WORKBOOK: ""}, "is a damaged sheet of Excel"),
    "odd styles": ({STYLES: styles('<fonts><font><sz val="x"/></font></fonts>')}, "expected <class 'float'>"),
    "entities of entities": (
        {
            SHEET: sheet(
                ROWS.replace("cat", "&h;"),
                "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'>"
                + "".join(f"<!ENTITY {new} '{f'&{old};' * 10}'>" for old, new in zip("abcdefg", "bcdefgh", strict=True))
                + "]>",
            )
        },
        "is a damaged sheet of Excel",
    ),
    "an entity that is a file": (
        {SHEET: sheet(ROWS.replace("cat", "&e;"), "<!DOCTYPE x [<!ENTITY e SYSTEM 'file:///etc/passwd'>]>")},
        "undefined entity",
    ),
    "a million strings": ({STRINGS: strings("<si/>" * 1_000_000)}, "says more than 200 times its own size"),
    "a million styles": ({STYLES: styles(f"<cellXfs>{'<xf/>' * 1_000_000}</cellXfs>")}, "says more than 200 times"),
    "a long string in each row": (
        {
            STRINGS: strings(f"<si><t>{'a' * 100_000}</t></si>"),
            SHEET: sheet(ROWS + "".join(row(line, f'<c r="A{line}" t="s"><v>0</v></c>') for line in range(3, 900))),
        },
        "says more than 200 times its own size by row",
    ),
}


@pytest.mark.parametrize("kind", DAMAGED_SHEETS)
def test_a_damaged_sheet_is_reported_in_one_line(kind, tmp_path):
    changes, expected_error = DAMAGED_SHEETS[kind]
    path = write(tmp_path / "damaged.xlsx", changes)
    with pytest.raises(UserError) as error_info:
        texts(path)
    message = str(error_info.value)
    assert message.startswith(str(path)) and expected_error in message and "\n" not in message


def test_empty_cells_beyond_the_table_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(sheet_rows, "MAX_EMPTY_CELLS", 30_000)
    rows = "".join(row(line, cell(f"A{line}", "x"), f'<c r="XFD{line}"/>') for line in range(3, 5))
    path = write(tmp_path / "wide.xlsx", {SHEET: sheet(ROWS + rows)})
    with pytest.raises(UserError, match="has more than 30,000 empty cells; delete the columns and rows beyond"):
        texts(path)


def test_a_wrong_checksum_and_a_damaged_stream_are_reported(tmp_path):
    valid_content = write(tmp_path / "whole.xlsx", {}).read_bytes()
    directory = valid_content.index(SHEET.encode(), valid_content.index(b"PK\x01\x02")) - 46
    stream = valid_content.index(SHEET.encode()) + len(SHEET)
    checksum = valid_content[: directory + 16] + bytes(4) + valid_content[directory + 20 :]
    damaged_stream = (
        valid_content[: stream + 8]
        + bytes(byte ^ 0x55 for byte in valid_content[stream + 8 : stream + 40])
        + valid_content[stream + 40 :]
    )
    for content in (checksum, damaged_stream):
        (tmp_path / "damaged.xlsx").write_bytes(content)
        with pytest.raises(UserError, match=r"damaged\.xlsx is a damaged sheet of Excel"):
            texts(tmp_path / "damaged.xlsx")
