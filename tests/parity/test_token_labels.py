"""The gate of a head that labels tokens: its reference is the head of transformers' other models. Each fault of it, and
of a language model that goes on token by token, is named."""

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
#: Both heads read the same hidden states of the body, at the same draws of dropout.
COMPARED = """
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
def test_the_reference_is_the_head_that_transformers_has_for_bert():
    done = subprocess.run(
        [sys.executable, "-c", COMPARED], cwd=ROOT, env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def trial(head):
    config = TINY_REFORMER if head == "causal_lm" else {**TINY_REFORMER, "attn_layers": ["local"]}
    (request,) = (one for one in head_trials(reformer_request(config, dtypes=("float64",))) if one.head == head)
    return request


@pytest.mark.parametrize("head", HEADS)
def test_the_trial_has_the_head_and_its_faults_have_names_of_their_own(head):
    assert trial(head).head == head and faults_of(trial(head)) == faults_of_heads("reformer")[head]
    others = {mutant.name for family in FAMILIES for mutant in catalogue(family)}
    assert not others & {mutant.name for mutant in faults_of(trial(head))}
    assert all(find_mutant(mutant.name) == mutant for mutant in faults_of(trial(head)))


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_every_fault_of_the_head_is_caught_and_named(head):
    found = try_mutants(trial(head), quiet())
    assert [one.mutant for one in found] == list(faults_of_heads("reformer")[head])
    assert [(one.mutant.name, one.culprit, one.operation) for one in found if not one.passed] == []
