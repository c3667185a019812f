"""Test another Python for the reference or the port: its requirements, and that it is really used."""

from __future__ import annotations

import dataclasses
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from models.families import FAMILIES, part
from toolkit import cli
from toolkit.errors import Inconclusive, UserError
from toolkit.parity.bundle import cache
from toolkit.parity.families.reformer.family import NOTHING_AHEAD
from toolkit.parity.gate import run_gate
from toolkit.parity.inputs.synthetic import SyntheticWeights, random_batch
from toolkit.parity.job.family_part import family_part
from toolkit.parity.processes import interpreter
from toolkit.parity.request.build import job_of
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.mutation import trial_request

ROOT = Path(__file__).resolve().parents[2]
OTHER = os.environ.get("TOOLKIT_REFERENCE_PYTHON")


def write_script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def write_python_stub(path: Path, **versions: str) -> str:
    """Write a program that answers like a Python with these distributions, and return its path."""
    answer = {"version_info": [3, 12], "versions": {"python": "3.12.1", **versions}}
    return write_script(path, f"echo '{json.dumps(answer)}'")


COMPLETE = {"torch": "2.13.0", "transformers": "5.0.0", "numpy": "2.4.0", "safetensors": "0.8.0"}


def make_request(model: str, head: str, kind: str, python: str) -> GateRequest:
    trial = family_part(model, "trial")
    config = trial.CONFIG
    if model == "reformer" and head == "causal_lm":
        config = {**config, "is_decoder": True, **NOTHING_AHEAD}
    if head == "question_answering":
        config = {**config, "num_labels": 2}
    weights = SyntheticWeights(part(model, "schema").resolve(config), head, 0, kind, model)
    batch = random_batch(config, head, 2, trial.LENGTH, 0, model)
    return GateRequest(model, head, config, weights, batch, reference_python=python)


def test_the_chosen_interpreter_runs_the_reference(tmp_path):
    calls = tmp_path / "calls"
    python = write_script(tmp_path / "python", f'echo "$@" >> {calls}\nexec {sys.executable} "$@"')
    request = dataclasses.replace(trial_request("ctrl", "random", 0), reference_python=python)
    report = run_gate(request, tmp_path / "out", Console(file=io.StringIO()))
    assert report.passed, report.summary()
    assert " toolkit.parity.reference result " in calls.read_text() and "candidate" not in calls.read_text()


@pytest.mark.skipif(OTHER is None, reason="TOOLKIT_REFERENCE_PYTHON names no interpreter with another transformers")
@pytest.mark.parametrize("kind", ["random", "heavy-tailed"])
@pytest.mark.parametrize(
    ("model", "head"),
    [(model, head) for model in FAMILIES for head in part(model, "weights").HEADS],
)
def test_a_correct_port_agrees_with_the_reference_of_another_environment(tmp_path, model, head, kind):
    report = run_gate(
        make_request(model, head, kind, interpreter.locate_interpreter(OTHER)), tmp_path, Console(file=io.StringIO())
    )
    assert report.passed, report.summary()
    assert report.verdict.reference_faults == []
    version = report.reference.execution.versions["transformers"]
    assert version == interpreter.versions_of(interpreter.locate_interpreter(OTHER))["transformers"]


def test_the_reference_imports_nothing_of_the_port_or_the_command_line():
    """The reference may run without Paddle and without the packages of the rest of the toolkit."""
    code = """
import sys
import transformers
from transformers.models.ctrl import modeling_ctrl
from transformers.models.reformer import modeling_reformer
absent = ("paddle", "paddlenlp", "click", "rich", "pydantic", "yaml", "datasets", "models")
class Absent:
    def find_spec(self, name, path=None, target=None):
        # The format of a file, which imports NumPy alone, Python's collector of garbage, and where names are found.
        if name in ("models", "models.files", "models.files.tensor_file", "models.collector", "models.families"):
            return None
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
for part in ("__main__", "tokens", "kernel_server"):
    __import__("toolkit.parity.reference." + part)
for part in ("reformer.reference", "reformer.reference_tokens", "ctrl.reference", "ctrl.reference_stages",
             "ctrl.reference_tokens", "pair.reference", "pair.reference_description", "pair.reference_trajectory"):
    __import__("toolkit.parity.families." + part)
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_an_invalid_interpreter_is_wrong_usage(tmp_path):
    (tmp_path / "notes.txt").write_text("not to be run")
    for path, message in (
        (str(tmp_path / "nowhere"), "no such interpreter"),
        (str(tmp_path / "notes.txt"), "is not an executable file"),
        (str(tmp_path), "is not an executable file"),
    ):
        with pytest.raises(UserError, match=message):
            interpreter.locate_interpreter(path)
    with pytest.raises(UserError, match="does not answer as a Python interpreter does"):
        interpreter.versions_of(write_script(tmp_path / "mute", "exit 0"))
    with pytest.raises(UserError, match="does not answer as a Python interpreter does"):
        interpreter.versions_of(write_script(tmp_path / "chatty", "echo '[1, 2]'"))


def test_an_interpreter_that_cannot_run_the_reference_is_inconclusive(tmp_path):
    bare = write_python_stub(tmp_path / "bare", **{name: COMPLETE[name] for name in ("torch", "numpy")})
    with pytest.raises(Inconclusive, match=r"lacks transformers, safetensors.*-m pip install transformers safetensors"):
        interpreter.versions_of(bare)
    old = write_script(tmp_path / "old", """echo '{"version_info": [3, 8], "versions": {"python": "3.8.1"}}'""")
    with pytest.raises(Inconclusive, match=r"is Python 3\.8\.1; the reference needs 3\.10"):
        interpreter.versions_of(old)
    with pytest.raises(Inconclusive, match=r"lacks paddlepaddle, which the port needs"):
        interpreter.versions_of(write_python_stub(tmp_path / "torch", **COMPLETE), "port")
    on_gpus = write_python_stub(tmp_path / "gpu", **{**COMPLETE, "paddlepaddle-gpu": "3.3.1"})
    assert interpreter.versions_of(on_gpus, "port")["paddlepaddle-gpu"] == "3.3.1"


@pytest.mark.parametrize(("program", "status"), [("exit 0", 2), ("bare", 3), (None, 2)])
def test_an_unusable_interpreter_is_reported_in_one_line(tmp_path, capsys, program, status):
    path = tmp_path / "python"
    if program == "bare":
        write_python_stub(path)
    elif program:
        write_script(path, program)
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["parity", "--model", "reformer", "--reference-python", str(path)])
    error = capsys.readouterr().err
    assert exit_error.value.code == status
    assert error.startswith(f"error: --reference-python: {path}: ") and error.count("\n") == 1


PAIR = (
    "--port",
    str(ROOT / "tests/pairs/mlp/port.py"),
    "--reference-model",
    str(ROOT / "tests/pairs/mlp/reference.py"),
)


def test_the_chosen_interpreter_runs_the_port(tmp_path, capsys):
    calls = tmp_path / "calls"
    python = write_script(tmp_path / "python", f'echo "$@" >> {calls}\nexec {sys.executable} "$@"')
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["parity", *PAIR, "--port-python", python, "--output", str(tmp_path / "out")])
    assert exit_error.value.code == 0, capsys.readouterr()
    call_log = calls.read_text()
    assert (
        " toolkit.parity.candidate result " in call_log
        and "parity.reference " not in call_log
        and "comparator" not in call_log
    )


def test_a_port_python_without_paddle_is_rejected_in_one_line(tmp_path, capsys):
    for program, status, message in (
        (write_python_stub(tmp_path / "bare"), 3, "lacks paddlepaddle"),
        ("none", 2, "no such"),
    ):
        with pytest.raises(SystemExit) as exit_error:
            cli.main(["parity", *PAIR, "--port-python", program])
        error = capsys.readouterr().err
        assert exit_error.value.code == status and error.startswith("error: --port-python: ") and error.count("\n") == 1
        assert message in error
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["parity", "--model", "ctrl", "--port-python", sys.executable])
    assert exit_error.value.code == 2 and "--port-python: is for a --port" in capsys.readouterr().err


def test_the_port_of_a_pair_needs_only_paddle_and_its_own_packages():
    """Its environment may lack the command line's packages, Numba and the reference."""
    code = """
import sys
absent = ("torch", "transformers", "paddlenlp", "click", "rich", "pydantic", "yaml", "datasets", "numba",
          "sentencepiece", "wandb", "matplotlib", "sklearn")
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in absent:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Absent())
for part in ("candidate.__main__", "candidate.result", "candidate.forced_input", "families.pair.candidate",
             "families.pair.candidate_description"):
    __import__("toolkit.parity." + part)
"""
    process = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


def test_the_environment_variable_is_used_without_an_option(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TOOLKIT_REFERENCE_PYTHON", str(tmp_path / "nowhere"))
    for options, interpreter_name in (([], "nowhere"), (["--reference-python", str(tmp_path / "none")], "none")):
        with pytest.raises(SystemExit) as exit_error:
            cli.main(["parity", "--model", "ctrl", "--layers", "1", *options])
        assert (
            exit_error.value.code == 2
            and f"{tmp_path / interpreter_name}: no such interpreter" in capsys.readouterr().err
        )


def test_a_cached_verdict_is_not_used_for_another_environment(tmp_path):
    request = trial_request("ctrl", "random", 0)

    def key(python: str | None) -> str:
        return cache.key_of_request(job_of(request), request.batch, request.weights, python)

    python = write_python_stub(tmp_path / "python", **COMPLETE)
    first = key(python)
    assert first == key(python) != key(None)
    write_python_stub(tmp_path / "python", **{**COMPLETE, "transformers": "5.0.1"})
    interpreter.versions_of.cache_clear()
    assert key(python) != first
