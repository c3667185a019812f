"""The built-in question answering corpus: exact spans, repeatable, and nothing is spoken of in two splits."""

from __future__ import annotations

import pytest

from toolkit import cldr_facts
from toolkit.cldr_facts import SPLITS, Options, facts_by_split, load


@pytest.fixture(scope="module")
def corpus():
    return load(Options(train=200, validation=40, test=40))


def test_every_answer_stands_where_it_says_and_only_one_sentence_answers(corpus):
    for split in SPLITS:
        for row in corpus[split]:
            (text,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
            assert row["context"][start : start + len(text)] == text
    assert len({row["id"] for split in SPLITS for row in corpus[split]}) == 280


def test_no_subject_is_spoken_of_in_two_splits(corpus):
    known = facts_by_split()
    for split in SPLITS:
        assert len(known[split]) > 100
        assert not any(set(known[split]) & set(known[other]) for other in SPLITS if other != split)
        for row in corpus[split]:
            assert any(name in row["question"] for name in known[split])


def test_neither_the_subject_alone_nor_the_kind_alone_finds_the_answer(corpus):
    """With two subjects, most questions have a rival sentence on the other subject that is of the kind asked for."""
    known = facts_by_split()["train"]
    rivals = 0
    for row in corpus["train"]:
        about = [name for name in known if name in row["context"]]
        languages = [kind for name in about for kind in known[name] if kind in row["question"]]
        rivals += any(row["context"].count(f"in {kind}") + row["context"].count(f"In {kind}") > 1 for kind in languages)
    assert rivals > 100


def test_the_same_options_give_the_same_questions_and_another_seed_others(corpus):
    again = load(Options(train=200, validation=40, test=40))
    other = load(Options(train=200, validation=40, test=40, seed=1))
    assert again["train"][:] == corpus["train"][:]
    assert other["train"]["question"][:] != corpus["train"]["question"][:]
    assert load(Options(train=10, validation=2, test=2))["train"][:] == corpus["train"][:10]


def test_unanswerable_questions_have_no_answer_in_their_context():
    rows = load(Options(train=200, validation=2, test=2, unanswerable=0.5))["train"]
    empty = [row for row in rows if not row["answers"]["text"]]
    assert 60 < len(empty) < 140
    known = facts_by_split()["train"]
    for row in empty:
        names = [name for name in known if row["question"].endswith(f" {name}?") or f" {name} " in row["question"]]
        kinds = [kind for kind in known[names[0]] if kind in row["question"] and kind[0].isupper()] if names else []
        for kind in kinds:
            said = (f"In {kind}, {names[0]} is ", f"{names[0]} is {known[names[0]][kind]} in {kind}.")
            assert not any(sentence in row["context"] for sentence in said)


def test_facts_are_those_that_unicode_records():
    known = {name: facts for split in facts_by_split().values() for name, facts in split.items()}
    finland = known["Finland"]
    assert finland["German"] == "Finnland" and finland["code"] == "FI"
    assert (finland["currency"], finland["former"], finland["since"]) == ("Euro", "Finnish Markka", "1 January 1999")
    assert finland["language"] == "Finnish"
    assert "Finnish" not in finland or finland["Finnish"] == "Suomi"
    assert cldr_facts.PHRASES.keys() >= {"currency", "since", "former", "language", "second_language", "zone", "code"}
