"""Test published files in the layout of SQuAD: ids, misplaced answers, and the scores of v2 by group."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from toolkit import cli
from toolkit.commands.recipe_check import check_data
from toolkit.errors import UserError
from toolkit.recipe.load import load_recipe
from toolkit.tasks.question_answering import scoring, squad
from toolkit.tasks.question_answering import task as question_answering
from toolkit.tasks.question_answering.placement import (
    NEAREST,
    NORMALIZED_MATCH,
    UTF8,
    UTF16,
    Placement,
    find_answer,
    place_answers,
)
from toolkit.tasks.question_answering.words import whole_words

RECIPE = {
    "task": "question_answering",
    "data": {"dataset": "json", "files": {"train": "train.json"}, "max_length": 64, "stride": 16},
    "train": {"max_steps": 1, "learning_rate": 1e-3},
}

CONTEXT = "Helsinki is the capital of Finland. Its currency is the euro."
EXPECTED_EXAMPLE = squad.Example("q1", CONTEXT, "What?", ("Helsinki",), (0,))
TEXT, ANSWER = "Helsinki", {"text": "Helsinki", "answer_start": 0}
QUESTION = {"id": "q1", "question": "What?"}


def covid_like(num_misplaced: int = 234, num_missing: int = 4, num_questions: int = 800) -> dict:
    """Return a document like COVID-QA: no titles, integers as ids and long contexts.

    Some answers are a few characters away from their answer_start or have other blanks; the last few do not occur.
    """
    draw = np.random.default_rng(7)
    paragraphs = []
    misplaced_ids = set(draw.choice(num_questions, num_misplaced, replace=False).tolist())
    nowhere = set(sorted(misplaced_ids)[num_misplaced - num_missing :])
    for number in range(num_questions // 4):
        words = [f"{draw.integers(10**6)}x{index}" for index in range(60)]
        context, qas = " ".join(words), []
        for name in range(4 * number, 4 * number + 4):
            place = int(draw.integers(10, 50))
            text, start = " ".join(words[place : place + 3]), len(" ".join(words[:place])) + 1
            if name in nowhere:
                text = "not there"
            elif name in misplaced_ids:
                start += int(draw.integers(1, 9)) * int(draw.choice([-1, 1]))
                text = text.replace(" ", "\n") if name % 5 == 0 else text
            answers = [{"text": text, "answer_start": start}]
            qas.append({"id": name, "question": "Which?", "answers": answers, "is_impossible": False})
        paragraphs.append({"context": context, "document_id": number, "qas": qas})
    return {"data": [{"paragraphs": [paragraph]} for paragraph in paragraphs]}


def recipe_for(folder: Path, content: object, **data: object) -> Path:
    """Write a recipe that trains on a file and validates on a small correct file."""
    valid_rows = [{**QUESTION, "context": CONTEXT, "answers": [ANSWER]}]
    (folder / "train.json").write_text(content if isinstance(content, str) else json.dumps(content))
    (folder / "validation.json").write_text(json.dumps(valid_rows))
    values = json.loads(json.dumps(RECIPE))
    values["data"]["files"]["validation"] = "validation.json"
    values["data"] |= data
    (folder / "x.yaml").write_text(yaml.safe_dump(values))
    return folder / "x.yaml"


def test_misplaced_answers_are_refused_with_their_number_and_the_first_three(tmp_path):
    with pytest.raises(UserError) as problem:
        check_data(load_recipe(recipe_for(tmp_path, covid_like())))
    message = str(problem.value)
    assert "data.files.train: " in message and "\n" not in message
    assert "234 of 800 questions have answers that do not stand where answer_start says: '" in message
    assert message.count(" at ") == 3 and "set data.misplaced_answers to find (finds 230 of them) or drop" in message


def test_misplaced_answers_are_dropped_or_found_again_and_counted(tmp_path):
    recipe = load_recipe(recipe_for(tmp_path, covid_like(), misplaced_answers="drop"))
    assert len(question_answering.load_splits(recipe)["train"]) == 800 - 234
    assert "234 of 800 questions are left out" in recipe.findings.notes[-1]
    recipe = load_recipe(recipe_for(tmp_path, covid_like(), misplaced_answers="find"))
    rows = question_answering.load_splits(recipe)["train"]
    (note,) = [note for note in recipe.findings.notes if "234 of 800" in note]
    assert ": 230 found (" in note and NEAREST in note and NORMALIZED_MATCH in note and ", 4 left out: '" in note
    texts = {str(question["id"]): question["answers"][0]["text"] for question in _all_questions(covid_like())}
    assert len(rows) == 796 and all(isinstance(name, str) for name in rows["id"])
    for row in rows:
        start, text = row["answers"]["answer_start"][0], row["answers"]["text"][0]
        assert row["context"][start : start + len(text)] == text
        assert text == texts[row["id"]].replace("\n", " ") and len(text.split()) == 3


def _all_questions(content: dict) -> list[dict]:
    return [question for article in content["data"] for part in article["paragraphs"] for question in part["qas"]]


def test_offsets_in_utf16_explain_a_file_that_javascript_made():
    text = "🙂 at the sea. 🙃🙂 By the sea, the house, and the sea 🙂 again"
    examples = []
    for place in [place for place in range(len(text)) if text.startswith("the sea", place)]:
        offset = len(text[:place].encode("utf-16-le")) // 2
        examples.append(squad.Example(f"q{place}", text, "?", ("the sea",), (offset,)))
    placed_examples, note = place_answers(examples, "find", "x.json")
    assert [f"q{item.answer_starts[0]}" for item in placed_examples] == [item.id for item in examples]
    assert note is not None and "3 found, all by offsets in UTF-16 units, as JavaScript counts them" in note
    with pytest.raises(UserError, match=r"finds 3 of them, all by offsets in UTF-16 units"):
        place_answers(examples, "refuse", "x.json")


@pytest.mark.parametrize(
    ("context", "text", "start", "expected_placement"),
    [
        ("a red, a red and a red", "red", 8, Placement(9, "red", NEAREST)),  # one off
        ("a red, a red and a red", "red", 10, Placement(9, "red", NEAREST)),
        ("a red, a red and a red", "red", -1, Placement(2, "red", NEAREST)),
        ("a red, a red and a red", "red", 999, Placement(19, "red", NEAREST)),
        ("äöü red, red", "red", 7, Placement(4, "red", UTF8)),
        ("🙂 red, red", "red", 3, Placement(2, "red", UTF16)),
        ("in the\n  deep sea", "the deep sea", 0, Placement(3, "the\n  deep sea", NORMALIZED_MATCH)),
        ("the “deep” sea’s", '"deep" sea\'s', 0, Placement(4, "“deep” sea’s", NORMALIZED_MATCH)),
        ("une e\u0301cole", "école", 0, Placement(4, "e\u0301cole", NORMALIZED_MATCH)),
        ("une école", "e\u0301cole", 0, Placement(4, "école", NORMALIZED_MATCH)),
        ("the ﬁsh", "fish", 0, Placement(4, "ﬁsh", NORMALIZED_MATCH)),
        ("the ﬁsh", "ish", 0, None),  # part of a ligature
        ("the\nﬁsh", "the f", 0, None),
        ("the e\u0301cole", "ecole", 0, None),
        ("1\u00a0000 km", "1 000", 5, Placement(0, "1\u00a0000", NORMALIZED_MATCH)),
        ("soft\u00adware", "software", 3, Placement(0, "soft\u00adware", NORMALIZED_MATCH)),
        ("하나 한국 둘", "\u1112\u1161\u11ab\u1100\u116e\u11a8", 0, Placement(3, "한국", NORMALIZED_MATCH)),
        ("the sea", "the lake", 0, None),
        ("the sea", "\u200b", 0, None),
        ("", "sea", 0, None),
    ],
)
def test_an_answer_is_found_in_the_context_s_own_characters(context, text, start, expected_placement):
    assert find_answer(context, text, start) == expected_placement


def test_a_question_with_a_missing_answer_is_omitted_unless_none_is_left():
    two = squad.Example("q", "a red sea", "?", ("red", "blue"), (2, 3))
    valid_example = squad.Example("r", "a red sea", "?", ("red", ""), (2, 10**12))
    placed_examples, note = place_answers([two, valid_example], "find", "x")
    assert [item.id for item in placed_examples] == ["r"] and note is not None and "0 found, 1 left out: 'q'" in note
    assert placed_examples[0].answer_starts == (
        2,
        9,
    )  # the start of an empty answer has no meaning; columns hold 32 bits
    for policy in ("find", "drop"):
        with pytest.raises(UserError, match=r"x: no question has its answer where answer_start says.*'q' \('e"):
            place_answers([two], policy, "x")


LAYOUTS = {
    "articles at the top": [{"paragraphs": [{"context": CONTEXT, "qas": [{**QUESTION, "answers": [ANSWER]}]}]}],
    "articles": {"data": [{"title": "x", "n": 1, "paragraphs": [{"context": CONTEXT, "qas": [
        {**QUESTION, "answers": [ANSWER], "is_impossible": False, "extra": {"a": []}}]}]}]},
    "paragraphs": {"data": [{"context": CONTEXT, "qas": [{**QUESTION, "answers": [ANSWER]}]}]},
    "one article": {"title": "x", "paragraphs": [{"context": CONTEXT, "qas": [{**QUESTION, "answers": [ANSWER]}]}]},
    "flat": [{**QUESTION, "context": CONTEXT, "answers": {"text": [TEXT], "answer_start": [0]}, "extra": 3}],
    "flat data": {"version": "x", "data": [{**QUESTION, "context": CONTEXT, "answers": [ANSWER]}]},
    "one answer": [{**QUESTION, "context": CONTEXT, "answer": ANSWER}],
    "answer null beside": [{**QUESTION, "context": CONTEXT, "answers": None, "answer": [ANSWER]}],
    "scalars": [{**QUESTION, "context": CONTEXT, "answers": {"text": TEXT, "answer_start": 0}}],
    "text and start beside": [{**QUESTION, "context": CONTEXT, "answer": TEXT, "answer_start": 0}],
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_each_layout_gives_the_same_question(tmp_path, name):
    (tmp_path / "x.json").write_text(json.dumps(LAYOUTS[name]))
    assert squad.read_examples(tmp_path / "x.json") == [EXPECTED_EXAMPLE]
    items = LAYOUTS[name]["data"] if "data" in LAYOUTS[name] else LAYOUTS[name]
    items = items if isinstance(items, list) else [items]
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    assert squad.read_examples(tmp_path / "x.jsonl") == [EXPECTED_EXAMPLE]


@pytest.mark.parametrize(
    "more",
    [{"answers": []}, {"answers": {"text": [], "answer_start": []}}, {"is_impossible": True},
     {"is_impossible": True, "answers": None}, {"is_impossible": 1, "answers": [ANSWER]},
     {"answers": [{"text": "", "answer_start": -1}]}, {"answers": {"text": "", "answer_start": -1}}],
)  # fmt: skip
def test_questions_without_an_answer_are_recognized_in_several_layouts(tmp_path, more):
    for content in (
        [{**QUESTION, "context": CONTEXT, **more}],
        {"data": [{"paragraphs": [{"context": CONTEXT, "qas": [{**QUESTION, **more}]}]}]},
    ):
        (tmp_path / "x.json").write_text(json.dumps(content))
        assert squad.read_examples(tmp_path / "x.json")[0].answers == ()


def faulty(question: object = None, **paragraph: object) -> dict:
    """Return three articles, the third with a fault in its second paragraph."""
    valid_paragraph = {"context": CONTEXT, "qas": []}
    valid_question = {**QUESTION, "answers": [ANSWER]}
    faulty_paragraph = {**valid_paragraph, "qas": [{**valid_question, "id": "first"}, question], **paragraph}
    return {
        "data": [
            {"paragraphs": [valid_paragraph]},
            {"paragraphs": [valid_paragraph]},
            {"paragraphs": [valid_paragraph, faulty_paragraph]},
        ]
    }


@pytest.mark.parametrize(
    ("content", "expected_error"),
    [
        (faulty({**QUESTION, "answers": [3]}), r"article 3, paragraph 2, question 2 \('q1'\): answers should be"),
        (faulty({"id": 7, "answers": []}), r"article 3, paragraph 2, question 2 \(7\): has no question"),
        (faulty({"id": True, "question": "?"}), "article 3, paragraph 2, question 2: id is True, not a text"),
        (faulty({**QUESTION}), r"question 2 \('q1'\): has no answers; a question without has is_impossible: true"),
        (faulty({**QUESTION, "is_impossible": "no"}), r"question 2 \('q1'\): is_impossible is 'no', not true or false"),
        (faulty(3), "article 3, paragraph 2, question 2: expected an object"),
        (faulty(qas={}), "article 3, paragraph 2: expected an object with context and qas, a list"),
        (faulty(QUESTION, context=["x" * 500]), r"question 1 \('first'\): context is \['x{40,60}\.\.\., not a text"),
        ({"data": [{"paragraphs": 3}]}, "article 1: paragraphs is 3, not a list"),
        ([{**QUESTION, "context": "x", "answers": {"text": ["x"], "answer_start": [True]}}],
         "as many texts as whole num"),
        ([{**QUESTION, "context": "x", "answer": 3}], r"row 1 \('q1'\): answer should be"),
        ([{**QUESTION, "id": name, "context": "x", "answers": []} for name in (7, "7", "b", 7, "b", "c")],
         "2 ids are not unique, the first is '7', of 3 questions"),
    ],
)  # fmt: skip
def test_a_fault_is_reported_in_one_line_with_its_place(tmp_path, content, expected_error):
    (tmp_path / "x.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match=expected_error) as problem:
        squad.read_examples(tmp_path / "x.json")
    assert "\n" not in str(problem.value) and len(str(problem.value)) < 400


def test_messages_about_a_paragraph_name_its_document(tmp_path):
    recipe = load_recipe(recipe_for(tmp_path, covid_like(), misplaced_answers="drop", document="document_id"))
    (tmp_path / "validation.json").write_text(json.dumps(covid_like(num_misplaced=4)))
    assert len(question_answering.load_splits(recipe)["train"]) == 800 - 234


def test_ids_are_unique_over_the_files_of_a_pattern(tmp_path):
    rows = json.dumps([{**QUESTION, "context": CONTEXT, "answers": [ANSWER]}])
    recipe = load_recipe(recipe_for(tmp_path, rows, files={"train": "part*.json", "validation": "validation.json"}))
    for name in "ab":
        (tmp_path / f"part-{name}.json").write_text(rows)
    with pytest.raises(
        UserError, match=r"data\.files\.train: the train split: 1 ids are not unique, the first is 'q1'"
    ):
        check_data(recipe)


@pytest.mark.parametrize("policy", ["refuse", "drop", "find"])
def test_rows_of_a_folder_support_the_same_policies(tmp_path, policy):
    """Test a data set in the layout of the hub: flat rows with integers as ids."""
    (tmp_path / "hub").mkdir()
    rows = [
        {"id": number, "question": "?", "context": CONTEXT, "answers": {"text": ["capital"], "answer_start": [start]}}
        for number, start in enumerate((16, 17))
    ]
    for split_name in ("train", "validation"):
        (tmp_path / "hub" / f"{split_name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = json.loads(json.dumps(RECIPE))
    values["data"] = {"dataset": str(tmp_path / "hub"), "max_length": 64, "stride": 16, "misplaced_answers": policy}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(values))
    recipe = load_recipe(tmp_path / "x.yaml")
    if policy == "refuse":
        with pytest.raises(UserError, match=r"data\.answers: the train split: 1 of 2 questions have .*'1' \('apital "):
            question_answering.load_splits(recipe)
        return
    train = question_answering.load_splits(recipe)["train"]
    assert train["id"] == (["0"] if policy == "drop" else ["0", "1"])
    assert {tuple(answers["answer_start"]) for answers in train["answers"]} == {(16,)}


# -- whole words ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "part", "expected_text"),
    [
        ("of Helsinki, and", "elsink", "Helsinki"),
        ("of Helsinki, and", "Helsinki", "Helsinki"),
        ("of Helsinki, and", "f Hel", "of Helsinki"),
        ("Manning's well-known", "Manni", "Manning"),
        ("de l’eau douce", "ea", "eau"),
        ("the end.Next one", "end", "end"),
        ("about 1,187,888 lakes", "187", "1,187,888"),
        ("pi is 3.14.", "14", "3.14"),
        ("东京是日本的首都", "日本", "日本"),  # no blanks: each character is a word
        ("ประเทศไทย", "เทศ", "เทศ"),
        ("ทำงาน", "ท", "ทำ"),  # but with its vowel sign
        ("हिन्दी भाषा", "िन", "हिन्दी"),
        ("une e\u0301cole ici", "col", "e\u0301cole"),
        ("a 👩‍👩‍👧‍👦 b", "👩", "👩‍👩‍👧‍👦"),
        ("🇫🇮🇸🇪", "🇫", "🇫🇮"),
        ("می\u200cخواهم", "خوا", "می\u200cخواهم"),
        ("col·legi", "legi", "col·legi"),
    ],
)
def test_a_span_is_widened_to_whole_words_and_never_cuts_a_character(text, part, expected_text):
    start = text.index(part)
    first, past = whole_words(text, start, start + len(part))
    assert text[first:past] == expected_text


# -- scores of v2 ---------------------------------------------------------------------------------------------------


def published_v2(rows: list[dict], predictions: dict[str, str]) -> dict[str, float]:
    """Return scores by the algorithm of Rajpurkar et al. 2018: first raw scores, then means by group.

    A question has the best score over its references. The groups are all, answerable and unanswerable questions.
    """
    exact, f1 = {}, {}
    for row in rows:
        gold = [text for text in row["answers"]["text"] if scoring.normalize(text)] or [""]
        words = [(scoring.normalize(text).split(), scoring.normalize(predictions[row["id"]]).split()) for text in gold]
        exact[row["id"]] = max(float(reference_words == predicted_words) for reference_words, predicted_words in words)
        f1[row["id"]] = max(_overlap_f1(reference_words, predicted_words) for reference_words, predicted_words in words)
    groups = {
        "": [row["id"] for row in rows],
        "HasAns_": [row["id"] for row in rows if row["answers"]["text"]],
        "NoAns_": [row["id"] for row in rows if not row["answers"]["text"]],
    }
    scores: dict[str, float] = {}
    for name, ids in groups.items():
        scores[f"{name}exact"] = 100.0 * sum(exact[question_id] for question_id in ids) / len(ids)
        scores[f"{name}f1"] = 100.0 * sum(f1[question_id] for question_id in ids) / len(ids)
        scores[f"{name}total"] = len(ids)
    return scores


def _overlap_f1(reference_words: list[str], predicted_words: list[str]) -> float:
    if not reference_words or not predicted_words:
        return float(reference_words == predicted_words)
    num_common = sum(min(reference_words.count(word), predicted_words.count(word)) for word in set(reference_words))
    return (
        0.0
        if not num_common
        else 2
        * num_common
        / len(reference_words)
        * (num_common / len(predicted_words))
        / (num_common / len(reference_words) + num_common / len(predicted_words))
    )


def test_answerable_and_unanswerable_questions_are_scored_separately_as_published(tmp_path, capsys):
    golds = [["the red sea", "a sea"], ["blue"], [], [], ["a very long answer here"], [], ["the"]]
    answers = ["red sea", "", "", "something", "long answer", "the", "a"]
    rows = [
        {
            "id": f"q{number}",
            "question": "?",
            "context": "x",
            "answers": {"text": gold, "answer_start": [0] * len(gold)},
        }
        for number, gold in enumerate(golds)
    ]
    predictions = {f"q{number}": text for number, text in enumerate(answers)}
    (tmp_path / "data.json").write_text(json.dumps(rows))
    (tmp_path / "found.json").write_text(json.dumps(predictions))
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["evaluate", "--squad", str(tmp_path / "data.json"), str(tmp_path / "found.json")])
    out = capsys.readouterr().out
    assert exit_info.value.code == 0 and '"HasAns_total": 4' in out
    expected_scores = published_v2(rows, predictions)
    scores = json.loads(out)
    assert (scores.pop("exact_match"), expected_scores.pop("total")) == (expected_scores.pop("exact"), 7)
    assert scores == expected_scores and 0 < scores["NoAns_exact"] < 100 and 0 < scores["HasAns_f1"] < 100
