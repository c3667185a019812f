"""The built-in corpus: balanced, repeatable, and no name is in two splits."""

from __future__ import annotations

from collections import Counter

import pytest

from toolkit.tasks.corpora import cldr_languages
from toolkit.tasks.corpora.cldr_languages import LANGUAGES, SEPARATOR, SPLITS, Options


@pytest.fixture(scope="module")
def corpus():
    return cldr_languages.load(Options(train=4, validation=2, test=2))


def names(split) -> set[str]:
    return {name for text in split["text"] for name in text.split(SEPARATOR)}


def test_there_are_forty_languages_or_more_and_each_split_has_all_of_them(corpus):
    assert len(set(LANGUAGES)) == len(LANGUAGES) >= 40
    for split, count in (("train", 4), ("validation", 2), ("test", 2)):
        assert corpus[split].features["label"].names == list(LANGUAGES)
        assert Counter(corpus[split]["label"]) == Counter({label: count for label in range(len(LANGUAGES))})


def test_no_name_is_in_two_splits_in_any_language():
    owner: dict[str, str] = {}
    for code in LANGUAGES:
        for split, found in cldr_languages.names_by_split(code).items():
            for name in found:
                assert owner.setdefault(name.casefold(), split) == split, name


def test_documents_are_names_of_their_language_and_fit_the_length(corpus):
    for split in SPLITS:
        for text, label in zip(corpus[split]["text"], corpus[split]["label"], strict=True):
            assert 32 <= len(text.encode()) <= 512
            assert text.split(SEPARATOR)
            joined = SEPARATOR.join(cldr_languages.names_by_split(LANGUAGES[label])[split])
            assert all(name in joined for name in text.split(SEPARATOR))


def test_the_same_options_give_the_same_documents(corpus):
    again = cldr_languages.load(Options(train=4, validation=2, test=2))
    other = cldr_languages.load(Options(train=4, validation=2, test=2, seed=1))
    assert again["train"]["text"][:] == corpus["train"]["text"][:]
    assert other["train"]["text"][:] != corpus["train"]["text"][:]


def test_one_more_language_changes_no_other_s_documents():
    two = cldr_languages.load(Options(languages=["fi", "et"], train=3))
    three = cldr_languages.load(Options(languages=["fi", "ka", "et"], train=3))
    assert set(two["train"]["text"]) < set(three["train"]["text"])


def test_documents_differ_from_each_other():
    texts = cldr_languages.load(Options(languages=["fi", "et"], train=200))["train"]["text"][:]
    assert len(set(texts)) == 400


@pytest.mark.parametrize(
    ("languages", "expected"),
    [
        (["fi", "xx"], "'xx' is not a language"),
        (["fi", "aa"], "'aa' has only"),
        (["fi", "fi"], "listed twice"),
        (["fi", "../etc"], "is not a language"),
    ],
)
def test_a_language_that_cannot_be_used_is_named(languages, expected):
    with pytest.raises(ValueError, match=expected):
        cldr_languages.load(Options(languages=languages))
