"""Runs that are killed at random moments, over and over, until one is let to its end. Also a soak of hours:

    python tests/kills.py --seconds 3600

kills and resumes runs of every task and kills gates, and runs whole gates and runs in one process, whose memory, open
files, children and temporary files must not grow. And

    python tests/kills.py --signals 40 --signal SIGTERM

asks whole runs, each with its gate, for their end at random moments, and says how each ended.
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
#: Seconds after which a process that was asked for its end hangs; of a quiet machine it takes 5 at most.
HANGS = 60.0
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


def kill(process: subprocess.Popen, seconds: float, how: int = signal.SIGKILL) -> bool:
    """Kill a process after so many seconds, or ask it for its end; False where it has ended before."""
    try:
        process.wait(seconds)
        return False
    except subprocess.TimeoutExpired:
        process.send_signal(how)
        process.wait(HANGS)
        return True


def run_with_kills(recipe: Path, folder: Path, kills: int, draws: random.Random) -> int:
    """Train into a folder, killed up to so many times; returns how often it was. The last start runs to its end."""
    done = 0
    while done < kills and kill(finetune(recipe, folder), draws.uniform(0, WITHIN)):
        done += 1
    if done == kills or not (folder / "metrics.json").exists():
        last = finetune(recipe, folder, stderr=subprocess.PIPE, text=True)
        _, said = last.communicate()
        # A kill that comes after the last number leaves checkpoints in a finished run; this start removes them.
        assert last.returncode == 0 or (last.returncode == 2 and f"{folder} holds a finished run" in said), said
    return done


def assert_same_bits(ours: Path, theirs: Path) -> None:
    """Two finished runs have the same weights, metrics and files, but for what is a time."""
    assert names(ours) == names(theirs)
    found, expected = load_file(ours / "model/model.safetensors"), load_file(theirs / "model/model.safetensors")
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)
    assert rows(ours) == rows(theirs)
    for path in theirs.glob("predictions-*.csv"):
        assert (ours / path.name).read_bytes() == path.read_bytes()


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def rows(folder: Path) -> list[dict]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]


# -- asked for the end ----------------------------------------------------------------------------------------------


#: What a run does, one after another.
DOINGS = (
    "start", "gate", "before training", "training", "validation", "saving", "last validation", "test evaluation",
    "predictions and page", "end",
)  # fmt: skip


@dataclass(frozen=True)
class Stopped:
    """A run that a signal has asked for its end.

    Attributes:
        doing: what it did then.
        seconds: from the signal to the end.
        status: of the process.
        said: on the standard error.
    """

    doing: str
    seconds: float
    status: int
    said: str


def long_recipe(folder: Path) -> Path:
    """A recipe of which a run does all of :data:`DOINGS`, and takes its time for each."""
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
        places: where its cache and temporary files are.
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
        """Run it to its end, and measure how long it does what."""
        process, before = self.start(), time.monotonic()
        while process.poll() is None:
            doing, now = self.doing(), time.monotonic()
            self.spans[doing], before = self.spans[doing] + now - before, now
            time.sleep(0.002)
        assert process.returncode == 0, process.communicate()[1]

    def stop(self, doing: str, after: float, how: int) -> Stopped | None:
        """Ask for the end, so long after it has begun to do something; see that nothing is left of it. None where it
        has ended before."""
        process = self.start()
        while process.poll() is None and DOINGS.index(self.doing()) < DOINGS.index(doing):
            time.sleep(0.001)
        try:
            process.communicate(timeout=after)
            return None
        except subprocess.TimeoutExpired:
            pass
        doing, began = self.doing(), time.monotonic()
        process.send_signal(how)
        try:
            _, said = process.communicate(timeout=HANGS)
        finally:
            process.kill()
        stopped = Stopped(doing, time.monotonic() - began, process.returncode, said)
        self.assert_nothing_is_left()
        return stopped

    def assert_nothing_is_left(self) -> None:
        """Neither a process nor a temporary file; the janitor may have to be awaited."""
        end, temporary = time.monotonic() + 10, self.places / "TMPDIR"
        while (processes_of(temporary) or list(temporary.iterdir())) and time.monotonic() < end:
            time.sleep(0.05)
        assert not processes_of(temporary) and not list(temporary.iterdir()), list(temporary.iterdir())

    def doing(self) -> str:
        """What it does, as its files tell; one of :data:`DOINGS`."""
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


def assert_stopped(stopped: Stopped, how: int) -> None:
    """It said one line and ended with the signal's status, or was so far that it could end as always. A Python that has
    not read a line of ours is ended by the signal itself, which a shell counts alike, or says where it was."""
    if stopped.doing == "start" and how == signal.SIGINT and of_python_alone(stopped.said):
        return
    assert stopped.status in (128 + how, 0) or (stopped.status, stopped.doing) == (-how, "start"), stopped
    name = signal.Signals(how).name
    line = "interrupted\n" if how == signal.SIGINT else f"interrupted by {name}\n"
    assert stopped.said == (line if stopped.status == 128 + how else ""), stopped


def of_python_alone(said: str) -> bool:
    """Whether that is Python's own traceback of a Ctrl-C, in which no file of ours stands."""
    return "Traceback" in said and "KeyboardInterrupt" in said and f"{ROOT}/toolkit/" not in said


def stop_at_random(count: int, how: int, seed: int, folder: Path, *options: object, report=print) -> list[Stopped]:
    """Ask for the end at so many moments of whole runs; what each goes on to is the run that nobody asked."""
    recipe, draws, found = long_recipe(folder), random.Random(seed), []
    whole = GatedRun(recipe, folder / "whole", *options)
    whole.finish()
    report(", ".join(f"{doing} {seconds:.2f} s" for doing, seconds in whole.spans.items()))
    for number in range(count):
        doing = DOINGS[number * len(DOINGS) // count]
        run = GatedRun(recipe, folder / f"run-{number}", *options)
        if doing not in ("start", "gate"):  # its gate has passed before
            shutil.copytree(whole.places / "TOOLKIT_CACHE", run.places / "TOOLKIT_CACHE")
        if (stopped := run.stop(doing, draws.uniform(0, whole.spans[doing]), how)) is None:
            report(f"{doing}: it had ended")
            continue
        report(f"{stopped.doing}: {stopped.status} after {stopped.seconds:.2f} s")
        assert_stopped(stopped, how)
        if stopped.status:
            run.finish()
        assert_same_bits(run.folder, whole.folder)
        shutil.rmtree(run.folder)
        shutil.rmtree(run.places)
        found.append(stopped)
    return found


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
    return processes_of(Path(tempfile.gettempdir()))


def processes_of(temporary: Path) -> list[int]:
    """Processes but this one that were started with a temporary directory: by an interpreter of their own, which has it
    in its environment, or by the fork server (:mod:`fork_server`), which leaves it open."""
    return [
        int(path.name)
        for path in Path("/proc").glob("[0-9]*")
        if int(path.name) != os.getpid() and (_has_variable(path, temporary) or _has_open(path, temporary))
    ]


def _has_variable(process: Path, temporary: Path) -> bool:
    """Return whether a process of /proc was started with that temporary directory in its environment."""
    with contextlib.suppress(OSError):  # it has ended, or is somebody else's
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
    options.add_argument("--signals", type=int, default=0)
    options.add_argument("--signal", default="SIGTERM")
    options.add_argument("options", nargs="*", help="of the runs that are asked for their end")
    asked = options.parse_args()
    if asked.signals:
        with tempfile.TemporaryDirectory() as place:
            how = signal.Signals[asked.signal]
            stop_at_random(
                asked.signals, how, asked.seed, Path(place), *asked.options, report=lambda text: print(text, flush=True)
            )
        sys.exit()
    said, sys.stdout = sys.stdout, io.StringIO()  # what the commands print is not wanted
    soak(asked.seconds, asked.seed, lambda text: print(text, file=said, flush=True))
