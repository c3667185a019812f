"""The texts on which tokenizers are compared: nothing that Unicode has is missing, and a seed draws the same again."""

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


def test_every_control_and_white_space_and_category_stands_in_every_place():
    texts = texts_of_characters()
    every = [chr(code) for code in range(sys.maxunicode + 1)]
    for character in every:
        if unicodedata.category(character) in ("Cc", "Zs", "Zl", "Zp") or character.isspace():
            assert character in (*CONTROLS, *WHITE)
    alone = [text for text in texts if len(text) == 1]
    missing = {unicodedata.category(character) for character in every} - set(map(unicodedata.category, alone))
    assert missing == {"Cs"}  # the reference cannot encode it; one of the texts by hand has it
    for character in alone:
        assert {character * 2, f" {character} a {character} "} <= set(texts)
        ends = [text for text in texts if text.endswith(f"c{character}")]
        between = [text for text in texts if f"a{character}b" in text]
        special = [text for text in texts if f"</s>{character}<unk>" in text and f"{character}</s> {character}" in text]
        assert ends and between and special
    assert len(texts) == len(set(texts)) < 1000 and max(map(len, texts)) < 60


def test_a_seed_draws_the_same_texts_however_many():
    assert random_texts(3, 20) == random_texts(3, 500)[:20] != random_texts(4, 20)
    assert len(set(random_texts(3, 500))) > 400
    joined = "".join(random_texts(3, 500))
    assert sum(character in joined for character in (*CONTROLS, *WHITE)) > 80 and "<unk>" in joined


def test_all_that_can_be_left_of_a_drawn_text_is_tried():
    assert parts_of("a</s>b") == ["a", "</s>", "a</s>", "b", "ab", "</s>b", "a</s>b"]
    for text in random_texts(0, 500):
        assert len(parts_of(text)) < 1 << MAX_UNITS and text in parts_of(text)


def test_a_gate_compares_them_beside_the_run_s_own_and_pads_only_these_and_those_by_hand():
    own = TokenizerJob("bytes", [f"text {number}" for number in range(100)], max_length=8)
    job = job_of(replace(trial_request("reformer", "random", 5), tokenizer=own)).tokenizer
    assert job.texts == [*own.texts[:64], *ADVERSARIAL, *texts_of_characters(), *random_texts(5, DRAWN_TEXTS)]
    assert [text for text, padded in job.numbered_texts() if padded] == [*own.texts[:64], *ADVERSARIAL]
