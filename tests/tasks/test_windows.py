"""Test windows: each has the whole question, a part of the context, and the answer if it is in this part."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest

from models.reformer.tokenizer import ByteTokenizer, ReformerTokenizer, train_sentencepiece
from toolkit.tasks.question_answering import squad
from toolkit.tasks.question_answering.spans import answers, best_spans
from toolkit.tasks.question_answering.squad import Example
from toolkit.tasks.question_answering.windows import NO_ANSWER, SEPARATOR, QuestionTooLongError, Windows, tokenize_once

CONTEXT = (
    "Töölö lies in Helsinki. The ﬁrst  trams e\u0301t\u0301 came in 1901, by the sea; Suomi 日本 has 187,888 lakes."
)


def make_example(context: str, answer: str, question: str = "Which one?", name: str = "q") -> Example:
    return Example(name, context, question, (answer,), (context.index(answer),))


def pieces(tmp_path: Path) -> ReformerTokenizer:
    lines = [line for name in ("argparse", "json") for line in Path(sys.modules[name].__file__).read_text().split("\n")]
    return train_sentencepiece([*lines, CONTEXT], 400, tmp_path / "pieces")


def ideal_outputs(windows: Windows, sure: float = 10.0) -> list[np.ndarray]:
    """Return the outputs of a model that knows every answer, as the evaluation stores them."""
    scores = np.zeros((2, len(windows), windows.max_length))
    rows = np.arange(len(windows))
    scores[0, rows, windows.start_positions] = sure
    scores[1, rows, windows.end_positions] = sure
    past = windows.offset_of + windows.size_of
    spans = best_spans(*scores, windows.offset_of, past, windows.max_answer_length)
    return [*spans, scores[0, :, NO_ANSWER] + scores[1, :, NO_ANSWER]]


def ideal_answers(windows: Windows) -> list[str]:
    return [best[0].text for best in answers(windows, ideal_outputs(windows))]


@pytest.mark.parametrize("length", [32, 48, 200])
def test_every_answer_survives_encoding_into_windows(tmp_path, length):
    """Test blanks, ligatures, accents and other scripts before and inside answers, near every window's edge."""
    words = ["Töölö", "Helsinki", "ﬁrst", "ﬁrst  trams", "e\u0301t\u0301", "1901", "sea", "Suomi 日本", "lakes"]
    examples = [make_example(CONTEXT, word, "Who?", word) for word in words]
    for tokenizer in (ByteTokenizer(), pieces(tmp_path)):
        windows = Windows(examples, tokenizer, length, 20, 30)
        assert ideal_answers(windows) == words
        assert windows.inexact() == []


def test_a_window_has_question_separator_context_and_padding():
    tokenizer = ByteTokenizer()
    windows = Windows([make_example("ab cd", "cd", "  Q?\n")], tokenizer, 12, 2, 5)
    (row,) = windows
    expected_tokens = [*tokenizer.encode("Q?"), SEPARATOR, *tokenizer.encode("ab cd")]
    assert row["input_ids"].tolist() == expected_tokens + [0] * 4
    assert row["attention_mask"].tolist() == [1] * 8 + [0] * 4
    assert (row["start_positions"], row["end_positions"]) == (6, 7)
    assert all(value.dtype == np.int64 for value in row.values())


def test_the_question_is_never_cut_and_windows_cover_the_context():
    tokenizer, context = ByteTokenizer(), "".join(chr(97 + index % 26) for index in range(100))
    windows = Windows([make_example(context, "xyz", "Where is it?")], tokenizer, 40, 7, 5)
    question = tokenizer.encode("Where is it?")
    pieces = []
    for row in windows:
        ids = row["input_ids"][row["attention_mask"] == 1].tolist()
        assert ids[: len(question) + 1] == [*question, SEPARATOR]
        pieces.append(tokenizer.decode(ids[len(question) + 1 :]))
    assert pieces[0] + "".join(piece[7:] for piece in pieces[1:]) == context
    assert all(previous[-7:] == following[:7] for previous, following in itertools.pairwise(pieces))


def test_a_window_without_the_whole_answer_has_no_answer():
    context = "." * 30 + "answer" + "." * 30
    windows = Windows([make_example(context, "answer", "Q")], ByteTokenizer(), 20, 8, 9)
    for row in windows:
        text = ByteTokenizer().decode(row["input_ids"][2:])
        if "answer" in text:
            assert text[row["start_positions"] - 2 : row["end_positions"] - 1] == "answer"
        else:
            assert row["start_positions"] == row["end_positions"] == NO_ANSWER
    assert "answer" in "".join(ideal_answers(windows))


def test_a_question_without_space_for_its_context_is_named():
    with pytest.raises(QuestionTooLongError, match=r"the question q has 20 tokens, which leaves 9 of 30"):
        Windows([make_example("abc", "b", "x" * 20)], ByteTokenizer(), 30, 9, 5)


def test_an_empty_context_and_no_examples_give_no_error():
    windows = Windows([Example("q", "", "Who?", (), ())], ByteTokenizer(), 16, 2, 5)
    assert len(windows) == 1 and ideal_answers(windows) == [""]
    assert len(Windows([], ByteTokenizer(), 16, 2, 5)) == 0


def test_windows_may_be_padded_beyond_their_tokens():
    short = Windows([make_example("abc" * 20, "cab", "Q")], ByteTokenizer(), 20, 8, 9)
    padded_windows = Windows([make_example("abc" * 20, "cab", "Q")], ByteTokenizer(), 20, 8, 9, length=32)
    assert len(padded_windows) == len(short) > 1
    for padded_window, short_window in zip(
        (padded_windows[i] for i in range(len(short))), (short[i] for i in range(len(short))), strict=True
    ):
        assert padded_window["input_ids"].shape == padded_window["attention_mask"].shape == (32,)
        np.testing.assert_array_equal(padded_window["input_ids"][:20], short_window["input_ids"])
        assert (
            not padded_window["input_ids"][20:].any()
            and padded_window["attention_mask"].sum() == short_window["attention_mask"].sum()
        )
        assert padded_window["start_positions"] == short_window["start_positions"]


def test_an_answer_inside_a_token_is_reported_with_the_tokens_text(tmp_path):
    train_sentencepiece(["ab ba abba baab"] * 50, 8, tmp_path)
    tokenizer = ReformerTokenizer.from_file(tmp_path / "spiece.model")
    windows = Windows([make_example("ab 20-18", "18"), make_example("ab ba", "ba", name="r")], tokenizer, 16, 2, 5)
    assert [(item.id, token_text) for item, token_text in windows.inexact()] == [
        ("q", "20-18")
    ]  # one run of unknown characters


def test_tokens_are_cached_by_text_and_tokenizer(tmp_path, monkeypatch):
    first = tokenize_once([CONTEXT, "x"], ByteTokenizer())
    monkeypatch.setattr(ByteTokenizer, "encode_with_offsets", None)  # must not be called again
    repeated_tokens = tokenize_once([CONTEXT, "x"], ByteTokenizer())
    for name in ("ids", "spans", "bounds"):
        assert np.array_equal(getattr(first, name), getattr(repeated_tokens, name))
    with pytest.raises(TypeError):
        tokenize_once([CONTEXT + "x"], ByteTokenizer())
    assert len(tokenize_once([CONTEXT, "x"], pieces(tmp_path)).ids) < len(first.ids)


# -- the best spans -------------------------------------------------------------------------------------------------


def best_spans_by_brute_force(start, end, first, past, longest, count):
    """Return every span, sorted by score, as the expected result of the vectorized search."""
    spans = [(start[i] + end[j], i, j) for i in range(first, past) for j in range(i, min(i + longest, past))]
    return sorted(spans, key=lambda span: (-span[0], span[1], span[2]))[:count]


@pytest.mark.parametrize("longest", [1, 2, 3, 7, 8, 50])
def test_the_best_spans_equal_those_of_a_full_search(longest):
    draw = np.random.default_rng(longest)
    start, end = draw.standard_normal((2, 6, 23))
    first, past = draw.integers(0, 8, 6), draw.integers(8, 24, 6)
    firsts, lasts, scores = best_spans(start, end, first, past, longest, 20)
    assert scores.shape == (6, 20)
    for row in range(6):
        expected_spans = best_spans_by_brute_force(start[row], end[row], first[row], past[row], longest, 20)
        found_spans = list(zip(scores[row], firsts[row], lasts[row], strict=True))
        assert found_spans[: len(expected_spans)] == expected_spans
        assert all(np.isinf(score) for score, _, _ in found_spans[len(expected_spans) :])


def rank_answers(examples, scores, threshold=None, length=40, **positions):
    windows = Windows(examples, ByteTokenizer(), length, 4, 9, threshold)
    spans = [np.full((len(windows), 2), -1), np.full((len(windows), 2), -1), np.full((len(windows), 2), -np.inf)]
    no_answer_scores = np.full(len(windows), positions.get("no_answer_score", 0.0))
    for window, rank, first, last, score in scores:
        spans[0][window, rank], spans[1][window, rank], spans[2][window, rank] = first, last, score
    return answers(windows, [*spans, no_answer_scores])


def test_a_question_gets_the_best_answer_of_all_its_windows_once():
    context = "0123456789" * 4
    examples = [make_example(context, "1", "Q")]
    windows = Windows(examples, ByteTokenizer(), 22, 4, 9)
    assert len(windows) >= 2 and windows.offset_of[1] == 2
    shared_token = 2 + 16  # the first token of the second window, in the first
    best_answers = rank_answers(
        examples, [(0, 0, shared_token, shared_token + 2, 1.0), (1, 0, 2, 4, 3.0), (1, 1, 5, 5, 2.0)], length=22
    )[0]
    assert [(item.text, item.start, item.score) for item in best_answers] == [("678", 16, 3.0), ("9", 19, 2.0)]
    assert sum(item.probability for item in best_answers) == pytest.approx(1) and best_answers[0].probability > 0.7


def test_the_empty_answer_is_given_only_beyond_the_threshold():
    examples = [Example("q", "yes or no", "Q", (), ())]
    best = [(0, 0, 2, 4, 5.0)]
    assert rank_answers(examples, best, None, no_answer_score=9.0)[0][0].text == "yes"
    assert rank_answers(examples, best, 3.0, no_answer_score=8.0)[0][0].text == "yes"
    best_answers = rank_answers(examples, best, 3.0, no_answer_score=8.1)[0]
    assert [item.text for item in best_answers] == ["", "yes"]
    assert rank_answers(examples, [], None)[0][0].text == ""


def test_blanks_at_the_ends_of_an_answer_are_not_part_of_it():
    best_answers = rank_answers([Example("q", "so  it is ", "Q", (), ())], [(0, 0, 4, 8, 1.0), (0, 1, 4, 5, 0.5)])[0]
    assert [(item.text, item.start, item.end) for item in best_answers] == [("it", 4, 6)]


# -- real text ------------------------------------------------------------------------------------------------------


@pytest.mark.shared_data
def test_the_answers_of_squad_survive_encoding_and_decoding(shared_data):
    """Test every question of every sixth article, with byte tokens and with the published pieces.

    Byte tokens keep every answer. Pieces lose a few answers that begin or end inside a token, and report them.
    """
    examples = squad.read_examples(shared_data / "squad" / "dev-v1.1.json")
    titles = list(dict.fromkeys(item.context for item in examples))[::6]
    chosen_examples = [item for item in examples if item.context in set(titles)]
    assert len(chosen_examples) > 1500
    model = ReformerTokenizer.from_file(shared_data / "reformer-tokenizer" / "spiece.model")
    for tokenizer, length in ((ByteTokenizer(), 1024), (model, 512)):
        windows = Windows(chosen_examples, tokenizer, length, length // 4, 512)
        reported_ids = {item.id for item, _ in windows.inexact()}
        for item, text in zip(chosen_examples, ideal_answers(windows), strict=True):
            assert text == item.answers[0] or item.id in reported_ids
        assert len(reported_ids) <= (0 if tokenizer is not model else 0.02 * len(chosen_examples))
