"""Test files with odd names, sizes and shapes.

They are read, or refused soon and with little memory, in one line that names the user's file.
"""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolkit.commands.recipe_check import check_data
from toolkit.commands.recipe_new.look import inspect_data
from toolkit.errors import UserError
from toolkit.files.compression import MAX_RATIO
from toolkit.files.tables import read_table
from toolkit.recipe.load import load_recipe

HEAD = "train: {epochs: 1, learning_rate: 1e-3}\nmodel: {config: {axial_pos_shape: [4, 8]}}\n"
TABLE = "text,label\n" + "".join(f"text number {index},{'ab'[index % 2]}\n" for index in range(20))
LINES = "".join(json.dumps({"text": f"text {index}", "label": "ab"[index % 2]}) + "\n" for index in range(20))
#: A generous limit for the files of these tests.
SECONDS = 40


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise AssertionError(f"reading takes longer than {SECONDS} seconds")

    previous_handler = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous_handler)


def recipe_of(folder: Path, file: str | Path, kind: str | None = None):
    """Return a recipe of a file, or of a folder as a data set."""
    source_keys = f"dataset: {json.dumps(str(file))}" if kind is None else f"dataset: {kind}, files: {{train: {file}}}"
    (folder / "x.yaml").write_text(HEAD + f"data: {{{source_keys}, max_length: 32, validation_fraction: 0.5}}\n")
    return load_recipe(folder / "x.yaml")


def error_of(folder: Path, file: str, kind: str) -> str:
    """Return the error of a check of a file, without the file's name."""
    with pytest.raises(UserError) as error_info:
        check_data(recipe_of(folder, file, kind))
    prefix = f"{folder / 'x.yaml'}:3: data.files.train: {folder / file}"
    assert str(error_info.value).startswith(prefix) and "\n" not in str(error_info.value)
    return str(error_info.value).removeprefix(prefix)


# -- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cache", ["x[1]", "a*b", "{a,b}?"])
@pytest.mark.parametrize(("name", "kind"), [("t.csv", "csv"), ("t.csv.gz", "csv"), ("t.jsonl", "json")])
def test_a_cache_folder_may_have_a_name_like_a_pattern(tmp_path, monkeypatch, cache, name, kind):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path / cache))
    content = (TABLE if kind == "csv" else LINES).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    check_data(recipe_of(tmp_path, name, kind))
    assert list((tmp_path / cache / "rows").iterdir())


@pytest.mark.parametrize("folder", ["data [v1]", "a*b", "what?", "a::b"])
def test_a_folder_of_data_may_have_a_name_like_a_pattern(tmp_path, folder):
    (tmp_path / folder / "in [it]").mkdir(parents=True)
    (tmp_path / folder / "in [it]" / "train.csv").write_text(TABLE)
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab" / "train.csv").write_text("text,label\nsomething,else\n")
    check_data(recipe_of(tmp_path, tmp_path / folder))
    (tmp_path / folder / "in [it]" / "train.csv").write_text('text,label\n"a,b\n')
    with pytest.raises(UserError, match=r"data.dataset: .*train.csv:2: row 1 opens a quote and does") as error_info:
        check_data(recipe_of(tmp_path, tmp_path / folder))
    assert "/tmp/toolkit-" not in str(error_info.value)


BAD = {
    "cut.csv.xz": ("csv", lzma.compress(TABLE.encode())[:-20], "cannot be unpacked: Compressed file ended"),
    "cut.jsonl.gz": ("json", gzip.compress(LINES.encode())[:-20], "cannot be unpacked: Compressed file ended"),
    "fake.csv.gz": ("csv", TABLE.encode(), " is not packed, though it is called .gz; rename it"),
    "x.jsonl.zst": ("json", b"\x28\xb5\x2f\xfdxxxxxxxxx", "cannot be unpacked: ZSTD"),
    "x.csv.zst": ("csv", b"\x28\xb5\x2f\xfdxxxxxxxxx", "cannot be unpacked: ZSTD"),
    "x.csv.zip": ("csv", b"PK\x03\x04xxxxxxxxx", "cannot be unpacked: File is not a zip file"),
    "bad.json": ("json", (LINES * 3 + "{]\n").encode(), ":61: row 61 is not JSON"),
    "bad.json.gz": ("json", gzip.compress((LINES + "{]\n").encode()), ":21: row 21 is not JSON"),
    "latin.json.gz": ("json", gzip.compress(LINES.encode() + b'{"text": "\xe4"}\n'), ":21: is not UTF-8; unpack it"),
    "latin.csv.bz2": ("csv", bz2.compress(TABLE.encode() + b"\xe4,a\n"), ":22: is not UTF-8; unpack it"),
    "quote.csv": ("csv", (TABLE + '"a,b\n').encode(), ":22: row 21 opens a quote and does not close it"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_errors_name_the_user_s_file_and_its_line(tmp_path, name):
    kind, content, expected_error = BAD[name]
    (tmp_path / name).write_bytes(content)
    message = error_of(tmp_path, name, kind)
    assert expected_error in message and "scratch" not in message and "cache" not in message


# -- bounds ---------------------------------------------------------------------------------------------------------

#: The peak memory of the process itself; ``getrusage`` would include the peak of the parent process.
CHECK = """\
import sys
from toolkit.commands.bench.serve import resident_bytes
from toolkit.cli import main
try:
    main(sys.argv[1:])
finally:
    print(resident_bytes("VmHWM") >> 20)
"""


def zeros_in(path: Path, size: int) -> None:
    """Write a compressed file with one text of `size` MiB of zeros. Only a ZIP file cannot be several in a row."""
    block = b"0" * 2**20
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("t.csv", "w") as file:
            file.writelines([b"text,label\n", *[block] * size])
        return
    compress = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}[path.suffix]
    head = b'{"text": "' if ".json" in path.name else b"text,label\n"
    path.write_bytes(compress(head) + size * compress(block))


@pytest.mark.parametrize(
    "name",
    [
        "t.csv.gz",
        "t.jsonl.gz",
        "t.csv.zip",
        *(pytest.param(f"t.csv.{end}", marks=pytest.mark.slow) for end in ("bz2", "xz")),
    ],
)
def test_a_compression_bomb_is_refused_before_it_is_unpacked(tmp_path, name):
    zeros_in(tmp_path / name, 600)
    recipe_of(tmp_path, name, "json" if "json" in name else "csv")
    command = [sys.executable, "-c", CHECK, "recipe", "check", str(tmp_path / "x.yaml")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
    assert result.returncode == 2
    assert f"{tmp_path / name} says more than {MAX_RATIO} times its own size" in result.stderr
    assert int(result.stdout) < 700  # MiB; 600 are in the file, and `datasets` alone takes 200


def test_a_normally_compressed_file_is_read(tmp_path):
    with gzip.open(tmp_path / "t.csv.gz", "wb") as file:
        file.write((TABLE + "word " * 2**20 + ",a\n").encode())
    check_data(recipe_of(tmp_path, "t.csv.gz", "csv"))


def wide(columns: int) -> str:
    header = ",".join(["text", "label", *(f"c{index}" for index in range(columns))])
    return header + "\n" + "".join(f"t{row},{'ab'[row % 2]}{',1' * columns}\n" for row in range(6))


def new_keys(rows: int) -> str:
    return "".join(json.dumps({"text": "a", "label": "ab"[row % 2], f"k{row}": row}) + "\n" for row in range(rows))


def test_many_columns_are_read_in_seconds(tmp_path):
    (tmp_path / "t.csv").write_text(wide(1200))
    check_data(recipe_of(tmp_path, "t.csv", "csv"))
    (tmp_path / "t.jsonl").write_text(new_keys(800))
    check_data(recipe_of(tmp_path, "t.jsonl", "json"))


def test_too_many_columns_are_refused(tmp_path):
    (tmp_path / "t.csv").write_text(wide(10**5))
    (tmp_path / "t.jsonl").write_text(new_keys(20_000))
    nested_rows = "".join(json.dumps({"text": "a", "more": {f"k{row}": 1}}) + "\n" for row in range(20_000))
    (tmp_path / "n.jsonl").write_text(nested_rows)
    for name, kind in {"t.csv": "csv", "t.jsonl": "json", "n.jsonl": "json"}.items():
        assert error_of(tmp_path, name, kind).startswith(" has more than 8,192 columns by row ")
        with pytest.raises(UserError, match=rf"^{tmp_path / name} has more than 8,192 columns by row"):
            inspect_data(tmp_path / name)
        if name != "n.jsonl":  # `predict` only reads the text of this file
            with pytest.raises(UserError, match=rf"^{tmp_path / name} has more than 8,192 columns by row"):
                read_table(tmp_path / name, ["text"])
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "train.jsonl").write_text(new_keys(4000))
    with pytest.raises(UserError, match=r"data.dataset: .*train.jsonl has more than 2,048 columns; leave out"):
        check_data(recipe_of(tmp_path, tmp_path / "folder"))


def test_a_text_is_not_counted_as_keys(tmp_path):
    rows = [{"text": f'"k{row}": 1, \\"q{row}": 2, "z', "label": "ab"[row % 2]} for row in range(3000)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    check_data(recipe_of(tmp_path, "t.jsonl", "json"))
