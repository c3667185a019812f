"""`toolkit push`: the real client of the hub uploads a run to a small hub on the loopback interface."""

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
def trained(recipe_file, tmp_path_factory) -> Path:  # noqa: F811
    return train(recipe_file, tmp_path_factory.mktemp("runs") / "tiny", "train.max_steps=2")


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A run of its own, that has passed the gate."""
    folder = tmp_path / "tiny"
    shutil.copytree(trained, folder)
    (folder / REPORT / STARTS).unlink()
    record_start(folder, 0, "parity: 12 tensors", None)
    return folder


@pytest.fixture(scope="module")
def served():
    with LoopbackHub() as hub:
        hub.tokens |= {TOKEN, STRANGER}
        hub.writers[TOKEN] = {"team"}
        yield hub


@pytest.fixture
def hub(served):
    """The hub, empty."""
    served.repositories.clear()
    served.uploaded.clear()
    served.refusals.clear()
    served.requests.clear()
    return served


#: `toolkit` again and again in one process, as a start takes seconds: a line of arguments in, an answer out.
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
def client(served, tmp_path_factory):
    """Starts processes for the hub; of the same environment, one."""
    started: dict[tuple, subprocess.Popen] = {}

    def ask(arguments: list[str], token: str | None, **more: str) -> list:
        key = tuple(sorted(more.items()))
        if key not in started:
            environment = {**served.environment(tmp_path_factory.mktemp("home"), **more), "PYTHONPATH": str(ROOT)}
            started[key] = subprocess.Popen(
                [sys.executable, "-c", PROGRAM],
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        process = started[key]
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps({"arguments": arguments, "token": token}) + "\n")
        process.stdin.flush()
        return json.loads(process.stdout.readline())

    yield ask
    for process in started.values():
        process.communicate(timeout=30)


@pytest.fixture
def push(client):
    """(exit status, the standard output's lines, those of the errors)"""

    def ask(run: Path, name: str, *options: str, token: str | None = TOKEN, **more: str) -> list:
        return client(["push", str(run), name, *options], token, **more)

    return ask


def test_the_model_and_its_card_are_pushed_and_nothing_else(hub, run, push):
    (run / "model" / ".partial").write_text("half")
    (run / "model" / "model.safetensors.partial").write_text("half")
    status, said, errors = push(run, "team/tiny")
    assert (status, errors) == (0, [])
    repository = hub.repositories["model", "team/tiny"]
    commit = repository.refs["main"]
    assert said[1] == f"{hub.endpoint}/team/tiny at commit {commit}"
    files = repository.commits[commit]
    expected = {path.name: path.read_bytes() for path in (run / "model").iterdir() if "partial" not in path.name}
    assert {name: file.source for name, file in files.items() if name in expected} == expected
    assert set(files) == {*expected, "README.md", ".gitattributes"}
    card = files["README.md"].source.decode()
    assert (
        'from_pretrained("team/tiny")' in card and str(run) not in card.partition("## How to load")[2].split("Or h")[0]
    )
    assert "The parity gate was skipped" in card  # the copied run's own card is not made anew
    assert repository.messages == ["Add tiny"]
    assert "model.safetensors" in files and list(hub.uploaded.values()) == [expected["model.safetensors"]]


def test_a_branch_a_message_a_private_repository_and_the_reports(hub, run, push):
    (run / REPORT / "parity.json").write_text("{}")
    options = ["--private", "--revision", "try/1", "--message", "first try", "--with-report"]
    status, said, errors = push(run, "team/secret", *options)
    assert (status, errors) == (0, [])
    repository = hub.repositories["model", "team/secret"]
    assert repository.access == "private" and repository.messages == ["first try"]
    assert set(repository.commits[repository.refs["main"]]) == {".gitattributes"}
    pushed = set(repository.commits[repository.refs["try/1"]])
    assert {"report.html", f"{REPORT}/parity.json", "config.json"} <= pushed
    assert not any(name.startswith(("predictions", "metrics", "recipe", "checkpoints")) for name in pushed)
    # A second time, nothing has changed: no commit, and nothing is sent again.
    hub.requests.clear()
    status, said, errors = push(run, "team/secret", *options)
    assert (status, errors) == (0, [])
    assert said[1].endswith(repository.refs["try/1"])
    assert said[2].startswith("note: the weights give the logits as they were trained; toolkit predict divides them")
    assert not hub.asked("/commit/") and not hub.asked("/lfs-upload/")
    repository.access = "public"
    status, _, (error,) = push(run, "team/secret", "--private")
    assert status == 2 and "team/secret exists and is public" in error


def test_what_was_trained_without_the_gate_is_pushed_only_if_asked_for_and_the_card_says_so(hub, run, push):
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
    ("token", "more", "expected"),
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
def test_what_the_hub_refuses_is_a_line(token, more, expected, hub, run, push):
    status, said, errors = push(run, "team/tiny", token=token, **more)
    assert (status, said, len(errors)) == (1, [], 1)
    assert expected in errors[0]


@pytest.mark.slow
def test_a_repository_that_may_only_be_read_and_a_hub_out_of_order(hub, run, push):
    hub.add("other/model", {"config.json": "{}"})
    status, _, (error,) = push(run, "other/model")
    assert status == 1 and "use a token with write access" in error
    hub.refusals["/commit/"] = Status(500, None, "out of order")
    status, _, (error,) = push(run, "team/tiny")
    assert status == 1 and "the hub answers 500 (out of order)" in error
    assert list(
        hub.repositories["model", "team/tiny"].commits[hub.repositories["model", "team/tiny"].refs["main"]]
    ) == [".gitattributes"]


def test_a_damaged_run_and_a_wrong_name_are_refused_before_the_hub_is_asked(hub, run, push):
    assert "is no name of a repository; write OWNER/NAME" in push(run, "tiny")[2][0]
    (run / "model" / "config.json").write_text("{")
    status, _, (error,) = push(run, "team/tiny")
    assert status == 2 and "config.json: is damaged" in error
    (run / "model" / "config.json").write_text(json.dumps({}))
    (run / "model" / "model.safetensors").write_bytes(b"x")
    status, _, (error,) = push(run, "team/tiny")
    assert status == 2 and "model.safetensors" in error and not hub.requests
