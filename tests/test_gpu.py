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

import pytest
import yaml
from gates import ROOT
from test_train import assert_same_run, recipe_file  # noqa: F401

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
@pytest.mark.parametrize("sharding", ["stage1", "stage2"])
def test_a_run_on_two_gpus_with_sharding_learns(recipe_file, tmp_path, sharding):  # noqa: F811
    import paddle

    if paddle.device.cuda.device_count() < 2:
        pytest.skip("Paddle sees no two GPUs here")
    folder = tmp_path / "run"
    arguments = ["runtime.device=gpu", f"train.sharding={sharding}", f"train.output_dir={folder}"]
    command = [*SEVERAL, str(tmp_path / "logs"), str(ROOT / "toolkit" / "__main__.py"), "finetune", str(recipe_file)]
    done = subprocess.run([*command, *arguments], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
    metrics = json.loads((folder / "metrics.json").read_text())
    assert metrics["hardware"]["processes"] == 2 and metrics["test"]["accuracy"] >= 0.8
