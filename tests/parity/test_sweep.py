"""Right ports of many shapes and weights: none is stopped, and what a sweep is asked for is what it gates."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from faulty_ports import PAIRS, Fault
from gates import quiet
from rich.console import Console
from safetensors.numpy import save_file
from soak import times

from models.families import part
from toolkit import cli
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.followup.precision import judge_operations
from toolkit.parity.followup.trace import FaultyOp, OperationTrace
from toolkit.parity.inputs.synthetic import KINDS, SyntheticWeights
from toolkit.parity.judge.bounds import Comparison
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.pairs.options import pair_request
from toolkit.parity.trials import sweep as sweep_module
from toolkit.parity.trials.pair_sweep import PairSweep
from toolkit.parity.trials.sweep import judge_all, random_request, run_sweep

RIGHT = Verdict([Comparison("loss", "float64", 0.0, 1.0, 0.0, 1.0, 0.0, True)])


#: Where gates begin. 9065: the reference's sum of a key bias's gradient, which cancels, is right by luck on its
#: exact input. 13004: how scores at -1e4 are rounded decides gradients; five runs that share their luck would stop the
#: port. 13060: there is no gradient where float64's exp ends. 31011 and 31036: on the way back through plain residuals
#: the inputs of a ReLU lose their digits, in float64 by more than float32 tells, and their signs turn.
SWEEPS = [("reformer", 0), ("reformer", 31011), ("reformer", 31036), ("ctrl", 9065), ("ctrl", 13004), ("ctrl", 13060)]

#: At each.
GATES = times(1, 10)


@pytest.fixture(scope="module")
def judged() -> dict:
    """What comes out of the gates of all :data:`SWEEPS`, whose jobs two processes do one after another."""
    gates = [(model, seed) for model, first in SWEEPS for seed in range(first, first + GATES)]
    requests = [random_request(model, seed) for model, seed in gates]
    return {(one.model, one.seed): outcome for one, outcome in zip(requests, judge_all(requests, quiet()), strict=True)}


@pytest.mark.slow
@pytest.mark.parametrize(("model", "seed"), SWEEPS)
def test_a_sweep_over_random_shapes_raises_no_alarm(judged, monkeypatch, model, seed):
    monkeypatch.setattr(sweep_module, "judge_all", lambda some, _: [judged[one.model, one.seed] for one in some])
    out = io.StringIO()
    assert run_sweep(partial(random_request, model), range(seed, seed + GATES), Console(file=out)) == []
    assert f"0 false alarms in {GATES} gate" in out.getvalue()


#: Pair -> seeds of its gates, some with large gains. In rwkv and packed_rnn, labels
#: then have scores that lie more than 64 below the largest. In convnext, a module of transformers' own computes a layer
#: norm, whose epsilon Paddle's kernel rounds.
PAIR_SEEDS = {"rwkv": (0, 3), "convnext": (8, 12), "packed_rnn": (0, 3)}


def sweep_over_pair(pair: str, port: Path, seeds: Sequence[int]) -> tuple[list[int], str]:
    """Return the seeds of a sweep over a pair in which a port is stopped, and what the sweep prints."""
    request = pair_request(port=str(port), reference_model=str(PAIRS / pair / "reference.py"), model_config={}, seed=0)
    gates, out = PairSweep(request, {}), io.StringIO()
    return run_sweep(gates.make_request, seeds, Console(file=out), gates), out.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("pair", PAIR_SEEDS)
def test_a_sweep_over_a_correct_pair_raises_no_alarm(pair):
    seeds = PAIR_SEEDS[pair]
    alarms, out = sweep_over_pair(pair, PAIRS / pair / "port.py", seeds)
    assert alarms == [] and f"drift in 0 of {len(seeds)} gates" in out, out
    assert "large-gains weights" in out


@pytest.mark.slow
def test_a_port_that_limits_its_own_scores_is_stopped(tmp_path):
    limited = Fault(
        "        return F.cross_entropy(logits[:, :-1]",
        "        logits = paddle.maximum(logits, logits.max(-1, keepdim=True) - 64)\n"
        "        return F.cross_entropy(logits[:, :-1]",
    )
    port, _ = limited.put_into("rwkv", tmp_path)
    alarms, out = sweep_over_pair("rwkv", port, [3])
    assert alarms == [3] and "DRIFT" in out and "loss" in out, out


#: 8 layers with large gains, whose way back through plain residuals loses 47 times the gradient in float64.
LOST = 31082


@pytest.mark.slow
def test_where_the_references_own_float64_is_noise_nothing_passes_and_no_port_is_blamed():
    [(verdict, traced)] = judge_all([random_request("reformer", LOST)], quiet())
    assert verdict.inconclusive and not verdict.passed and not traced.faulty
    [finding] = verdict.findings
    assert finding.verdict == "reference" and finding.name == "gradient:reformer.embeddings"
    assert "model.residual: wide loses nothing" in finding.message


def test_a_sweep_counts_a_right_operation_that_is_called_wrong(monkeypatch):
    faulty = FaultyOp("scores:a", "models/a.py:1", "float64", "off by much")
    traced = [OperationTrace(worst=0.5), OperationTrace(faulty=[faulty], worst=0.5)]
    monkeypatch.setattr(sweep_module, "judge_all", lambda requests, _: [(RIGHT, one) for one in traced])
    out = io.StringIO()
    assert run_sweep(partial(random_request, "ctrl"), [7, 8], Console(file=out)) == [8]
    assert "8: ALARM scores of a (models/a.py:1): off by much" in out.getvalue()
    assert "1 false alarms in 2 gates" in out.getvalue()


def test_an_operation_in_bfloat16_counts_as_in_a_gate_beyond_what_may_be_luck(monkeypatch):
    near, wrong = (FaultyOp("scores:a", "models/a.py:1", "bfloat16", "off", margin) for margin in (9.0, 11.0))
    measured = [OperationTrace(faulty=[one], worst=0.5) for one in (near, wrong)]
    out, verdicts = io.StringIO(), [Verdict(list(RIGHT.comparisons)) for _ in measured]
    for verdict, traced in zip(verdicts, measured, strict=True):
        judge_operations(verdict, traced)
    monkeypatch.setattr(sweep_module, "judge_all", lambda *_: list(zip(verdicts, measured, strict=True)))
    assert run_sweep(partial(random_request, "ctrl"), [7, 8], Console(file=out)) == [8]
    assert "7: right, nearest 0.00 of its bound, an operation by itself 9.00" in out.getvalue()
    assert "8: ALARM scores:a: off" in out.getvalue()


@pytest.mark.parametrize("model", ["reformer", "ctrl"])
def test_a_seed_has_the_same_shape_with_weights_of_any_kind(model):
    for seed in range(4):
        plain, *others = (random_request(model, seed, kind) for kind in (None, *KINDS))
        assert [one.weights.kind for one in others] == list(KINDS) and plain.weights.kind in KINDS
        for one in others:
            assert one.config == plain.config and one.head == plain.head
            assert all(np.array_equal(one.batch[name], value) for name, value in plain.batch.items())


@pytest.fixture
def gated(monkeypatch):
    """The requests of all gates that a sweep runs, none of which is run."""
    requests = []

    def judge_all(some, _):
        requests.extend(some)
        return [(RIGHT, OperationTrace()) for _ in some]

    monkeypatch.setattr(sweep_module, "judge_all", judge_all)
    return requests


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as left:
        cli.main(["parity", "sweep", "--model", "ctrl", "--gates", "30", *arguments])
    return left.value.code


@pytest.fixture
def checkpoint(tmp_path):
    weights = SyntheticWeights(part("ctrl", "schema").resolve(CTRL_TRIAL), "causal_lm", 3, "random", "ctrl")
    save_file(dict(weights.items()), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "ctrl", **CTRL_TRIAL}))
    return tmp_path, weights


def test_a_sweep_of_a_checkpoint_gates_its_parameters_on_many_batches(checkpoint, gated):
    folder, weights = checkpoint
    assert run("--weights", str(folder), "--length", "32", "embd_pdrop=0.25") == 0
    assert {one.seed for one in gated} == set(range(30))
    assert {len(one.batch["input_ids"]) for one in gated} == {1, 2, 5}
    assert {one.config["resid_pdrop"] for one in gated} == {0.0, 0.1, 0.3}
    assert {one.config["embd_pdrop"] for one in gated} == {0.25}
    assert len({one.batch["input_ids"].tobytes() for one in gated}) == 30
    for one in gated:
        assert one.batch["input_ids"].shape[1] == 32
        assert all(np.array_equal(one.weights[name], value) for name, value in weights.items())


@pytest.mark.slow
def test_a_checkpoints_own_model_is_gated_and_passes(checkpoint, capsys):
    folder, _ = checkpoint
    with pytest.raises(SystemExit) as left:
        cli.main(["parity", "sweep", "--model", "ctrl", "--gates", "2", "--weights", str(folder), "--length", "24"])
    out = capsys.readouterr().out
    assert left.value.code == 0, out
    assert "0: right" in out and "given weights, n_layer 3" in out and "0 false alarms in 2 gates" in out


def test_a_sweep_of_one_kind_of_weights_has_no_other(gated):
    assert run("--weights", "large-gains") == 0
    assert {one.weights.kind for one in gated} == {"large-gains"}


def test_a_sweep_in_bfloat16_is_judged_by_float64_too(gated):
    assert run("--dtype", "bfloat16") == run() == 0
    assert [one.dtypes for one in gated] == [("float64", "bfloat16")] * 30 + [("float64", "float32")] * 30


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["n_embd=64", "dff=8"], "n_embd=64 dff=8: is for a checkpoint's model"),
        (["--head", "causal_lm"], "--head: is for a checkpoint's model"),
        (["--length", "24", "--weights", "random"], "--length: is for a checkpoint's model"),
    ],
)
def test_what_a_sweep_of_random_shapes_would_not_heed_is_refused(arguments, message, gated, capsys):
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: {message}") and error.count("\n") == 1
    assert gated == []
