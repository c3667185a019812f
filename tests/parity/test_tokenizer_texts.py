"""Test the texts for the comparison of tokenizers: they cover Unicode, and a seed gives the same texts again."""

from __future__ import annotations

import sys
import unicodedata
from dataclasses import replace

from toolkit.parity.inputs.tokenizer_texts import (
    ADVERSARIAL,
    CONTROLS,
    MAX_UNITS,
    WHITE,
    parts_of,
    random_texts,
    texts_of_characters,
)
from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.request.build import DRAWN_TEXTS, job_of
from toolkit.parity.trials.mutation import trial_request


def test_every_control_character_white_space_and_category_is_in_every_position():
    texts = texts_of_characters()
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    for character in every:
        if unicodedata.category(character) in ("Cc", "Zs", "Zl", "Zp") or character.isspace():
            assert character in (*CONTROLS, *WHITE)
    single_characters = [text for text in texts if len(text) == 1]
    missing = {unicodedata.category(character) for character in every} - set(
        map(unicodedata.category, single_characters)
    )
    assert missing == {"Cs"}  # the reference cannot encode a lone surrogate; one of the fixed texts has it
    for character in single_characters:
        assert {character * 2, f" {character} a {character} "} <= set(texts)
        ends = [text for text in texts if text.endswith(f"c{character}")]
        between = [text for text in texts if f"a{character}b" in text]
        special = [text for text in texts if f"</s>{character}<unk>" in text and f"{character}</s> {character}" in text]
        assert ends and between and special
    assert len(texts) == len(set(texts)) < 1000 and max(map(len, texts)) < 60


def test_a_seed_gives_the_same_texts_for_any_number():
    assert random_texts(3, 20) == random_texts(3, 500)[:20] != random_texts(4, 20)
    assert len(set(random_texts(3, 500))) > 400
    joined_texts = "".join(random_texts(3, 500))
    assert sum(character in joined_texts for character in (*CONTROLS, *WHITE)) > 80 and "<unk>" in joined_texts


def test_every_shorter_version_of_a_text_is_tried():
    assert parts_of("a</s>b") == ["a", "</s>", "a</s>", "b", "ab", "</s>b", "a</s>b"]
    for text in random_texts(0, 500):
        assert len(parts_of(text)) < 1 << MAX_UNITS and text in parts_of(text)


def test_random_texts_are_compared_in_addition_to_the_runs_own_and_not_padded():
    own = TokenizerJob("bytes", [f"text {number}" for number in range(100)], max_length=8)
    job = job_of(replace(trial_request("reformer", "random", 5), tokenizer=own)).tokenizer
    assert job.texts == [*own.texts[:64], *ADVERSARIAL, *texts_of_characters(), *random_texts(5, DRAWN_TEXTS)]
    assert [text for text, is_padded in job.numbered_texts() if is_padded] == [*own.texts[:64], *ADVERSARIAL]
