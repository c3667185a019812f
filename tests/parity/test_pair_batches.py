"""Test pairs with several batches per step, several losses, and ports that only infer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.parity.job import outputs
from toolkit.parity.job.pair import batches_in

PAIR = Path(__file__).parents[1] / "pairs" / "batches"


def run_pair_gate(command_line, tmp_path, *options: object, without_loss: bool = False) -> tuple[int, set[str], str]:
    """Run a gate; return its status, the names of the compared tensors, and its output."""
    files = {}
    for side in ("port", "reference"):
        text = (PAIR / f"{side}.py").read_text()
        files[side] = tmp_path / f"{side}.py"
        files[side].write_text(text.partition("\n\n\ndef loss(")[0] + "\n" if without_loss else text)
    sides = ("--port", files["port"], "--reference-model", files["reference"])
    status, out, err = command_line("parity", *sides, *options, "--output", tmp_path / "out")
    report = tmp_path / "out" / "cpu" / "parity.json"
    names = {tensor["name"] for tensor in json.loads(report.read_text())["tensors"]} if report.exists() else set()
    return status, names, out or err


def test_every_batch_and_every_loss_is_compared(command_line, tmp_path):
    status, names, out = run_pair_gate(command_line, tmp_path)
    assert status == 0, out
    assert {"output:last", "output:last#1", "losses:batch 1", "losses:class of batch 2", "loss"} <= names
    assert {"gradient:last.weight", "evaluation/losses:size of batch 1"} <= names


@pytest.mark.parametrize(
    ("wrong", "headline"),
    [
        ("doubled", "DRIFT norm (LayerNorm, PORT:10)"),  # not the model's own parameter, which is used before it
        ("second", "DRIFT leaky_relu (PORT:18), on the way to output of last#1"),
        ("size", "DRIFT abs (PORT:28), on the way to losses of size of batch 1"),
    ],
)
def test_a_fault_in_one_batch_or_loss_is_named(wrong, headline, command_line, tmp_path):
    status, _, out = run_pair_gate(command_line, tmp_path, f"wrong={wrong}")
    assert status == 1 and out.startswith(headline.replace("PORT", str(tmp_path / "port.py"))), out


@pytest.mark.parametrize("wrong", ["", "forward"])
def test_a_port_that_only_infers_needs_no_loss_and_no_training(wrong, command_line, tmp_path):
    options = ("--forward-only", "labels=false", f"wrong={wrong}")
    status, names, out = run_pair_gate(command_line, tmp_path, *options, without_loss=True)
    assert status == bool(wrong), out
    outputs_of = {f"output:{module}{call}" for module in ("first", "norm", "last") for call in ("", "#1")}
    assert names == outputs_of | {"logits:batch 1", "logits:batch 2"}
    assert "note: only the forward in evaluation mode was compared: no gradient, no update, no dropout" in out
    assert not wrong or out.startswith(f"DRIFT leaky_relu ({tmp_path / 'port.py'}:18)")


@pytest.mark.parametrize("batches", [1, 2])
def test_the_outputs_of_an_inference_port_are_compared(batches, command_line, tmp_path):
    options = ("--forward-only", "labels=false", f"batches={batches}", "wrong=after")
    status, _, out = run_pair_gate(command_line, tmp_path, *options, without_loss=True)
    assert status == 1 and out.startswith(f"DRIFT softmax ({tmp_path / 'port.py'}:19), on the way to logits"), out


def test_the_scores_of_one_batch_without_a_loss_are_compared(command_line, tmp_path):
    options = ("--forward-only", "labels=false", "batches=1")
    status, names, out = run_pair_gate(command_line, tmp_path, *options, without_loss=True)
    assert status == 0 and "logits" in names and "loss" not in names, out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("labels=false",), "there are no logits and labels to make one of; define loss(model, batch), or compare the"),
        (("batches=0",), "batch() gave no batch; it is to give one, and at most 16"),
        (("batches=17",), "batch() gave more than 16 batches"),
    ],
)
def test_impossible_comparisons_are_rejected(options, message, command_line, tmp_path):
    status, _, out = run_pair_gate(command_line, tmp_path, *options, without_loss=True)
    assert status == 2 and message in out


def test_only_a_users_port_can_be_an_inference_port(command_line):
    status, _, err = command_line("parity", "--model", "ctrl", "--forward-only")
    assert status == 2 and "--forward-only: is for a --port and a --reference-model of yours" in err


def test_a_step_of_one_batch_keeps_its_names():
    assert batches_in({"x": 1, "a/b": 2}) == [{"x": 1, "a/b": 2}]
    assert batches_in({"1/x": 1, "1/a/b": 2, "2/x": 3}) == [{"x": 1, "a/b": 2}, {"x": 3}]


class Scalar(float):
    ndim = 0


def test_several_scalars_are_losses_and_a_single_scalar_is_the_loss():
    def is_tensor(value):
        return isinstance(value, Scalar)

    two = {"a": Scalar(1), "b": Scalar(2)}
    assert outputs.loss_and_logits(two, is_tensor) == (two | {}, None)
    assert outputs.loss_and_logits((Scalar(1), Scalar(2)), is_tensor)[0] == {"1": 1, "2": 2}
    assert outputs.loss_and_logits({"loss": Scalar(3), **two}, is_tensor) == (3, None)

    def compute_step(model_output):
        return outputs.compute_step(None, lambda **_: model_output, {"x": 1}, is_tensor, None, needs_loss=True)

    assert compute_step(two) == outputs.StepOutput(3, None, two)
    assert compute_step(Scalar(5)) == outputs.StepOutput(5)


def test_a_recorded_forward_is_replayed_as_a_forward(command_line, tmp_path):
    bundle = tmp_path / "bundle"
    texts = {side: (PAIR / f"{side}.py").read_text().partition("\n\n\ndef loss(")[0] for side in ("reference", "port")}
    for side, text in texts.items():
        (tmp_path / f"{side}.py").write_text(text)
    options = ("--reference-model", tmp_path / "reference.py", "--forward-only", "labels=false", "--output", bundle)
    assert command_line("parity", "record", *options)[0] == 0
    replay_command = ("parity", "replay", bundle, "--port", tmp_path / "port.py", "--output", tmp_path / "out")
    status, out, _ = command_line(*replay_command)
    assert status == 0 and "note: only the forward in evaluation mode was compared" in out, out
