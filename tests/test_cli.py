"""The command line as a user runs it: one clear line and an exit status, never a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from toolkit import cli

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path.name for path in (ROOT / "recipes").glob("*.yaml"))


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `toolkit ARGUMENTS` in this process; gives exit status, stdout, stderr."""
    monkeypatch.chdir(ROOT)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            cli.main([str(argument) for argument in arguments])
        output = capsys.readouterr()
        return left.value.code, output.out, output.err

    return run


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from toolkit import cli\n"
        "try: cli.main(['finetune', '--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('paddle', 'torch', 'datasets', 'numpy', 'pydantic', 'yaml', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "--skip-parity REASON" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_every_recipe_that_ships_is_valid_and_says_what_each_key_is_for(run):
    assert len(RECIPES) >= 3
    for name in RECIPES:
        status, _, err = run("recipe", "show", f"recipes/{name}")
        assert (status, err) == (0, ""), name
        for number, line in enumerate((ROOT / "recipes" / name).read_text().splitlines(), start=1):
            is_section = line.endswith(":")
            assert not line or is_section or "#" in line, f"{name}:{number} has no comment"


def test_the_recipes_that_need_no_other_data_check_out(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    assert run("recipe", "check", "recipes/ctrl_lm.yaml") == (0, "recipes/ctrl_lm.yaml: ok\n", "")
    assert run("recipe", "check", "recipes/reformer_cls.yaml") == (0, "recipes/reformer_cls.yaml: ok\n", "")
    assert run("recipe", "check", "recipes/reformer_qa.yaml") == (0, "recipes/reformer_qa.yaml: ok\n", "")
    status, out, _ = run("recipe", "check", "recipes/reformer_cls_enwik8.yaml")
    assert status == 0 and out.endswith("recipes/reformer_cls_enwik8.yaml: ok\n")


@pytest.mark.shared_data
def test_the_recipes_on_other_data_check_out(run, shared_data, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("reformer_cls_movie_reviews", "ctrl_lm_domains", "ctrl_lm_salesforce", "reformer_qa_squad"):
        assert run("recipe", "check", f"recipes/{name}.yaml")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["finetune", "recipes/reformer_cls.yaml", "train.batch_sise=4"],
            "command line: train.batch_sise: unknown key",
        ),
        (["finetune", "recipes/reformer_csl.yaml"], "did you mean recipes/reformer_cls.yaml?"),
        (["finetune", "recipes/reformer_cls.yaml", "--skip-parity", " "], "--skip-parity: needs a reason"),
        (
            ["recipe", "check", "recipes/reformer_cls.yaml", "data.max_length=1000"],
            "data.max_length: 1000: model.config.axial_pos_shape: [16, 32] has the product 512",
        ),
        (
            ["recipe", "check", "recipes/reformer_cls.yaml", "data.options.trian=1"],
            "data.options.trian: unknown option",
        ),
        (["evaluate", "runs/nowhere"], "runs/nowhere: is not a run folder"),
        (["evaluate"], "specify RUN, a run folder, or --squad DATASET.json PREDICTIONS.json"),
        (["evaluate", "--squad", "recipes/nothing.json", "x.json"], "recipes/nothing.json: no such file"),
        (["evaluate", "--squad", "setup.cfg", "x.json"], "setup.cfg: is not JSON"),
        (["predict", "runs/nowhere", "--text", "a"], "runs/nowhere: is not a run folder"),
        (["generate", "runs/nowhere"], "runs/nowhere: is not a run folder"),
        (["recipe", "check", "recipes/ctrl_lm.yaml", "data.options.chapters=[Poems]"], "Poems given; the chapters are"),
        (["recipe", "check", "recipes/ctrl_lm.yaml", "data.max_length=512"], "n_positions: 256 is less than 512"),
    ],
)
def test_a_mistake_is_one_line_and_exit_status_2(run, arguments, expected):
    status, out, err = run(*arguments)
    assert status == 2
    assert err.startswith("error: ") and expected in err and err.count("\n") == 1
    assert "Traceback" not in out + err


def test_a_mistake_in_a_file_names_its_line(run, tmp_path):
    recipe = tmp_path / "x.yaml"
    recipe.write_text((ROOT / "recipes" / "reformer_cls.yaml").read_text().replace("batch_size: 16", "batch_sise: 16"))
    line = (
        recipe.read_text().splitlines().index(next(line for line in recipe.read_text().splitlines() if "sise" in line))
    )
    status, _, err = run("recipe", "check", recipe)
    assert status == 2
    assert err == f"error: {recipe}:{line + 1}: train.batch_sise: unknown key, did you mean batch_size?\n"


@pytest.mark.parametrize("arguments", [["finetun"], ["finetune"], ["parity"], ["parity", "--model", "x"], ["--nope"]])
def test_wrong_usage_is_exit_status_2(run, arguments):
    status, _, err = run(*arguments)
    assert status == 2 and "Usage: " in err


def test_show_prints_a_recipe_that_loads_again(run, tmp_path):
    _, out, _ = run("recipe", "show", "recipes/reformer_cls.yaml", "seed=7")
    (tmp_path / "again.yaml").write_text(out)
    status, again, _ = run("recipe", "show", tmp_path / "again.yaml")
    assert status == 0 and again == out and "seed: 7" in out


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        ("ParityDrift", 1, "error: drift"),
        ("Inconclusive", 3, "error: drift"),
        ("UserError", 2, "error: drift"),
    ],
)
def test_each_kind_of_failure_has_its_exit_status(run, monkeypatch, raised, status, line):
    from toolkit import errors, recipe

    def fail(*_):
        raise getattr(errors, raised)("drift")

    monkeypatch.setattr(recipe, "load_recipe", fail)
    assert run("recipe", "show", "x") == (status, "", f"{line}\n")


def test_an_interruption_is_one_line(run, monkeypatch):
    from toolkit import recipe

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe, "load_recipe", interrupt)
    status, _, err = run("recipe", "show", "x")
    assert status == 130 and err.strip() == "interrupted"
