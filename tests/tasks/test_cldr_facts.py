"""Test the built-in question answering corpus: exact and repeatable spans, and no subject in two splits."""

from __future__ import annotations

import numpy as np
import pytest

from toolkit.tasks.corpora import cldr_facts
from toolkit.tasks.corpora.cldr_facts import SPLITS, Options, facts_by_split, load


@pytest.fixture(scope="module")
def corpus():
    return load(Options(train=200, validation=40, test=40))


def test_every_answer_is_at_its_position_and_only_one_sentence_answers(corpus):
    for split_name in SPLITS:
        for row in corpus[split_name]:
            (text,), (start,) = row["answers"]["text"], row["answers"]["answer_start"]
            assert row["context"][start : start + len(text)] == text
    assert len({row["id"] for split_name in SPLITS for row in corpus[split_name]}) == 280


def test_no_territory_occurs_in_two_splits_in_any_language():
    """Compare the codes of territories, which are facts in every language."""
    codes = {
        split_name: {facts["code"] for subjects in languages.values() for facts in subjects.values()}
        for split_name, languages in facts_by_split().items()
    }
    assert all(len(codes[split_name]) > 30 for split_name in SPLITS)
    assert not any(
        codes[split_name] & codes[other_name]
        for split_name in SPLITS
        for other_name in SPLITS
        if other_name != split_name
    )


def test_each_context_is_drawn_from_the_facts_of_its_split(corpus):
    for split_name, languages in facts_by_split().items():
        names = {name for subjects in languages.values() for name in subjects}
        for row in corpus[split_name]:
            assert any(name in row["question"] and name in row["context"] for name in names)


def test_most_questions_have_a_rival_of_the_same_kind():
    """Check questions about dates: most contexts have several dates, so the kind of fact does not give the answer."""
    examples = load(Options(train=200, validation=1, test=1, territories=6))["train"]
    date_questions = [row for row in examples if "introduced" in row["question"]]
    statements = [row["context"].count("introduced") for row in date_questions]
    assert len(date_questions) > 5 and np.mean([count > 1 for count in statements]) > 0.6


def test_the_same_options_give_the_same_questions_and_another_seed_others(corpus):
    repeated_corpus = load(Options(train=200, validation=40, test=40))
    other_seed = load(Options(train=200, validation=40, test=40, seed=1))
    assert repeated_corpus["train"][:] == corpus["train"][:]
    assert other_seed["train"]["question"][:] != corpus["train"]["question"][:]
    assert load(Options(train=10, validation=2, test=2))["train"][:] == corpus["train"][:10]


def test_unanswerable_questions_have_no_answer_in_their_context():
    rows = load(Options(train=200, validation=2, test=2, unanswerable=0.5))["train"]
    empty = [row for row in rows if not row["answers"]["text"]]
    assert 60 < len(empty) < 140
    for row in empty:
        subject = row["question"].removeprefix("What is the code of ").removesuffix("?")
        assert f"The code of {subject} is" not in row["context"]
        assert f"is the code of {subject}." not in row["context"]


def test_facts_equal_those_of_unicode():
    subjects_by_language = {
        language: subjects for split_name in facts_by_split().values() for language, subjects in split_name.items()
    }
    by_code = {
        (language, facts["code"]): (name, facts)
        for languages in facts_by_split().values()
        for language, subjects in languages.items()
        for name, facts in subjects.items()
    }
    assert len(subjects_by_language) == len(cldr_facts.LANGUAGES)
    name, facts = by_code["de", "FI"]
    assert name == "Finnland" and facts["english"] == "Finland"
    assert (facts["currency"], facts["former"], facts["since"]) == ("Euro", "Finnische Mark", "1. Januar 1999")
    assert facts["language"] == "Finnisch"
