"""Test `toolkit push`: the real client uploads a run to a small hub on the loopback interface."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from loopback_hub import LoopbackHub, Status
from test_train import recipe_file, train  # noqa: F401

from models.files.hub_errors import LOGIN
from toolkit.run_folder.folder import REPORT, STARTS, record_start

ROOT = Path(__file__).resolve().parents[2]
TOKEN, STRANGER = "hf_writer", "hf_stranger"


@pytest.fixture(scope="module")
def trained_run(recipe_file, tmp_path_factory) -> Path:  # noqa: F811
    return train(recipe_file, tmp_path_factory.mktemp("runs") / "tiny", "train.max_steps=2")


@pytest.fixture
def run(trained_run, tmp_path) -> Path:
    """Return a separate copy of a run that has passed the gate."""
    folder = tmp_path / "tiny"
    shutil.copytree(trained_run, folder)
    (folder / REPORT / STARTS).unlink()
    record_start(folder, 0, "parity: 12 tensors", None)
    return folder


@pytest.fixture(scope="module")
def shared_hub():
    with LoopbackHub() as hub:
        hub.tokens |= {TOKEN, STRANGER}
        hub.writers[TOKEN] = {"team"}
        yield hub


@pytest.fixture
def hub(shared_hub):
    """Return the hub without content."""
    shared_hub.repositories.clear()
    shared_hub.uploaded.clear()
    shared_hub.refusals.clear()
    shared_hub.requests.clear()
    return shared_hub


#: Runs `toolkit` many times in one process, as a start takes seconds: reads a line of arguments, prints an answer.
PROGRAM = """
import contextlib, io, json, os, sys
from toolkit import cli
for line in sys.stdin:
    asked = json.loads(line)
    os.environ.pop("HF_TOKEN", None)
    os.environ.update({"HF_TOKEN": asked["token"]} if asked["token"] else {})
    said, errors, status = io.StringIO(), io.StringIO(), 0
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(errors):
        try:
            cli.main(asked["arguments"])
        except SystemExit as ended:
            status = ended.code
    print(json.dumps([status, said.getvalue().splitlines(), errors.getvalue().splitlines()]), flush=True)
"""


@pytest.fixture(scope="module")
def client(shared_hub, tmp_path_factory):
    """Return a function that runs commands for the hub, in one process for each environment."""
    processes: dict[tuple, subprocess.Popen] = {}

    def ask(arguments: list[str], token: str | None, **more: str) -> list:
        key = tuple(sorted(more.items()))
        if key not in processes:
            environment = {**shared_hub.environment(tmp_path_factory.mktemp("home"), **more), "PYTHONPATH": str(ROOT)}
            processes[key] = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = processes[key]
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps({"arguments": arguments, "token": token}) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    for process in processes.values():
        process.communicate(timeout=30)


@pytest.fixture
def push(client):
    """Return a function that pushes a run and returns exit status, lines of output and lines of errors."""

    def ask(run: Path, name: str, *options: str, token: str | None = TOKEN, **more: str) -> list:
        return client(["push", str(run), name, *options], token, **more)

    return ask


def test_only_the_model_and_its_card_are_pushed(hub, run, push):
    (run / "model" / ".partial").write_text("half")
    (run / "model" / "model.safetensors.partial").write_text("half")
    status, output_lines, errors = push(run, "team/tiny")
    assert (status, errors) == (0, [])
    repository = hub.repositories["model", "team/tiny"]
    commit = repository.refs["main"]
    assert output_lines[1] == f"{hub.endpoint}/team/tiny at commit {commit}"
    files = repository.commits[commit]
    expected_files = {path.name: path.read_bytes() for path in (run / "model").iterdir() if "partial" not in path.name}
    assert {name: file.source for name, file in files.items() if name in expected_files} == expected_files
    assert set(files) == {*expected_files, "README.md", ".gitattributes"}
    card = files["README.md"].source.decode()
    assert (
        'from_pretrained("team/tiny")' in card and str(run) not in card.partition("## How to load")[2].split("Or h")[0]
    )
    assert "The parity gate was skipped" in card  # the copied run's own card is not written again
    assert repository.messages == ["Add tiny"]
    assert "model.safetensors" in files and list(hub.uploaded.values()) == [expected_files["model.safetensors"]]


def test_a_branch_a_message_a_private_repository_and_the_reports(hub, run, push):
    (run / REPORT / "parity.json").write_text("{}")
    options = ["--private", "--revision", "try/1", "--message", "first try", "--with-report"]
    status, output_lines, errors = push(run, "team/secret", *options)
    assert (status, errors) == (0, [])
    repository = hub.repositories["model", "team/secret"]
    assert repository.access == "private" and repository.messages == ["first try"]
    assert set(repository.commits[repository.refs["main"]]) == {".gitattributes"}
    pushed_names = set(repository.commits[repository.refs["try/1"]])
    assert {"report.html", f"{REPORT}/parity.json", "config.json"} <= pushed_names
    assert not any(name.startswith(("predictions", "metrics", "recipe", "checkpoints")) for name in pushed_names)
    # The second push has no changes, so it sends nothing and creates no commit.
    hub.requests.clear()
    status, output_lines, errors = push(run, "team/secret", *options)
    assert (status, errors) == (0, [])
    assert output_lines[1].endswith(repository.refs["try/1"])
    assert output_lines[2].startswith(
        "note: the weights give the logits as they were trained; toolkit predict divides them"
    )
    assert not hub.requests_with("/commit/") and not hub.requests_with("/lfs-upload/")
    repository.access = "public"
    status, _, (error,) = push(run, "team/secret", "--private")
    assert status == 2 and "team/secret exists and is public" in error


def test_a_run_without_the_gate_is_pushed_only_on_request_and_its_card_mentions_it(hub, run, push):
    record_start(run, 1, None, "no torch here")
    (run / "README.md").write_text("---\ntags: [x]\n---\nMy own words.\n")
    status, _, (error,) = push(run, "team/tiny")
    assert status == 2 and "trained without the parity gate (no torch here)" in error
    assert not hub.requests
    assert push(run, "team/tiny", "--despite-skipped-parity")[0] == 0
    repository = hub.repositories["model", "team/tiny"]
    card = repository.commits[repository.refs["main"]]["README.md"].source.decode()
    assert "My own words." in card and "**The parity gate was skipped** before step 2" in card
    assert "no torch here" in card
    (run / REPORT / STARTS).unlink()
    assert "nothing is recorded of it" in push(run, "team/tiny")[2][0]


@pytest.mark.parametrize(
    ("token", "more", "expected_error"),
    [
        (None, {}, f"cannot push to team/tiny: not logged in; {LOGIN}"),
        ("hf_wrong", {}, "cannot push to team/tiny: the hub does not know this token"),
        (STRANGER, {}, 'may not write there (You don\'t have the rights to create a model under the namespace "team")'),
        pytest.param(TOKEN, {"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set; unset it", marks=pytest.mark.slow),
        pytest.param(
            TOKEN, {"HF_ENDPOINT": "http://127.0.0.1:9"}, "no answer from http://127.0.0.1:9", marks=pytest.mark.slow
        ),
    ],
    ids=["no login", "unknown token", "no right", "offline", "unreachable"],
)
def test_a_refusal_of_the_hub_is_reported_in_one_line(token, more, expected_error, hub, run, push):
    status, output_lines, errors = push(run, "team/tiny", token=token, **more)
    assert (status, output_lines, len(errors)) == (1, [], 1)
    assert expected_error in errors[0]


@pytest.mark.slow
def test_a_read_only_repository_and_a_broken_hub_are_reported(hub, run, push):
    hub.add("other/model", {"config.json": "{}"})
    status, _, (error,) = push(run, "other/model")
    assert status == 1 and "use a token with write access" in error
    hub.refusals["/commit/"] = Status(500, None, "out of order")
    status, _, (error,) = push(run, "team/tiny")
    assert status == 1 and "the hub answers 500 (out of order)" in error
    assert list(
        hub.repositories["model", "team/tiny"].commits[hub.repositories["model", "team/tiny"].refs["main"]]
    ) == [".gitattributes"]


def test_a_damaged_run_and_a_wrong_name_are_refused_without_a_request(hub, run, push):
    assert "is no name of a repository; write OWNER/NAME" in push(run, "tiny")[2][0]
    (run / "model" / "config.json").write_text("{")
    status, _, (error,) = push(run, "team/tiny")
    assert status == 2 and "config.json: is damaged" in error
    (run / "model" / "config.json").write_text(json.dumps({}))
    (run / "model" / "model.safetensors").write_bytes(b"x")
    status, _, (error,) = push(run, "team/tiny")
    assert status == 2 and "model.safetensors" in error and not hub.requests
