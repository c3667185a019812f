"""Test `toolkit recipe new` with the usual shapes of published tables.

The recipe fits the task of the data; otherwise the error gives the reason and names the option to set.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from datasets import Dataset
from test_recipe_new import labels, run, table, texts  # noqa: F401

from toolkit.data.rows import call_without_progress
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification import task as classification

KINDS = ["sport", "food", "travel"]


def sets(count: int) -> list[list[str]]:
    draw = random.Random(3)
    return [sorted(draw.sample(KINDS, draw.choice([1, 1, 2]))) for _ in range(count)]


def multi_label_table(folder: Path, name: str) -> Path:
    """Write a table with several labels per text."""
    sentences, label_sets = texts(90), sets(90)
    if name == "ids.csv":
        return table(
            folder / name, {"text": sentences, "labels": [",".join(str(KINDS.index(k)) for k in s) for s in label_sets]}
        )
    if name == "blanks.csv":
        return table(
            folder / name, {"text": sentences, "label": [" ".join(str(KINDS.index(k)) for k in s) for s in label_sets]}
        )
    if name == "names.tsv":
        return table(folder / name, {"text": sentences, "tags": [" | ".join(s) for s in label_sets[:-1]] + [""]}, "\t")
    if name == "arrays.csv":
        arrays = [f"[{' '.join(str(KINDS.index(k)) for k in s)}]" for s in label_sets]
        return table(folder / name, {"text": sentences, "labels": arrays})
    if name == "written.csv":
        return table(folder / name, {"id": list(range(90)), "text": sentences, "labels": [str(s) for s in label_sets]})
    if name == "columns.csv":
        return table(
            folder / name, {"text": sentences, **{kind: [int(kind in s) for s in label_sets] for kind in KINDS}}
        )
    if name == "truth.jsonl":
        rows = [
            {"comment": t, **{kind: kind in s for kind in KINDS}} for t, s in zip(sentences, label_sets, strict=True)
        ]
    elif name == "nested.jsonl":
        rows = [
            {"text": t, "of": {kind: kind in s for kind in KINDS}} for t, s in zip(sentences, label_sets, strict=True)
        ]
    else:
        rows = [{"text": t, "labels": s} for t, s in zip(sentences, label_sets, strict=True)]
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / name


@pytest.mark.parametrize(
    ("name", "label", "separator"),
    [
        ("ids.csv", "labels", ","),
        ("blanks.csv", "label", " "),
        ("names.tsv", "tags", "|"),
        ("written.csv", "labels", None),
        ("arrays.csv", "labels", None),
        ("lists.jsonl", "labels", None),
        ("columns.csv", KINDS, None),
        ("truth.jsonl", KINDS, None),
        ("nested.jsonl", [f"of.{kind}" for kind in sorted(KINDS)], None),
    ],
)
def test_several_labels_per_text(run, tmp_path, name, label, separator):  # noqa: F811
    status, out, err = run("recipe", "new", multi_label_table(tmp_path, name).name, "-o", "x.yaml")
    assert (status, err) == (0, "")
    assert "3 labels, of which a text may have several: " in out
    assert ("1 texts have none of them" in out) == (name == "names.tsv")
    data = load_recipe("x.yaml").data
    assert (data.problem_type, data.label, data.label_separator) == ("multi_label", label, separator)
    assert load_recipe("x.yaml").train.save_best == "micro_f1"
    assert run("recipe", "check", "x.yaml")[::2] == (0, "")


def test_columns_of_0_and_1_are_one_label_if_another_column_is_the_label_or_one_is_named(run, tmp_path):  # noqa: F811
    flags = {"seen": [0, 1] * 30, "late": [0, 0, 1] * 20}
    table(tmp_path / "a.csv", {"text": texts(60), **flags, "label": labels(60, 3)})
    assert run("recipe", "new", "a.csv")[0] == 0
    assert (load_recipe("a.yaml").data.label, load_recipe("a.yaml").data.problem_type) == ("label", "single_label")
    assert run("recipe", "new", "a.csv", "--label", "late", "-o", "b.yaml")[0] == 0
    assert load_recipe("b.yaml").data.label == "late"
    assert run("recipe", "new", "a.csv", "--label", "late", "--label", "seen", "-o", "c.yaml")[0] == 0
    assert set(load_recipe("c.yaml").data.label) == {"late", "seen"}
    err = run("recipe", "new", "a.csv", "--label", "late", "--label", "label", "-o", "d.yaml")[2]
    assert "several columns of labels hold 0 and 1 each, and label does not" in err


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("label", ["Politics, Economy", "Food, Drink", "Sport"]),
        ("class", ["New York", "credit card", "10 11"]),
        ("rating", [1, 2, 5]),
        ("stars", ["0.0", "1.0", "2.0"]),
    ],
)
def test_one_label_with_a_comma_a_blank_or_a_digit_is_not_divided(run, tmp_path, column, values):  # noqa: F811
    table(tmp_path / "a.csv", {"text": texts(60), column: values * 20})
    assert run("recipe", "new", "a.csv")[::2] == (0, "")
    assert (load_recipe("a.yaml").data.label, load_recipe("a.yaml").data.problem_type) == (column, "single_label")


@pytest.mark.parametrize(
    ("column", "values"),
    [
        ("score", [f"{number % 7 / 3:.6f}" for number in range(60)]),
        ("price", [f"{number + 0.37:.2f}" for number in range(60)]),
        ("price", [number * 37 % 1000 for number in range(60)]),
        ("half stars", [number % 10 / 2 for number in range(60)]),
    ],
)
def test_numbers_are_predicted_as_numbers(run, tmp_path, column, values):  # noqa: F811
    table(tmp_path / "a.csv", {"id": list(range(60)), "text": texts(60), column: values})
    status, out, err = run("recipe", "new", "a.csv")
    assert (status, err) == (0, "") and f"numbers in {column}; not used: id" in out and "numbers from " in out
    recipe = load_recipe("a.yaml")
    assert (recipe.data.label, recipe.data.problem_type, recipe.train.save_best) == (column, "regression", "mse")
    assert ("new weights learn small numbers: divide them by 100, say" in out) == (max(map(float, values)) > 100)
    assert run("recipe", "check", "a.yaml")[::2] == (0, "")


@pytest.mark.parametrize("value", ["$1,2{}.50", "12,{} €", "1{} %"])
def test_numbers_in_other_formats_are_reported(run, tmp_path, value):  # noqa: F811
    table(tmp_path / "a.csv", {"text": texts(60), "price": [value.format(f"{n:02}") for n in range(60)]})
    expected_error = f"price holds {value.format('00')!r}, which is no number (1234.5 is one)"
    assert expected_error in run("recipe", "new", "a.csv")[2]
    assert expected_error in run("recipe", "new", "a.csv", "--label", "price")[2]


def test_decimal_commas_require_a_choice(run, tmp_path):  # noqa: F811
    table(tmp_path / "a.csv", {"text": texts(60), "stars": [f"{n % 9 / 2}".replace(".", ",") for n in range(60)]})
    err = run("recipe", "new", "a.csv")[2]
    assert "stars holds '0,0', which is no number (1234.5 is one); mend the column, or say what it holds" in err
    assert run("recipe", "new", "a.csv", "--problem-type", "single_label")[0] == 0
    assert load_recipe("a.yaml").data.problem_type == "single_label"


@pytest.mark.parametrize("values", [["1,200", "900", "2,200", "900.50"], ["1", "1,5", "2", "2,5"]])
def test_a_price_with_commas_is_not_a_set_of_labels(run, tmp_path, values):  # noqa: F811
    table(tmp_path / "a.csv", {"text": texts(60), "price": values * 15})
    assert "which is no number (1234.5 is one)" in run("recipe", "new", "a.csv")[2]


def test_pairs_of_ids_are_labels_by_their_name_or_on_request(run, tmp_path):  # noqa: F811
    pairs = ["1,2", "2,3", "1,3", "3,4", "1,4", "2,4"] * 10
    table(tmp_path / "a.csv", {"text": texts(60), "labels": pairs})
    assert run("recipe", "new", "a.csv")[0] == 0
    table(tmp_path / "b.csv", {"text": texts(60), "label": pairs})
    assert run("recipe", "new", "b.csv", "--problem-type", "multi_label")[0] == 0
    assert load_recipe("a.yaml").data.label_separator == load_recipe("b.yaml").data.label_separator == ","


def test_second_pairs_and_lists_of_counts_are_not_used(run, tmp_path):  # noqa: F811
    rows = [
        {"source1": "none at all", "source2": "none at all", "sentence1": text, "sentence2": text, "parse1": text * 3,
         "parse2": text * 3, "helpful": [number % 3, 3], "overall": float(number % 5)}
        for number, text in enumerate(texts(60))
    ]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run("recipe", "new", "a.jsonl")[::2] == (0, "")
    data = load_recipe("a.yaml").data
    assert (data.text, data.label, data.problem_type) == (["sentence1", "sentence2"], "overall", "single_label")


def test_answers_outside_of_the_context_are_reported(run, tmp_path):  # noqa: F811
    columns = questions()
    free = [f"because of {number}" for number in range(40)]
    table(tmp_path / "a.csv", {"question": columns["question"], "context": columns["context"], "answer": free})
    assert "few answers in answer are in their context, where one could be found" in run("recipe", "new", "a.csv")[2]


def test_the_problem_can_be_set(run, tmp_path):  # noqa: F811
    table(tmp_path / "a.csv", {"text": texts(60), "stars": [1, 2, 4] * 20, "tags": ["a, b", "c, d"] * 30})
    assert run("recipe", "new", "a.csv", "--label", "stars", "--problem-type", "regression")[::2] == (0, "")
    assert load_recipe("a.yaml").data.problem_type == "regression"
    err = run("recipe", "new", "a.csv", "--label", "tags", "--problem-type", "regression", "-o", "b.yaml")[2]
    assert "the column tags does not hold numbers; name another with --label" in err


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("premise", "hypothesis"),
        ("sentence1", "sentence2"),
        ("question1", "question2"),
        ("text_a", "text_b"),
        ("#1 String", "#2 String"),
    ],
)
def test_two_texts_are_read_together(run, tmp_path, first, second):  # noqa: F811
    two = {first: texts(60), "id": list(range(60)), second: texts(60, 12)}
    table(tmp_path / "a.csv", {**two, "genre": labels(60, 2), "score": [n % 9 / 2 for n in range(60)]})
    status, out, err = run("recipe", "new", "a.csv")
    assert (status, err) == (0, "")
    assert f"texts in the columns {first} and {second} (" in out and "numbers in score; not used: id, genre" in out
    data = load_recipe("a.yaml").data
    assert (data.text, data.label, data.problem_type) == ([first, second], "score", "regression")
    assert data.max_length >= 96
    table(tmp_path / "b.csv", {**two, "label": labels(60, 2)})
    assert run("recipe", "new", "b.csv")[::2] == (0, "")
    assert (load_recipe("b.yaml").data.text, load_recipe("b.yaml").data.label) == ([first, second], "label")
    assert run("recipe", "new", "b.csv", "--text", second, "-o", "c.yaml")[0] == 0
    assert load_recipe("c.yaml").data.text == second
    assert run("recipe", "new", "b.csv", "--text", second, "--text", first, "-o", "d.yaml")[0] == 0
    assert load_recipe("d.yaml").data.text == [second, first]


def test_missing_labels_are_counted_and_omitted_on_request(run, tmp_path):  # noqa: F811
    blank = ["", " ", *labels(58, 2)]
    table(tmp_path / "a.csv", {"text": texts(60), "label": blank[2:] + blank[:2]})
    err = run("recipe", "new", "a.csv")[2]
    assert "a.csv: 2 of 60 rows have no label, the first is row 59; --missing-labels drop leaves them out" in err
    assert not Path("a.yaml").exists()
    status, out, err = run("recipe", "new", "a.csv", "--missing-labels", "drop")
    assert (status, err) == (0, "") and "2 labels: kind 0 50%, kind 1 50%" in out
    assert "2 of 60 train rows have no label and are left out, the first is row 59" in out
    assert load_recipe("a.yaml").data.missing_labels == "drop"
    assert "2 of 60 train rows have no label and are left out" in run("recipe", "check", "a.yaml")[1]


@pytest.mark.parametrize(("missing_label", "problem"), [("", "have no label"), ("nan", "have nan as their label")])
def test_a_row_without_a_label_is_named_by_its_number_in_the_file(run, tmp_path, missing_label, problem):  # noqa: F811
    """The file begins with rows without a text, which are left out."""
    table(tmp_path / "a.csv", {"text": ["", "", *texts(58)], "label": [*labels(59, 2), missing_label]})
    assert f"1 of 58 rows {problem}, the first is row 60" in run("recipe", "new", "a.csv")[2]


def test_missing_labels_of_another_split_are_omitted_too(run, tmp_path):  # noqa: F811
    table(tmp_path / "train.csv", {"text": texts(60), "label": labels(60, 2)})
    table(tmp_path / "valid.csv", {"text": texts(30), "label": ["", *labels(29, 2)]})
    err = run("recipe", "new", "train.csv", "-o", "a.yaml")[2]
    assert "1 of 30 rows of the validation split have no label, the first is row 1; --missing-labels drop leaves" in err
    status, out, err = run("recipe", "new", "train.csv", "--missing-labels", "drop", "-o", "a.yaml")
    assert (status, err) == (0, "") and "1 of 30 validation rows have no label and are left out" in out


@pytest.mark.parametrize("kind", ["words", "numbers"])
def test_nan_requires_a_choice(run, tmp_path, kind):  # noqa: F811
    known_labels = labels(57, 3) if kind == "words" else [number / 4 for number in range(57)]
    table(tmp_path / "a.csv", {"text": texts(60), "label": [*known_labels, "nan", "nan", ""]})
    err = run("recipe", "new", "a.csv")[2]
    assert "1 of 60 rows have no label, the first is row 60" in err
    table(tmp_path / "a.csv", {"text": texts(60), "label": ["nan", *known_labels, "nan", "nan"]})
    err = run("recipe", "new", "a.csv")[2]
    assert (
        "3 of 60 rows have nan as their label, the first is row 1: --missing-labels drop leaves them out, keep" in err
    )
    status, out, err = run("recipe", "new", "a.csv", "--missing-labels", "drop")
    assert (status, err) == (0, "") and "3 of 60 train rows have no label and are left out, the first is row 1" in out
    assert load_recipe("a.yaml").data.missing_labels == ["nan"]
    status, out, err = run("recipe", "new", "a.csv", "--missing-labels", "keep", "-o", "b.yaml")
    assert ("4 labels" in out) if kind == "words" else ("nan is no number; --missing-labels drop" in err)


def test_integral_floats_are_labels(run, tmp_path):  # noqa: F811
    rows = {"text": texts(60), "label": [0.0, 1.0, None] * 20}
    call_without_progress(Dataset.from_dict(rows).to_parquet, str(tmp_path / "a.parquet"))
    assert "20 of 60 rows have no label, the first is row 3" in run("recipe", "new", "a.parquet")[2]
    status, out, err = run("recipe", "new", "a.parquet", "--missing-labels", "drop")
    assert (status, err) == (0, "") and "2 labels: 0 50%, 1 50%" in out
    assert load_recipe("a.yaml").data.problem_type == "single_label"


def test_the_reason_for_a_missing_label_column_is_reported(run, tmp_path):  # noqa: F811
    names = [f"name {number}" for number in range(60)]
    table(tmp_path / "a.csv", {"text": texts(60), "id": list(range(60)), "name": names[:40] + names[:20]})
    assert "every value of id is another; name has 40 values; name one with --label" in run("recipe", "new", "a.csv")[2]


def questions(count: int = 40) -> dict[str, list]:
    places, answers = [n * 7 % 50 + 1910 for n in range(count)], []
    contexts = [f"House {n} was built by the sea in {place}; in {place}, not later." for n, place in enumerate(places)]
    answers = [str(place) for place in places]
    question_texts = [f"When was house {n} built?" for n in range(count)]
    starts = [context.index(answer) for context, answer in zip(contexts, answers, strict=True)]
    return {"question": question_texts, "context": contexts, "answer": answers, "answer_start": starts}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize(
    ("names", "note"),
    [
        ({}, None),
        ({"answer_start": None}, "40 of 40 questions have no answer_start: 40 found, all as the first of several"),
        ({"question": "Questions", "context": "passage", "answer": "answer_text"}, None),
        ({"answer": "text"}, None),
    ],
)
def test_questions_in_a_table_with_or_without_answer_positions(run, tmp_path, kind, names, note):  # noqa: F811
    columns = {new: values for name, values in questions().items() if (new := names.get(name, name))}
    if kind == "csv":
        table(tmp_path / "a.csv", columns)
    else:
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    status, out, err = run("recipe", "new", f"a.{kind}")
    assert (status, err) == (0, "") and "40 questions about 40 texts" in out
    assert note is None or note in out
    recipe = load_recipe("a.yaml")
    column_names = [recipe.data.question, recipe.data.context, recipe.data.answers]
    assert (recipe.task, column_names) == ("question_answering", list(columns)[:3])
    assert run("recipe", "check", "a.yaml")[::2] == (0, "")


def test_a_question_with_an_answer_outside_its_passage_is_a_labeled_pair(run, tmp_path):  # noqa: F811
    columns = questions()
    table(
        tmp_path / "a.csv", {**{name: columns[name] for name in ("question", "context")}, "answer": ["yes", "no"] * 20}
    )
    assert run("recipe", "new", "a.csv")[::2] == (0, "")
    data = load_recipe("a.yaml").data
    assert (data.text, data.label) == (["question", "context"], "answer")


def test_a_blank_answer_is_counted_as_no_answer(run, tmp_path):  # noqa: F811
    columns = questions()
    columns["answer"][3] = columns["answer_start"][3] = ""
    table(tmp_path / "a.csv", columns)
    assert "1 questions have no answer" in run("recipe", "new", "a.csv")[1]


def write_works(folder: Path, count: int) -> None:
    draw = random.Random(5)
    words = [f"{first}{last}" for first in ("ba", "mo", "ri", "tu") for last in ("ck", "ne", "st", "le", "sh")]
    for number in range(2 * count):
        file = folder / ["comedy", "history"][number % 2] / f"{number}.txt"
        file.parent.mkdir(exist_ok=True, parents=True)
        file.write_text("\n".join(" ".join(draw.choices(words, k=9)) for _ in range(500)))


def test_a_few_complete_works_are_a_language_model_and_many_a_classifier(run, tmp_path):  # noqa: F811
    write_works(tmp_path / "plays", 3)
    status, out, err = run("recipe", "new", "plays")
    assert (status, err) == (0, "") and "--task classification tells them apart" in out
    recipe = load_recipe("plays.yaml")
    assert (recipe.task, list(recipe.data.sources)) == ("language_modeling", ["Comedy", "History"])
    assert run("recipe", "new", "plays", "--task", "classification", "-o", "x.yaml")[0] == 0
    assert load_recipe("x.yaml").task == "classification"
    write_works(tmp_path / "more", 10)
    assert run("recipe", "new", "more")[0] == 0
    assert load_recipe("more.yaml").task == "classification"


def test_a_text_of_lines_gets_a_recipe_or_an_explanation_of_documents(run, tmp_path):  # noqa: F811
    (tmp_path / "lines.txt").write_text("\n".join(texts(400, 20)))
    assert run("recipe", "new", "lines.txt")[::2] == (0, "")
    assert run("recipe", "check", "lines.yaml")[::2] == (0, "")
    (tmp_path / "few.txt").write_text("\n".join(texts(60, 20)))
    err = run("recipe", "new", "few.txt")[2]
    assert "documents, too few for train, validation, test (a document is 4,000 characters or more, to a blank" in err


def test_a_check_trains_the_same_pieces_as_a_run(run, tmp_path):  # noqa: F811
    (tmp_path / "lines.txt").write_text("\n".join(texts(400, 20)))
    assert run("recipe", "new", "lines.txt")[0] == 0
    status, _, err = run("recipe", "check", "lines.yaml", "tokenizer.vocab_size=4000")
    assert status == 2 and "tokenizer.vocab_size: cannot train 4000 pieces on these texts: they give" in err
    table(tmp_path / "a.csv", {"text": texts(60), "label": labels(60, 2)})
    assert run("recipe", "new", "a.csv")[0] == 0
    pieces = ("tokenizer.kind=sentencepiece", "tokenizer.vocab_size=3000")
    assert "cannot train 3000 pieces" in run("recipe", "check", "a.yaml", *pieces)[2]


def jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_short_texts_are_distinguished_from_long_labels(run, tmp_path):  # noqa: F811
    kinds = ["intent_outage_that_is_fixed", "intent_outage_that_is_open"] * 30
    table(tmp_path / "a.csv", {"a": [f"{number} down" for number in range(60)], "b": kinds})
    assert run("recipe", "new", "a.csv")[::2] == (0, "")
    assert (load_recipe("a.yaml").data.text, load_recipe("a.yaml").data.label) == ("a", "b")


def test_a_title_is_read_together_with_its_text(run, tmp_path):  # noqa: F811
    templates = [f"a report from {place} about what happened" for place in ("Oslo", "Lima", "Rome")] * 20
    columns = {"label": labels(60, 3), "Title": texts(60, words=3), "Description": templates}
    table(tmp_path / "a.csv", columns)
    status, out, _ = run("recipe", "new", "a.csv")
    assert status == 0 and "texts in the columns Title and Description" in out
    assert load_recipe("a.yaml").data.text == ["Title", "Description"]
    assert run("recipe", "check", "a.yaml")[0] == 0
    long = [" ".join(texts(40)) for _ in range(60)]
    table(tmp_path / "b.csv", {**columns, "Description": [f"{text} {number}" for number, text in enumerate(long)]})
    assert run("recipe", "new", "b.csv")[0] == 0
    assert load_recipe("b.yaml").data.text == "Description"  # read in windows
    table(tmp_path / "c.csv", {**columns, "Title": ["", *columns["Title"][1:]]})
    assert run("recipe", "new", "c.csv")[0] == 0
    assert isinstance(load_recipe("c.yaml").data.text, str)
    subjects = ["politics", "news", "left-news"] * 20
    table(tmp_path / "d.csv", {"text": texts(60), "subject": subjects, "label": labels(60, 2)})
    assert run("recipe", "new", "d.csv")[0] == 0
    assert load_recipe("d.yaml").data.text == "text"


def test_a_guess_is_reported_with_its_option(run, tmp_path):  # noqa: F811
    columns = {"first": texts(60), "second": texts(60, words=7), "bias": ["a", "b"] * 30, "hate": ["x", "x", "y"] * 20}
    table(tmp_path / "a.csv", columns)
    _, out, _ = run("recipe", "new", "a.csv")
    assert "that first holds the texts is a guess: second would do as well; --text second reads that" in out
    assert "that bias holds the labels is a guess: hate could be predicted as well; --label NAME chooses" in out
    _, out, _ = run("recipe", "new", "a.csv", "--text", "second", "--label", "hate", "-o", "b.yaml")
    assert "guess" not in out
    table(tmp_path / "c.csv", {"text": texts(60), "label": labels(60, 2), "hate": columns["hate"]})
    assert "guess" not in run("recipe", "new", "c.csv")[1]


def test_rows_without_a_text_are_omitted(run, tmp_path):  # noqa: F811
    rows = [{"stars": number % 3, "name": "N. N.", "review": text} for number, text in enumerate(texts(60))]
    rows[4].pop("review")
    rows[5]["review"] = " "
    jsonl(tmp_path / "a.jsonl", rows)
    status, out, _ = run("recipe", "new", "a.jsonl")
    assert status == 0 and "58 rows; texts in the column review" in out
    assert "2 of 60 rows of the train split have no review, the first is row 5; they are left out" in out
    recipe = load_recipe("a.yaml")
    assert (recipe.data.text, recipe.data.missing_texts) == ("review", "drop")
    splits = classification.load_splits(recipe)
    assert sum(map(len, splits.values())) == 58
    status, _, err = run("recipe", "check", "a.yaml", "data.missing_texts=refuse")
    assert status == 2 and "1 of 60 rows of the train split have no review, the first is row 5; data.missing_te" in err


def test_rows_without_a_text_in_the_test_split_are_omitted_too(run, tmp_path):  # noqa: F811
    jsonl(tmp_path / "train.jsonl", [{"text": text, "label": n % 2} for n, text in enumerate(texts(40))])
    jsonl(
        tmp_path / "test.jsonl", [{"text": None if n == 3 else text, "label": n % 2} for n, text in enumerate(texts(9))]
    )
    assert run("recipe", "new", ".", "-o", "a.yaml")[0] == 0
    assert len(classification.load_splits(load_recipe("a.yaml"))["test"]) == 8


def test_numbers_among_texts_are_read_as_text_and_counted(run, tmp_path):  # noqa: F811
    rows = [{"text": text, "mood": ["bad", "good"][number % 2]} for number, text in enumerate(texts(60))]
    rows[17]["text"], rows[18]["text"] = 4017, True
    jsonl(tmp_path / "a.jsonl", rows)
    status, out, _ = run("recipe", "new", "a.jsonl")
    assert status == 0 and "texts in the column text" in out
    assert "2 train rows have a number as their text, such as row 18 (4017); read as text" in out
    splits = classification.load_splits(load_recipe("a.yaml"))
    read = {text for rows in splits.values() for text in rows["text"][:]}
    assert {"4017", "true"} <= read and len(read) == 60
    half = [{**row, "text": number if number % 2 else row["text"]} for number, row in enumerate(rows)]
    jsonl(tmp_path / "b.jsonl", half)
    assert run("recipe", "new", "b.jsonl")[0] == 0 and load_recipe("b.yaml").data.text == "text"
    rows[17]["text"] = ["a", "b"]
    jsonl(tmp_path / "a.jsonl", rows)
    status, _, err = run("recipe", "check", "a.yaml")
    assert status == 2 and "row 18 of the train split has ['a', 'b'] as its text, which is not text" in err


def test_a_title_above_the_header_of_a_csv_file_is_named(run, tmp_path):  # noqa: F811
    columns = {"text": texts(60), "label": labels(60, 3), "who": ["x", "y"] * 30}
    path = table(tmp_path / "a.csv", columns)
    path.write_text("Survey 2024,,\n" + path.read_text())
    status, _, err = run("recipe", "new", "a.csv")
    assert status == 2 and err.startswith("error: a.csv:1: 'Survey 2024' is a title above the table; delete its line")
    # Neither a column without a name nor a header above possibly empty cells is a title.
    table(tmp_path / "b.csv", {"": list(range(60)), "text": texts(60), "label": labels(60, 3)})
    assert run("recipe", "new", "b.csv")[0] == 0
