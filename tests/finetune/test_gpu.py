"""What a run does on a GPU, by the real command: gate, training in both precisions, going on after a kill, sharding.

The same tests run on the CPU where it can do as much: what they ask is then known to be answerable.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from gates import ROOT, TINY_REFORMER, reformer_request, request_for
from gates import run as gate
from safetensors.numpy import load_file
from test_train import assert_same_run, recipe_file  # noqa: F401

from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL

pytestmark = pytest.mark.slow

DEVICES = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]
SEVERAL = [sys.executable, "-m", "paddle.distributed.launch", "--gpus", "0,1", "--log_dir"]


def finetune(recipe: Path, folder: Path, device: str, *overrides: str) -> subprocess.Popen:
    """The command that trains into ``folder``, running; what it says is in ``folder``.log."""
    arguments = [f"runtime.device={device}", f"parity.device={device}", f"train.output_dir={folder}", *overrides]
    with open(f"{folder}.log", "a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "toolkit", "finetune", str(recipe), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


def finished(run: subprocess.Popen, folder: Path) -> dict:
    """The metrics of a run, once it has ended."""
    assert run.wait() == 0, Path(f"{folder}.log").read_text()
    return json.loads((folder / "metrics.json").read_text())


def accuracy_of(metrics: dict, folder: Path, device: str) -> float:
    """The test accuracy of a run that passed its gate, and was where it was to be."""
    assert metrics["hardware"]["device"] == device
    [start] = json.loads((folder / "parity" / "starts.json").read_text())
    assert start["passed"] and json.loads((folder / "parity" / "parity.json").read_text())["device"] == device
    return metrics["test"]["accuracy"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_in_float32_passes_the_gate_learns_and_goes_on_after_a_kill_bit_for_bit(recipe_file, tmp_path, device):  # noqa: F811
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    metrics = finished(finetune(recipe_file, whole, device), whole)
    assert accuracy_of(metrics, whole, device) >= 0.8
    run = finetune(recipe_file, killed, device)
    while not list(killed.glob("checkpoints/step-*")):
        assert run.poll() is None, Path(f"{killed}.log").read_text()
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL and not (killed / "metrics.json").exists()
    finished(finetune(recipe_file, killed, device), killed)
    assert_same_run(killed, whole)


@pytest.mark.gpu
def test_a_run_in_bfloat16_on_a_gpu_learns(recipe_file, tmp_path):  # noqa: F811
    folder = tmp_path / "run"
    metrics = finished(finetune(recipe_file, folder, "gpu", "train.precision=bfloat16"), folder)
    assert accuracy_of(metrics, folder, "gpu") >= 0.6
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["train"]["precision"] == "bfloat16"


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["reformer", "ctrl"])
def test_a_right_port_passes_in_bfloat16_on_a_gpu(model, tmp_path):
    """By its own kernels, which multiply what the CPU only rounds."""
    make, arguments = {
        "reformer": (reformer_request, (TINY_REFORMER,)),
        "ctrl": (request_for, ("ctrl", "causal_lm", CTRL_TRIAL, 48)),
    }[model]
    report, said = gate(make(*arguments, dtypes=("float64", "bfloat16"), device="gpu"), tmp_path)
    assert report.passed, said


# -- on two GPUs ----------------------------------------------------------------------------------------------------

TWO = ("--gpus", "0,1")
#: Nothing is drawn at random but by a seed of the model's own.
EXACT = (
    "model.config.hidden_dropout_prob=0",
    "model.config.local_attention_probs_dropout_prob=0",
    "model.config.hash_seed=7",
)


@pytest.fixture
def two_gpus():
    import paddle

    if paddle.device.cuda.device_count() < 2:
        pytest.skip("Paddle sees no two GPUs here")


def losses_of(folder: Path) -> list[float]:
    """Of the steps of training."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["split"] == "train"]


@pytest.mark.gpu
def test_two_gpus_train_as_one_does_and_go_on_after_a_kill_bit_for_bit(recipe_file, two_gpus, tmp_path):  # noqa: F811
    """Over NCCL; half of a batch on each."""
    alone, together, killed = (tmp_path / name for name in ("alone", "together", "killed"))
    finished(finetune(recipe_file, alone, "gpu", *EXACT, "train.batch_size=4"), alone)
    metrics = finished(finetune(recipe_file, together, "gpu", *EXACT, "train.batch_size=2", *TWO), together)
    assert metrics["hardware"]["processes"] == 2
    np.testing.assert_allclose(losses_of(together)[:5], losses_of(alone)[:5], rtol=1e-3)
    run = finetune(recipe_file, killed, "gpu", *EXACT, "train.batch_size=2", *TWO)
    while not list(killed.glob("checkpoints/step-*")):
        assert run.poll() is None, Path(f"{killed}.log").read_text()
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    time.sleep(2)  # its ranks end with it
    finished(finetune(recipe_file, killed, "gpu", *EXACT, "train.batch_size=2", *TWO), killed)
    assert_same_run(killed, together)


@pytest.mark.gpu
@pytest.mark.parametrize("sharding", ["stage1", "stage2"])
def test_a_sharded_run_has_the_losses_and_the_form_of_one_that_is_not(recipe_file, two_gpus, tmp_path, sharding):  # noqa: F811
    """Fleet takes the mean of the processes' gradients, where they are summed otherwise."""
    plain, sharded = tmp_path / "plain", tmp_path / "sharded"
    for folder, key in ((plain, "null"), (sharded, sharding)):
        finished(finetune(recipe_file, folder, "gpu", f"train.sharding={key}", *TWO), folder)
    np.testing.assert_allclose(losses_of(sharded)[:5], losses_of(plain)[:5], rtol=1e-3)
    theirs, ours = (load_file(folder / "model/model.safetensors") for folder in (plain, sharded))
    assert {name: value.shape for name, value in ours.items()} == {name: v.shape for name, v in theirs.items()}
    assert sorted(path.name for path in sharded.rglob("*")) == sorted(path.name for path in plain.rglob("*"))


@pytest.mark.gpu
def test_a_sharded_run_that_was_killed_is_not_resumed_and_says_so(recipe_file, two_gpus, tmp_path):  # noqa: F811
    folder = tmp_path / "run"
    run = finetune(recipe_file, folder, "gpu", "train.sharding=stage1", *TWO)
    while not list(folder.glob("checkpoints/best-*")):
        assert run.poll() is None, Path(f"{folder}.log").read_text()
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    time.sleep(2)
    assert finetune(recipe_file, folder, "gpu", "train.sharding=stage1", *TWO).wait() == 2
    assert "such a run cannot be resumed; choose another folder" in Path(f"{folder}.log").read_text()


@pytest.mark.gpu
@pytest.mark.parametrize("sharding", ["stage1", "stage2"])
def test_a_run_on_two_gpus_with_sharding_learns(recipe_file, two_gpus, tmp_path, sharding):  # noqa: F811
    """By Paddle's launcher."""
    folder = tmp_path / "run"
    arguments = ["runtime.device=gpu", f"train.sharding={sharding}", f"train.output_dir={folder}"]
    command = [*SEVERAL, str(tmp_path / "logs"), str(ROOT / "toolkit" / "__main__.py"), "finetune", str(recipe_file)]
    done = subprocess.run([*command, *arguments], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["hardware"]["processes"] == 2 and metrics["test"]["accuracy"] >= 0.8
