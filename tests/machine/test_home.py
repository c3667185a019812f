"""Test a user without a writable home: real processes of ``nobody``, as in a service or a container."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from gates import ROOT
from loopback_hub import LoopbackHub
from soak import some
from test_train import recipe_file  # noqa: F401

from toolkit.machine import home

NOBODY = 65534
#: Runs as ``nobody``, who may read all files here, as in a usual installation; this Python may be below /root.
READER = "-all,+dac_read_search"
AS_NOBODY = [
    "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"--inh-caps={READER}",
    f"--ambient-caps={READER}",
]  # fmt: skip
HOMES = ("nonexistent", "file", "read-only")
IN_LANES = [HOMES[0], *(pytest.param(home_kind, marks=pytest.mark.slow) for home_kind in some(HOMES[1:]))]
#: Variables that lead libraries to other folders than the home.
VARIABLES = ("HF_", "HUGGINGFACE_", "XDG_", "WANDB_", "MPLCONFIGDIR", "PPNLP_HOME", "NETRC", "TOOLKIT_CACHE")


@functools.cache
def missing_requirement() -> str:
    """Return the reason why no process can run as nobody here, or ""."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        return "only root can become another user"
    if shutil.which("setpriv") is None or subprocess.run([*AS_NOBODY, "true"], capture_output=True).returncode:
        return "setpriv (util-linux) is absent, or root may not hand on that it reads all files"
    return ""


@pytest.fixture
def place():
    """Return a folder that all users may read, unlike the folders of pytest.

    It contains the folders ``work`` and ``tmp`` of nobody; the fixture ``recipe`` adds a recipe with its data.
    """
    if reason := missing_requirement():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        place.chmod(0o755)
        for name in ("work", "tmp", "file"):
            (place / name).touch() if name == "file" else (place / name).mkdir()
            os.chown(place / name, NOBODY, NOBODY)
        (place / "read-only").mkdir()
        yield place


@pytest.fixture
def recipe(recipe_file, place):  # noqa: F811
    shutil.copytree(recipe_file.parent, place / "data", ignore=shutil.ignore_patterns("cache"))
    (place / "data").chmod(0o755)
    return place / "data" / recipe_file.name


@pytest.fixture
def nobody(place):
    """Return a function that runs a command as nobody, in nobody's folder, and returns the finished process."""
    homes = {name: place / name for name in HOMES}

    def run(home_kind: str, *arguments: object, **more: str) -> subprocess.CompletedProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
        places = {"HOME": str(homes[home_kind]), "TMPDIR": str(place / "tmp"), "PYTHONPATH": str(ROOT)}
        command = [*AS_NOBODY, sys.executable, "-m", "toolkit", *map(str, arguments)]
        return subprocess.run(
            command,
            cwd=place / "work",
            env={**environment, **places, **more},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def assert_clean(result: subprocess.CompletedProcess, notes: int = 0) -> None:
    assert result.returncode == 0 and len(result.stderr.splitlines()) == notes, result


@pytest.mark.parametrize("home_kind", IN_LANES)
def test_recipes_and_predictions_work_without_a_home(home_kind, nobody, recipe, place):
    assert_clean(nobody(home_kind, "--help"))
    assert_clean(nobody(home_kind, "recipe", "check", recipe))
    run = place / "work/run"
    assert_clean(nobody(home_kind, "finetune", recipe, "train.max_steps=2", f"train.output_dir={run}",
                        "tracking.visualdl=true", "--skip-parity", "a test"))  # fmt: skip
    assert_clean(nobody(home_kind, "predict", run, "--text", "sun"))
    assert not (place / "work/.cache/home").exists() and not list((place / "tmp").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("home_kind", some(HOMES))
def test_the_gate_works_without_a_home(home_kind, nobody):
    small = ["--layers", "1", "--length", "8", "n_embd=8", "n_head=2", "dff=8", "vocab_size=40"]
    assert_clean(nobody(home_kind, "parity", "--model", "ctrl", *small))


@pytest.mark.slow
@pytest.mark.parametrize("home_kind", some(HOMES, 3))
def test_the_doctor_names_the_variable(home_kind, nobody):
    result = nobody(home_kind, "doctor", COLUMNS="300")
    assert result.returncode == 0, result.stdout
    [line] = [line for line in result.stdout.splitlines() if "your home, " in line]
    assert "warn" in line and "cannot be written" in line and "export HOME=FOLDER" in line


def test_without_cache_and_home_a_temporary_home_is_removed(nobody, recipe, place):
    run = place / "work/run"
    result = nobody("nonexistent", "finetune", recipe, "train.max_steps=2", f"train.output_dir={run}",
                  "--skip-parity", "a test", TOOLKIT_CACHE="/nonexistent/cache")  # fmt: skip
    assert_clean(result, notes=1)
    assert result.stderr.startswith("note: the cache /nonexistent/cache: cannot be written")
    assert not any((place / "tmp").iterdir())


def test_a_readable_home_is_still_read(nobody, recipe, place):
    """Test downloads from the hub and data below ``~``; a new download names the variable to set."""
    own_home = place / "read-only"
    recipe.parent.rename(own_home / "data")
    recipe = own_home / "data" / recipe.name
    with LoopbackHub() as hub:
        hub.add("a/b", {"config.json": '{"model_type": "reformer"}'})
        (own_home / ".cache/huggingface").mkdir(parents=True)
        failed_process = nobody(
            "read-only", "parity", "--model", "reformer", "--weights", "a/b", HF_ENDPOINT=hub.endpoint
        )  # fmt: skip
    assert failed_process.returncode == 2 and len(failed_process.stderr.splitlines()) == 1
    assert f"{own_home}/.cache/huggingface/hub cannot be written; set HF_HUB_CACHE" in failed_process.stderr
    assert_clean(nobody("read-only", "recipe", "check", recipe, "data.files.train=~/data/train.csv"))


#: Prints where the libraries read and write without a home.
FOLDERS = """
import os
from toolkit.machine.home import set_writable_home
set_writable_home()
import huggingface_hub.constants, site
print(os.environ["HOME"], site.getuserbase(), os.environ["HF_MODULES_CACHE"], huggingface_hub.constants.HF_HUB_CACHE)
"""


@pytest.mark.parametrize("cache", ["", "shared"])
def test_python_and_libraries_run_no_file_of_the_cache_without_a_home(cache, tmp_path):
    """Another user may write the current folder and a shared cache, so only downloads, which are data, go there."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(VARIABLES)}
    variables |= {"HOME": "/sys", "PYTHONPATH": str(ROOT)}
    variables |= {"TOOLKIT_CACHE": str(tmp_path / cache)} if cache else {}
    command = [sys.executable, "-c", FOLDERS]
    result = subprocess.run(command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=True)
    *private, downloads = map(Path, result.stdout.split())
    assert not any(folder.is_relative_to(tmp_path) or folder.exists() for folder in private)
    assert downloads == tmp_path / (cache or ".cache") / "huggingface/hub"


def test_a_writable_home_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(home.OWN_HOME, raising=False)
    home.set_writable_home()
    assert os.environ["HOME"] == str(tmp_path) and home.OWN_HOME not in os.environ and not any(tmp_path.iterdir())


def test_a_folder_of_another_user_in_the_home_is_not_written(nobody, place):
    """Test a folder in the home that an earlier command of root has left."""
    users_home = place / "work/theirs"
    (users_home / ".paddlenlp").mkdir(parents=True)
    os.chown(users_home, NOBODY, NOBODY)
    small = ["--layers", "1", "--length", "8", "n_embd=8", "n_head=2", "dff=8", "vocab_size=40"]
    assert_clean(nobody("nonexistent", "parity", "--model", "ctrl", *small, HOME=str(users_home)))
