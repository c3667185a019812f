"""Test the gate of a token classification head, whose reference is the head of transformers' other models.

Each fault of this head, and of a language model that generates token by token, is named.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from gates import ROOT, TINY_REFORMER, quiet, reformer_request

from models.families import FAMILIES
from models.files.another_python import clean_environment
from toolkit.parity.mutants import catalogue, faults_of_heads, find_mutant
from toolkit.parity.trials.mutation import faults_of, head_trials, try_mutants

HEADS = ("token_classification", "causal_lm")
#: Program that compares both heads on the same hidden states and the same draws of dropout.
COMPARE_HEADS = """
import torch
from transformers import BertConfig, BertForTokenClassification, ReformerConfig
from transformers.modeling_outputs import BaseModelOutput
from toolkit.parity.families.reformer.reference import ReformerForTokenClassification

torch.manual_seed(0)
states = torch.randn(3, 16, 64)
shared = {"num_labels": 5, "hidden_dropout_prob": 0.3, "vocab_size": 20}
theirs = BertForTokenClassification(BertConfig(**shared, hidden_size=64, num_attention_heads=2, num_hidden_layers=1))
ours = ReformerForTokenClassification(
    ReformerConfig(**shared, hidden_size=32, attn_layers=["local"], axial_pos_embds=False)
)
ours.classifier.load_state_dict(theirs.classifier.state_dict())

class Body(torch.nn.Module):
    def forward(self, *args, **options):
        return BaseModelOutput(last_hidden_state=states)

theirs.bert = ours.reformer = Body()
ids, labels = torch.zeros(3, 16, dtype=torch.int64), torch.randint(0, 5, (3, 16))
labels[0, 4:] = labels[2] = -100
for training in (True, False):
    found = []
    for model in (ours.train(training), theirs.train(training)):
        torch.manual_seed(1)
        model.zero_grad()
        output = model(ids, attention_mask=ids, labels=labels)
        output.loss.backward()
        found.append((output.loss, output.logits, model.classifier.weight.grad, model.classifier.bias.grad))
    assert all(torch.equal(one, other) for one, other in zip(*found))
assert ours.dropout.p == 0.3
"""


@pytest.mark.slow
def test_the_reference_equals_transformers_head_of_bert():
    process = subprocess.run(
        [sys.executable, "-c", COMPARE_HEADS], cwd=ROOT, env=clean_environment(), capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr[-2000:]


def make_trial(head):
    config = TINY_REFORMER if head == "causal_lm" else {**TINY_REFORMER, "attn_layers": ["local"]}
    (request,) = (trial for trial in head_trials(reformer_request(config, dtypes=("float64",))) if trial.head == head)
    return request


@pytest.mark.parametrize("head", HEADS)
def test_the_trial_has_the_head_and_faults_with_unique_names(head):
    assert make_trial(head).head == head and faults_of(make_trial(head)) == faults_of_heads("reformer")[head]
    other_names = {mutant.name for family in FAMILIES for mutant in catalogue(family)}
    assert not other_names & {mutant.name for mutant in faults_of(make_trial(head))}
    assert all(find_mutant(mutant.name) == mutant for mutant in faults_of(make_trial(head)))


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_every_fault_of_the_head_is_caught_and_named(head):
    results = try_mutants(make_trial(head), quiet())
    assert [result.mutant for result in results] == list(faults_of_heads("reformer")[head])
    assert [(result.mutant.name, result.culprit, result.operation) for result in results if not result.passed] == []
