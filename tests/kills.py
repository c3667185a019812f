"""Kill runs at random moments, again and again, until the last may finish. Also run a soak of several hours:

    python tests/kills.py --seconds 3600

kills and resumes runs of every task and kills gates, and runs whole gates and runs in one process, whose memory, open
files, children and temporary files must not grow. And

    python tests/kills.py --signals 40 --signal SIGTERM

sends a signal to complete runs with their gate at random moments, and prints how each ended.
"""

from __future__ import annotations

import argparse
import contextlib
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
from dataclasses import dataclass
from pathlib import Path

import yaml
from recipe_fuzz import BASES, write_data
from safetensors.numpy import load_file

ROOT = Path(__file__).resolve().parents[1]

#: Long enough to be killed in, short enough to be killed often: evaluations, checkpoints, a best one, half an epoch.
LENGTH = {"epochs": None, "max_steps": 60, "eval_steps": 4, "gradient_accumulation_steps": 2}
#: Seconds within which a process is killed: while it starts, trains, saves or ends.
WITHIN = 7.0
#: Seconds after a signal until a process counts as hanging; on an idle machine it ends within 5.
HANGS = 60.0
#: A gate of a second or two, with both its workers.
GATE = ("parity", "--model", "ctrl", "--layers", "1", "--length", "8", "n_embd=8", "n_head=2", "dff=8", "vocab_size=40")


def write_recipes(folder: Path) -> list[Path]:
    """Write a small recipe of every task, with its data, into an empty folder."""
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
    """Start the real command without its output."""
    command = [sys.executable, "-m", "toolkit", *map(str, arguments)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, cwd=ROOT, **{**quiet, **options})


def finetune(recipe: Path, folder: Path, **options) -> subprocess.Popen:
    return toolkit("finetune", recipe, f"train.output_dir={folder}", "--skip-parity", "killed", **options)


def kill(process: subprocess.Popen, seconds: float, signal_number: int = signal.SIGKILL) -> bool:
    """Send a signal to a process after some seconds; return False if it has ended before."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(signal_number)
        process.wait(HANGS)
        return True


def run_with_kills(recipe: Path, folder: Path, kills: int, draws: random.Random) -> int:
    """Train into a folder with at most `kills` kills, then to the end; return the number of kills."""
    num_kills = 0
    while num_kills < kills and kill(finetune(recipe, folder), draws.uniform(0, WITHIN)):
        num_kills += 1
    if num_kills == kills or not (folder / "metrics.json").exists():
        last = finetune(recipe, folder, stderr=subprocess.PIPE, text=True)
        _, errors = last.communicate()
        # A kill that comes after the last number leaves checkpoints in a finished run; this start removes them.
        assert last.returncode == 0 or (last.returncode == 2 and f"{folder} holds a finished run" in errors), errors
    return num_kills


def assert_same_bits(our_run: Path, their_run: Path) -> None:
    """Check that two finished runs have equal weights, metrics and files, apart from times."""
    assert names(our_run) == names(their_run)
    our_weights, their_weights = (
        load_file(our_run / "model/model.safetensors"),
        load_file(their_run / "model/model.safetensors"),
    )
    assert our_weights.keys() == their_weights.keys()
    assert all(our_weights[name].tobytes() == their_weights[name].tobytes() for name in their_weights)
    assert rows(our_run) == rows(their_run)
    for path in their_run.glob("predictions-*.csv"):
        assert (our_run / path.name).read_bytes() == path.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def rows(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


# -- stopped by a signal --------------------------------------------------------------------------------------------


#: The stages of a run, in order.
DOINGS = (
    "start", "gate", "before training", "training", "validation", "saving", "last validation", "test evaluation",
    "predictions and page", "end",
)  # fmt: skip


@dataclass(frozen=True)
class StoppedRun:
    """A run that a signal has stopped.

    Attributes:
        doing: stage of the run when the signal came.
        seconds: time from the signal to the end.
        status: exit status of the process.
        errors: text on the standard error.
    """

    doing: str
    seconds: float
    status: int
    errors: str


def long_recipe(folder: Path) -> Path:
    """Write a recipe whose run goes through all :data:`DOINGS` and takes some time for each."""
    (path,) = (path for path in write_recipes(folder) if path.name == "classification.yaml")
    header, *rows = (folder / "train.csv").read_text().splitlines()
    for name, times in (("validation", 6), ("test", 15)):
        (folder / f"{name}.csv").write_text("\n".join([header, *rows * times, ""]))
    content = yaml.safe_load(path.read_text())
    content["data"]["files"] = {name: f"{name}.csv" for name in ("train", "validation", "test")}
    content["train"] |= {"max_steps": 12, "eval_steps": 4, "eval_batch_size": 1}
    path.write_text(yaml.safe_dump(content))
    return path


class GatedRun:
    """A run with its gate.

    Attributes:
        folder: the run folder.
        places: folders of its cache and temporary files.
    """

    def __init__(self, recipe: Path, folder: Path, *options: object) -> None:
        self.folder, self.places, self._command = folder, folder.with_name(f"{folder.name}-places"), (recipe, *options)
        self.spans = dict.fromkeys(DOINGS, 0.0)

    def start(self) -> subprocess.Popen:
        environment = {name: str(self.places / name) for name in ("TMPDIR", "TOOLKIT_CACHE")}
        for place in environment.values():
            Path(place).mkdir(parents=True, exist_ok=True)
        recipe, *options = self._command
        return toolkit(
            "finetune", recipe, f"train.output_dir={self.folder}", *options, stderr=subprocess.PIPE, text=True,
            env={**os.environ, **environment}, start_new_session=True,
        )  # fmt: skip

    def finish(self) -> None:
        """Run it to its end, and measure the duration of each stage."""
        process, stage_start = self.start(), time.monotonic()
        while process.poll() is None:
            doing, now = self.doing(), time.monotonic()
            self.spans[doing], stage_start = self.spans[doing] + now - stage_start, now
            time.sleep(0.002)
        assert process.returncode == 0, process.communicate()[1]

    def stop(self, doing: str, delay_seconds: float, signal_number: int) -> StoppedRun | None:
        """Send a signal some seconds after a stage has started, and check that nothing is left.

        Returns None if the run has ended before.
        """
        process = self.start()
        while process.poll() is None and DOINGS.index(self.doing()) < DOINGS.index(doing):
            time.sleep(0.001)
        try:
            process.communicate(timeout=delay_seconds)
            return None
        except subprocess.TimeoutExpired:
            pass
        doing, began = self.doing(), time.monotonic()
        process.send_signal(signal_number)
        try:
            _, errors = process.communicate(timeout=HANGS)
        finally:
            process.kill()
        stopped_run = StoppedRun(doing, time.monotonic() - began, process.returncode, errors)
        self.assert_nothing_is_left()
        return stopped_run

    def assert_nothing_is_left(self) -> None:
        """Check that no process or temporary file is left; this may wait for the janitor."""
        end, temporary = time.monotonic() + 10, self.places / "TMPDIR"
        while (processes_of(temporary) or list(temporary.iterdir())) and time.monotonic() < end:
            time.sleep(0.05)
        assert not processes_of(temporary) and not list(temporary.iterdir()), list(temporary.iterdir())

    def doing(self) -> str:
        """Return the current stage according to its files, one of :data:`DOINGS`."""
        folder = self.folder
        if (folder / "metrics.json").exists():
            return "end"
        if (folder / "model").exists():
            return "predictions and page"
        with contextlib.suppress(OSError, ValueError, IndexError):
            row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
            if row["step"] == 12:
                return "test evaluation" if row["split"] == "validation" else "last validation"
            if any(folder.glob("checkpoints/.unfinished-*")):
                return "saving"
            return "validation" if row["step"] % 4 == 0 and row["split"] == "train" else "training"
        if (folder / "identity.json").exists():
            return "before training"
        return "gate" if any((self.places / "TMPDIR").glob("parity-*")) else "start"


def assert_stopped(stopped_run: StoppedRun, signal_number: int) -> None:
    """Check that it printed one line and exited with the signal's status, or had already finished normally.

    A Python that has not run a line of ours is ended by the signal itself, or prints its own traceback.
    """
    if stopped_run.doing == "start" and signal_number == signal.SIGINT and of_python_alone(stopped_run.errors):
        return
    assert stopped_run.status in (128 + signal_number, 0) or (stopped_run.status, stopped_run.doing) == (
        -signal_number,
        "start",
    ), stopped_run
    name = signal.Signals(signal_number).name
    line = "interrupted\n" if signal_number == signal.SIGINT else f"interrupted by {name}\n"
    assert stopped_run.errors == (line if stopped_run.status == 128 + signal_number else ""), stopped_run


def of_python_alone(errors: str) -> bool:
    """Return whether the text is Python's own traceback of a Ctrl-C, without a file of ours."""
    return "Traceback" in errors and "KeyboardInterrupt" in errors and f"{ROOT}/toolkit/" not in errors


def stop_at_random(
    count: int, signal_number: int, seed: int, folder: Path, *options: object, report=print
) -> list[StoppedRun]:
    """Stop complete runs at `count` random moments; each then resumes to the same result as an uninterrupted run."""
    recipe, draws, stopped_runs = long_recipe(folder), random.Random(seed), []
    whole_run = GatedRun(recipe, folder / "whole", *options)
    whole_run.finish()
    report(", ".join(f"{doing} {seconds:.2f} s" for doing, seconds in whole_run.spans.items()))
    for number in range(count):
        doing = DOINGS[number * len(DOINGS) // count]
        run = GatedRun(recipe, folder / f"run-{number}", *options)
        if doing not in ("start", "gate"):  # its gate has passed before
            shutil.copytree(whole_run.places / "TOOLKIT_CACHE", run.places / "TOOLKIT_CACHE")
        if (stopped_run := run.stop(doing, draws.uniform(0, whole_run.spans[doing]), signal_number)) is None:
            report(f"{doing}: it had ended")
            continue
        report(f"{stopped_run.doing}: {stopped_run.status} after {stopped_run.seconds:.2f} s")
        assert_stopped(stopped_run, signal_number)
        if stopped_run.status:
            run.finish()
        assert_same_bits(run.folder, whole_run.folder)
        shutil.rmtree(run.folder)
        shutil.rmtree(run.places)
        stopped_runs.append(stopped_run)
    return stopped_runs


# -- the soak -------------------------------------------------------------------------------------------------------


def residue() -> dict[str, float]:
    """Return the quantities that must not grow: memory (MB) and open files of this process, our processes and files."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return {
        "memory_mb": pages * resource.getpagesize() / 1e6,
        "open_files": len(os.listdir("/proc/self/fd")),
        "processes": len(processes_of_ours()),
        "temporary": len(list(Path(tempfile.gettempdir()).iterdir())),
    }


def assert_nothing_grows(measurements: list[dict[str, float]]) -> None:
    """Check that only the janitor of this process is left and that no quantity grows.

    Memory may grow a little after the middle; caches of libraries fill up in the first rounds.
    """
    assert not measurements[-1]["temporary"], os.listdir(tempfile.gettempdir())
    assert measurements[-1]["processes"] <= 1, measurements[-1]
    if len(measurements) > 20:
        assert measurements[-1]["open_files"] <= measurements[len(BASES)]["open_files"], (
            measurements[len(BASES)],
            measurements[-1],
        )
        assert measurements[-1]["memory_mb"] <= 1.25 * measurements[len(measurements) // 2]["memory_mb"], (
            measurements[len(measurements) // 2],
            measurements[-1],
        )


def processes_of_ours() -> list[int]:
    """Return the other processes that use the temporary directory of the soak."""
    return processes_of(Path(tempfile.gettempdir()))


def processes_of(temporary: Path) -> list[int]:
    """Return the other processes that were started with a temporary directory.

    A new interpreter has it in its environment; the fork server (:mod:`fork_server`) leaves it open.
    """
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if int(path.name) != os.getpid() and (_has_variable(path, temporary) or _has_open(path, temporary))
    ]


def _has_variable(process: Path, temporary: Path) -> bool:
    """Return whether a process of /proc was started with that temporary directory in its environment."""
    with contextlib.suppress(OSError):  # it has ended or belongs to another user
        return f"TMPDIR={temporary}".encode() in (process / "environ").read_bytes().split(b"\0")
    return False


def _has_open(process: Path, folder: Path) -> bool:
    """Return whether a process of /proc has a folder open."""
    with contextlib.suppress(OSError):  # as above
        for descriptor in (process / "fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if os.readlink(descriptor) == str(folder):
                    return True
    return False


def soak(seconds: float, seed: int, report=print) -> list[dict[str, float]]:
    """Kill, resume, gate and train for `seconds`; return :func:`residue` after each round, the baseline first."""
    from toolkit import cli

    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    os.environ["TMPDIR"] = str(folder / "tmp")
    os.environ["TOOLKIT_CACHE"] = str(folder / "cache")
    (folder / "tmp").mkdir()
    tempfile.tempdir = None
    recipes, draws, measurements = write_recipes(folder), random.Random(seed), []
    kills = gates = 0
    end = time.monotonic() + seconds
    while not measurements or time.monotonic() < end:
        recipe = recipes[len(measurements) % len(recipes)]
        run = folder / "run"
        kills += run_with_kills(recipe, run, 2, draws)
        shutil.rmtree(run)
        killed_process = toolkit(*GATE, "--output", folder / "killed")
        kill(killed_process, draws.uniform(0, 8.0))
        time.sleep(1.0)
        for arguments in (
            [*GATE, "--seed", str(len(measurements)), "--output", str(folder / "gate")],
            ["finetune", str(recipe), f"train.output_dir={run}", "train.max_steps=8", "--skip-parity", "soak"],
        ):
            try:
                cli.main(arguments)
            except SystemExit as leave:
                assert not leave.code, arguments
        gates += 1
        shutil.rmtree(run)
        measurements.append(residue())
        assert_nothing_grows(measurements)
        if len(measurements) % 10 == 1:
            report(f"{len(measurements)} rounds, {kills} kills of runs, {gates} gates: {measurements[-1]}")
    report(f"{len(measurements)} rounds, {kills} kills of runs, {gates} gates: {measurements[-1]}")
    shutil.rmtree(folder)
    return measurements


if __name__ == "__main__":
    options = argparse.ArgumentParser()
    options.add_argument("--seconds", type=float, default=3600)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--signals", type=int, default=0)
    options.add_argument("--signal", default="SIGTERM")
    options.add_argument("options", nargs="*", help="options of the runs that are stopped by a signal")
    arguments = options.parse_args()
    if arguments.signals:
        with tempfile.TemporaryDirectory() as place:
            signal_number = signal.Signals[arguments.signal]
            stop_at_random(
                arguments.signals,
                signal_number,
                arguments.seed,
                Path(place),
                *arguments.options,
                report=lambda text: print(text, flush=True),
            )
        sys.exit()
    terminal, sys.stdout = sys.stdout, io.StringIO()  # hide the output of the commands
    soak(arguments.seconds, arguments.seed, lambda text: print(text, file=terminal, flush=True))
