"""Test that the tokenizer verdict covers offsets: a port with shifted offsets is stopped."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from models.reformer import tokenizer
from toolkit.parity.candidate.tokens import tokens
from toolkit.parity.exchange.records import as_json, from_json
from toolkit.parity.exchange.results import CandidateResult, ReferenceResult, Tokens
from toolkit.parity.inputs.tokenizer_texts import ADVERSARIAL, texts_of_characters
from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.judge.findings import Finding
from toolkit.parity.judge.tokens import find_differing_texts
from toolkit.parity.judge.verdict import judge

TEXTS = [
    "The parser's  arguments: 1901–02.",
    "naïve ﬁnal</s>text",
    "e\u0301 日本 ",
    *ADVERSARIAL,
    *texts_of_characters(),
]
REFERENCE = """
import json, sys
from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.exchange.records import as_json, from_json
from toolkit.parity.reference.tokens import tokenize_texts
print(json.dumps(as_json(tokenize_texts(from_json(TokenizerJob, json.loads(sys.stdin.read())), "reformer"))))
"""


@pytest.fixture(scope="module", params=["bytes", "sentencepiece"])
def job(request, tmp_path_factory) -> TokenizerJob:
    """The texts and settings that the gate sends to both sides."""
    path = None
    if request.param == "sentencepiece":
        folder = tmp_path_factory.mktemp("pieces")
        tokenizer.train_sentencepiece(Path(json.__file__).read_text().splitlines(), 300, folder)
        path = str(folder / tokenizer.MODEL_FILE)
    return TokenizerJob(request.param, TEXTS, max_length=16, path=path, offsets=True)


@pytest.fixture(scope="module")
def theirs(job) -> list[Tokens]:
    """The reference's tokens, from a separate process."""
    command = [sys.executable, "-c", REFERENCE]
    process = subprocess.run(command, input=json.dumps(as_json(job)), capture_output=True, text=True, check=False)
    if "No module named" in process.stderr:
        pytest.skip("the reference is not installed (extra: reference)")
    assert process.returncode == 0, process.stderr
    return from_json(list[Tokens], json.loads(process.stdout.splitlines()[-1]))


def find_findings(theirs: list[Tokens], job: TokenizerJob) -> list[Finding]:
    return judge(ReferenceResult(tokens=theirs), CandidateResult(tokens=tokens(job, "reformer"))).findings


def test_the_offsets_equal_the_references_on_adversarial_texts(theirs, job):
    assert find_findings(theirs, job) == []
    # the reference cannot encode the lone surrogate
    assert sum(row.offsets is not None for row in theirs) == len(TEXTS) - 1
    assert [] not in (row.offsets for row in theirs[:3])


@pytest.mark.parametrize("shift", [(1, 1), (0, 1), (-1, 0)])
def test_offsets_that_are_off_by_one_are_caught(theirs, job, monkeypatch, shift):
    original_methods = {
        kind: kind.encode_with_offsets for kind in (tokenizer.ByteTokenizer, tokenizer.ReformerTokenizer)
    }

    def encode_with_shift(self, text):
        ids, spans = original_methods[type(self)](self, text)
        return ids, [(start + shift[0], end + shift[1]) for start, end in spans]

    for kind in original_methods:
        monkeypatch.setattr(kind, "encode_with_offsets", encode_with_shift)
    differences = find_differing_texts(theirs, tokens(job, "reformer"))
    assert list(differences) == ["offsets"] and len(differences["offsets"]) > 500
    # the port may not omit the offsets either
    assert find_findings(theirs, dataclasses.replace(job, offsets=False)) != []


def test_offsets_are_compared_only_if_the_task_uses_them(job):
    assert tokens(dataclasses.replace(job, offsets=False), "reformer")[0].offsets is None


def test_offsets_in_bytes_are_not_accepted_as_characters(theirs, job, monkeypatch):
    """A common fault: correct for English, but wrong behind the first letter that takes two bytes."""
    original_methods = {
        kind: kind.encode_with_offsets for kind in (tokenizer.ByteTokenizer, tokenizer.ReformerTokenizer)
    }

    def encode_in_bytes(self, text):
        ids, spans = original_methods[type(self)](self, text)
        return ids, [tuple(len(text[:place].encode("utf-8", "replace")) for place in span) for span in spans]

    for kind in original_methods:
        monkeypatch.setattr(kind, "encode_with_offsets", encode_in_bytes)
    assert {1, 2} <= set(find_differing_texts(theirs, tokens(job, "reformer"))["offsets"])
