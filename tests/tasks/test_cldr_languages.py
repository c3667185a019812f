"""Test the built-in corpus: it is balanced and repeatable, and no name is in two splits."""

from __future__ import annotations

from collections import Counter

import pytest

from toolkit.tasks.corpora import cldr_languages
from toolkit.tasks.corpora.cldr_languages import LANGUAGES, SEPARATOR, SPLITS, Options


@pytest.fixture(scope="module")
def corpus():
    return cldr_languages.load(Options(train=4, validation=2, test=2))


def names(split_rows) -> set[str]:
    return {name for text in split_rows["text"] for name in text.split(SEPARATOR)}


def test_each_split_has_at_least_forty_languages(corpus):
    assert len(set(LANGUAGES)) == len(LANGUAGES) >= 40
    for split_name, count in (("train", 4), ("validation", 2), ("test", 2)):
        assert corpus[split_name].features["label"].names == list(LANGUAGES)
        assert Counter(corpus[split_name]["label"]) == Counter({label: count for label in range(len(LANGUAGES))})


def test_no_name_is_in_two_splits_in_any_language():
    owner: dict[str, str] = {}
    for code in LANGUAGES:
        for split_name, split_names in cldr_languages.names_by_split(code).items():
            for name in split_names:
                assert owner.setdefault(name.casefold(), split_name) == split_name, name


def test_documents_are_names_of_their_language_and_fit_the_length(corpus):
    for split_name in SPLITS:
        for text, label in zip(corpus[split_name]["text"], corpus[split_name]["label"], strict=True):
            assert 32 <= len(text.encode()) <= 512
            assert text.split(SEPARATOR)
            all_names = SEPARATOR.join(cldr_languages.names_by_split(LANGUAGES[label])[split_name])
            assert all(name in all_names for name in text.split(SEPARATOR))


def test_the_same_options_give_the_same_documents(corpus):
    repeated_corpus = cldr_languages.load(Options(train=4, validation=2, test=2))
    other_seed = cldr_languages.load(Options(train=4, validation=2, test=2, seed=1))
    assert repeated_corpus["train"]["text"][:] == corpus["train"]["text"][:]
    assert other_seed["train"]["text"][:] != corpus["train"]["text"][:]


def test_another_language_does_not_change_the_documents_of_others():
    two = cldr_languages.load(Options(languages=["fi", "et"], train=3))
    three = cldr_languages.load(Options(languages=["fi", "ka", "et"], train=3))
    assert set(two["train"]["text"]) < set(three["train"]["text"])


def test_documents_differ_from_each_other():
    texts = cldr_languages.load(Options(languages=["fi", "et"], train=200))["train"]["text"][:]
    assert len(set(texts)) == 400


@pytest.mark.parametrize(
    ("languages", "expected_error"),
    [
        (["fi", "xx"], "'xx' is not a language"),
        (["fi", "aa"], "'aa' has only"),
        (["fi", "fi"], "listed twice"),
        (["fi", "../etc"], "is not a language"),
    ],
)
def test_a_language_that_cannot_be_used_is_named(languages, expected_error):
    with pytest.raises(ValueError, match=expected_error):
        cldr_languages.load(Options(languages=languages))
