"""Test that SQuAD files are read in every layout and scored like the official scripts."""

from __future__ import annotations

import json

import pytest

from toolkit import cli
from toolkit.errors import UserError
from toolkit.tasks.question_answering import scoring, squad

CONTEXT = "Helsinki is the capital of Finland. Its currency is the euro."
ROW = {
    "id": "q1",
    "context": CONTEXT,
    "question": "What is the capital?",
    "answers": {"text": ["Helsinki"], "answer_start": [0]},
}


RED = {"text": "red", "answer_start": 6}


def make_example(*answers: str, name: str = "q1") -> squad.Example:
    return squad.Example(name, " ".join(answers), "?", answers, (0,) * len(answers))


def score_one(prediction: str, *answers: str) -> tuple[float, float]:
    scores = scoring.score([make_example(*answers)], {"q1": prediction})
    return scores["exact_match"], scores["f1"]


@pytest.mark.shared_data
def test_a_published_system_gets_its_published_scores_to_the_last_digit(shared_data):
    folder = shared_data / "squad"
    expected_scores = json.loads((folder / "expected.json").read_text())
    scores, missing = scoring.score_files(folder / expected_scores["dataset"], folder / expected_scores["predictions"])
    assert scores == {"exact_match": expected_scores["exact_match"], "f1": expected_scores["f1"]}
    assert missing == 0


@pytest.mark.parametrize(
    ("prediction", "answer", "exact", "f1"),
    [
        ("The Broncos", "broncos", 100, 100),  # case and article
        ("an  apple, a day!", "apple day", 100, 100),  # articles and punctuation anywhere, spaces
        ("theatre", "atre", 0, 0),  # an article only as a whole word
        ("A-team", "ateam", 100, 100),  # punctuation is removed first, so the a is not a separate word
        ("the-end", "the end", 0, 0),  # likewise: "theend" against "end"
        ("$5 million", "5 million", 100, 100),
        ("2,000", "2000", 100, 100),
        ("Levi’s", "Levis", 0, 0),  # a typographic apostrophe is not ASCII punctuation
        ("24–10", "2410", 0, 0),  # nor is an en dash
        ("ÉCOLE", "école", 100, 100),
        ("e\u0301cole", "école", 0, 0),  # decomposed stays decomposed
        ("Straße", "STRASSE", 0, 0),  # lower, not casefold
        ("gold\u00a0medal", "gold medal", 100, 100),  # any white space
        ("new york city", "York City", 0, 80),  # precision 2/3, recall 1
        ("tick tick tick", "tick tick", 0, 80),  # repeated words are counted
        ("blue", "red", 0, 0),
        ("", "red", 0, 0),
    ],
)
def test_answers_are_compared_like_the_official_script(prediction, answer, exact, f1):
    assert score_one(prediction, answer) == (exact, pytest.approx(f1))


def test_the_best_of_several_references_counts_for_each_number():
    assert score_one("in 1999", "in the year 1999", "1999", "in 1999 or so") == (
        0,
        pytest.approx(200 * (2 / 3) / (5 / 3)),
    )
    assert score_one("1999", "the year", "1999") == (100, 100)


def test_an_empty_reference_is_scored_like_each_version():
    """v1.1 compares "the" with "a" as two empty texts: equal, but without a common word.

    v2 omits such references, and a question without references has the empty answer.
    """
    assert score_one("a", "the") == (100, 0)
    unanswerable = make_example(name="q2")
    scores_of_both = scoring.score([make_example("the", "red"), unanswerable], {"q1": "a", "q2": ""})
    assert (scores_of_both["exact_match"], scores_of_both["f1"]) == (
        50,
        50,
    )  # the answer of q1 is "red", q2 has no answer
    for answer, expected_score in (("something", 0), ("the", 100)):
        scores = scoring.score([unanswerable], {"q2": answer})
        assert scores == {
            "exact_match": expected_score, "f1": expected_score,
            "NoAns_exact": expected_score, "NoAns_f1": expected_score, "NoAns_total": 1,
        }  # fmt: skip


def test_a_question_without_a_prediction_counts_as_wrong():
    pair = [make_example("red"), make_example("blue", name="q2")]
    assert scoring.score(pair, {"q2": "blue", "other": "red"}) == {"exact_match": 50, "f1": 50}
    either = scoring.score([make_example("red"), make_example(name="q2")], {"q1": "red"})
    assert (either["exact_match"], either["HasAns_exact"], either["NoAns_exact"]) == (50, 100, 0)


def nest_question(version: str = "1.1", **question) -> dict:
    full_question = {
        "id": "q1",
        "question": "What is the capital?",
        "answers": [{"text": "Helsinki", "answer_start": 0}],
        **question,
    }
    return {"version": version, "data": [{"title": "x", "paragraphs": [{"context": CONTEXT, "qas": [full_question]}]}]}


def test_every_layout_gives_the_same_questions(tmp_path):
    expected_examples = [squad.Example("q1", CONTEXT, "What is the capital?", ("Helsinki",), (0,))]
    row_with_list = {**ROW, "answers": [{"text": "Helsinki", "answer_start": 0}]}
    layouts = {
        "nested": json.dumps(nest_question()),
        "rows": json.dumps([ROW]),
        "data": json.dumps({"data": [row_with_list]}),
        "lines": json.dumps(ROW) + "\n\n",
        "bom": "\ufeff" + json.dumps([ROW]),
    }
    for name, text in layouts.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert squad.read_examples(tmp_path / name) == expected_examples, name
    (tmp_path / "two").write_text("\n".join(json.dumps({**ROW, "id": name}) for name in "ab"))
    assert [item.id for item in squad.read_examples(tmp_path / "two")] == ["a", "b"]


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path):
    row = {**ROW, "question": "one\u2028two\x85three"}
    (tmp_path / "x").write_text(f"{json.dumps(row, ensure_ascii=False)}\n{json.dumps({**ROW, 'id': 'q2'})}\n")
    assert squad.read_examples(tmp_path / "x")[0].question == row["question"]


def test_the_paragraphs_of_an_article_are_joined_to_one_document(tmp_path):
    article = {
        "title": "x",
        "paragraphs": [
            {"context": "It is red.", "qas": [{"id": name, "question": "?", "answers": [RED]} for name in "ab"]},
            {
                "context": "Not red, blue.",
                "qas": [{"id": "c", "question": "?", "answers": [{**RED, "answer_start": 4}]}],
            },
        ],
    }
    other_article = {
        "title": "y",
        "paragraphs": [{"context": "Red.", "qas": [{"id": "d", "question": "?", "answers": []}]}],
    }
    (tmp_path / "x.json").write_text(json.dumps({"data": [article, other_article]}))
    joined_examples = squad.join_documents(squad.read_examples(tmp_path / "x.json", document="title"))
    assert [item.context for item in joined_examples] == ["It is red.\n\nNot red, blue."] * 3 + ["Red."]
    assert [item.answer_starts for item in joined_examples] == [(6,), (6,), (16,), ()]
    assert all(item.context[at : at + 3] == "red" for item in joined_examples for at in item.answer_starts)


def test_a_question_that_is_impossible_has_no_answer(tmp_path):
    path = tmp_path / "v2.json"
    path.write_text(
        json.dumps(nest_question("v2.0", is_impossible=True, answers=[], plausible_answers=[{"text": "euro"}]))
    )
    assert squad.read_examples(path)[0].answers == ()


@pytest.mark.parametrize(
    ("content", "expected_error"),
    [
        ("{", "is not JSON"),
        ('{"id": 1}\n{"id": 2}\n{', "line 3 is not JSON"),
        ("3", "expected SQuAD's data"),
        ("[]", "holds no questions"),
        ("[3]", "row 1: expected an object"),
        (json.dumps([{**ROW, "context": None}]), r"row 1 \('q1'\): context is None"),
        (json.dumps([ROW, {key: ROW[key] for key in ROW if key != "id"}]), "row 2: has no id"),
        (json.dumps([ROW, ROW]), "1 ids are not unique, the first is 'q1', of 2 questions"),
        (json.dumps([{**ROW, "answers": [3]}]), "answers should be"),
        (json.dumps([{**ROW, "answers": {"text": ["Helsinki"], "answer_start": []}}]), "as many texts as"),
        (json.dumps({"data": [{"paragraphs": [{"context": "x"}]}]}), "article 1, paragraph 1: expected"),
        (json.dumps(nest_question(id=7.5)), "article 1, paragraph 1, question 1: id is 7.5"),
    ],
)
def test_a_faulty_squad_file_is_refused_at_its_place(tmp_path, content, expected_error):
    (tmp_path / "x.json").write_text(content)
    with pytest.raises(UserError, match=expected_error) as problem:
        squad.read_examples(tmp_path / "x.json")
    assert str(problem.value).startswith(str(tmp_path / "x.json"))
    with pytest.raises(UserError, match="no such file"):
        squad.read_examples(tmp_path / "y.json")


def test_predictions_that_belong_to_other_questions_are_refused(tmp_path):
    (tmp_path / "data.json").write_text(json.dumps([ROW, {**ROW, "id": "q2"}]))
    for content, expected_error in (
        ("[]", "one JSON object"),
        ('{"q1": 3}', "answer of q1 is 3"),
        ("{}", "none of the 2"),
    ):
        (tmp_path / "found.json").write_text(content)
        with pytest.raises(UserError, match=expected_error):
            scoring.score_files(tmp_path / "data.json", tmp_path / "found.json")
    (tmp_path / "found.json").write_text('{"q1": "helsinki"}')
    assert scoring.score_files(tmp_path / "data.json", tmp_path / "found.json") == (
        {"exact_match": 50.0, "f1": 50.0},
        1,
    )


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is the capital of Finland?", "Helsinki"),
        ("Which is its currency?", "Euro"),
        ("How many lakes has it?", "1,187,888"),
    ],
)
def test_the_baseline_takes_the_longest_name_of_the_likeliest_sentence(question, answer):
    context = "Finland has 1,187,888 lakes. The capital of Finland is Helsinki. Its currency is the Euro!"
    assert scoring.guess(question, context) == answer


def test_the_baseline_always_answers():
    assert scoring.guess("", "only small words") == "only small words"
    assert scoring.guess("Who?", "Who?") == "Who?"
    assert scoring.guess("?", "") == ""


def test_the_command_line_prints_only_the_two_numbers(tmp_path, capsys):
    (tmp_path / "data.json").write_text(json.dumps([ROW, {**ROW, "id": "q2"}]))
    (tmp_path / "found.json").write_text('{"q1": "helsinki"}')
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["evaluate", "--squad", str(tmp_path / "data.json"), str(tmp_path / "found.json")])
    output = capsys.readouterr()
    assert exit_info.value.code == 0
    assert output.out == '{"exact_match": 50.0, "f1": 50.0}\n'
    assert output.err == "note: 1 questions have no prediction and count as wrong\n"
