"""Test `toolkit recipe list` and `copy`, and that an installed wheel has their recipes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from toolkit import __version__
from toolkit.machine.install import DISTRIBUTION
from toolkit.recipe import shipped_recipes as recipe_files
from toolkit.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "recipes").glob("*.yaml"))


@pytest.fixture
def run(command_line, monkeypatch, tmp_path):
    """Return a function that runs `toolkit ARGUMENTS` in an empty folder and returns exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    return command_line


def test_the_command_lists_every_recipe(run):
    assert sorted(recipe.name for recipe in recipe_files.shipped_recipes()) == NAMES
    status, out, err = run("recipe", "list")
    assert (status, err) == (0, "") and all(f" {name} " in out for name in NAMES)


def test_a_copy_equals_the_recipe_and_names_only_published_files(run, tmp_path):
    for name in NAMES:
        status, out, _ = run("recipe", "copy", name)
        assert status == 0 and out == f"wrote {name}.yaml; next: toolkit recipe check {name}.yaml\n"
        assert (tmp_path / f"{name}.yaml").read_bytes() == (ROOT / "recipes" / f"{name}.yaml").read_bytes()
        load_recipe(f"{name}.yaml")
    (tmp_path / "mine").mkdir()
    assert run("recipe", "copy", "ctrl_lm.yaml", "mine")[0] == 0
    assert run("recipe", "copy", "ctrl_lm", "mine/other.yaml")[0] == 0
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["ctrl_lm.yaml", "other.yaml"]


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (["ctrl_ml"], "ctrl_ml: no such recipe, did you mean ctrl_lm?"),
        (["../recipes/ctrl_lm"], "no such recipe"),
        (["ctrl_lm", "there.yaml"], "there.yaml: exists and is not overwritten; name another file"),
        (["ctrl_lm", "dangling.yaml"], "dangling.yaml: exists"),
        (["ctrl_lm", "none/x.yaml"], "none/x.yaml: there is no folder none; make it first"),
        (["ctrl_lm", "there.yaml/x.yaml"], "no file can be made there"),
    ],
)
def test_an_impossible_copy_is_reported_in_one_line_and_nothing_is_written(run, tmp_path, arguments, expected_error):
    (tmp_path / "there.yaml").write_text("mine")
    (tmp_path / "dangling.yaml").symlink_to("elsewhere.yaml")
    status, _, err = run("recipe", "copy", *arguments)
    assert status == 2 and expected_error in err and err.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling.yaml", "there.yaml"]
    assert (tmp_path / "there.yaml").read_text() == "mine"


def test_published_files_name_no_private_folder():
    texts = [path for folder in ("recipes", "toolkit", "models") for path in (ROOT / folder).rglob("*")]
    for path in [ROOT / "README.md", *texts]:
        if path.suffix in (".md", ".yaml", ".py"):
            assert "../shared" not in path.read_text(encoding="utf-8"), path


@pytest.mark.parametrize("recipe_argument", ["reformer_qa", "recipes/reformer_qa.yaml"])
def test_a_missing_published_recipe_is_refused_with_its_copy_command(run, tmp_path, recipe_argument):
    shutil.copy(ROOT / "recipes" / "reformer_cls.yaml", tmp_path)  # similar, but another recipe
    status, _, err = run("recipe", "check", recipe_argument)
    assert status == 2 and err.endswith("No such file or directory; it ships: toolkit recipe copy reformer_qa\n")


@pytest.mark.slow
def test_a_wheel_has_the_recipes_and_every_module(tmp_path):
    source, wheels, site = tmp_path / "source", tmp_path / "wheels", tmp_path / "site"
    source.mkdir()
    for name in ("toolkit", "models", "recipes"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = [sys.executable, "-m", "pip", "wheel", source, "--no-deps", "--no-build-isolation", "-q", "-w", wheels]
    subprocess.run(command, check=True, capture_output=True)
    with zipfile.ZipFile(next(wheels.glob(f"{DISTRIBUTION.replace('-', '_')}-{__version__}-*.whl"))) as wheel:
        inside = {name for name in wheel.namelist() if ".dist-info/" not in name}
        wheel.extractall(site)
    folders = ("toolkit", "models", "recipes")
    source_files = {
        path.relative_to(source) for name in folders for path in (source / name).rglob("*") if path.is_file()
    }
    assert inside == {path.as_posix() for path in source_files if "__pycache__" not in path.parts}
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    code = "import sys, toolkit.cli as cli; print(cli.__file__, file=sys.stderr); cli.main(sys.argv[1:])"

    def run_installed(*arguments: str) -> str:
        command = [sys.executable, "-c", code, *arguments]
        result = subprocess.run(command, cwd=empty, env=environment, capture_output=True, text=True, check=True)
        assert result.stderr.startswith(str(site))
        return result.stdout

    assert all(f" {name} " in run_installed("recipe", "list") for name in ("ctrl_lm", "reformer_cls"))
    run_installed("recipe", "copy", "reformer_cls")
    assert run_installed("recipe", "check", "reformer_cls.yaml").endswith("reformer_cls.yaml: ok\n")
