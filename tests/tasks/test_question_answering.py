"""Test `toolkit finetune`, `evaluate` and `predict` for question answering on the real port, with a short run."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from rich.console import Console
from small_reformers import SMALL_CONFIG

from toolkit import cli
from toolkit.commands.predict import evaluate, load_run, predict
from toolkit.commands.recipe_check import check_data
from toolkit.errors import UserError
from toolkit.finetune.assembly import assemble
from toolkit.finetune.finetune import finetune
from toolkit.finetune.gate import gate_request
from toolkit.finetune.model import make_trainer
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.predictions import read_predictions
from toolkit.tasks.question_answering import answering, scoring
from toolkit.tasks.question_answering import task as question_answering
from toolkit.tasks.question_answering.answering import show_answers
from toolkit.tasks.question_answering.squad import Answer, Example

RECIPE = {
    "task": "question_answering",
    "model": {
        "config": {
            **SMALL_CONFIG,
            "axial_pos_shape": [8, 8],
            "initializer_range": 0.1,
            "hidden_dropout_prob": 0.0,
            "local_attention_probs_dropout_prob": 0.0,
        }
    },
    "data": {
        "dataset": "json",
        "files": {"train": "train.json", "validation": "validation.jsonl"},
        "max_length": 64,
        "stride": 16,
        "max_answer_length": 12,
    },
    "train": {
        "max_steps": 100,
        "batch_size": 8,
        "learning_rate": 1e-2,
        "warmup_ratio": 0.1,
        "eval_steps": 50,
        "eval_batch_size": 16,
    },
}


def rows(split_name: str, count: int) -> list[dict]:
    """Return rows whose answer is the only number among letters, which a model learns soon; longer than a window."""
    draw = np.random.default_rng(len(split_name))
    examples = []
    for index in range(count):
        words = ["".join(draw.choice(list("abcde"), 4)) + str(draw.choice(list("abc."))) for _ in range(14)]
        place = int(draw.integers(14))
        words[place] = str(draw.integers(10))
        start = len(" ".join(words[:place])) + (place > 0)
        answers = {"text": [words[place]], "answer_start": [start]}
        examples.append(
            {"id": f"{split_name}{index}", "context": " ".join(words), "question": "Which number?", "answers": answers}
        )
    return examples


def nest_rows(flat: list[dict]) -> dict:
    """Return the rows in the published layout of SQuAD."""
    paragraphs = []
    for row in flat:
        answers = [{"text": text, "answer_start": start} for text, start in zip(*row["answers"].values(), strict=True)]
        question = {"id": row["id"], "question": row["question"], "answers": answers}
        paragraphs.append({"context": row["context"], "qas": [question]})
    return {"version": "1.1", "data": [{"title": "numbers", "paragraphs": paragraphs}]}


def make_console() -> Console:
    return Console(file=io.StringIO(), width=200)


def write_recipe(folder: Path, **changes) -> Path:
    """Write a recipe and its data: the layout of SQuAD for training, and flat rows for validation."""
    values = json.loads(json.dumps(RECIPE))
    for key, value in changes.items():
        section, _, name = key.partition("__")
        values[section] = {**values[section], name: value}
    values["train"].setdefault("output_dir", str(folder / "run"))
    (folder / "train.json").write_text(json.dumps(nest_rows(rows("train", 160))))
    (folder / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows("validation", 24)))
    (folder / "x.yaml").write_text(yaml.safe_dump(values))
    return folder / "x.yaml"


@pytest.fixture(scope="session")
def qa_run(tmp_path_factory) -> Path:
    """Return a finished run."""
    folder = tmp_path_factory.mktemp("qa")
    return finetune(load_recipe(write_recipe(folder)), "the gate has tests of its own", make_console())


def test_a_run_learns_and_its_predictions_file_matches_its_metrics(qa_run):
    results = json.loads((qa_run / "metrics.json").read_text())
    assert (
        results["validation"]["f1"]
        > 50
        > results["baselines"]["longest name of the likeliest sentence"]["validation"]["f1"]
    )
    scores, missing = scoring.score_files(qa_run.parent / "validation.jsonl", qa_run / "predictions.json")
    assert missing == 0
    assert scores == {key: results["validation"][key] for key in ("exact_match", "f1")}
    ranked_answers = json.loads((qa_run / "nbest.json").read_text())
    answers = json.loads((qa_run / "predictions.json").read_text())
    for name, best in ranked_answers.items():
        assert best[0]["text"] == answers[name]
        assert sum(item["probability"] for item in best) == pytest.approx(1, abs=1e-4)
    assert "AutoModelForQuestionAnswering" in (qa_run / "README.md").read_text()
    rows = list(read_predictions(qa_run / "predictions-validation.csv"))
    assert {row["id"]: row["prediction"] for row in rows} == answers
    for name in ("exact_match", "f1"):
        mean = 100 * sum(float(row[name]) for row in rows) / len(rows)
        assert mean == pytest.approx(results["validation"][name], abs=1e-3)
    for row in rows:
        start = int(row["start"]) - int(row["passage_start"])
        assert row["passage"][start:].startswith(row["prediction"])
    page = (qa_run / "report.html").read_text()
    assert "Answers by the word that asks" in page and "<td>24</td>" in page


def test_evaluating_a_run_reproduces_its_metrics(qa_run):
    metrics = evaluate(qa_run, make_console(), "validation")
    assert metrics == json.loads((qa_run / "metrics.json").read_text())["validation"]


def test_the_command_line_prints_the_answer_its_score_and_its_sentence(qa_run, tmp_path, capsys):
    sentence = "abcde bcdea 4 abcd."
    (tmp_path / "text.txt").write_text(f"abcde bcde. {sentence} deabc cdea. " + "edcba abce. " * 20)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["predict", str(qa_run), "--question", "Which number?", "--context", str(tmp_path / "text.txt")])
    out = capsys.readouterr().out.splitlines()
    assert exit_info.value.code == 0
    assert out[0] == "4"
    assert out[1].startswith("score ") and "probability" in out[1]
    assert out[2] == sentence


def test_predictions_require_a_question_and_a_context(qa_run):
    with pytest.raises(UserError, match=r"needs context: toolkit predict .* --question .* --context FILE"):
        predict(qa_run, make_console(), question="who?")
    with pytest.raises(UserError, match="takes no texts"):
        predict(qa_run, make_console(), texts=["a"], question="who?", context="a b")
    with pytest.raises(UserError, match="the question or the context is empty"):
        predict(qa_run, make_console(), question="who?", context=" \n")


def test_an_answer_may_be_in_any_window_of_a_long_text(qa_run):
    run = load_run(qa_run)
    filler = " ".join(row["context"].translate(str.maketrans("0123456789", "abcdeabcde")) for row in rows("x", 4))
    answers = [answering.answer_question(run, "Which number?", text)[0] for text in (f"5 {filler}", f"{filler} 5")]
    assert [(answer.text, answer.start) for answer in answers] == [("5", 0), ("5", len(filler) + 1)]


def test_answers_are_whole_words_in_all_commands(qa_run, tmp_path):
    """Test a number inside a word: the answer is the whole word unless the recipe sets `whole_words: false`."""
    folder = tmp_path / "run"
    shutil.copytree(qa_run, folder)
    examples = []
    for number, row in enumerate(rows("validation", 8)):
        place = row["answers"]["answer_start"][0]
        text_before, text_after = row["context"][:place], row["context"][place:]
        answers = {"text": [f"ab{text_after[0]}ba"], "answer_start": [place]}
        examples.append(
            {**row, "id": number, "context": f"{text_before}ab{text_after[0]}ba{text_after[1:]}", "answers": answers}
        )
    (tmp_path / "words.json").write_text(json.dumps(examples))
    question, context = examples[0]["question"], examples[0]["context"]
    values = yaml.safe_load((qa_run / "recipe.yaml").read_text())
    values["data"]["files"]["validation"] = str(tmp_path / "words.json")
    results = {}
    for whole_words in (True, False):
        values["data"]["whole_words"] = whole_words
        (folder / "recipe.yaml").write_text(yaml.safe_dump(values))
        scores = evaluate(folder, make_console(), "validation")
        run = load_run(folder)
        best_answer = answering.answer_question(run, question, context)[0]
        columns = question_answering.label_rows(
            run, {"question": [question], "context": [context]}, lambda count: None
        ).columns
        windows = question_answering.prepare(run.recipe, run.tokenizer, question_answering.load_splits(run.recipe))
        trainer = make_trainer(run.recipe, folder, run.task, run.model, make_console())
        assert trainer.measure(windows.validation, "validation") == scores
        saved_predictions = list(run.task.predictions(run, None, windows.validation, trainer.outputs))
        printed_answer = predict(folder, make_console(), question=question, context=context)
        assert best_answer.text == columns[0][0] == saved_predictions[0]["prediction"] == printed_answer.text
        assert context[best_answer.start : best_answer.end] == best_answer.text and columns[3] == [best_answer.start]
        results[whole_words] = scores["exact_match"], best_answer.text
    assert results[True] == (100, examples[0]["answers"]["text"][0]) and results[False][0] < 50
    assert results[False][1] in results[True][1]


def test_the_gate_gets_positions_and_compares_offsets(tmp_path):
    recipe = load_recipe(write_recipe(tmp_path))
    request = gate_request(recipe, assemble(recipe), "cpu", tmp_path)
    assert request.head == "question_answering"
    assert set(request.batch) == {"input_ids", "attention_mask", "start_positions", "end_positions"}
    assert request.tokenizer.offsets is True and "Which number?" in request.tokenizer.texts


def test_both_layouts_and_other_column_names_give_the_same_windows(tmp_path):
    recipe = load_recipe(write_recipe(tmp_path))
    first = assemble(recipe).prepared_data.train
    renamed_rows = [
        {"key": row["id"], "text": row["context"], "ask": row["question"], "found": row["answers"]}
        for row in rows("train", 160)
    ]
    (tmp_path / "train.json").write_text(json.dumps(renamed_rows))
    names = {"data__id": "key", "data__context": "text", "data__question": "ask", "data__answers": "found"}
    (tmp_path / "validation.jsonl").write_text(json.dumps(renamed_rows[0]))
    values = yaml.safe_load((tmp_path / "x.yaml").read_text())
    values["data"] |= {key.removeprefix("data__"): value for key, value in names.items()}
    (tmp_path / "y.yaml").write_text(yaml.safe_dump(values))
    second = assemble(load_recipe(tmp_path / "y.yaml")).prepared_data.train
    assert len(first) == len(second) > 160
    for first_window, second_window in zip(first, second, strict=True):
        assert all(np.array_equal(first_window[key], second_window[key]) for key in first_window)


def test_a_folder_of_rows_in_the_layout_of_the_hub_loads(tmp_path):
    """Test the columns and splits of `load_dataset("rajpurkar/squad")`."""
    path = write_recipe(tmp_path, data__dataset=str(tmp_path / "hub"), data__files=None)
    (tmp_path / "hub").mkdir()
    for split_name in ("train", "validation"):
        lines = "".join(json.dumps({**row, "title": "x"}) + "\n" for row in rows(split_name, 12))
        (tmp_path / "hub" / f"{split_name}.jsonl").write_text(lines)
    prepared_data = assemble(load_recipe(path)).prepared_data
    assert "12 train, 12 validation questions" in prepared_data.summary
    values = yaml.safe_load(path.read_text())
    values["data"]["question"] = "ask"
    path.write_text(yaml.safe_dump(values))
    with pytest.raises(UserError, match=r"data\.question: no column ask in the train split; it has .*question"):
        assemble(load_recipe(path))


def test_held_out_questions_have_contexts_outside_training(tmp_path):
    flat = rows("train", 40)
    twice = [{**row, "id": row["id"] + "b", "question": "And?"} for row in flat]
    path = write_recipe(tmp_path, data__files={"train": "both.json"}, data__validation_fraction=0.25)
    (tmp_path / "both.json").write_text(json.dumps(flat + twice))
    splits = question_answering.load_splits(load_recipe(path))
    assert (len(splits["train"]), len(splits["validation"])) == (60, 20)
    assert not set(splits["train"]["context"]) & set(splits["validation"]["context"])


def test_questions_without_an_answer_are_scored_like_squad_v2(tmp_path):
    flat = [{**row, "answers": {"text": [], "answer_start": []}} for row in rows("train", 16)]
    path = write_recipe(tmp_path, data__no_answer_threshold=0.0, train__max_steps=25)
    (tmp_path / "train.json").write_text(json.dumps(flat))
    (tmp_path / "validation.jsonl").write_text(json.dumps([*flat[:6], *rows("validation", 2)]))
    out = make_console()
    run = finetune(load_recipe(path), "the gate has tests of its own", out)
    scores = json.loads((run / "metrics.json").read_text())["validation"]
    groups = {"HasAns_exact": 0, "HasAns_f1": 0, "HasAns_total": 2, "NoAns_exact": 100, "NoAns_f1": 100}
    assert scores.items() >= {"exact_match": 75, **groups, "NoAns_total": 6}.items()
    table = {line.split()[1]: line.split()[3] for line in out.file.getvalue().splitlines() if "Ans_" in line[:20]}
    assert table["NoAns_exact"] == "100.0000" and table["HasAns_total"] == "2"
    page, card = ((run / name).read_text() for name in ("report.html", "README.md"))
    assert "NoAns_total</th><td>6</td>" in page
    assert "NoAns_total |" in card.replace("\\", "") and card.count("| 100.0000 | 100.0000 | 6 |") == 1
    assert "name: NoAns_total" not in card and "type: exact_match\n      value: 100.0\n      name: NoAns_exact" in card
    assert set(json.loads((run / "predictions.json").read_text()).values()) == {""}
    out = make_console()
    assert predict(run, out, question="Which?", context="abc").text == ""
    assert "no answer" in out.file.getvalue()


def test_limits_of_the_data_are_noted(tmp_path):
    recipe = load_recipe(write_recipe(tmp_path))
    row = rows("train", 1)[0]
    long = {**row, "answers": {"text": [row["context"][:20]], "answer_start": [0]}}
    (tmp_path / "train.json").write_text(json.dumps([long]))
    notes = " ".join(assemble(recipe).notes)
    assert "1 train answers are longer than data.max_answer_length and cannot be found; the longest has 20 to" in notes
    row_without_answer = {**row, "answers": {"text": [], "answer_start": []}}
    (tmp_path / "validation.jsonl").write_text(json.dumps(row_without_answer))
    assert "1 validation questions have no answer; set data.no_answer_threshold" in " ".join(assemble(recipe).notes)


@pytest.mark.parametrize(
    ("changes", "expected_error"),
    [
        ({"data__stride": 63}, r"data\.stride: windows of 64 tokens cannot overlap by 63"),
        ({"data__dataset": "text"}, r"data\.dataset: plain text holds no questions"),
        (
            {"data__dataset": "cldr_facts", "data__files": None, "data__document": "x"},
            r"data\.document: cldr_facts has",
        ),
        ({"data__document": "nope"}, r"data\.files\.train: .*paragraph 1, question 1 \('train0'\): document is None"),
        (
            {"data__label": "x"},
            r"data\.label: is for task classification or token_classification, not for question_answering",
        ),
        ({"model__name": "ctrl"}, r"model\.name: ctrl cannot do question_answering; reformer can"),
        ({"train__save_best": "accuracy"}, r"train\.save_best: 'accuracy' is not one of f1, exact_match, loss"),
        ({"data__files": {"train": "nope.json"}}, r"data\.files\.train: nope\.json: no such file"),
        ({"data__files": {"train": "train.json"}}, r"data\.validation_fraction: missing"),
        ({"data__validation_fraction": 0.1}, r"data\.validation_fraction: the data has a validation split of its own"),
    ],
)
def test_a_mistake_is_reported_at_its_key(tmp_path, changes, expected_error):
    path = write_recipe(tmp_path, **changes)
    with pytest.raises(UserError, match=expected_error):
        check_data(load_recipe(path))


def test_a_misplaced_answer_is_reported_at_the_file(tmp_path):
    path = write_recipe(tmp_path)
    wrong_row = {**rows("train", 1)[0], "answers": {"text": ["zzz"], "answer_start": [0]}}
    (tmp_path / "train.json").write_text(json.dumps([wrong_row]))
    with pytest.raises(UserError, match=r"data\.files\.train: .*train\.json: 1 of 1 questions have answers that"):
        check_data(load_recipe(path))


def test_a_question_as_long_as_the_window_is_reported_at_the_length(tmp_path):
    path = write_recipe(tmp_path)
    (tmp_path / "train.json").write_text(json.dumps([{**rows("train", 1)[0], "question": "x" * 60}]))
    with pytest.raises(UserError, match=r"data\.max_length: the question train0 has 60 tokens, which leaves 3 of 64"):
        assemble(load_recipe(path))


@pytest.mark.parametrize(
    ("text", "answer", "sentence"),
    [
        ("One. It is two! Three?", "two", "It is two!"),
        ("One.\nA heading\nIt is two", "two", "It is two"),
        ("No full stop two here", "two", "No full stop two here"),
        ('He said "yes." It is two.  ', "yes", 'He said "yes."'),
        ("A two. B two.", "A", "A two."),
    ],
)
def test_the_sentence_around_an_answer(text, answer, sentence):
    start = text.index(answer)
    first, past = answering.sentence_around(text, start, start + len(answer))
    assert text[first:past] == sentence


def test_some_questions_are_printed_with_the_answer_marked_in_its_sentence():
    context = "Rome is old. The code of Italy is IT. It has a coast."
    start = context.index("IT.")
    examples = [
        Example(str(n), context, f"What is the code, asked {n}?", (text,), (start,))
        for n, text in enumerate(["IT", "XY", "IT", "IT", "IT"])
    ]
    answer = Answer("IT", start, start + 2, 1.0, 0.9)
    windows = SimpleNamespace(examples=examples, best_answers=[[answer]] * 5)
    output = io.StringIO()
    show_answers(windows, Console(file=output, width=40))
    assert output.getvalue().splitlines() == [
        "  What is the code, asked 0?",
        "    The code of Italy is [IT].",
        "  What is the code, asked 2?",
        "    The code of Italy is [IT].",
        "  What is the code, asked 4?",
        "    The code of Italy is [IT].",
    ]
    output.truncate(0)
    windows.examples, windows.best_answers = examples[1:2], [[answer]]
    show_answers(windows, Console(file=output))
    assert "The code of Italy is [IT].  (correct: XY)" in output.getvalue()
