"""Test `toolkit generate RUN --prompts FILE --output FILE`: each prompt gets the same text as in isolation."""

from __future__ import annotations

import io
import os

import pytest
from rich.console import Console
from test_language_modeling import recipe_file, reformer_file, reformer_run, run  # noqa: F401
from test_tables import read, write

from toolkit.commands import generate_file as module
from toolkit.commands.generate import generate_text
from toolkit.files import tables

#: Prompts of several lengths, more than a batch of each length.
PROMPTS = ["one", "two", "one two", "six", "ten", "one two th", "two six"] * 3
OPTIONS = {"temperature": None, "top_k": None, "top_p": None, "beams": 1, "stop": None, "seed": 0, "length": 8}
OF_A_FILE = {"column": None, "layout": {}, "spreadsheet_safe": False, "control": None}


def make_console() -> Console:
    return Console(file=io.StringIO(), width=200)


def generate(folder, source, target, **changed_options) -> tuple[list[dict], str]:
    """Return the written rows and the output."""
    output = make_console()
    module.generate_file(folder, output, source, target, overwrite=False, **{**OF_A_FILE, **OPTIONS, **changed_options})
    return read(target), output.file.getvalue()


@pytest.mark.parametrize("kind", ["run", "reformer_run"])
@pytest.mark.parametrize(
    "changed_options",
    [{}, {"temperature": 1.0, "seed": 5}, {"beams": 2}, {"stop": "e"}],
    ids=["greedy", "drawn", "beams", "stop"],
)
def test_each_prompt_is_continued_as_in_isolation(kind, changed_options, request, tmp_path, monkeypatch):
    folder = request.getfixturevalue(kind)
    if kind == "run" and "stop" in changed_options:
        changed_options = {"stop": "two"}
    monkeypatch.setattr(tables, "CHUNK_ROWS", 12)
    rows = [{"id": f"{number:03}", "prompt": prompt} for number, prompt in enumerate(PROMPTS)]
    output_rows, output = generate(folder, write(tmp_path / "a.csv", rows), tmp_path / "b.jsonl", **changed_options)
    assert [list(row) for row in output_rows] == [["id", "prompt", "generated_text"]] * len(
        rows
    ) and "note" not in output
    for number, row in enumerate(output_rows):
        options = {**OPTIONS, **changed_options, "seed": changed_options.get("seed", 0) + number}
        expected_text = generate_text(folder, make_console(), None, row["prompt"], **options)
        assert (row["id"], row["generated_text"]) == (f"{number:03}", expected_text)
    if "seed" in changed_options:
        assert len({row["generated_text"] for row in output_rows if row["prompt"] == "one"}) > 1


@pytest.mark.parametrize(("source", "target"), [("a.txt", "b.csv"), ("a.tsv", "b.parquet"), ("a.jsonl", "b.json")])
def test_files_of_every_kind_are_continued(source, target, reformer_run, tmp_path):  # noqa: F811
    if source == "a.txt":
        (tmp_path / source).write_text("one\ntwo\n")
    else:
        write(tmp_path / source, [{"prompt": "one"}, {"prompt": "two"}])
    output_rows, _ = generate(reformer_run, tmp_path / source, tmp_path / target)
    assert [row.get("prompt", row.get("text")) for row in output_rows] == ["one", "two"]
    expected_texts = [generate_text(reformer_run, make_console(), None, prompt, **OPTIONS) for prompt in ("one", "two")]
    assert [row["generated_text"] for row in output_rows] == expected_texts


def test_a_table_without_a_header_and_with_other_quotes_is_read_with_options(reformer_run, tmp_path, command_line):  # noqa: F811
    (tmp_path / "a.txt").write_text("1;'two; six'\n2;'one'\n", encoding="utf-16")
    options = ["--columns", "id,prompt", "--quote", "'", "--delimiter", ";", "--encoding", "utf-16", "--length", 8]
    options += ["--prompts", tmp_path / "a.txt", "--output", tmp_path / "b.csv"]
    status, output, error = command_line("generate", reformer_run, *options)
    output_rows = read(tmp_path / "b.csv")
    assert status == 0 and "2 rows" in output, error
    assert [(row["id"], row["prompt"]) for row in output_rows] == [("1", "two; six"), ("2", "one")]
    expected_texts = [
        generate_text(reformer_run, make_console(), None, row["prompt"], **OPTIONS) for row in output_rows
    ]
    assert [row["generated_text"] for row in output_rows] == expected_texts


def test_rows_without_a_prompt_or_space_get_no_text_and_are_counted(reformer_run, tmp_path):  # noqa: F811
    rows = [{"q": prompt} for prompt in ("one", "", "one " * 15, "two")]
    output_rows, output = generate(reformer_run, write(tmp_path / "a.csv", rows), tmp_path / "b.csv", column="q")
    assert [bool(row["generated_text"]) for row in output_rows] == [True, False, False, True]
    assert "note: 1 row has no prompt: 2\n" in output
    assert "note: 1 row has a prompt that leaves no room for --length new tokens in the model: 3\n" in output


def test_an_interrupted_file_leaves_nothing(reformer_run, tmp_path, monkeypatch):  # noqa: F811
    source, batches = write(tmp_path / "a.csv", [{"prompt": prompt} for prompt in PROMPTS]), []

    def interrupt(*arguments):
        batches.append(generate_together(*arguments))
        if len(batches) == 2:
            raise KeyboardInterrupt
        return batches[-1]

    generate_together = module.generate_together
    monkeypatch.setattr(module, "generate_together", interrupt)
    with pytest.raises(KeyboardInterrupt):
        generate(reformer_run, source, tmp_path / "b.csv")
    assert list(tmp_path.iterdir()) == [source] and len(batches[0]) > 1


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [
        (["--prompts", "a.csv"], "--output: missing; --prompts and --output belong together"),
        (["--output", "b.csv"], "--prompts: missing; --prompts and --output belong together"),
        (["--prompts", "a.csv", "--output", "b.csv", "--prompt", "x"], "--prompts: cannot be combined with --prompt"),
        (["--prompts", "a.csv", "--output", "b.csv"], "a.csv has no column prompt; it has text"),
        (["--prompts", "a.csv", "--output", "b.csv", "--prompt-column", "text", "--control", "Numbers"], "--control: "),
        (["--prompts", "a.txt", "--output", "b.csv", "--prompt-column", "text"], "--prompt-column: a.txt is text"),
        (["--prompts", "a.txt", "--output", "b.txt"], "b.txt: a text file has no columns; end it in .csv"),
    ],
)
def test_a_mistake_is_reported_in_one_line(options, expected_error, reformer_run, tmp_path, monkeypatch, command_line):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("text\nx\n")
    (tmp_path / "a.txt").write_text("x\n")
    status, _, errors = command_line("generate", reformer_run, *options)
    assert status == 2 and errors.startswith(f"error: {expected_error}") and errors.count("\n") == 1
    assert sorted(os.listdir()) == ["a.csv", "a.txt"]
