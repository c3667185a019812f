"""Test the first lines of a report.

They name a module, an operation, a head, a loss, an update, or the recomputing backward.
"""

from __future__ import annotations

import re

import pytest
from gates import ROOT

from models.ctrl.config import CTRLConfig
from models.ctrl.modeling import CTRLModel
from models.families import FAMILIES, part
from toolkit.parity.candidate.places import head_places, places
from toolkit.parity.exchange.results import Place
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.followup.trace import FaultyOp, OperationTrace
from toolkit.parity.judge.bounds import Comparison
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.report.headline import choose_headline

PLACES = {
    "a": Place("LayerNorm", "m.py:1"),
    "loss": Place("losses.of_all", "losses.py:2"),
    "logits": Place("Model.forward", "m.py:3"),
    "updated": Place("adamw", "optimizer.py:4"),
    "trained": Place("the Trainer's loop", "trainer.py:5"),
    "recomputed": Place("layers that are computed again", "m.py:5"),
    "plain": Place("the layers under plain autograd", "m.py:7"),
    "a.table": Place("position_table", "m.py:6"),
    "narrowed": Place("Layer.forward", "m.py:8"),
    "unpadded": Place("equivalent_length", "m.py:9"),
}


def make_comparison(name: str, is_passed: bool) -> Comparison:
    return Comparison(name, "float64", 0.0 if is_passed else 2.0, 1.0, 0.0, 1.0, 0.0, True)


def find_headline(finding: Finding, verdict: Verdict | None = None, trace: OperationTrace | None = None):
    return choose_headline(finding, verdict or Verdict(findings=[finding]), trace, PLACES, ["a.weight"])


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("output:a", "a (LayerNorm, m.py:1)"),
        ("gradient:a.weight", "a (LayerNorm, m.py:1)"),
        ("loss", "loss (losses.of_all, losses.py:2)"),
        ("loss#2", "loss#2 (losses.of_all, losses.py:2)"),
        ("logits", "logits (Model.forward, m.py:3)"),
        ("parameter:a.table", "a.table (position_table, m.py:6)"),
        ("output:b", "output:b"),
        ("evaluation/output:a", "a (LayerNorm, m.py:1)"),
        ("narrowed/logits", "what the head does not read and the last layer leaves out: Layer.forward (m.py:8)"),
        ("unpadded/logits", "the padding that is left out: equivalent_length (m.py:9)"),
    ],
)
def test_a_tensor_has_the_location_of_its_computation(name, place):
    expected_message = f"in evaluation mode ({name}): off" if "/" in name else "off"
    assert find_headline(Finding("semantics", name, "off", "float64")) == (place, expected_message)


def test_an_operation_that_is_wrong_in_isolation_is_named_first():
    finding = Finding("semantics", "gradient:b.weight", "off by much", "float64")
    for operation, where in (
        ("gradient:input:a", "the backward of a (m.py:1)"),
        ("scores:a", "scores of a (m.py:1)"),
        ("output:a", "a (LayerNorm, m.py:1)"),
    ):
        trace = OperationTrace(1, faulty=[FaultyOp(operation, "m.py:1", "float64", "off by 1")])
        place, message = find_headline(finding, trace=trace)
        assert place == where
        assert message == "off by 1, by itself; in the free run it first shows in gradient:b.weight: off by much"
    of_loss = OperationTrace(1, faulty=[FaultyOp("loss", "losses.py:2", "float64", "off by 1")])
    place, message = find_headline(Finding("semantics", "loss", "off by much", "float64"), trace=of_loss)
    assert (place, message) == ("loss (losses.of_all, losses.py:2)", "off by 1, by itself")


def test_the_recomputing_backward_is_named_with_its_code():
    finding = Finding("recomputed", "gradient:a.weight", "off", "float64")
    place, message = find_headline(
        finding, Verdict(findings=[finding], plain=[make_comparison("gradient:a.weight", True)])
    )
    assert place == "layers that are computed again (m.py:5)" and message == "gradient:a.weight: off"
    place, _ = find_headline(finding, Verdict(findings=[finding], plain=[make_comparison("gradient:a.weight", False)]))
    assert place == "the layers under plain autograd (m.py:7)"


PARAMETERS = ("a.weight", "a.bias", "b.bias")


@pytest.mark.parametrize(
    ("number", "wrong_names", "summary"),
    [
        (1, PARAMETERS, "all 3 of 3 parameters are wrong; "),
        (1, PARAMETERS[:1], "1 of 3 parameters are wrong, those that weight decay applies to; "),
        (1, PARAMETERS[1:], "2 of 3 parameters are wrong, those it spares; "),
        (1, PARAMETERS[:2], "2 of 3 parameters are wrong; "),
        (2, PARAMETERS, "all 3 of 3 parameters are wrong, none after the update before; "),
    ],
)
def test_an_update_is_named_with_its_number_and_its_wrong_parameters(number, wrong_names, summary):
    suffix = "" if number == 1 else f"#{number}"
    findings = [Finding("semantics", f"updated:{name}{suffix}", "off", "float64") for name in wrong_names]
    comparisons = [
        make_comparison(f"updated:{name}{end}", name not in wrong_names or end != suffix)
        for end in ("", "#2", "#3")
        for name in PARAMETERS
    ]
    place, message = find_headline(findings[0], Verdict(comparisons, findings=findings))
    assert place == f"update {number} of the parameters: adamw (optimizer.py:4)"
    assert message == f"{summary}{findings[0].name}: off"


def test_the_inputs_of_a_forward_have_a_line_in_the_training_loop():
    place, message = find_headline(Finding("semantics", "trained:attention_mask#2", "off", "float64"))
    assert place == "what the forwards of a batch are given: the Trainer's loop (trainer.py:5)"
    assert message == "not what the examples have; trained:attention_mask#2: off"


def test_a_module_of_a_list_has_the_line_of_the_list():
    places_by_name = places(CTRLModel(CTRLConfig(**CTRL_TRIAL)))
    creation_line, _, class_line = places_by_name["h.0.ffn.1"].where.partition(", class at ")
    assert creation_line == places_by_name["h.0.ffn"].where and "self.ffn = " in read_source_line(creation_line)
    assert read_source_line(class_line).startswith("class ReLU")
    assert read_source_line(places_by_name["h.0"].where.removeprefix("class at ")).startswith("class EncoderLayer")


@pytest.mark.parametrize("model", FAMILIES)
def test_scores_and_loss_of_every_head_have_a_source_line(model):
    for kind in part(model, "modeling").CLASSES.values():
        places_by_name = head_places(kind)
        scores = places_by_name.keys() - {"loss"}
        assert scores in ({"logits"}, {"start_logits", "end_logits"})
        for name in scores:
            assert re.search(rf"\b{name}\b.* = ", read_source_line(places_by_name[name].where))
        definition_line, call_line = places_by_name["loss"].where.split(", called at ")
        function = places_by_name["loss"].kind.removeprefix("losses.")
        assert read_source_line(definition_line).startswith(
            f"def {function}("
        ) and f"losses.{function}(" in read_source_line(call_line)


def read_source_line(source_location: str) -> str:
    file, _, number = source_location.partition(":")
    return (ROOT / file).read_text().splitlines()[int(number) - 1]
