"""Test runs on a GPU with the real command: gate, training in both precisions, resuming after a kill, and sharding.

Tests that do not need a GPU also run on the CPU, to prove that they can pass.
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
    """Start the command that trains into ``folder``; its output is in ``folder``.log."""
    arguments = [f"runtime.device={device}", f"parity.device={device}", f"train.output_dir={folder}", *overrides]
    with open(f"{folder}.log", "a") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "toolkit", "finetune", str(recipe), *arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )


def wait_for_metrics(run: subprocess.Popen, folder: Path) -> dict:
    """Wait for the end of a run and return its metrics."""
    assert run.wait() == 0, Path(f"{folder}.log").read_text()
    return json.loads((folder / "metrics.json").read_text())


def accuracy_of(metrics: dict, folder: Path, device: str) -> float:
    """Return the test accuracy of a run, after checking its gate and its device."""
    assert metrics["hardware"]["device"] == device
    [start] = json.loads((folder / "parity" / "starts.json").read_text())
    assert start["passed"] and json.loads((folder / "parity" / "parity.json").read_text())["device"] == device
    return metrics["test"]["accuracy"]


@pytest.mark.parametrize("device", DEVICES)
def test_a_run_in_float32_passes_the_gate_learns_and_resumes_bit_for_bit(recipe_file, tmp_path, device):  # noqa: F811
    whole_run, killed_run = tmp_path / "whole", tmp_path / "killed"
    metrics = wait_for_metrics(finetune(recipe_file, whole_run, device), whole_run)
    assert accuracy_of(metrics, whole_run, device) >= 0.8
    run = finetune(recipe_file, killed_run, device)
    while not list(killed_run.glob("checkpoints/step-*")):
        assert run.poll() is None, Path(f"{killed_run}.log").read_text()
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    assert run.wait() == -signal.SIGKILL and not (killed_run / "metrics.json").exists()
    wait_for_metrics(finetune(recipe_file, killed_run, device), killed_run)
    assert_same_run(killed_run, whole_run)


@pytest.mark.gpu
def test_a_run_in_bfloat16_on_a_gpu_learns(recipe_file, tmp_path):  # noqa: F811
    folder = tmp_path / "run"
    metrics = wait_for_metrics(finetune(recipe_file, folder, "gpu", "train.precision=bfloat16"), folder)
    assert accuracy_of(metrics, folder, "gpu") >= 0.6
    assert yaml.safe_load((folder / "recipe.yaml").read_text())["train"]["precision"] == "bfloat16"


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["reformer", "ctrl"])
def test_a_correct_port_passes_in_bfloat16_on_a_gpu(model, tmp_path):
    """Test the GPU's own bfloat16 kernels; the CPU only rounds to bfloat16."""
    make, arguments = {
        "reformer": (reformer_request, (TINY_REFORMER,)),
        "ctrl": (request_for, ("ctrl", "causal_lm", CTRL_TRIAL, 48)),
    }[model]
    report, output = gate(make(*arguments, dtypes=("float64", "bfloat16"), device="gpu"), tmp_path)
    assert report.passed, output


# -- on two GPUs ----------------------------------------------------------------------------------------------------

TWO = ("--gpus", "0,1")
#: Only the model draws random numbers, from its own seed.
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
    """Return the losses of the training steps."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["split"] == "train"]


@pytest.mark.gpu
def test_two_gpus_train_like_one_and_resume_bit_for_bit(recipe_file, two_gpus, tmp_path):  # noqa: F811
    """Test NCCL with half of a batch on each GPU."""
    one_gpu_run, two_gpu_run, killed_run = (tmp_path / name for name in ("alone", "together", "killed"))
    wait_for_metrics(finetune(recipe_file, one_gpu_run, "gpu", *EXACT, "train.batch_size=4"), one_gpu_run)
    metrics = wait_for_metrics(
        finetune(recipe_file, two_gpu_run, "gpu", *EXACT, "train.batch_size=2", *TWO), two_gpu_run
    )
    assert metrics["hardware"]["processes"] == 2
    np.testing.assert_allclose(losses_of(two_gpu_run)[:5], losses_of(one_gpu_run)[:5], rtol=1e-3)
    run = finetune(recipe_file, killed_run, "gpu", *EXACT, "train.batch_size=2", *TWO)
    while not list(killed_run.glob("checkpoints/step-*")):
        assert run.poll() is None, Path(f"{killed_run}.log").read_text()
        time.sleep(0.005)
    run.send_signal(signal.SIGKILL)
    run.wait()
    time.sleep(2)  # its ranks end with the command
    wait_for_metrics(finetune(recipe_file, killed_run, "gpu", *EXACT, "train.batch_size=2", *TWO), killed_run)
    assert_same_run(killed_run, two_gpu_run)


@pytest.mark.gpu
@pytest.mark.parametrize("sharding", ["stage1", "stage2"])
def test_a_sharded_run_has_the_losses_and_files_of_a_plain_run(recipe_file, two_gpus, tmp_path, sharding):  # noqa: F811
    """Check that sharding, where Fleet averages the gradients of processes, equals the sum without sharding."""
    plain_run, sharded_run = tmp_path / "plain", tmp_path / "sharded"
    for folder, key in ((plain_run, "null"), (sharded_run, sharding)):
        wait_for_metrics(finetune(recipe_file, folder, "gpu", f"train.sharding={key}", *TWO), folder)
    np.testing.assert_allclose(losses_of(sharded_run)[:5], losses_of(plain_run)[:5], rtol=1e-3)
    plain_weights, sharded_weights = (
        load_file(folder / "model/model.safetensors") for folder in (plain_run, sharded_run)
    )
    assert {name: value.shape for name, value in sharded_weights.items()} == {
        name: v.shape for name, v in plain_weights.items()
    }
    assert sorted(path.name for path in sharded_run.rglob("*")) == sorted(path.name for path in plain_run.rglob("*"))


@pytest.mark.gpu
def test_a_killed_sharded_run_is_refused_with_an_error(recipe_file, two_gpus, tmp_path):  # noqa: F811
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
    """Test Paddle's launcher."""
    folder = tmp_path / "run"
    arguments = ["runtime.device=gpu", f"train.sharding={sharding}", f"train.output_dir={folder}"]
    command = [*SEVERAL, str(tmp_path / "logs"), str(ROOT / "toolkit" / "__main__.py"), "finetune", str(recipe_file)]
    result = subprocess.run([*command, *arguments], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert result.returncode == 0
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["hardware"]["processes"] == 2 and metrics["test"]["accuracy"] >= 0.8
