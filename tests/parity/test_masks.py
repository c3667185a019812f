"""Test masks that hide nothing on a batch, so that the gate cannot see a fault in them: they are noted and tried."""

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


def describe_mask_sides(folder: Path, **config: object) -> Sides:
    """Describe both sides of the pair of masks."""
    paths = {"port": str(PAIR / "port.py"), "reference_model": str(PAIR / "reference.py")}
    return describe_sides(pair_request(**paths, model_config=config, seed=0), folder / "job", quiet())


def find_marked_lines(side: str, mark: str) -> list[int]:
    """Return the numbers of a file's lines that end with a comment."""
    return [n for n, line in enumerate((PAIR / f"{side}.py").read_text().splitlines(), 1) if f"  # {mark}" in line]


@pytest.fixture(scope="module")
def sides(tmp_path_factory) -> Sides:
    return describe_mask_sides(tmp_path_factory.mktemp("masks"))


@pytest.mark.parametrize("side", ["reference", "port"])
def test_exactly_the_masks_of_a_forward_are_found(sides, side):
    masks = getattr(sides, side).masks
    lines = {
        hides: [int(mask.line.rpartition(":")[2]) for mask in masks if mask.hides == hides] for hides in (True, False)
    }
    assert lines == {True: find_marked_lines(side, "hides"), False: find_marked_lines(side, "idle")}
    assert {mask.module for mask in masks} == {"attention"}
    assert len(find_marked_lines(side, "no mask")) == 4


def test_a_mask_that_hides_nothing_is_noted_by_line(sides):
    idle_notes = [notes.text(note) for note in sides.notes() if note.kind == "masks-idle"]
    for side, text in zip(("reference", "port"), idle_notes, strict=True):
        assert text.startswith(f"the {side} makes a mask at ") and "that excludes nothing on this batch" in text
        assert text.count(f"{side}.py:") == len(find_marked_lines(side, "idle"))


def test_limits_and_choices_without_effect_are_noted_by_line(sides):
    for kind, description in (("limit", "limits whole numbers at "), ("choice", "chooses between two results by ")):
        texts = [notes.text(note) for note in sides.notes() if note.kind == f"{kind}s-idle"]
        for side, text in zip(("reference", "port"), texts, strict=True):
            assert text.startswith(f"the {side} {description}")
            lines = (PAIR / f"{side}.py").read_text().splitlines()
            marked_lines = [number for number, line in enumerate(lines, 1) if re.search(rf"# .*\b{kind}\b", line)]
            assert [int(number) for number in re.findall(rf"{side}\.py:(\d+)", text)] == marked_lines


def test_masks_that_hide_something_give_no_note(tmp_path):
    sides = describe_mask_sides(tmp_path, window=3)
    assert not {note.kind for note in sides.notes()} & {"limits-idle", "choices-idle"}
    idle = [mask.operator for mask in (*sides.port.masks, *sides.reference.masks) if not mask.hides]
    assert idle == ["<", "<"]  # masks of padding, up to the longest text


def test_every_mask_has_a_fault_and_an_idle_mask_is_not_a_harmless_change(sides):
    faults = [entry for entry in faults_of(sides) if entry.name.startswith("bound-shifted:")]
    sites = {entry.site: entry for entry in sides.port.masks}
    assert [entry.name.partition(":")[2] for entry in faults] == list(sites)
    assert all(entry.culprit == "attention" and not entry.harmless for entry in faults)
    assert [entry.unreached_reason for entry in faults] == [
        "" if entry.hides else UNREACHED_BOUND for entry in sites.values()
    ]
    assert find_mutant(faults[0].name).name == faults[0].name


@pytest.mark.parametrize("hides", [True, False])
def test_a_bound_that_the_batch_does_not_reach_survives_and_is_not_called_harmless(sides, hides):
    site = next(entry.site for entry in sides.port.masks if entry.hides == hides)
    fault = next(entry for entry in faults_of(sides) if entry.name == f"bound-shifted:{site}")
    truth = {"loss": TensorRecord([1], rms=1.0, noise={"float64": [0.0]})}
    trial = add_effect(Trial(fault, False, "", "", None), {"loss": TensorStats([1], rms=0.0)}, truth)
    assert trial.is_still and trial.passed == hides
    assert trial.mutant.harmless.startswith("no position of the batch lies at the bound") == hides


@pytest.mark.slow
def test_a_trial_catches_every_bound_that_the_batch_reaches(monkeypatch, command_line):
    monkeypatch.chdir(PAIR)
    status, out, _ = command_line("parity", "mutants", "--port", "port.py", "--reference-model", "reference.py")
    joined_output, idle = " ".join(out.split()), len(find_marked_lines("port", "idle"))
    num_caught, num_faults = map(int, re.search(r"(\d+) of (\d+) faults caught, \1 named", joined_output).groups())
    assert status == 1 and num_faults - num_caught == idle and joined_output.count(" NO ") == idle
    assert f"0 of {len(find_marked_lines('port', 'hides')) + idle} masks" in joined_output


def test_operations_without_a_fault_are_counted(sides):
    assert count_untried(sides, []) == (
        f"no fault at all in {(count := len(sides.port.parameters))} of {count} parameters, "
        f"{(calls := sides.port.num_operations)} of {calls} operations, "
        f"{(masks := len(sides.port.masks))} of {masks} masks"
    )
    sentence = count_untried(sides, faults_of(sides))
    assert sentence.endswith(f", {calls - masks} of {calls} operations, 0 of {masks} masks")
    assert sentence.startswith("no fault at all in 0 of 8 parameters")


def test_a_subclass_of_a_layer_has_its_faults_and_a_bilinear_layer_has_none():
    maps = [ParameterFacts(f"{name}.weight", [8, 8], "linear", True, name, "OwnMap", 0) for name in ("first", "second")]
    maps.append(ParameterFacts("second.bias", [8], "linear", False, "second", "OwnMap", 0))
    pairs = ParameterFacts("both.weight", [8, 8, 8], "linear", False, "both", "Bilinear", 0)
    port = Description([*maps, pairs], [ModuleFacts(name, "OwnMap", (4, 8)) for name in ("first", "second", "both")])
    pair_map = PairMap(
        [ParameterMatch(parameter.name, parameter.name) for parameter in port.parameters], modules={"first": "first"}
    )
    sides = Sides(Description(), port, pair_map, {})
    names = {parameter.name for parameter in faults_of(sides)}
    assert {"no-bias:second", "swapped:first+second", "transposed:first", "transposed:second"} <= names
    assert not any("both" in name for name in names)
    assert count_untried(sides, faults_of(sides)).startswith("no fault at all in 1 of 4 parameters")
