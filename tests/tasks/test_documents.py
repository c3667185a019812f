"""Test the blocks of texts with control codes: no text is lost, repeated or in two splits."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter

import numpy as np
import pytest

from toolkit.data.batches import collate
from toolkit.tasks.corpora import python_docs
from toolkit.tasks.language_modeling import task as language_modeling
from toolkit.tasks.language_modeling.documents import (
    Blocks,
    cut_text,
    divide_documents,
    documents_of,
    log_frequencies,
)


def make_prose(paragraphs: int, seed: int = 0) -> str:
    draws = random.Random(seed)
    return "".join(
        " ".join(draws.choice(("one", "two", "three")) for _ in range(draws.randint(1, 90)))
        + draws.choice(("\n\n", "\n \n", "\n\n\n\n"))
        for _ in range(paragraphs)
    )


def test_the_documents_of_a_text_join_to_the_text():
    text = make_prose(300)
    documents = cut_text(text, 1000)
    assert "".join(documents) == text and len(documents) > 20
    assert all(len(document) >= 1000 for document in documents[:-1])
    assert all(document.endswith("\n") for document in documents[:-1])


def test_a_text_without_blank_lines_is_cut_at_its_lines():
    lines = "\n".join(f"line {number} of a text" for number in range(500))
    documents = documents_of(lines, 1000)
    assert "".join(documents) == lines and len(documents) > 5
    assert all(document.endswith("\n") and len(document) < 1030 for document in documents[:-1])
    assert documents_of(make_prose(300), 1000) == cut_text(make_prose(300), 1000)
    lines *= 2
    documents = documents_of(f"{make_prose(30)}{lines}\n\n{make_prose(30)}", 1000)
    assert "".join(documents) == f"{make_prose(30)}{lines}\n\n{make_prose(30)}" and max(map(len, documents)) < 2000


@pytest.mark.parametrize("text", ["", "one line", "\n\n", "a\n\nb", "a\n\n\n\n", "x" * 9000])
def test_short_and_odd_texts_are_cut_without_loss(text):
    assert "".join(cut_text(text, 10)) == "".join(documents_of(text, 10)) == text


@pytest.mark.parametrize(("share", "count"), [(0.01, 1), (0.17, 3), (0.18, 4), (0.2, 4), (0.23, 5)])
def test_a_document_belongs_to_a_split_with_at_least_half_of_it(share, count):
    """Test twenty documents of 100 characters."""
    texts = [f"{number:<100}" for number in range(20)]
    places = divide_documents({"text": texts, "control": [""] * 20}, {"validation": share}, seed=0)
    assert {split_name: len(indices) for split_name, indices in places.items()} == {
        "train": 20 - count,
        "validation": count,
    }


def test_every_document_is_in_one_split_and_each_code_gives_its_share():
    texts = [f"{code} {number} " * 20 for code, count in (("A", 200), ("B", 50)) for number in range(count)]
    codes = ["A"] * 200 + ["B"] * 50
    rows = {"text": texts, "control": codes}
    places = divide_documents(rows, {"validation": 0.1, "test": 0.2}, seed=1)
    assert sorted(place for indices in places.values() for place in indices) == list(range(250))
    for split_name, share in (("validation", 0.1), ("test", 0.2)):
        for code, count in Counter(codes).items():
            assert sum(codes[place] == code for place in places[split_name]) == pytest.approx(share * count, abs=2)
    assert places == divide_documents(rows, {"validation": 0.1, "test": 0.2}, seed=1)
    assert places != divide_documents(rows, {"validation": 0.1, "test": 0.2}, seed=2)


def test_equal_documents_are_in_the_same_split():
    texts = [f"text {number % 10} " * 9 for number in range(100)]
    places = divide_documents({"text": texts, "control": ["A"] * 100}, {"validation": 0.3}, seed=0)
    held_out = {texts[place] for place in places["validation"]}
    assert held_out and not held_out & {texts[place] for place in places["train"]}


def test_a_code_with_too_little_text_for_every_split_is_named():
    with pytest.raises(ValueError, match="B has 2 documents, too few for train, validation, test"):
        divide_documents({"text": [*"abcde"], "control": [*"AAABB"]}, {"validation": 0.1, "test": 0.1}, seed=0)


@pytest.mark.parametrize("lengths", [(7, 1), (6, 12), (13, 5), (1, 30), (0, 4)])
def test_blocks_hold_every_token_once_and_begin_with_their_code(lengths):
    draws = np.random.default_rng(0)
    streams = {code: draws.integers(5, 50, length) for code, length in zip("AB", lengths, strict=True)}
    blocks = Blocks(streams, {"A": 1, "B": 2}, 7, pad_token_id=0)
    assert len(blocks) == sum(math.ceil(length / 6) for length in lengths) and blocks.tokens == sum(lengths)
    batch = collate([blocks[index] for index in range(len(blocks))])
    assert all(value.dtype == np.int64 and value.shape == (len(blocks), 7) for value in batch.values())
    for index, (code, stream) in enumerate(streams.items()):
        rows = blocks.code_of == index
        assert (batch["input_ids"][rows, 0] == index + 1).all()
        keep_mask = batch["attention_mask"][rows, 1:] == 1
        np.testing.assert_array_equal(batch["input_ids"][rows, 1:][keep_mask], stream)  # block after block: the stream
        np.testing.assert_array_equal(blocks.stream(code), stream)
        np.testing.assert_array_equal(batch["labels"][rows, 1:][keep_mask], stream)
        assert (batch["labels"][rows, 1:][~keep_mask] == -100).all() and (
            batch["input_ids"][rows, 1:][~keep_mask] == 0
        ).all()
    assert language_modeling.num_loss_terms(batch) == sum(lengths)  # each token is predicted once, the code never


def test_the_perplexity_of_frequencies_is_known_for_a_fair_coin():
    coin = Blocks({"A": [0, 1] * 4000}, {"A": 2}, 9, 0)
    surprise_of_token = -log_frequencies(coin.stream("A"), 3)
    for blocks, perplexity in ((coin, 2), (Blocks({"A": [2, 2]}, {"A": 2}, 9, 0), 8003)):
        surprises = {"validation": surprise_of_token[blocks.predicted_tokens()]}
        baseline = language_modeling._measure_surprises(surprises, {"validation": blocks})
        assert baseline.metrics["validation"]["perplexity"] == pytest.approx(perplexity, rel=1e-3)


def test_the_python_documentation_repeats_no_paragraph_and_loses_none():
    sections = python_docs.sections()
    paragraphs = Counter(
        words
        for text, _ in sections
        for paragraph in text.split("\n\n")
        if len(words := " ".join(paragraph.split())) >= python_docs.SHORT_PARAGRAPH
    )
    assert max(paragraphs.values()) == 1
    original = {
        words
        for text in python_docs.topics.values()
        for paragraph in python_docs.re.split(r"\n{2,}", text)
        if len(words := " ".join(paragraph.split())) >= 200
    }
    missing = [words for words in original if words not in paragraphs]
    assert len(original) > 500 and not missing
    assert {chapter for _, chapter in sections} >= set(python_docs.CHAPTERS)
    assert sum(len(text) for text, _ in sections) > 300_000


def test_a_missing_chapter_is_named():
    with pytest.raises(ValueError, match="Poems given; the chapters are Statements"):
        python_docs.load(python_docs.Options(chapters=["Objects", "Poems"]))
    assert set(python_docs.load(python_docs.Options(chapters=["Types"]))["train"]["control"]) == {"Types"}


@pytest.mark.parametrize(("count", "length", "padded_length"), [(2, 2, 2), (7, 4, 4), (100, 10, 16), (101, 11, 11)])
def test_without_control_codes_every_token_but_the_first_is_predicted_once(count, length, padded_length):
    stream = list(range(1000, 1000 + count))
    blocks = Blocks({"": stream, "b": stream[::-1]}, None, length, 0, padded_length)
    assert blocks.stream("").tolist() == stream and blocks.stream("b").tolist() == stream[::-1]
    assert blocks.tokens == 2 * (count - 1)
    pairs = []
    for block in (blocks[index] for index in range(len(blocks)) if blocks.code_of[index] == 0):
        assert block["input_ids"].shape == (padded_length,) and block["attention_mask"].sum() <= length
        assert (block["labels"][block["attention_mask"] == 0] == -100).all()
        block_tokens = block["input_ids"][block["attention_mask"] == 1]
        pairs += itertools.pairwise(block_tokens.tolist())
    assert pairs == [*itertools.pairwise(stream)]
