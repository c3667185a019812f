"""Test that several processes train as one process does, over real gloo connections.

They give the same losses, weights and metrics, also after a kill and a resume. The error names the rank that died.
"""

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
#: Settings without random draws, except with a seed of the model itself.
EXACT = {
    "reformer": {"hidden_dropout_prob": 0.0, "local_attention_probs_dropout_prob": 0.0, "hash_seed": 7},
    "ctrl": {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0},
}
TASKS = ("classification", "question answering", "language modeling", "masked language modeling")
#: Relative tolerance of losses and absolute tolerance of weights. A bias before a softmax has no gradient except
#: rounding, which AdamW amplifies to steps of 1e-12.
TOLERANCES = {"float64": (1e-12, 1e-10), "float32": (1e-4, 1e-3)}
STEPS = ["train.max_steps=20", "train.epochs=null", "train.eval_steps=8", "train.eval_batch_size=2"]


def exact_recipes(folder: Path) -> dict[str, Path]:
    """Write a small recipe without dropout for each task, and its data.

    The 10 texts of an epoch end with a batch of 2.
    """
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
    """Train the jobs one after the other in `size` processes."""
    (folder / "jobs.json").write_text(json.dumps(jobs))
    command = [sys.executable, WORKER, str(folder / "jobs.json")]
    with contextlib.ExitStack() as running:
        processes = []
        meeting = running.enter_context(launch._reserve_address())
        for number, places in enumerate(launch._process_environments(Team(size), meeting)):
            environment = {**os.environ, **places, "PADDLE_DISTRI_BACKEND": "gloo", "PYTHONPATH": str(ROOT)}
            log = running.enter_context((folder / f"{number}.log").open("wb"))
            process = running.enter_context(child_process(command, env=environment, stdout=log, stderr=log))
            processes.append(process)
        for number, process in enumerate(processes):
            assert process.wait(timeout=300) == 0, (folder / f"{number}.log").read_text()


def read_results(folder: Path) -> dict:
    with np.load(folder / "weights.npz") as weights_file:
        return {**json.loads((folder / "found.json").read_text()), "weights": dict(weights_file)}


def assert_equal(ours: dict, theirs: dict, within: float, weights_within: float) -> None:
    assert len(ours["losses"]) == len(theirs["losses"]) == 20
    np.testing.assert_allclose(ours["losses"], theirs["losses"], rtol=within, atol=0)
    assert ours["weights"].keys() == theirs["weights"].keys()
    for name, value in theirs["weights"].items():
        np.testing.assert_allclose(ours["weights"][name], value, rtol=0, atol=weights_within, err_msg=name)
    assert ours["metrics"].keys() == theirs["metrics"].keys()
    for split_name, metrics in theirs["metrics"].items():
        assert ours["metrics"][split_name] == pytest.approx(metrics, rel=max(within, 1e-6)), split_name


def batch_overrides(size: int, num_micro_batches: int = 1) -> list[str]:
    """Return the overrides that give `size` processes 4 examples per step together."""
    return [
        f"train.batch_size={4 // size // num_micro_batches}",
        f"train.gradient_accumulation_steps={num_micro_batches}",
    ]


def make_job(recipe: Path, size: int, name: str, dtype: str, num_micro_batches: int = 1) -> dict:
    """Return a job for :func:`run_ranks`, which writes to the folder `name` next to the recipe."""
    overrides = [*STEPS, *batch_overrides(size, num_micro_batches)]
    return {"recipe": str(recipe), "overrides": overrides, "folder": str(recipe.with_name(name)), "dtype": dtype}


SHORT_EPOCHS = ["data.limit.train=9", "train.max_steps=6"]
DROPOUT = ["model.config.hidden_dropout_prob=0.1", "train.max_steps=6", "train.batch_size=2"]


def make_micro_batch_job(recipe: Path, size: int) -> dict:
    """Return a job with two micro-batches per rank that records the examples of each rank."""
    job = make_job(recipe, size, f"of {size}", "float64", num_micro_batches=2)
    return {**job, "overrides": [*job["overrides"], *SHORT_EPOCHS], "is_watched": True}


def make_dropout_job(recipe: Path, name: str, **changes: object) -> dict:
    """Return a job of two ranks with dropout that records the masks of each rank."""
    job = make_job(recipe, 2, name, "float32")
    return {**job, "overrides": [*job["overrides"], *DROPOUT], "is_watched": True, **changes}


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory) -> dict[str, Path]:
    """Return a recipe per task; two processes have trained all jobs of these tests next to it."""
    folder = tmp_path_factory.mktemp("ranks")
    recipes = exact_recipes(folder)
    first = recipes[TASKS[0]]
    jobs = [make_job(path, 2, task, "float64") for task, path in recipes.items()]
    jobs += [
        make_micro_batch_job(first, 2),
        make_dropout_job(first, "whole"),
        make_dropout_job(first, "resumed", stop_at=3),
    ]
    run_ranks(2, jobs, folder)
    return recipes


@pytest.mark.parametrize("task", TASKS)
def test_two_processes_train_like_one(two_ranks, task):
    """Compare in float64, to the last digits."""
    path = two_ranks[task]
    single_result = train(**make_job(path, 1, f"{task} alone", "float64"))
    assert_equal(read_results(path.with_name(task)), single_result, *TOLERANCES["float64"])


@pytest.mark.slow
def test_four_processes_and_accumulation_train_like_one_process(tmp_path):
    """Compare every task.

    In the last batch of an epoch, which has 2 texts, two classifier processes have no examples.
    """
    recipes = exact_recipes(tmp_path)
    jobs_by_task = {
        4: [make_job(path, 4, f"{task}, four", "float64") for task, path in recipes.items()],
        2: [
            make_job(recipes[TASKS[0]], 2, "accumulated", "float64", num_micro_batches=2),
            make_job(recipes[TASKS[0]], 2, "rounded", "float32"),
        ],
    }
    for size, jobs in jobs_by_task.items():
        run_ranks(size, jobs, tmp_path)
    single_results = {}
    for job in (job for jobs in jobs_by_task.values() for job in jobs):
        path, dtype = Path(job["recipe"]), job["dtype"]
        if (path, dtype) not in single_results:
            single_results[path, dtype] = train(**make_job(path, 1, f"{path.stem} {dtype} alone", dtype))
        assert_equal(read_results(Path(job["folder"])), single_results[path, dtype], *TOLERANCES[dtype])


def read_steps(folder: Path, size: int) -> list[dict]:
    """Return `examples` and `masks` of each rank, by step."""
    return [json.loads((folder / f"rank-{number}.json").read_text()) for number in range(size)]


def read_gradients(folder: Path, number: int = 0) -> dict[str, np.ndarray]:
    with np.load(folder / f"rank-{number}.npz") as gradients_file:
        return dict(gradients_file)


def test_ranks_split_each_epoch_and_apply_the_gradient_of_one_process(two_ranks):
    """Two ranks have two micro-batches each; the last batch of an epoch has one text, so the second rank has none."""
    recipe = two_ranks[TASKS[0]]
    train(**make_micro_batch_job(recipe, 1))
    [single_steps], rank_steps = read_steps(recipe.with_name("of 1"), 1), read_steps(recipe.with_name("of 2"), 2)
    for first in (1, 4):
        steps = [str(first + number) for number in range(3)]
        in_epoch = [example for rank in rank_steps for step in steps for example in rank["examples"][step]]
        assert len(set(in_epoch)) == len(in_epoch) == 9
        shares = [[len(rank["examples"][step]) for step in steps] for rank in rank_steps]
        assert shares == [[2, 2, 1], [2, 2, 0]]
        for step in steps:
            of_both = [example for rank in rank_steps for example in rank["examples"][step]]
            assert sorted(of_both) == sorted(single_steps["examples"][step])
    theirs = read_gradients(recipe.with_name("of 1"))
    for number in range(2):
        ours = read_gradients(recipe.with_name("of 2"), number)
        assert ours.keys() == theirs.keys()
        # AdamW ignores the scale of gradients, so the weights would not show a wrong scale
        for name, value in theirs.items():
            np.testing.assert_allclose(
                ours[name], value, rtol=0, atol=1e-12 * np.abs(value).max() + 1e-16, err_msg=name
            )


def test_dropout_differs_between_ranks_and_is_the_same_after_a_resume(two_ranks):
    place = two_ranks[TASKS[0]]
    first, second = (rank["masks"] for rank in read_steps(place.with_name("whole"), 2))
    # a backward may draw its masks again
    of_steps = [set(masks) for rank in (first, second) for masks in rank.values()]
    assert len(of_steps) == 12 and all(len(masks) > 1 for masks in of_steps)
    assert len(set.union(*of_steps)) == sum(map(len, of_steps))
    assert read_steps(place.with_name("resumed"), 2) == read_steps(place.with_name("whole"), 2)


# -- the command ----------------------------------------------------------------------------------------------------


def start_run(recipe: Path, folder: Path, processes: int | None = 2, **options) -> subprocess.Popen:
    process_options = [] if processes is None else ["--processes", processes]
    return toolkit(
        "finetune", recipe, f"train.output_dir={folder}", "--skip-parity", "killed", *process_options, **options
    )


def wait_for_checkpoint(process: subprocess.Popen, folder: Path, step: int) -> None:
    """Wait until the run has a checkpoint of this step or a later step."""
    while not any(int(path.name[5:]) >= step for path in folder.glob("checkpoints/step-*")):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def find_rank(number: int, cache: str, program: str = "runpy.run_module") -> int:
    """Return the id of the process that is this rank of a run with this cache, and runs this program."""
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = path.read_bytes().split(b"\0")
            command = path.with_name("cmdline").read_bytes()
        except OSError:
            continue
        expected_variables = {f"PADDLE_TRAINER_ID={number}".encode(), f"TOOLKIT_CACHE={cache}".encode()}
        if expected_variables <= set(variables) and program.encode() in command:
            return int(path.parent.name)
    raise AssertionError("no such rank")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipes(tmp_path_factory.mktemp("recipes"))[0]


@pytest.fixture(scope="module")
def uninterrupted_run(recipe, tmp_path_factory):
    """Return the folder of an uninterrupted run of two processes."""
    folder = tmp_path_factory.mktemp("whole")
    temporary = {name: folder / name for name in ("TMPDIR", "TOOLKIT_CACHE")}
    temporary["TMPDIR"].mkdir()
    assert start_run(recipe, folder / "run", env={**os.environ, **temporary}).wait() == 0
    assert not list(temporary["TMPDIR"].iterdir())
    return folder / "run"


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_run_resumes_bit_for_bit(recipe, uninterrupted_run, tmp_path, monkeypatch):
    """Kill one rank in the first run, and the command with all of its ranks in the second."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    run, cache = tmp_path / "run", os.environ["TOOLKIT_CACHE"]
    run_process = start_run(recipe, run, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(run_process, run, 8)
    os.kill(find_rank(1, cache), signal.SIGKILL)
    began = time.monotonic()
    error_lines = run_process.communicate()[1].splitlines()
    assert run_process.returncode == 1 and time.monotonic() - began < 60
    assert len(error_lines) == 1 and error_lines[0].startswith(
        f"error: rank 1 of 2 processes was killed by SIGKILL; its log is {run}/logs/rank-1.log"
    )
    last = max(path.name for path in run.glob("checkpoints/step-*"))
    run_process = start_run(recipe, run, stderr=subprocess.PIPE)
    wait_for_checkpoint(run_process, run, int(last[5:]) + 4)
    run_process.send_signal(signal.SIGKILL)
    run_process.wait()
    time.sleep(1)
    assert start_run(recipe, run).wait() == 0
    assert_same_bits(run, uninterrupted_run)
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.slow
def test_a_run_of_two_processes_resumes_with_one_after_ctrl_c(recipe, tmp_path):
    run = tmp_path / "run"
    interrupted_process = start_run(recipe, run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    wait_for_checkpoint(interrupted_process, run, 8)
    interrupted_process.send_signal(signal.SIGINT)
    out, err = interrupted_process.communicate()
    assert (
        interrupted_process.returncode == 130
        and "; the same command resumes it" in out
        and err.split() == ["interrupted"]
    )
    single_process = start_run(recipe, run, None, stdout=subprocess.PIPE, text=True)
    notes = [line for line in single_process.communicate()[0].splitlines() if line.startswith("note   saved")]
    assert single_process.returncode == 0 and len(notes) == 1 and "saved by 2 processes and resumed with 1" in notes[0]
    results = json.loads((run / "metrics.json").read_text())
    assert results["training"]["schedule"]["steps_per_epoch"] == 2  # 12 texts, and 2 x 2 x 2 per step
    evaluation = toolkit("evaluate", run, "--split", "validation", stderr=subprocess.PIPE, text=True)
    assert evaluation.communicate()[1] == "" and evaluation.returncode == 0
    assert json.loads((run / "metrics.json").read_text())["validation"] == results["validation"]


#: The script that `pip install` writes for the entry point; Paddle's launcher runs a program, not a module.
SCRIPT = """#!{python}
import sys
from toolkit.cli import main
sys.exit(main())
"""


@pytest.mark.slow
def test_paddles_launcher_trains_like_our_command_and_ends_if_a_rank_is_killed(recipe, uninterrupted_run, tmp_path):
    """Run the README's command: it gives the same run as `--processes 2`, a kill ends it, and it can be resumed."""
    if paddle.device.cuda.device_count():
        pytest.skip("Paddle's launcher takes the GPUs that there are; on CPUs it runs where there is none")
    run, script = tmp_path / "run", tmp_path / "bin/toolkit"
    script.parent.mkdir()
    script.write_text(SCRIPT.format(python=sys.executable))
    script.chmod(0o755)
    launcher = [sys.executable, "-m", "paddle.distributed.launch", "--nproc_per_node", "2", "--log_dir", tmp_path / "l"]
    arguments = ["finetune", recipe, f"train.output_dir={run}", "--skip-parity", "killed"]

    def start_launcher() -> subprocess.Popen:
        command = list(map(str, [*launcher, script, *arguments]))
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # an empty value makes the launcher count one GPU
        return subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=subprocess.STDOUT)

    with (tmp_path / "launcher.log").open("w+") as log:
        launcher_process = start_launcher()
        while not list(run.glob("checkpoints/step-*")):
            assert launcher_process.poll() is None, Path(log.name).read_text()
            time.sleep(0.01)
        os.kill(find_rank(1, os.environ["TOOLKIT_CACHE"], str(script)), signal.SIGKILL)
        assert launcher_process.wait(timeout=60) not in (0, None) and not (run / "metrics.json").exists()
        assert start_launcher().wait(timeout=120) == 0, Path(log.name).read_text()
    assert_same_bits(run, uninterrupted_run)


#: Program that occupies a port; with a second argument, it allows other programs to use the same address.
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
def test_a_contested_port_stays_reserved_or_is_reported_in_one_line(shares, recipe, tmp_path):
    run = start_run(recipe, tmp_path / "run", stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while True:  # until a process knows the port's number but does not own the port
        assert run.poll() is None and time.monotonic() < deadline, run.stderr.read()
        with contextlib.suppress(AssertionError):
            variables = Path(f"/proc/{find_rank(0, os.environ['TOOLKIT_CACHE'])}/environ").read_bytes().split(b"\0")
            break
        time.sleep(0.01)
    [port] = [variable.rpartition(b":")[2].decode() for variable in variables if variable.startswith(b"PADDLE_MASTER=")]
    command = [sys.executable, "-c", THIEF, port, *(["shares"] if shares else [])]
    thief = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    thief_output = thief.stdout.readline()
    _, errors = run.communicate(timeout=300)
    thief_errors = thief.communicate()[1]
    if shares:
        assert thief_output == "taken\n" and run.returncode == 2
        meeting = f"error: the processes cannot meet at 127.0.0.1:{port}: Address already in use"
        assert errors == f"{meeting}; run the same command again\n"
    else:
        assert "Address already in use" in thief_errors and (run.returncode, errors) == (0, "")


# -- parts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("exit_statuses", "expected_result"),
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
def test_the_rank_that_failed_first_is_named(exit_statuses, expected_result, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    Path("logs/rank-1.log").write_text("much\nno memory\n\n")
    if isinstance(expected_result, int):
        assert launch._exit_status(exit_statuses, 2, Path("logs")) == expected_result
        return
    with pytest.raises(ToolkitError) as raised_error:
        launch._exit_status(exit_statuses, 2, Path("logs"))
    assert str(raised_error.value).startswith(expected_result) and raised_error.value.exit_status == 1
    assert str(raised_error.value).endswith("; the same command goes on from the last checkpoint")


def test_a_users_error_in_a_rank_ends_the_run_with_2(tmp_path):
    with pytest.raises(UserError):
        launch._exit_status({1: 2, 0: ranks.LOST_PROCESS_STATUS}, 2, tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--processes", "2", "--gpus", "0"], "--processes: cannot be combined with --gpus"),
        (["--gpus", "0,0"], "--gpus 0,0: expected the numbers of GPUs, each once"),
        (["--gpus", "a"], "--gpus a: expected the numbers of GPUs"),
        (["--processes", "2", "runtime.device=gpu"], "runtime.device: gpu: --processes is for CPUs"),
        (["--gpus", "0,1", "runtime.device=cpu"], "runtime.device: cpu: --gpus is for GPUs"),
    ],
)
def test_invalid_teams_are_reported_before_files_are_read(options, message, recipe, tmp_path, command_line):
    status, _, err = command_line("finetune", recipe, f"train.output_dir={tmp_path / 'run'}", *options)
    assert status == 2 and message in err and len(err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_processes_is_rejected_below_a_launcher(recipe, command_line, monkeypatch):
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    status, _, err = command_line("finetune", recipe, "--processes", 2)
    assert status == 2 and "a launcher has started several processes already" in err


def test_a_pass_of_another_gate_is_not_accepted(recipe, tmp_path):
    """A pass is also invalid if its report was changed or deleted; the gate then runs again."""
    from toolkit.recipe.load import load_recipe

    settings = load_recipe(recipe)
    (tmp_path / "parity").mkdir()
    report = tmp_path / "parity/parity.json"
    report.write_text('{"passed": true}')

    def job(weight: float, data: str = "a") -> SimpleNamespace:
        config = SimpleNamespace(to_hf=lambda: {"n_layer": 1})
        return SimpleNamespace(first_weights={"w": np.array([weight])}, identity={"splits": data}, config=config)

    def verdict(job: SimpleNamespace, processes: int = 2) -> str | None:
        return passed_gate.verified_verdict(handover, settings, job, tmp_path, "cpu", processes)

    handover = passed_gate.make_handover(settings, job(1.0), tmp_path, "cpu", 2, "600 tensors agree")
    assert verdict(job(1.0)) == "600 tensors agree"
    assert verdict(job(1.0 + 1e-15)) is verdict(job(1.0, "b")) is verdict(job(1.0), 3) is None
    report.write_text('{"passed": true }')
    assert verdict(job(1.0)) is None
    report.write_text('{"passed": false}')
    handover = passed_gate.make_handover(settings, job(1.0), tmp_path, "cpu", 2, "600 tensors agree")
    assert verdict(job(1.0)) is None
    report.unlink()
    assert verdict(job(1.0)) is None


def test_no_handover_is_read_without_a_supervisor(monkeypatch):
    for number in ("", "99999", "no"):
        monkeypatch.setenv(ranks.SUPERVISOR_PIPE_VARIABLE, number)
        assert passed_gate.read_handover() is None


def test_each_rank_has_its_own_seed_and_the_first_has_the_seed_of_the_run(monkeypatch):
    assert ranks.seed_of(42) == 42
    seeds = set()
    for number in range(4):
        monkeypatch.setenv("PADDLE_TRAINER_ID", str(number))
        seeds |= {ranks.seed_of(42), ranks.seed_of(43), ranks.seed_of(42, step=8)}
        assert ranks.seed_of(42) == ranks.seed_of(42)
    assert len(seeds) == 12
