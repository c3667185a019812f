"""Runs that are killed at random moments, over and over, until one is let to its end. Also a soak of hours:

    python tests/kills.py --seconds 3600

kills and resumes runs of every task and kills gates, and runs whole gates and runs in one process, whose memory, open
files, children and temporary files must not grow.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from recipe_fuzz import BASES, write_data
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]

#: Long enough to be killed in, short enough to be killed often: evaluations, checkpoints, a best one, half an epoch.
LENGTH = {"epochs": None, "max_steps": 60, "eval_steps": 4, "gradient_accumulation_steps": 2}
#: Seconds within which a process is killed: while it starts, trains, saves or ends.
WITHIN = 7.0
#: A gate of a second or two, with both its workers.
GATE = ("parity", "--model", "ctrl", "--layers", "1", "--length", "8", "n_embd=8", "n_head=2", "dff=8", "vocab_size=40")


def write_recipes(folder: Path) -> list[Path]:
    """A small recipe of every task, with its data, in an empty folder."""
    write_data(folder)
    recipes = []
    for name, content in BASES.items():
        path = folder / f"{name.replace(' ', '-')}.yaml"
        dropout = {"hidden_dropout_prob": 0.1} if "hidden_size" in content["model"]["config"] else {"resid_pdrop": 0.1}
        model = {**content["model"], "config": {**content["model"]["config"], **dropout}}
        path.write_text(yaml.safe_dump({**content, "model": model, "train": {**content["train"], **LENGTH}}))
        recipes.append(path)
    return recipes


def toolkit(*arguments: object, **options) -> subprocess.Popen:
    """The real command, which says nothing."""
    command = [sys.executable, "-m", "toolkit", *map(str, arguments)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=ROOT, **{**quiet, **options})


def finetune(recipe: Path, folder: Path, **options) -> subprocess.Popen:
    return toolkit("finetune", recipe, f"train.output_dir={folder}", "--skip-parity", "killed", **options)


def kill(process: subprocess.Popen, seconds: float) -> bool:
    """Kill a process after so many seconds; False where it has ended before."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
        return True


def run_with_kills(recipe: Path, folder: Path, kills: int, draws: random.Random) -> int:
    """Train into a folder, killed up to so many times; returns how often it was. The last start runs to its end."""
    done = 0
    for _ in range(kills):
        if not kill(finetune(recipe, folder), draws.uniform(0, WITHIN)):
            break
        done += 1
    if not (folder / "metrics.json").exists():
        last = finetune(recipe, folder, stderr=subprocess.PIPE, text=True)
        _, said = last.communicate()
        assert last.returncode == 0, said
    return done


def assert_same_bits(ours: Path, theirs: Path) -> None:
    """Two finished runs have the same weights, metrics and files, but for what is a time."""
    assert names(ours) == names(theirs)
    found, expected = load_file(ours / "model/model.safetensors"), load_file(theirs / "model/model.safetensors")
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
    assert rows(ours) == rows(theirs)


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def rows(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


# -- the soak -------------------------------------------------------------------------------------------------------


def residue() -> dict[str, float]:
    """What must not grow: of this process its memory (MB) and open files, of the machine our processes and files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory_mb": pages * resource.getpagesize() / 1e6,
        "open_files": len(os.listdir("/proc/self/fd")),
        "processes": len(processes_of_ours()),
        "temporary": len(list(Path(tempfile.gettempdir()).iterdir())),
    }


def assert_nothing_grows(found: list[dict[str, float]]) -> None:
    """The janitor of this process is the one that is left. Memory is given some room from the middle on: what a library
    keeps for each shape it keeps from the first rounds."""
    assert not found[-1]["temporary"], os.listdir(tempfile.gettempdir())
    assert found[-1]["processes"] <= 1, found[-1]
    if len(found) > 20:
        assert found[-1]["open_files"] <= found[len(BASES)]["open_files"], (found[len(BASES)], found[-1])
        assert found[-1]["memory_mb"] <= 1.25 * found[len(found) // 2]["memory_mb"], (found[len(found) // 2], found[-1])


def processes_of_ours() -> list[int]:
    """Processes but this one whose temporary directory is that of the soak."""
    wanted, found = f"TMPDIR={tempfile.gettempdir()}".encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if wanted in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:  # it has ended, or is somebody else's
            continue
    return found


def soak(seconds: float, seed: int, report=print) -> list[dict[str, float]]:
    """Kill, resume, gate and train for so long; returns :func:`residue` after each round, the first as the baseline."""
    from toolkit import cli

    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ["TMPDIR"] = str(folder / "tmp")
    os.environ["TOOLKIT_CACHE"] = str(folder / "cache")
    (folder / "tmp").mkdir()
    tempfile.tempdir = None
    recipes, draws, found = write_recipes(folder), random.Random(seed), []
    kills = gates = 0
    end = time.monotonic() + seconds
    while not found or time.monotonic() < end:
        recipe = recipes[len(found) % len(recipes)]
        run = folder / "run"
        kills += run_with_kills(recipe, run, 2, draws)
        shutil.rmtree(run)
        killed = toolkit(*GATE, "--output", folder / "killed")
        kill(killed, draws.uniform(0, 8.0))
        time.sleep(1.0)
        for arguments in (
            [*GATE, "--seed", str(len(found)), "--output", str(folder / "gate")],
            ["finetune", str(recipe), f"train.output_dir={run}", "train.max_steps=8", "--skip-parity", "soak"],
        ):
            try:
                cli.main(arguments)
            except SystemExit as leave:
                assert not leave.code, arguments
        gates += 1
        shutil.rmtree(run)
        found.append(residue())
        assert_nothing_grows(found)
        if len(found) % 10 == 1:
            report(f"{len(found)} rounds, {kills} kills of runs, {gates} gates: {found[-1]}")
    report(f"{len(found)} rounds, {kills} kills of runs, {gates} gates: {found[-1]}")
    shutil.rmtree(folder)
    return found


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=3600)
    options.add_argument("--seed", type=int, default=0)
    asked = options.parse_args()
    said, sys.stdout = sys.stdout, io.StringIO()  # what the commands print is not wanted
    soak(asked.seconds, asked.seed, lambda text: print(text, file=said, flush=True))
