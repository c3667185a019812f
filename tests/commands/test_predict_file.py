"""Test `toolkit predict RUN --input FILE --output FILE` on the real ports: each text gets its individual prediction."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import test_question_answering as qa
from rich.console import Console
from test_tables import read, write
from test_train import recipe_file, train  # noqa: F401

from toolkit import cli
from toolkit.commands import label_file as predict_file
from toolkit.commands.label_file import label_file
from toolkit.commands.predict import load_run
from toolkit.data.source_layout import find_source_layout
from toolkit.errors import UserError
from toolkit.files import table_writer, tables
from toolkit.files.csv_rows import Layout
from toolkit.finetune.finetune import finetune
from toolkit.machine.disk import WriteError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification.task import classify
from toolkit.tasks.question_answering.answering import answer_question

ROOT = Path(__file__).resolve().parents[2]
#: Other batch sizes and CTRL's padding change the order of sums: a few times the rounding of float32.
ROUNDING = 1e-5
NEW = ["predicted_label", "probability", "probability_animals", "probability_fruit", "probability_tools"]
#: More texts than a batch of 16, some longer than the model's 64 tokens.
TEXTS = ["cat dog cow", "saw axe", "pear fig plum kiwi " * 2, "日本語 🙂", "\x1b[31m", "a" * 90, "NA", "x"] * 3


@pytest.fixture(scope="module")
def run(recipe_file, tmp_path_factory) -> Path:  # noqa: F811
    """Return a classifier with local and LSH attention, trained for two steps."""
    return train(recipe_file, tmp_path_factory.mktemp("runs") / "tiny", "train.max_steps=2")


@pytest.fixture(scope="module")
def answering_run(tmp_path_factory) -> Path:
    """Return a run of question answering, trained for two steps."""
    folder = tmp_path_factory.mktemp("qa")
    recipe = load_recipe(qa.write_recipe(folder), ["train.max_steps=2", "train.eval_steps=2"])
    return finetune(recipe, "a test", make_console())


def make_console() -> Console:
    return Console(file=io.StringIO(), width=200)


def label_to_rows(run: Path, source: Path, target: Path, overwrite: bool = False, **columns) -> tuple[list[dict], str]:
    """Return the rows that the command writes, and its printed output."""
    output = make_console()
    label_file(run, output, source, target, overwrite=overwrite, **columns)
    return read(target), output.file.getvalue()


def assert_same_as_single_texts(run: Path, texts: list[str], rows: list[dict]) -> None:
    """Check that each row has the same prediction as its text has with --text."""
    loaded_run = load_run(run)
    for text, row in zip(texts, rows, strict=True):
        (prediction,) = classify(loaded_run, [text])
        assert row["predicted_label"] == prediction.label
        scores = [float(row[name]) for name in NEW[1:]]
        assert scores == pytest.approx([prediction.probability, *prediction.probabilities], abs=ROUNDING)


def test_each_row_gets_the_prediction_of_its_text(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_ROWS", 18)
    rows = [{"id": f"{number:03}", "text": text} for number, text in enumerate(TEXTS)]
    output_rows, output = label_to_rows(run, write(tmp_path / "a.csv", rows), tmp_path / "b.jsonl")
    assert [list(row) for row in output_rows] == [["id", "text", *NEW]] * len(rows)
    assert [{key: row[key] for key in ("id", "text")} for row in output_rows] == rows
    assert sum(output_rows[0][name] for name in NEW[2:]) == pytest.approx(1)
    assert_same_as_single_texts(run, TEXTS, output_rows)
    assert "b.jsonl: 24 rows in " in output
    assert "note: 3 rows have a text longer than 64 tokens, which was cut: 6, 14, 22\n" in output


@pytest.mark.slow
def test_a_ctrl_predicts_the_same_with_less_padding(recipe_file, tmp_path):  # noqa: F811
    model = "model={name: ctrl, config: {n_layer: 1, n_embd: 32, n_head: 2, dff: 32, n_positions: 64}}"
    folder = train(recipe_file, tmp_path / "ctrl", model, "tokenizer.vocab_size=70", "train.max_steps=2")
    rows = [{"text": text} for text in TEXTS]
    assert_same_as_single_texts(
        folder, TEXTS, label_to_rows(folder, write(tmp_path / "a.csv", rows), tmp_path / "b.csv")[0]
    )


@pytest.mark.parametrize(
    ("source", "target"),
    [("a.tsv", "b.csv"), ("a.jsonl", "b.parquet"), ("a.json", "b.json"), ("a.parquet", "b.tsv"), ("a.txt", "b.csv")],
)
def test_files_of_every_format_are_labeled(source, target, run, tmp_path):
    if source == "a.txt":
        (tmp_path / source).write_text("cat dog\nsaw\n")
    else:
        write(tmp_path / source, [{"text": "cat dog", "n": "01"}, {"text": "saw", "n": "2"}])
    output_rows, _ = label_to_rows(run, tmp_path / source, tmp_path / target)
    assert [row["text"] for row in output_rows] == ["cat dog", "saw"]
    assert_same_as_single_texts(run, ["cat dog", "saw"], output_rows)


def test_rows_without_a_text_stay_without_a_label_and_are_counted(run, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_ROWS", 4)
    texts = ["cat", "", " \n", "saw", *[""] * 9, "a" * 90]
    output_rows, output = label_to_rows(
        run, write(tmp_path / "a.csv", [{"text": text} for text in texts]), tmp_path / "b.csv"
    )
    assert [row["text"] for row in output_rows] == texts
    assert [row["predicted_label"] != "" for row in output_rows] == [bool(text.strip()) for text in texts]
    assert {row[name] for row in output_rows[4:13] for name in NEW} == {""}
    assert "note: 11 rows have no text: 2, 3, 5, 6, 7, 8, 9, 10, 11, 12 and 1 more\n" in output
    assert "note: 1 row has a text longer than 64 tokens, which was cut: 14\n" in output
    rows = [{"text": None}, {"other": 1}, {"text": "cat"}]
    output_rows, output = label_to_rows(run, write(tmp_path / "a.jsonl", rows), tmp_path / "b.parquet")
    assert output_rows[0]["predicted_label"] is None and output_rows[2]["predicted_label"]
    assert "note: 2 rows have no text: 1, 2\n" in output


def test_the_columns_may_have_other_names_and_a_taken_name_is_refused(run, tmp_path):
    rows = [{"body": "cat", "label": "7"}]
    output_rows, output = label_to_rows(
        run, write(tmp_path / "a.csv", rows, delimiter=";"), tmp_path / "b.jsonl", text_column="body"
    )
    assert output_rows[0]["label"] == "7" and output_rows[0]["predicted_label"]
    assert "note" not in output
    with pytest.raises(UserError, match=r"a\.csv has no column text; it has body, label$"):
        label_to_rows(run, tmp_path / "a.csv", tmp_path / "c.csv")
    write(tmp_path / "a.csv", [{"text": "cat", "probability_tools": ""}])
    with pytest.raises(UserError, match=r"a\.csv: has a column probability_tools already, which is one of the predict"):
        label_to_rows(run, tmp_path / "a.csv", tmp_path / "c.csv")
    assert not (tmp_path / "c.csv").exists()


def test_an_output_is_replaced_only_on_request_and_only_when_complete(run, tmp_path, monkeypatch):
    source, target = write(tmp_path / "a.csv", [{"text": "cat"}] * 3), tmp_path / "b.csv"
    target.write_text("mine")
    with pytest.raises(UserError, match="add --overwrite"):
        label_to_rows(run, source, target)

    def fail(*arguments):
        raise problem

    with monkeypatch.context() as patch:
        patch.setattr(predict_file, "_predict_chunk", fail)
        for problem in (RuntimeError("in the middle"), KeyboardInterrupt()):
            with pytest.raises(type(problem)):
                label_to_rows(run, source, target, overwrite=True)
            assert target.read_text() == "mine" and len(list(tmp_path.iterdir())) == 2
    assert len(label_to_rows(run, source, target, overwrite=True)[0]) == 3
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_disk_leaves_nothing_and_is_reported(run, tmp_path, monkeypatch):
    def fail(path):
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(table_writer, "_flush_file", fail)
    source = write(tmp_path / "a.csv", [{"text": "cat"}])
    with pytest.raises(WriteError, match=r"cannot write .*b\.csv: No space left on device: .* are free$"):
        label_to_rows(run, source, tmp_path / "b.csv")
    assert list(tmp_path.iterdir()) == [source]


def test_a_file_that_changes_meanwhile_is_not_labeled_in_part(run, tmp_path, monkeypatch):
    source = write(tmp_path / "a.csv", [{"text": "cat"}] * 3)
    load = predict_file.load_run
    monkeypatch.setattr(predict_file, "load_run", lambda folder: (write(source, [{"text": "cat"}]), load(folder))[1])
    with pytest.raises(UserError, match=r"a\.csv: has changed while it was read"):
        label_to_rows(run, source, tmp_path / "b.csv")
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize(
    ("options", "expected_error"),
    [
        (["--input", "a.csv"], "--output: missing; --input and --output belong together"),
        (["--overwrite"], "--input: missing; --input and --output belong together"),
        (["--input", "a.csv", "--output", "b.csv", "--text", "x"], "--input: cannot be combined with --text"),
        (["--input", "a.csv", "--output", "b.csv", "--question-column", "q"],
         "--question-column: is not read by a run of text classification, which takes --text-column"),
        (["--input", "none.csv", "--output", "b.csv"], "none.csv: cannot be read: No such file or directory"),
        (["--input", "a.csv", "--output", "b.csv"], "a.csv:3: row 2 has 3 fields and the header 2"),
    ],
)  # fmt: skip
def test_a_mistake_on_the_command_line_is_one_line(options, expected_error, run, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("text,n\nx,1\nx,1,2\n")
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["predict", str(run), *options])
    errors = capsys.readouterr().err
    assert exit_info.value.code == 2 and errors.startswith(f"error: {expected_error}") and errors.count("\n") == 1
    assert os.listdir() == ["a.csv"]


def test_questions_are_answered_row_by_row(answering_run, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "CHUNK_ROWS", 5)
    rows = [{"context": row["context"], "question": row["question"]} for row in qa.rows("validation", 9)]
    rows[3]["context"], rows[4]["question"], rows[5]["question"] = " ", "", "Which number? " * 9
    rows[6]["context"] = "ä 🙂\r\n" + rows[6]["context"]
    output_rows, output = label_to_rows(answering_run, write(tmp_path / "a.csv", rows), tmp_path / "b.jsonl")
    loaded_run = load_run(answering_run)
    new = ["predicted_answer", "score", "probability", "answer_start"]
    for number, row in enumerate(output_rows):
        assert list(row) == ["context", "question", *new]
        if number in (3, 4, 5):
            assert [row[name] for name in new] == [None] * 4
            continue
        best = answer_question(loaded_run, row["question"], row["context"])[0]
        start = row["answer_start"]
        assert (row["predicted_answer"], start) == (best.text, best.start)
        assert row["context"][start : start + len(best.text)] == best.text
        assert row["score"] == pytest.approx(best.score, abs=1e-3)
        assert row["probability"] == pytest.approx(best.probability, abs=ROUNDING)
    assert "note: 1 row has no question: 5\n" in output and "note: 1 row has no context: 4\n" in output
    assert "note: 1 row has a question that leaves its context no room in the model, and no answer: 6\n" in output


def test_a_question_without_an_answer_gets_an_empty_answer(answering_run, tmp_path):
    folder = tmp_path / "run"
    subprocess.run(["cp", "-r", answering_run, folder], check=True)
    recipe = folder / "recipe.yaml"
    recipe.write_text(recipe.read_text().replace("no_answer_threshold: null", "no_answer_threshold: -1000.0"))
    source = write(tmp_path / "a.parquet", [{"q": "Which number?", "c": "abc 4 de"}])
    output_rows, output = label_to_rows(folder, source, tmp_path / "b.parquet", question_column="q", context_column="c")
    assert (
        output_rows[0]["predicted_answer"] == ""
        and output_rows[0]["answer_start"] is None
        and output_rows[0]["probability"] > 0
    )
    assert "note" not in output
    with pytest.raises(UserError, match=r"a\.txt: a text file has no columns question and context; use csv"):
        label_to_rows(folder, tmp_path / "a.txt", tmp_path / "c.csv")


def test_a_language_model_generates_and_does_not_label(tmp_path):
    recipe = {
        "task": "language_modeling",
        "model": {"name": "ctrl"},
        "tokenizer": {"vocab_size": 99},
        "data": {"dataset": "python_docs", "max_length": 16},
        "train": {"max_steps": 1, "learning_rate": 0.1},
    }
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(
        UserError, match=r"is a run of text generation, which generates and does not label: toolkit gen"
    ):
        label_to_rows(tmp_path, tmp_path / "a.csv", tmp_path / "b.csv")


# -- the real command -----------------------------------------------------------------------------------------------


def start_prediction(run: Path, source: Path, target: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "toolkit", "predict", run, "--input", source, "--output", target]
    return subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=subprocess.DEVNULL)


def peak_memory(pid: int) -> int:
    """Return the peak memory of a process so far, in bytes; 0 if it is ending."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) * 1024 if match else 0


@pytest.mark.slow
def test_a_kill_in_the_middle_leaves_nothing(run, tmp_path):
    source = write(tmp_path / "a.csv", [{"text": "cat dog cow"}] * 200_000)
    process = start_prediction(run, source, tmp_path / "b.csv")
    while not any(path.stat().st_size for path in tmp_path.glob(".toolkit-*/rows")):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    end = time.monotonic() + 10
    while list(tmp_path.iterdir()) != [source] and time.monotonic() < end:  # the janitor is a separate process
        time.sleep(0.01)
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(recipe_file, tmp_path):  # noqa: F811
    shape = "{attn_layers: [local], hidden_size: 8, num_attention_heads: 1, attention_head_size: 8, "
    shape += "feed_forward_size: 8, local_attn_chunk_length: 16, axial_pos_shape: [4, 4], axial_pos_embds_dim: [4, 4]}"
    options = ["data.max_length=16", "train.eval_batch_size=1024", "train.max_steps=1"]
    folder = train(recipe_file, tmp_path / "run", f"model={{config: {shape}}}", *options)
    peaks = {}
    for count in (5_000, 50_000):
        rows = [{"text": "cat dog", "more": f"{number} " * 200} for number in range(count)]
        process = start_prediction(folder, write(tmp_path / f"{count}.csv", rows), tmp_path / f"{count}-out.csv")
        while process.poll() is None:  # wait4 includes the memory of the parent process
            peaks[count] = max(peaks.get(count, 0), peak_memory(process.pid))
            time.sleep(0.01)
        assert process.returncode == 0
    assert (tmp_path / "50000.csv").stat().st_size > 50e6
    assert peaks[50_000] < peaks[5_000] + 25e6, peaks


def test_texts_in_nested_columns_are_labeled(run, tmp_path):
    rows = [{"doc": {"body": "cat dog"}}, {"doc": None}, {"other": 1}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    output_rows, output = label_to_rows(run, tmp_path / "a.jsonl", tmp_path / "b.jsonl", text_column="doc.body")
    assert output_rows[0]["doc"] == {"body": "cat dog"}
    assert_same_as_single_texts(run, ["cat dog"], output_rows[:1])
    assert [row["predicted_label"] for row in output_rows[1:]] == [None, None] and "2 rows have no text: 2, 3" in output


# -- encodings and delimiters -----------------------------------------------------------------------------------------

WORDS = ["cat dog größer", "pear für fig", "saw axe"]


@pytest.fixture(scope="module")
def western(recipe_file, tmp_path_factory) -> Path:  # noqa: F811
    """Return a run whose training file is in cp1252 with semicolons as delimiters."""
    folder = tmp_path_factory.mktemp("western")
    rows = "".join(
        f'"{text}";{label}\n' for text, label in zip(WORDS * 4, ["animals", "fruit", "tools"] * 4, strict=True)
    )
    (folder / "train.csv").write_bytes(f"text;label\n{rows}".encode("cp1252"))
    changes = ["train.max_steps=2", f"data.files={{train: {folder / 'train.csv'}}}", "data.dataset=csv"]
    changes += ["data.validation_fraction=0.25", "data.encoding=cp1252", "data.delimiter=;"]
    return train(recipe_file, folder / "run", *changes)


def test_a_file_is_read_in_the_encoding_of_the_recipe_or_of_the_command_line(run, western, tmp_path):
    rows = "".join(f"{text};{number}\n" for number, text in enumerate(WORDS))
    source, target = tmp_path / "a.csv", tmp_path / "b.csv"
    source.write_bytes(f"text;n\n{rows}".encode("cp1252"))
    label_to_rows(western, source, target)
    assert [row["text"] for row in read(target, delimiter=";")] == WORDS  # in UTF-8
    for encoding in ("cp1252", "utf-16", "utf-16-be"):
        source.write_bytes(f"text|n\r\n{rows.replace(';', '|')}".encode(encoding))
        layout = {"encoding": encoding, "delimiter": "|"}
        output_rows, output = label_to_rows(run, source, tmp_path / "b.jsonl", overwrite=True, layout=layout)
        assert [row["text"] for row in output_rows] == WORDS and "note" not in output
    assert_same_as_single_texts(run, WORDS, output_rows)
    (tmp_path / "a.tsv").write_text(f"text,n\n{rows.replace(';', ',')}", encoding="utf-8")
    output_rows, _ = label_to_rows(
        run, tmp_path / "a.tsv", tmp_path / "b.jsonl", overwrite=True, layout={"delimiter": ","}
    )
    assert [row["text"] for row in output_rows] == WORDS
    for name, content in {"a.txt": "\n".join(WORDS), "a.json": json.dumps([{"text": text} for text in WORDS])}.items():
        (tmp_path / name).write_bytes(content.encode("utf-16"))
        output_rows, _ = label_to_rows(
            run, tmp_path / name, tmp_path / "b.jsonl", overwrite=True, layout={"encoding": "utf-16"}
        )
        assert [row["text"] for row in output_rows] == WORDS


def test_a_file_in_another_encoding_than_the_recipes_is_reported(run, western, tmp_path):
    rows = "".join(f"{text};{number}\n" for number, text in enumerate(WORDS))
    source = tmp_path / "a.csv"
    source.write_text(f"text;n\n{rows}", encoding="utf-8")
    output_rows, output = label_to_rows(western, source, tmp_path / "b.jsonl")
    assert output_rows[0]["text"] == "cat dog grÃ¶ÃŸer"
    assert (
        f"note: {source} is read as cp1252, as the run's recipe says, and seems to be UTF-8: --encoding utf-8" in output
    )
    output_rows, output = label_to_rows(
        western, source, tmp_path / "b.jsonl", overwrite=True, layout={"encoding": "utf-8"}
    )
    assert output_rows[0]["text"] == WORDS[0] and "note" not in output
    source.write_bytes(f"text;n\n{rows}".encode("cp1252"))
    with pytest.raises(UserError) as problem:
        label_to_rows(run, source, tmp_path / "c.csv")
    assert str(problem.value) == (
        f"{source}:2: is not utf-8 (byte 17); it seems to be cp1252 ('größer;0'): set --encoding cp1252"
    )
    assert not (tmp_path / "c.csv").exists()


@pytest.mark.parametrize(
    ("name", "options", "expected_error"),
    [
        (
            "a.csv",
            {"encoding": "klingon"},
            "--encoding: no encoding of text is called 'klingon'; set one such as cp1252",
        ),
        ("a.parquet", {"encoding": "utf-8"}, "--encoding: a.parquet is parquet, which has none; remove it"),
        ("a.csv", {"delimiter": "ab"}, "--delimiter: 'ab' is none; it should be one character that is no letter"),
        ("a.jsonl", {"delimiter": ";"}, "--delimiter: is for csv, not for a.jsonl; remove it"),
        ("a.csv", {"quote": "`"}, "--quote: '`' is none; it should be \" or ' or none"),
        ("a.csv", {"columns": "a,a"}, "--columns: 'a,a' has a name twice or an empty one; name each column once"),
        ("a.parquet", {"columns": "a,b"}, "--columns: is for csv, not for a.parquet; remove it"),
    ],
)
def test_an_unknown_encoding_or_delimiter_is_refused(run, name, options, expected_error):
    with pytest.raises(UserError, match=re.escape(expected_error)):
        find_source_layout(load_recipe(run / "recipe.yaml"), Path(name), **options)


def test_a_table_without_a_header_is_labeled_with_names_of_the_command_line(run, tmp_path, command_line):
    (tmp_path / "a.txt").write_text("cat dog;1\n'pear; fig';2\n")
    options = ["--columns", "text,n", "--delimiter", ";", "--quote", "'"]
    status, _, errors = command_line(
        "predict", run, "--input", tmp_path / "a.txt", "--output", tmp_path / "b.csv", *options
    )
    assert status == 0, errors
    rows = read(tmp_path / "b.csv")
    assert [(row["text"], row["n"]) for row in rows] == [("cat dog", "1"), ("pear; fig", "2")]
    assert_same_as_single_texts(run, ["cat dog", "pear; fig"], rows)


def test_a_tab_may_be_written_with_a_backslash(run):
    recipe = load_recipe(run / "recipe.yaml")
    assert find_source_layout(recipe, Path("a.csv"), delimiter="\\t") == ("csv", "\t", Layout())
    assert find_source_layout(recipe, Path("a.csv"), encoding="cp1252") == ("csv", None, Layout(encoding="cp1252"))


#: Cells for a spreadsheet; it takes the first seven as formulas.
CELLS = [
    "=1+1",
    "+cat",
    "-dog",
    "@SUM(A1)",
    "\tfig",
    "\rpear",
    '=HYPERLINK("x")',
    "-1.5",
    "+7",
    "-1e-5",
    "a=b",
    "'x",
    "",
]


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_formula_cells_are_counted_and_quoted_on_request(run, tmp_path, ending):
    source = write(tmp_path / "a.csv", [{"text": "cat", "=n": cell} for cell in CELLS])
    unchanged_rows, output = label_to_rows(run, source, tmp_path / f"left{ending}")
    assert [row["=n"] for row in unchanged_rows] == CELLS
    assert "note: 8 cells begin with =, +, -, @, a tab or a carriage return, which a spreadsheet takes" in output
    assert "--spreadsheet-safe puts an apostrophe in front" in output
    safe_rows, output = label_to_rows(run, source, tmp_path / f"safe{ending}", spreadsheet_safe=True)
    assert [row["'=n"] for row in safe_rows] == [f"'{cell}" for cell in CELLS[:7]] + CELLS[7:]
    assert "note: 8 cells begin with" in output and "and got an apostrophe in front" in output


def test_cells_that_are_not_formulas_are_unchanged(run, tmp_path):
    source = write(tmp_path / "a.jsonl", [{"text": "=1+1", "n": -3}])
    output_rows, output = label_to_rows(run, source, tmp_path / "b.jsonl")
    assert output_rows[0]["text"] == "=1+1" and "formula" not in output
    with pytest.raises(UserError, match=r"--spreadsheet-safe: is for an --output of csv, not for .*c.jsonl; remove it"):
        label_to_rows(run, source, tmp_path / "c.jsonl", spreadsheet_safe=True)
    plain_rows, output = label_to_rows(run, write(tmp_path / "p.csv", [{"text": "cat", "n": "-3"}]), tmp_path / "d.csv")
    assert plain_rows[0]["n"] == "-3" and "formula" not in output


def test_the_command_line_quotes_formulas(run, tmp_path, command_line):
    source = write(tmp_path / "a.csv", [{"text": "=cat()"}])
    arguments = ("predict", run, "--input", source, "--output", tmp_path / "b.csv", "--spreadsheet-safe")
    status, output, _ = command_line(*arguments)
    assert status == 0 and "1 cell begins with" in output
    assert read(tmp_path / "b.csv")[0]["text"] == "'=cat()"
