"""Test the independent training of both sides of a pair for some steps: `toolkit parity --steps N`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from toolkit.parity.exchange.results import Place
from toolkit.parity.judge.findings import Verdict
from toolkit.parity.judge.trajectory import compare_trajectories, judge_trajectory
from toolkit.parity.measure.trajectory import SAMPLES, choose_elements

PAIR = Path(__file__).parents[1] / "pairs" / "mlp"
#: Optimizers of the two files: clipping, decay and a schedule, written with each framework.
REFERENCE = """

def optimizer(model):
    import torch

    made = torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.98), eps=1e-7, weight_decay=0.1)

    def clip(*_):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)

    made.register_step_pre_hook(clip)
    return made, torch.optim.lr_scheduler.CosineAnnealingLR(made, T_max=20)
"""
PORT = """

def optimizer(model):
    import paddle

    rate = paddle.optimizer.lr.CosineAnnealingDecay(0.01, {T_max})
    clip = nn.ClipGradByGlobalNorm({clip})
    return paddle.optimizer.AdamW(
        rate, 0.9, {beta2}, 1e-7, parameters=model.parameters(), grad_clip=clip, weight_decay={decay}
    )
"""
RIGHT = {"T_max": 20, "clip": 0.5, "beta2": 0.98, "decay": 0.1}


@pytest.fixture
def run_gate(command_line, tmp_path):
    """Return a function that runs a gate and returns its status, its output and its `parity.json`."""

    def run(port: str = "", reference: str = "", *options: object) -> tuple[int, str, dict]:
        for side, added_code in (("port", port), ("reference", reference)):
            (tmp_path / f"{side}.py").write_text((PAIR / f"{side}.py").read_text() + added_code)
        sides = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py")
        status, out, err = command_line("parity", *sides, "--steps", "4", *options, "--output", tmp_path / "out")
        report = tmp_path / "out" / "cpu" / "parity.json"
        return status, out or err, json.loads(report.read_text()) if report.exists() else {}

    return run


@pytest.mark.parametrize("files", [("", ""), (PORT.format(**RIGHT), REFERENCE)], ids=["own", "users"])
def test_a_correct_port_stays_in_the_band(files, run_gate, tmp_path):
    status, out, content = run_gate(*files)
    assert status == 0 and "note: 4 steps of each side by itself: the loss goes from " in out, out
    training = content["training"]
    assert training["partings"] == [] and all(0 < margin < 1 for margin in training["margins"].values())
    assert np.allclose(training["losses"]["P64"], training["losses"]["R64"], rtol=1e-7)
    assert len(set(training["losses"]["R64"])) == 4  # each step has another batch
    page = (tmp_path / "out" / "cpu" / "parity.html").read_text()
    assert "Training: 4 steps of each side by itself" in page and "band of P32" in page


@pytest.mark.parametrize(
    ("faulty_code", "step"), [({"beta2": 0.981}, 2), ({"clip": 0.51}, 1), ({"decay": 0.1001}, 1), ({"T_max": 21}, 2)]
)
def test_an_update_that_differs_is_named_with_its_step(faulty_code, step, run_gate, tmp_path):
    port = PORT.format(**RIGHT | faulty_code)
    status, out, _ = run_gate(port, REFERENCE, "--dtype", "float64")
    line = (PAIR / "port.py").read_text().count("\n") + 3
    assert status == 1 and out.startswith(f"DRIFT step {step} of training: AdamW ({tmp_path}/port.py:{line})\n"), out
    assert "though the gradients of this step agree" in out.splitlines()[1]


@pytest.mark.parametrize("is_wrong", [False, True])
def test_a_parameter_that_only_a_later_step_uses_is_compared(is_wrong, run_gate):
    """An example is an expert of a mixture, which has no gradient in earlier steps."""
    first, *later = (int(np.random.default_rng(seed).integers(0, 50, (4, 7))[0, 0]) for seed in range(4))
    added_code = """

def build(config):
    net = Net(16)
    net.late, forward = nn.Linear(16, 16), net.NORM.forward
    net.NORM.forward = lambda x: forward(x)
    inner = net.EMBED.forward

    def embedded(ids):
        x = inner(ids)
        return x if int(ids[0, 0]) == FIRST else x + SCALE * net.late(x)

    net.EMBED.forward = embedded
    return net
"""
    assert first not in later
    added_code = added_code.replace("FIRST", str(first))
    port = added_code.replace("NORM", "norm").replace("EMBED", "embed").replace("SCALE", "1.001" if is_wrong else "1")
    reference = added_code.replace("NORM", "ln").replace("EMBED", "embedding").replace("SCALE", "1")
    status, out, content = run_gate(port, reference, "--dtype", "float64")
    assert status == is_wrong and [parting["step"] for parting in content["training"]["partings"]] == [2] * is_wrong, (
        out
    )


@pytest.mark.parametrize(
    ("changed_code", "culprit"),
    [
        ("value", "step 1 of training: loss (Net.forward, PORT:20)"),
        ("gradient", "step 1 of training: ln (LayerNorm, PORT:14)"),
    ],
)
def test_a_fault_only_in_training_mode_is_named(changed_code, culprit, run_gate, tmp_path):
    added_code = f"""
    made = paddle.optimizer.SGD(0.01, parameters=model.parameters())
    forward = model.norm.forward
    if {changed_code == "value"}:
        model.norm.forward = lambda x: forward(x) * (1 + 1e-9)
    else:
        model.norm.forward = lambda x: forward(x) * (1 + 1e-9) - (forward(x) * 1e-9).detach()
    return made
"""
    port = "\n\ndef optimizer(model):\n    import paddle\n" + added_code
    reference = (
        "\n\ndef optimizer(model):\n    import torch\n\n    return torch.optim.SGD(model.parameters(), lr=0.01)\n"
    )
    status, out, _ = run_gate(port, reference, "--dtype", "float64")
    assert status == 1 and out.startswith(f"DRIFT {culprit.replace('PORT', f'{tmp_path}/port.py')}"), out


def test_nothing_is_trained_if_a_step_of_the_gate_differs(run_gate):
    status, out, content = run_gate("\n\nnn.ReLU = nn.Hardswish\n")
    assert status == 1 and "note: the two sides were not trained (4 steps): a step must agree first" in out, out
    assert content["training"] is None


@pytest.mark.parametrize(
    ("files", "options", "message"),
    [
        (("", REFERENCE), (), "/reference.py: has optimizer(model), and the other file has none; --steps needs both"),
        (("", ""), ("--forward-only",), "--steps: trains both sides, and --forward-only compares none of what trains"),
        (("\n\ndef optimizer(model):\n    pass\n", REFERENCE), (), "gave NoneType; it is to give a Paddle optimizer"),
        (("\n\ndef optimizer(model):\n    pass\n",) * 2, (), "gave NoneType; it is to give a torch optimizer, or an"),
        (
            ("\n\ndef optimizer():\n    pass\n",) * 2,
            (),
            "optimizer takes 0 arguments; it is called as optimizer(model)",
        ),
    ],
)
def test_impossible_trainings_are_reported_in_one_line(files, options, message, run_gate):
    status, out, _ = run_gate(*files, *options)
    assert status == 2 and message in out and len(out.splitlines()) == 1, out


def test_steps_is_rejected_for_a_built_in_family(command_line):
    status, _, err = command_line("parity", "--model", "ctrl", "--steps", "4")
    assert status == 2 and "--steps: is for a --port and a --reference-model of yours" in err


# -- the arithmetic ---------------------------------------------------------------------------------------------------


def make_run(**changes: float) -> dict[str, np.ndarray]:
    """Return a run of three steps with changed elements, for example `loss_2=1e-3` in the second step."""
    run = {"loss": np.ones((3, 1)), "gradient:w": np.ones((3, 8)), "updated:w": np.ones((3, 8))}
    names = {"loss": "loss", "gradient": "gradient:w", "updated": "updated:w"}
    for key, by in changes.items():
        kind, _, step = key.partition("_")
        run[names[kind]][int(step) - 1] += by
    return run


def find_partings(ours: dict[str, np.ndarray], *noisy: dict[str, np.ndarray]) -> list[tuple[int, str]]:
    runs = {
        "float64": [make_run(loss_1=1e-15)],
        "float32": [make_run(loss_1=1e-6, gradient_1=1e-6, updated_1=1e-6), *noisy],
    }
    trajectory = compare_trajectories(make_run(), runs, {"float32": ours}, ["w"], Place("", ""))
    return [(parting.step, parting.name) for parting in trajectory.partings]


def test_the_first_differing_tensor_of_the_first_differing_step_is_named():
    assert find_partings(make_run(loss_3=1e-3, updated_2=1e-3, gradient_2=1e-3)) == [(2, "gradient:w")]
    assert find_partings(make_run(loss_3=1e-3)) == [(3, "loss")]
    assert find_partings(make_run(updated_3=np.nan)) == [(3, "updated:w")]


def test_the_noise_of_a_step_includes_all_earlier_steps():
    assert find_partings(make_run(gradient_3=2e-6)) == []  # the run was off only in step 1
    assert find_partings(make_run(gradient_1=2e-5), make_run(gradient_3=2e-5)) == [(1, "gradient:w")]


def test_nothing_is_judged_if_the_reference_is_noise_or_not_finite():
    assert find_partings(make_run(updated_3=0.5), make_run(updated_2=0.3)) == []
    assert find_partings(make_run(updated_3=0.5), make_run(updated_2=np.inf)) == []


def test_skipped_steps_are_not_counted_as_correct():
    runs = {"float64": [make_run()], "float32": [make_run(updated_2=np.inf)]}
    training = compare_trajectories(
        make_run(), runs, {"float64": make_run(), "float32": make_run()}, ["w"], Place("", "")
    )
    assert training.compared == {"float64": 3, "float32": 1}
    verdict = Verdict()
    judge_trajectory(training, verdict)
    margins = "float64 at 0 of its band, float32 at 0 of its band in 1 steps; then the reference is not finite"
    assert verdict.notes[0].data["margins"] == margins


def test_elements_with_gradients_are_kept():
    gradient = np.zeros((10_000, 4))
    gradient[17] = 1.0
    places = choose_elements("embedding", gradient)
    assert {68, 69, 70, 71} <= set(places) and SAMPLES // 2 < len(places) <= SAMPLES
    assert len(choose_elements("small", gradient[:100])) == 400
