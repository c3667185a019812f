"""The gate as a user meets it: right ports pass, each fault is stopped and named, nothing is left behind."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from models.families import part
from models.reformer import schema, weights
from toolkit.errors import Inconclusive, UserError
from toolkit.parity import gate
from toolkit.parity.gate import GateRequest, run_gate
from toolkit.parity.job.synthetic import StressWeights, random_batch, stir
from toolkit.parity.judge.verdict import Finding, Verdict
from toolkit.parity.measure.updates import given_gradient
from toolkit.parity.mutants import CATALOGUES
from toolkit.parity.options import configuration, devices
from toolkit.parity.trials.limits import find_limits, is_seen
from toolkit.parity.trials.mutation import CTRL_TRIAL, Trial, print_trials, trial_request, try_mutants

ROOT = Path(__file__).resolve().parents[1]


def request_for(config: dict, head: str = "sequence_classification", kind: str = "random", **options) -> GateRequest:
    config = {**config, "is_decoder": head == "causal_lm"}
    length = int(np.prod(config["axial_pos_shape"]))
    return GateRequest(
        model="reformer",
        head=head,
        config=config,
        weights=StressWeights(schema.resolve(config), head, 0, kind),
        batch=random_batch(config, head, 3, length, 0),
        **options,
    )


def run(request: GateRequest, folder: Path) -> tuple[gate.Report, str]:
    out = io.StringIO()
    return run_gate(request, folder, Console(file=out, width=100)), out.getvalue()


@pytest.mark.parametrize(
    ("head", "kind", "changes"),
    [
        ("sequence_classification", "heavy-tailed", {"local_num_chunks_after": 1, "lsh_num_chunks_after": 1}),
        ("causal_lm", "random", {"num_hashes": 4, "chunk_size_lm_head": 32, "chunk_size_feed_forward": 64}),
        ("masked_lm", "large-gains", {"axial_pos_embds": False, "num_buckets": [2, 4], "hidden_act": "gelu_new"}),
        ("question_answering", "random", {"num_labels": 2}),
    ],
)
def test_a_right_port_passes_in_both_dtypes(tiny_config, tmp_path, head, kind, changes):
    report, text = run(request_for({**tiny_config, **changes}, head, kind), tmp_path)
    assert report.passed, report.summary()
    assert text.startswith("PARITY")
    stored = json.loads((tmp_path / "parity.json").read_text())
    assert stored["passed"] and stored["exit_status"] == 0
    # Every parameter's gradient, in both dtypes, was compared: nothing passes by being left out.
    compared = {(t["name"], t["dtype"]) for t in stored["tensors"]}
    for name in weights.parameters(schema.resolve(report.request.config), head):
        assert {(f"gradient:{name}", "float64"), (f"gradient:{name}", "float32")} <= compared
    assert {"paddlepaddle", "numpy"} <= set(stored["versions"]["candidate"])


def test_a_long_text_gives_the_same_figures_with_less_memory(tiny_config, tmp_path, monkeypatch):
    stored = []
    for tokens in (gate.LONG, 1):
        monkeypatch.setattr(gate, "LONG", tokens)
        run(request_for(tiny_config), tmp_path / str(tokens))
        stored.append(json.loads((tmp_path / str(tokens) / "parity.json").read_text()))
    for key in ("passed", "notes", "recomputed"):
        assert stored[0][key] == stored[1][key], key
    # The bounds are not the same: sums that are computed again are reordered again.
    figures = [[(t["name"], t["dtype"], t["error"], t["error_max"]) for t in one["tensors"]] for one in stored]
    assert figures[0] == figures[1]


@pytest.mark.parametrize(("head", "kind"), [("causal_lm", "heavy-tailed"), ("sequence_classification", "large-gains")])
def test_a_right_ctrl_passes_in_both_dtypes(tmp_path, head, kind):
    length = 24
    resolved = part("ctrl", "schema").resolve(CTRL_TRIAL)
    weights = StressWeights(resolved, head, 0, kind, "ctrl")
    batch = random_batch(CTRL_TRIAL, head, 3, length, 0, "ctrl")
    report, text = run(GateRequest("ctrl", head, CTRL_TRIAL, weights, batch), tmp_path)
    assert report.passed and text.startswith("PARITY"), report.summary()
    for dtype in ("float64", "float32"):
        assert {f"gradient:{name}" for name in weights} <= set(report.candidate["dtypes"][dtype]["tensors"])
    # The language-model loss leaves float64, which is a fault of the reference and is said to be one.
    assert ("reference computes in float32 at loss_utils.py" in text) == (head == "causal_lm")


@pytest.mark.parametrize(("model", "count"), [("reformer", 45), ("ctrl", 36)])
def test_every_fault_of_the_catalogue_is_caught_and_named_and_the_harmless_pass(model, count):
    trials = try_mutants(trial_request(model, "random", 0), Console(file=io.StringIO()))
    assert len(trials) == len(CATALOGUES[model]) >= count
    assert [(t.mutant.name, t.verdict, t.culprit) for t in trials if not t.passed] == []


def test_a_fault_is_named_only_with_its_operation_unless_no_tensor_can_show_it():
    mutant = next(one for one in CATALOGUES["ctrl"] if one.name == "ctrl-last-norm-epsilon")
    here, elsewhere = mutant.operation, "scores:transformer.h.0.multi_head_attention"
    by_structure = {"verdict": "structure", "culprit": "epsilon:transformer.layernorm"}
    by_size = {"verdict": "semantics", "culprit": "output:transformer.layernorm"}
    for named, operation, found in (
        (True, here, by_size),
        (False, elsewhere, by_size),
        (False, None, by_size),
        (True, None, by_structure),
        (False, elsewhere, by_structure),
        (False, "", by_structure),
    ):
        trial = Trial(mutant, True, margin=None, operation=operation, **found)
        assert trial.passed == named
        out = io.StringIO()
        print_trials([trial], Console(file=out, width=300))
        assert (f", not {mutant.expected} and {mutant.operation}" in out.getvalue()) == (not named)
        assert f"1 of 1 faults caught, {int(named)} named" in out.getvalue()


def test_gradients_that_are_given_to_the_optimizer_differ_in_size_however_they_are_clipped():
    """Twice the same sizes, and nothing depends on the decay of Adam's second moment."""
    gradient = np.random.default_rng(0).standard_normal((7, 5))
    first, second = (np.abs(given_gradient(gradient, update)) for update in (1, 2))
    same_norm = second * np.linalg.norm(first) / np.linalg.norm(second)
    assert (np.abs(first - second) > 0.1 * first).all() and (np.abs(first - same_norm) > 0.1 * first).all()


def test_a_fault_in_the_source_is_stopped_with_its_module_and_line(tiny_config, tmp_path):
    """One constant of the port edited, as a developer would; the real command, on a copy of the source."""
    for package in ("models", "toolkit"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    source = tmp_path / "models" / "ops.py"
    text = source.read_text()
    faulty = text.replace("_normed(x, epsilon)[0] * gain", "_normed(x, 10 * epsilon)[0] * gain")
    assert faulty != text
    source.write_text(faulty)
    done = subprocess.run(
        [sys.executable, "-c", "from toolkit.cli import main; main()", "parity", "--model", "reformer",
         "--layers", "2", "--length", "64", "--weights", "random", "--output", "out"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert (
        "DRIFT reformer.encoder.layers.0.attention.layer_norm (LayerNorm, models/reformer/modeling.py:" in done.stdout
    )
    stored = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())
    assert stored["culprit"]["verdict"] == "semantics"


@pytest.fixture
def spiece_model(tmp_path) -> Path:
    """A SentencePiece model trained on text that ships with Python."""
    import pydoc_data.topics

    from models.reformer.tokenizer import MODEL_FILE, train_sentencepiece

    folder = tmp_path / "pieces"
    folder.mkdir()
    train_sentencepiece(list(pydoc_data.topics.topics.values())[:20], 300, folder)
    return folder / MODEL_FILE


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece"])
def test_tokens_of_the_runs_own_texts_are_compared(tiny_config, tmp_path, kind, spiece_model):
    spec = {"kind": kind, "texts": ["une maison", "the statement"], "max_length": 8}
    if kind == "sentencepiece":
        spec["path"] = str(spiece_model)
    report, text = run(request_for(tiny_config, dtypes=("float64",), tokenizer=spec), tmp_path)
    assert report.passed, report.summary()
    assert len(report.reference["tokens"]) > 20 and "texts tokenized alike" in text
    assert "error" not in report.reference["tokens"][0]


def test_new_weights_are_stirred_so_that_no_bias_can_be_dropped_unseen(tiny_config):
    config = schema.resolve(tiny_config)
    given = weights.initial_weights(config, "sequence_classification", 0)
    stirred, count = stir(given, 0)
    constant = [name for name, value in given.items() if (value == value.flat[0]).all()]
    assert count == len(constant) > 0
    assert all(np.ptp(value) > 0 for value in stirred.values())
    again, none = stir(stirred, 0)
    assert none == 0 and all((again[name] == stirred[name]).all() for name in stirred)


def test_large_gains_are_gated_without_a_false_alarm_and_the_noise_is_named(tiny_config, tmp_path):
    config = {**tiny_config, "attn_layers": ["local", "lsh"] * 4}
    report, _ = run(request_for(config, kind="large-gains", judge_reference_reversible=True), tmp_path)
    assert report.passed, report.summary()
    ours = max(max(side["recomputed"].values()) for side in report.candidate["dtypes"].values())
    assert ours < 1e-5
    # The reference's own reversible backward, on the same weights, is far off in float32.
    assert max(report.reference["own_backward"]["float32"].values()) > 100 * ours


def test_an_equal_gate_is_not_paid_for_twice_and_any_change_is(tiny_config, tmp_path, monkeypatch):
    request = request_for(tiny_config, dtypes=("float64",))
    first, _ = run(request, tmp_path / "first")

    def no_workers(*_):
        raise AssertionError("the workers ran")

    monkeypatch.setattr(gate, "run_workers", no_workers)
    second, text = run(request, tmp_path / "second")
    assert second.passed and second.cached and not first.cached
    assert text.startswith("PARITY") and "as measured before" in text
    stored = [json.loads((tmp_path / name / "parity.json").read_text()) for name in ("first", "second")]
    assert stored[0]["tensors"] == stored[1]["tensors"] and stored[1]["cached"]
    changed = dict(request.weights)
    name = "reformer.encoder.layer_norm.bias"
    changed[name] = np.nextafter(changed[name], np.float32(np.inf))
    for other in (
        request_for({**tiny_config, "layer_norm_eps": 1e-11}, dtypes=("float64",)),
        request_for(tiny_config, dtypes=("float64",), seed=1),
        dataclasses.replace(request, weights=changed),
    ):
        with pytest.raises(AssertionError, match="the workers ran"):
            run(other, tmp_path / "third")


def test_a_drift_is_not_remembered(tiny_config, tmp_path, monkeypatch):
    request = request_for(tiny_config, dtypes=("float64",))
    with monkeypatch.context() as drifting:
        drifting.setattr(gate, "judge", lambda *_: verdict_of_drift())
        assert not run(request, tmp_path)[0].passed
    monkeypatch.setattr(gate, "run_workers", lambda *_: pytest.fail("not cached, as it should be"))
    with pytest.raises(pytest.fail.Exception):
        run(request, tmp_path)


def verdict_of_drift() -> Verdict:
    return Verdict(findings=[Finding("semantics", "loss", "made up", "float64")])


def test_a_reference_that_cannot_run_is_inconclusive_and_says_why(tiny_config, tmp_path):
    request = request_for(tiny_config)
    request.batch["input_ids"] = request.batch["input_ids"] + 10**6
    with pytest.raises(Inconclusive, match=r"reference could not run.*index out of range"):
        run(request, tmp_path)
    assert not (tmp_path / "parity.json").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overrides": ["num_hash=4"]}, "num_hash: unknown key, did you mean num_hashes"),
        ({"overrides": ["num_hashes"]}, "expected KEY=VALUE"),
        ({"length": 1000}, "no multiple of the chunk lengths"),
        ({"weights_from": "no-such-folder/x", "layers": None}, "--weights no-such-folder/x"),
        ({"model": "ctrl", "length": 300, "overrides": ["n_positions=256"]}, "n_positions: 256 is less than 300"),
    ],
)
def test_a_model_that_cannot_be_is_one_line(options, message, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    given = {"model": "reformer", "overrides": [], "length": 128, "layers": 2, "weights_from": "random", **options}
    with pytest.raises(UserError, match=message):
        configuration(head="masked_lm", attention="mixed", **given)


def test_a_gpu_that_is_not_there_is_wrong_usage():
    import paddle

    if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        pytest.skip("Paddle sees a GPU here")
    with pytest.raises(UserError, match="sees no GPU"):
        devices("gpu")
    assert devices("all") == ["cpu"]


@pytest.mark.gpu
def test_a_right_port_passes_on_the_gpu(tiny_config, tmp_path):
    report, _ = run(request_for(tiny_config, device="gpu"), tmp_path)
    assert report.passed, report.summary()


def test_a_change_of_1e_10_in_any_matrix_and_of_1e_8_in_any_gradient_is_caught():
    limits = find_limits(trial_request("ctrl", "heavy-tailed", 1), Console(quiet=True))
    assert {limit.name for limit in limits} == set(
        part("ctrl", "weights").parameters(part("ctrl", "schema").resolve(CTRL_TRIAL), "causal_lm")
    )
    assert all(is_seen(limit) for limit in limits)
    blind = {limit.name for limit in limits if limit.gradient > 1e-8}  # softmax does not see a key's bias
    assert blind <= {f"transformer.h.{layer}.multi_head_attention.Wk.bias" for layer in range(3)}
