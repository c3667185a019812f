"""Masks that hide nothing on a batch, so that no gate sees a fault in them: told from those that do, and tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from gates import quiet

from toolkit.parity.job.pair import Description, ModuleFacts, PairMap, ParameterFacts, ParameterMatch
from toolkit.parity.judge import notes
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats
from toolkit.parity.mutants import find_mutant
from toolkit.parity.mutants.generic import UNREACHED_BOUND
from toolkit.parity.pairs.describe import Sides, describe_sides
from toolkit.parity.pairs.options import pair_request
from toolkit.parity.trials.mutation import Trial, add_effect
from toolkit.parity.trials.pair_faults import count_untried, faults_of

PAIR = Path(__file__).parents[1] / "pairs" / "masks"


def sides_of(folder: Path, **config: object) -> Sides:
    """Describe both sides of the pair of masks."""
    paths = {"port": str(PAIR / "port.py"), "reference_model": str(PAIR / "reference.py")}
    return describe_sides(pair_request(**paths, model_config=config, seed=0), folder / "job", quiet())


def lines_marked(side: str, mark: str) -> list[int]:
    """Return the numbers of a file's lines that end with a comment."""
    return [n for n, line in enumerate((PAIR / f"{side}.py").read_text().splitlines(), 1) if f"  # {mark}" in line]


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> Sides:
    return sides_of(tmp_path_factory.mktemp("masks"))


@pytest.mark.parametrize("side", ["reference", "port"])
def test_every_mask_of_a_forward_is_seen_and_nothing_that_is_none(sides, side):
    masks = getattr(sides, side).masks
    lines = {
        hides: [int(one.line.rpartition(":")[2]) for one in masks if one.hides == hides] for hides in (True, False)
    }
    assert lines == {True: lines_marked(side, "hides"), False: lines_marked(side, "idle")}
    assert {one.module for one in masks} == {"attention"}
    assert len(lines_marked(side, "no mask")) == 4


def test_a_mask_that_hides_nothing_is_noted_by_line(sides):
    said = [notes.text(one) for one in sides.notes() if one.kind == "masks-idle"]
    for side, text in zip(("reference", "port"), said, strict=True):
        assert text.startswith(f"the {side} makes a mask at ") and "that excludes nothing on this batch" in text
        assert text.count(f"{side}.py:") == len(lines_marked(side, "idle"))


def test_limits_and_choices_without_effect_are_noted_by_line(sides):
    for kind, words in (("limit", "limits whole numbers at "), ("choice", "chooses between two results by ")):
        texts = [notes.text(note) for note in sides.notes() if note.kind == f"{kind}s-idle"]
        for side, text in zip(("reference", "port"), texts, strict=True):
            assert text.startswith(f"the {side} {words}")
            lines = (PAIR / f"{side}.py").read_text().splitlines()
            marked = [number for number, line in enumerate(lines, 1) if re.search(rf"# .*\b{kind}\b", line)]
            assert [int(number) for number in re.findall(rf"{side}\.py:(\d+)", text)] == marked


def test_masks_that_hide_something_are_no_note(tmp_path):
    sides = sides_of(tmp_path, window=3)
    assert not {note.kind for note in sides.notes()} & {"limits-idle", "choices-idle"}
    idle = [one.operator for one in (*sides.port.masks, *sides.reference.masks) if not one.hides]
    assert idle == ["<", "<"]  # of padding, up to the longest text


def test_a_fault_is_made_of_every_mask_and_an_idle_one_is_no_harmless_change(sides):
    faults = [one for one in faults_of(sides) if one.name.startswith("bound-shifted:")]
    sites = {one.site: one for one in sides.port.masks}
    assert [one.name.partition(":")[2] for one in faults] == list(sites)
    assert all(one.culprit == "attention" and not one.harmless for one in faults)
    assert [one.unreached_reason for one in faults] == ["" if one.hides else UNREACHED_BOUND for one in sites.values()]
    assert find_mutant(faults[0].name).name == faults[0].name


@pytest.mark.parametrize("hides", [True, False])
def test_a_bound_that_the_batch_does_not_reach_survives_and_is_not_called_harmless(sides, hides):
    site = next(one.site for one in sides.port.masks if one.hides == hides)
    fault = next(one for one in faults_of(sides) if one.name == f"bound-shifted:{site}")
    truth = {"loss": TensorRecord([1], rms=1.0, noise={"float64": [0.0]})}
    trial = add_effect(Trial(fault, False, "", "", None), {"loss": TensorStats([1], rms=0.0)}, truth)
    assert trial.is_still and trial.passed == hides
    assert trial.mutant.harmless.startswith("no position of the batch lies at the bound") == hides


@pytest.mark.slow
def test_a_trial_catches_every_bound_but_those_that_the_batch_does_not_reach(monkeypatch, command_line):
    monkeypatch.chdir(PAIR)
    status, out, _ = command_line("parity", "mutants", "--port", "port.py", "--reference-model", "reference.py")
    said, idle = " ".join(out.split()), len(lines_marked("port", "idle"))
    caught, faults = map(int, re.search(r"(\d+) of (\d+) faults caught, \1 named", said).groups())
    assert status == 1 and faults - caught == idle and said.count(" NO ") == idle
    assert f"0 of {len(lines_marked('port', 'hides')) + idle} masks" in said


def test_what_no_fault_is_put_into_is_counted(sides):
    assert count_untried(sides, []) == (
        f"no fault at all in {(count := len(sides.port.parameters))} of {count} parameters, "
        f"{(calls := sides.port.num_operations)} of {calls} operations, "
        f"{(masks := len(sides.port.masks))} of {masks} masks"
    )
    sentence = count_untried(sides, faults_of(sides))
    assert sentence.endswith(f", {calls - masks} of {calls} operations, 0 of {masks} masks")
    assert sentence.startswith("no fault at all in 0 of 8 parameters")


def test_a_subclass_of_a_layer_gets_the_faults_of_that_layer_and_a_bilinear_none():
    maps = [ParameterFacts(f"{name}.weight", [8, 8], "linear", True, name, "OwnMap", 0) for name in ("first", "second")]
    maps.append(ParameterFacts("second.bias", [8], "linear", False, "second", "OwnMap", 0))
    pairs = ParameterFacts("both.weight", [8, 8, 8], "linear", False, "both", "Bilinear", 0)
    port = Description([*maps, pairs], [ModuleFacts(name, "OwnMap", (4, 8)) for name in ("first", "second", "both")])
    found = PairMap([ParameterMatch(one.name, one.name) for one in port.parameters], modules={"first": "first"})
    sides = Sides(Description(), port, found, {})
    names = {one.name for one in faults_of(sides)}
    assert {"no-bias:second", "swapped:first+second", "transposed:first", "transposed:second"} <= names
    assert not any("both" in name for name in names)
    assert count_untried(sides, faults_of(sides)).startswith("no fault at all in 1 of 4 parameters")
