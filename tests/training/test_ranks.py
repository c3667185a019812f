"""Several processes train as one does, over real gloo connections: the same losses, weights and metrics; killed and
resumed; told which of them has died."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
import yaml
from gates import ROOT
from kills import assert_same_bits, toolkit, write_recipes
from rank_worker import train
from recipe_fuzz import BASES, write_data
from soak import some

from toolkit.errors import ToolkitError, UserError
from toolkit.finetune import launch, passed_gate
from toolkit.finetune.launch import Team
from toolkit.machine.scratch import child_process
from toolkit.training import ranks

WORKER = str(Path(__file__).parents[1] / "rank_worker.py")
#: Nothing is drawn at random but by a seed of the model's own; 20 steps, over the end of an epoch.
EXACT = {
    "reformer": {"hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0, "hash_seed": 7},
    "ctrl": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
TASKS = ("classification", "question answering", "language modelling", "masked language modelling")
#: Of losses, relative, and of weights: a bias before a softmax has no gradient but rounding, of which AdamW makes
#: steps of 1e-12.
TOLERANCES = {"float64": (1e-12, 1e-10), "float32": (1e-4, 1e-3)}
STEPS = ["train.max_steps=20", "train.epochs=null", "train.eval_steps=8", "train.eval_batch_size=2"]


def exact_recipes(folder: Path) -> dict[str, Path]:
    """By task, a small recipe without dropout, and its data; an epoch of the 10 texts ends with a batch of 2."""
    write_data(folder)
    recipes = {}
    for task in TASKS:
        content = BASES[task]
        model = content["model"]
        config = {**model["config"], **EXACT[model.get("name", "reformer")]}
        data = {**content["data"], **({"limit": {"train": 10}} if task == TASKS[0] else {})}
        recipes[task] = folder / f"{task.replace(' ', '-')}.yaml"
        recipes[task].write_text(yaml.safe_dump({**content, "data": data, "model": {**model, "config": config}}))
    return recipes


def run_ranks(size: int, jobs: list[dict], folder: Path) -> None:
    """Train the jobs in so many processes, to their end."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, WORKER, str(folder / "jobs.json")]
    with contextlib.ExitStack() as running:
        started = []
        meeting = running.enter_context(launch._reserve_address())
        for number, places in enumerate(launch._process_environments(Team(size), meeting)):
            environment = {**os.environ, **places, "PADDLE_DISTRI_BACKEND": "gloo", "PYTHONPATH": str(ROOT)}
            log = running.enter_context((folder / f"{number}.log").open("wb"))
            process = running.enter_context(child_process(command, env=environment, stdout=log, stderr=log))
            started.append(process)
        for number, process in enumerate(started):
            assert process.wait(timeout=300) == 0, (folder / f"{number}.log").read_text()


def found_in(folder: Path) -> dict:
    with np.load(folder / "weights.npz") as weights:
        return {**json.loads((folder / "found.json").read_text()), "weights": dict(weights)}


def assert_equal(ours: dict, theirs: dict, within: float, weights_within: float) -> None:
    assert len(ours["losses"]) == len(theirs["losses"]) == 20
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=within, atol=0)
    assert ours["weights"].keys() == theirs["weights"].keys()
    for name, value in theirs["weights"].items():
        np.testing.assert_allclose(ours["weights"][name], value, rtol=0, atol=weights_within, err_msg=name)
    assert ours["metrics"].keys() == theirs["metrics"].keys()
    for split, metrics in theirs["metrics"].items():
        assert ours["metrics"][split] == pytest.approx(metrics, rel=max(within, 1e-6)), split


def batches_of(size: int, accumulated: int = 1) -> list[str]:
    """Overrides by which so many processes have 4 examples a step."""
    return [f"train.batch_size={4 // size // accumulated}", f"train.gradient_accumulation_steps={accumulated}"]


def job_of(recipe: Path, size: int, name: str, dtype: str, accumulated: int = 1) -> dict:
    """What :func:`run_ranks` trains in so many processes, into a folder of that name beside the recipe."""
    overrides = [*STEPS, *batches_of(size, accumulated)]
    return {"recipe": str(recipe), "overrides": overrides, "folder": str(recipe.with_name(name)), "dtype": dtype}


SHORT_EPOCHS = ["data.limit.train=9", "train.max_steps=6"]
DROPOUT = ["model.config.hidden_dropout_prob=0.1", "train.max_steps=6", "train.batch_size=2"]


def shared_out(recipe: Path, size: int) -> dict:
    """A job of two micro-batches for each rank, which leaves what each rank did."""
    job = job_of(recipe, size, f"of {size}", "float64", accumulated=2)
    return {**job, "overrides": [*job["overrides"], *SHORT_EPOCHS], "is_watched": True}


def with_dropout(recipe: Path, name: str, **changes: object) -> dict:
    """A job of two ranks that draw masks, which leaves what each rank did."""
    job = job_of(recipe, 2, name, "float32")
    return {**job, "overrides": [*job["overrides"], *DROPOUT], "is_watched": True, **changes}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> dict[str, Path]:
    """By task, a recipe; beside them, what two processes have left that trained all jobs of these tests in turn."""
    folder = tmp_path_factory.mktemp("ranks")
    recipes = exact_recipes(folder)
    first = recipes[TASKS[0]]
    jobs = [job_of(path, 2, task, "float64") for task, path in recipes.items()]
    jobs += [shared_out(first, 2), with_dropout(first, "whole"), with_dropout(first, "resumed", stop_at=3)]
    run_ranks(2, jobs, folder)
    return recipes


@pytest.mark.parametrize("task", TASKS)
def test_two_processes_train_as_one_does(two_ranks, task):
    """In float64 to the last digits."""
    path = two_ranks[task]
    alone = train(**job_of(path, 1, f"{task} alone", "float64"))
    assert_equal(found_in(path.with_name(task)), alone, *TOLERANCES["float64"])


@pytest.mark.slow
def test_four_processes_and_accumulation_train_as_one_does(tmp_path):
    """Every task; of an epoch's last batch, which holds 2 texts, two processes of the classifier have no part."""
    recipes = exact_recipes(tmp_path)
    several = {
        4: [job_of(path, 4, f"{task}, four", "float64") for task, path in recipes.items()],
        2: [
            job_of(recipes[TASKS[0]], 2, "accumulated", "float64", accumulated=2),
            job_of(recipes[TASKS[0]], 2, "rounded", "float32"),
        ],
    }
    for size, jobs in several.items():
        run_ranks(size, jobs, tmp_path)
    alone = {}
    for job in (job for jobs in several.values() for job in jobs):
        path, dtype = Path(job["recipe"]), job["dtype"]
        if (path, dtype) not in alone:
            alone[path, dtype] = train(**job_of(path, 1, f"{path.stem} {dtype} alone", dtype))
        assert_equal(found_in(Path(job["folder"])), alone[path, dtype], *TOLERANCES[dtype])


def seen_by(folder: Path, size: int) -> list[dict]:
    """What each rank did in each step: ``examples`` and ``masks``, by the step's number."""
    return [json.loads((folder / f"rank-{number}.json").read_text()) for number in range(size)]


def gradients_of(folder: Path, number: int = 0) -> dict[str, np.ndarray]:
    with np.load(folder / f"rank-{number}.npz") as found:
        return dict(found)


def test_ranks_share_each_epoch_out_and_apply_the_gradient_of_one_process_on_it(two_ranks):
    """Two ranks of two micro-batches each. Of an epoch's last batch, which holds one text, the second has no part."""
    recipe = two_ranks[TASKS[0]]
    train(**shared_out(recipe, 1))
    [alone], together = seen_by(recipe.with_name("of 1"), 1), seen_by(recipe.with_name("of 2"), 2)
    for first in (1, 4):
        steps = [str(first + number) for number in range(3)]
        in_epoch = [example for rank in together for step in steps for example in rank["examples"][step]]
        assert len(set(in_epoch)) == len(in_epoch) == 9
        shares = [[len(rank["examples"][step]) for step in steps] for rank in together]
        assert shares == [[2, 2, 1], [2, 2, 0]]
        for step in steps:
            of_both = [example for rank in together for example in rank["examples"][step]]
            assert sorted(of_both) == sorted(alone["examples"][step])
    theirs = gradients_of(recipe.with_name("of 1"))
    for number in range(2):
        ours = gradients_of(recipe.with_name("of 2"), number)
        assert ours.keys() == theirs.keys()
        for name, value in theirs.items():  # AdamW is blind to their scale, and weights show none
            np.testing.assert_allclose(
                ours[name], value, rtol=0, atol=1e-12 * np.abs(value).max() + 1e-16, err_msg=name
            )


def test_each_rank_drops_other_cells_than_the_others_and_when_resumed_those_that_it_would_have(two_ranks):
    place = two_ranks[TASKS[0]]
    first, second = (rank["masks"] for rank in seen_by(place.with_name("whole"), 2))
    of_steps = [set(masks) for rank in (first, second) for masks in rank.values()]  # a backward may draw them again
    assert len(of_steps) == 12 and all(len(masks) > 1 for masks in of_steps)
    assert len(set.union(*of_steps)) == sum(map(len, of_steps))
    assert seen_by(place.with_name("resumed"), 2) == seen_by(place.with_name("whole"), 2)


# -- the command ----------------------------------------------------------------------------------------------------


def start(recipe: Path, folder: Path, processes: int | None = 2, **options) -> subprocess.Popen:
    several = [] if processes is None else ["--processes", processes]
    return toolkit("finetune", recipe, f"train.output_dir={folder}", "--skip-parity", "killed", *several, **options)


def wait_for_checkpoint(process: subprocess.Popen, folder: Path, step: int) -> None:
    """Until the run has a checkpoint of that step or a later one."""
    while not any(int(path.name[5:]) >= step for path in folder.glob("checkpoints/step-*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def rank_of(number: int, cache: str, program: str = "runpy.run_module") -> int:
    """The process that is a rank of a run of this cache, and runs this program."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
            command = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        wanted = {f"PADDLE_TRAINER_ID={number}".encode(), f"TOOLKIT_CACHE={cache}".encode()}
        if wanted <= set(variables) and program.encode() in command:
            return int(path.parent.name)
    raise AssertionError("no such rank")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipes(tmp_path_factory.mktemp("recipes"))[0]


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    """The run of two processes that nobody kills."""
    folder = tmp_path_factory.mktemp("whole")
    temporary = {name: folder / name for name in ("TMPDIR", "TOOLKIT_CACHE")}
    temporary["TMPDIR"].mkdir()
    assert start(recipe, folder / "run", env={**os.environ, **temporary}).wait() == 0
    assert not list(temporary["TMPDIR"].iterdir())
    return folder / "run"


@pytest.mark.slow
def test_a_rank_that_is_killed_is_named_and_the_run_goes_on_bit_for_bit(recipe, whole, tmp_path, monkeypatch):
    """Killed twice: one rank, then all of them with the command itself."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    run, cache = tmp_path / "run", os.environ["TOOLKIT_CACHE"]
    killed = start(recipe, run, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(killed, run, 8)
    os.kill(rank_of(1, cache), signal.SIGKILL)
    began = time.monotonic()
    said = killed.communicate()[1].splitlines()
    assert killed.returncode == 1 and time.monotonic() - began < 60
    assert len(said) == 1 and said[0].startswith(
        f"error: rank 1 of 2 processes was killed by SIGKILL; its log is {run}/logs/rank-1.log"
    )
    last = max(path.name for path in run.glob("checkpoints/step-*"))
    killed = start(recipe, run, stderr=subprocess.PIPE)
    wait_for_checkpoint(killed, run, int(last[5:]) + 4)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    time.sleep(1)
    assert start(recipe, run).wait() == 0
    assert_same_bits(run, whole)
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
def test_a_run_of_two_that_ctrl_c_has_saved_goes_on_with_one(recipe, tmp_path):
    run = tmp_path / "run"
    stopped = start(recipe, run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(stopped, run, 8)
    stopped.send_signal(signal.SIGINT)
    out, err = stopped.communicate()
    assert stopped.returncode == 130 and "; the same command resumes it" in out and err.split() == ["interrupted"]
    alone = start(recipe, run, None, stdout=subprocess.PIPE, text=True)
    notes = [line for line in alone.communicate()[0].splitlines() if line.startswith("note   saved")]
    assert alone.returncode == 0 and len(notes) == 1 and "saved by 2 processes and resumed with 1" in notes[0]
    results = json.loads((run / "metrics.json").read_text())
    assert results["training"]["schedule"]["steps_per_epoch"] == 2  # 12 texts, of which 2 x 2 x 2 are a step's
    measured = toolkit("evaluate", run, "--split", "validation", stderr=subprocess.PIPE, text=True)
    assert measured.communicate()[1] == "" and measured.returncode == 0
    assert json.loads((run / "metrics.json").read_text())["validation"] == results["validation"]


#: What `pip install` makes of the entry point; Paddle's launcher runs a program, not a module.
SCRIPT = """#!{python}
import sys
from toolkit.cli import main
sys.exit(main())
"""


@pytest.mark.slow
def test_paddles_launcher_trains_as_our_command_does_and_ends_with_a_rank_that_is_killed(recipe, whole, tmp_path):
    """The README's line: it ends with status 0, and leaves what `--processes 2` leaves; a kill ends it, it goes on."""
    if paddle.device.cuda.device_count():
        pytest.skip("Paddle's launcher takes the GPUs that there are; on CPUs it runs where there is none")
    run, script = tmp_path / "run", tmp_path / "bin/toolkit"
    script.parent.mkdir()
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    launcher = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", tmp_path / "l"]
    arguments = ["finetune", recipe, f"train.output_dir={run}", "--skip-parity", "killed"]

    def launched() -> subprocess.Popen:
        command = list(map(str, [*launcher, script, *arguments]))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # where it is empty, the launcher counts one GPU
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)

    with (tmp_path / "launcher.log").open("w+") as log:
        killed = launched()
        while not list(run.glob("checkpoints/step-*")):
            assert killed.poll() is None, Path(log.name).read_text()
            time.sleep(0.01)
        os.kill(rank_of(1, os.environ["TOOLKIT_CACHE"], str(script)), signal.SIGKILL)
        assert killed.wait(timeout=60) not in (0, None) and not (run / "metrics.json").exists()
        assert launched().wait(timeout=120) == 0, Path(log.name).read_text()
    assert_same_bits(run, whole)


#: Takes a port, as a program does that listens there; with another argument, as one that shares addresses.
THIEF = """
import socket, sys
taken = socket.socket()
taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, len(sys.argv) > 2)
taken.bind(("127.0.0.1", int(sys.argv[1])))
taken.listen()
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
@pytest.mark.parametrize("shares", some([False, True]))
def test_a_port_that_another_program_wants_stays_ours_or_is_one_line(shares, recipe, tmp_path):
    run = start(recipe, tmp_path / "run", stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while True:  # until there is a process that has the port's number and not the port
        assert run.poll() is None and time.monotonic() < deadline, run.stderr.read()
        with contextlib.suppress(AssertionError):
            variables = Path(f"/proc/{rank_of(0, os.environ['TOOLKIT_CACHE'])}/environ").read_bytes().split(b"\0")
            break
        time.sleep(0.01)
    [port] = [one.rpartition(b":")[2].decode() for one in variables if one.startswith(b"PADDLE_MASTER=")]
    command = [sys.executable, "-c", THIEF, port, *(["shares"] if shares else [])]
    thief = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    said = thief.stdout.readline()
    _, errors = run.communicate(timeout=300)
    refused = thief.communicate()[1]
    if shares:
        assert said == "taken\n" and run.returncode == 2
        meeting = f"error: the processes cannot meet at 127.0.0.1:{port}: Address already in use"
        assert errors == f"{meeting}; run the same command again\n"
    else:
        assert "Address already in use" in refused and (run.returncode, errors) == (0, "")


# -- its parts ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        ({0: 0, 1: 0}, 0),
        ({1: 130, 0: 130}, 130),
        ({1: 3, 0: 3}, 3),
        (
            {1: -9, 0: ranks.LOST_PROCESS_STATUS},
            "rank 1 of 2 processes was killed by SIGKILL; its log is logs/rank-1.log",
        ),
        ({0: ranks.LOST_PROCESS_STATUS, 1: -9}, "rank 1 of 2 processes was killed by SIGKILL"),
        (
            {1: 1, 0: ranks.LOST_PROCESS_STATUS},
            'rank 1 of 2 processes ended with status 1; its log is logs/rank-1.log, its last line "',
        ),
        ({0: -15, 1: ranks.LOST_PROCESS_STATUS}, "rank 0 of 2 processes was killed by SIGTERM; what it said is above"),
        ({0: 1, 1: ranks.LOST_PROCESS_STATUS}, 1),
    ],
)
def test_the_rank_that_failed_is_named_and_not_those_that_failed_for_want_of_it(ended, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    Path("logs/rank-1.log").write_text("much\nno memory\n\n")
    if isinstance(said, int):
        assert launch._exit_status(ended, 2, Path("logs")) == said
        return
    with pytest.raises(ToolkitError) as problem:
        launch._exit_status(ended, 2, Path("logs"))
    assert str(problem.value).startswith(said) and problem.value.exit_status == 1
    assert str(problem.value).endswith("; the same command goes on from the last checkpoint")


def test_a_rank_that_the_user_has_to_mend_ends_the_run_with_2(tmp_path):
    with pytest.raises(UserError):
        launch._exit_status({1: 2, 0: ranks.LOST_PROCESS_STATUS}, 2, tmp_path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--processes", "2", "--gpus", "0"], "--processes: cannot be combined with --gpus"),
        (["--gpus", "0,0"], "--gpus 0,0: expected the numbers of GPUs, each once"),
        (["--gpus", "a"], "--gpus a: expected the numbers of GPUs"),
        (["--processes", "2", "runtime.device=gpu"], "runtime.device: gpu: --processes is for CPUs"),
        (["--gpus", "0,1", "runtime.device=cpu"], "runtime.device: cpu: --gpus is for GPUs"),
    ],
)
def test_what_makes_no_team_is_said_before_anything_is_read(options, said, recipe, tmp_path, command_line):
    status, _, err = command_line("finetune", recipe, f"train.output_dir={tmp_path / 'run'}", *options)
    assert status == 2 and said in err and len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_a_launcher_that_has_started_several_is_not_asked_for_more(recipe, command_line, monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    status, _, err = command_line("finetune", recipe, "--processes", 2)
    assert status == 2 and "a launcher has started several processes already" in err


def test_a_gate_that_passed_for_something_else_is_no_pass(recipe, tmp_path):
    """Nor one whose report was changed, or is gone; then the gate runs."""
    from toolkit.recipe.load import load_recipe

    settings = load_recipe(recipe)
    (tmp_path / "parity").mkdir()
    report = tmp_path / "parity/parity.json"
    report.write_text('{"passed": true}')

    def job(weight: float, data: str = "a") -> SimpleNamespace:
        config = SimpleNamespace(to_hf=lambda: {"n_layer": 1})
        return SimpleNamespace(first_weights={"w": np.array([weight])}, identity={"splits": data}, config=config)

    def verdict(job: SimpleNamespace, processes: int = 2) -> str | None:
        return passed_gate.verified_verdict(told, settings, job, tmp_path, "cpu", processes)

    told = passed_gate.make_handover(settings, job(1.0), tmp_path, "cpu", 2, "600 tensors agree")
    assert verdict(job(1.0)) == "600 tensors agree"
    assert verdict(job(1.0 + 1e-15)) is verdict(job(1.0, "b")) is verdict(job(1.0), 3) is None
    report.write_text('{"passed": true }')
    assert verdict(job(1.0)) is None
    report.write_text('{"passed": false}')
    told = passed_gate.make_handover(settings, job(1.0), tmp_path, "cpu", 2, "600 tensors agree")
    assert verdict(job(1.0)) is None
    report.unlink()
    assert verdict(job(1.0)) is None


def test_what_nobody_handed_over_is_not_read(monkeypatch):
    for number in ("", "99999", "no"):
        monkeypatch.setenv(ranks.SUPERVISOR_PIPE_VARIABLE, number)
        assert passed_gate.read_handover() is None


def test_each_rank_draws_from_a_seed_of_its_own_and_the_first_from_the_runs(monkeypatch):
    assert ranks.seed_of(42) == 42
    drawn = set()
    for number in range(4):
        monkeypatch.setenv("PADDLE_TRAINER_ID", str(number))
        drawn |= {ranks.seed_of(42), ranks.seed_of(43), ranks.seed_of(42, step=8)}
        assert ranks.seed_of(42) == ranks.seed_of(42)
    assert len(drawn) == 12
