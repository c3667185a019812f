"""The tokenizer verdict covers offsets: the port's are the reference's, and a shifted one stops the run."""

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
    """What the gate asks of both sides."""
    path = None
    if request.param == "sentencepiece":
        folder = tmp_path_factory.mktemp("pieces")
        tokenizer.train_sentencepiece(Path(json.__file__).read_text().splitlines(), 300, folder)
        path = str(folder / tokenizer.MODEL_FILE)
    return TokenizerJob(request.param, TEXTS, max_length=16, path=path, offsets=True)


@pytest.fixture(scope="module")
def theirs(job) -> list[Tokens]:
    """The reference's answer, from a process of its own."""
    command = [sys.executable, "-c", REFERENCE]
    done = subprocess.run(command, input=json.dumps(as_json(job)), capture_output=True, text=True, check=False)
    if "No module named" in done.stderr:
        pytest.skip("the reference is not installed (extra: reference)")
    assert done.returncode == 0, done.stderr
    return from_json(list[Tokens], json.loads(done.stdout.splitlines()[-1]))


def findings(theirs: list[Tokens], job: TokenizerJob) -> list[Finding]:
    return judge(ReferenceResult(tokens=theirs), CandidateResult(tokens=tokens(job, "reformer"))).findings


def test_the_offsets_are_the_reference_s_on_the_adversarial_texts_too(theirs, job):
    assert findings(theirs, job) == []
    assert sum(row.offsets is not None for row in theirs) == len(TEXTS) - 1  # it cannot encode the lone surrogate
    assert [] not in (row.offsets for row in theirs[:3])


@pytest.mark.parametrize("shift", [(1, 1), (0, 1), (-1, 0)])
def test_offsets_that_are_off_by_one_are_caught(theirs, job, monkeypatch, shift):
    right = {kind: kind.encode_with_offsets for kind in (tokenizer.ByteTokenizer, tokenizer.ReformerTokenizer)}

    def shifted(self, text):
        ids, spans = right[type(self)](self, text)
        return ids, [(start + shift[0], end + shift[1]) for start, end in spans]

    for kind in right:
        monkeypatch.setattr(kind, "encode_with_offsets", shifted)
    caught = find_differing_texts(theirs, tokens(job, "reformer"))
    assert list(caught) == ["offsets"] and len(caught["offsets"]) > 500
    assert findings(theirs, dataclasses.replace(job, offsets=False)) != []  # nor may the port leave them away


def test_offsets_are_compared_only_where_the_task_uses_them(job):
    assert tokens(dataclasses.replace(job, offsets=False), "reformer")[0].offsets is None


def test_offsets_in_bytes_are_not_taken_for_characters(theirs, job, monkeypatch):
    """The usual fault: right on English, wrong behind the first letter that takes two bytes."""
    right = {kind: kind.encode_with_offsets for kind in (tokenizer.ByteTokenizer, tokenizer.ReformerTokenizer)}

    def in_bytes(self, text):
        ids, spans = right[type(self)](self, text)
        return ids, [tuple(len(text[:place].encode("utf-8", "replace")) for place in span) for span in spans]

    for kind in right:
        monkeypatch.setattr(kind, "encode_with_offsets", in_bytes)
    assert {1, 2} <= set(find_differing_texts(theirs, tokens(job, "reformer"))["offsets"])
