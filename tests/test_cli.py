"""Test the command line as a user runs it: an error is one clear line and an exit status, never a traceback."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from toolkit import cli
from toolkit.parity.options import make_configuration

ROOT = Path(__file__).parents[1]
RECIPES = sorted(path.name for path in (ROOT / "recipes").glob("*.yaml"))


@pytest.fixture
def run(command_line, monkeypatch):
    """Return a function that runs `toolkit ARGUMENTS` in this process and returns exit status, stdout and stderr."""
    monkeypatch.chdir(ROOT)
    return command_line


def every_command(command: click.Command, name: str = "toolkit") -> Iterator[tuple[str, click.Command]]:
    yield name, command
    for inner_name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, f"{name} {inner_name}")


def test_every_command_and_option_has_a_help_text():
    for name, command in every_command(cli.toolkit):
        assert len((command.help or "").split()) >= 4, name
        for option in command.params:
            if isinstance(option, click.Option):
                help_text = option.help or ""
                assert len(help_text.split()) >= 4 and help_text.endswith("."), f"{name} {option.opts[0]}: {help_text}"


def test_the_help_has_every_command_in_one_group_and_cuts_no_sentence():
    help_text = cli.toolkit.get_help(click.Context(cli.toolkit, info_name="toolkit", terminal_width=80))
    listed_commands = re.findall(r"^  (\w[\w ]*?)  ", help_text.partition("Your data:")[2], re.MULTILINE)
    assert sorted(listed_commands) == sorted(cli.toolkit.commands)
    assert "..." not in help_text.replace("[ARGS]...", "") and max(map(len, help_text.splitlines())) <= 80


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from toolkit import cli\n"
        "try: cli.main(['finetune', '--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('paddle', 'torch', 'datasets', 'numpy', 'pydantic', 'yaml', 'rich') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "--skip-parity REASON" in result.stdout
    assert result.stdout.splitlines()[-1] == "[]"


def test_every_published_recipe_is_valid_and_explains_each_key(run):
    assert len(RECIPES) >= 3
    for name in RECIPES:
        status, _, err = run("recipe", "show", f"recipes/{name}")
        assert (status, err) == (0, ""), name
        for number, line in enumerate((ROOT / "recipes" / name).read_text().splitlines(), start=1):
            is_section = line.endswith(":")
            assert not line or is_section or "#" in line, f"{name}:{number} has no comment"


def test_recipes_without_other_data_are_valid(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TOOLKIT_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    for name in ("ctrl_lm", "reformer_cls", "reformer_lm", "reformer_qa"):
        status, out, err = run("recipe", "check", f"recipes/{name}.yaml")
        *choice, training, gate, last = out.splitlines()
        assert [line.startswith("memory: model.backward auto: ") for line in choice] == [True] * ("reformer" in name)
        assert (status, last, err) == (0, f"recipes/{name}.yaml: ok", "")
        assert training.startswith("memory: training takes about ") and gate.startswith("memory: the gate takes about ")
    status, out, _ = run("recipe", "check", "recipes/reformer_cls_enwik8.yaml")
    assert status == 0 and out.endswith("recipes/reformer_cls_enwik8.yaml: ok\n")


@pytest.mark.shared_data
def test_recipes_on_other_data_are_valid(run, shared_data, monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    reviews, texts = shared_data / "movie_reviews", shared_data / "text"
    files = [f"data.files.{split_name}={reviews / split_name}.jsonl" for split_name in ("train", "test")]
    sources = f"data.sources={{Books: {texts / 'dracula.txt'}, Wikipedia: [{texts / 'wikitext2_test.txt'}]}}"
    overrides_by_recipe = {
        "reformer_cls_movie_reviews": files,
        "ctrl_lm_domains": [sources],
        "ctrl_lm_salesforce": [sources],
    }
    overrides_by_recipe["reformer_lm_crime_and_punishment"] = [f"data.files.train={texts / 'dracula.txt'}"]
    for name in (*overrides_by_recipe, "reformer_qa_squad"):
        assert run("recipe", "check", f"recipes/{name}.yaml", *overrides_by_recipe.get(name, []))[0] == 0


def test_a_recipe_without_its_data_files_is_refused_at_its_line(run):
    for name, key in (("reformer_cls_movie_reviews", "data.files.train"), ("ctrl_lm_domains", "data.sources.Books")):
        status, _, err = run("recipe", "check", f"recipes/{name}.yaml")
        assert status == 2 and err.startswith(f"error: recipes/{name}.yaml:") and f": {key}: " in err


@pytest.mark.parametrize(
    ("arguments", "expected_error"),
    [
        (
            ["finetune", "recipes/reformer_cls.yaml", "train.batch_sise=4"],
            "command line: train.batch_sise: unknown key",
        ),
        (["finetune", "recipes/reformer_csl.yaml"], "did you mean recipes/reformer_cls.yaml?"),
        (["finetune", "recipes/reformer_cls.yaml", "--skip-parity", " "], "--skip-parity: needs a reason"),
        (
            ["recipe", "check", "recipes/reformer_cls.yaml", "data.max_length=1000"],
            "data.max_length: 1000: model.config.axial_pos_shape: 1,000 tokens are more than the 512 positions of",
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
def test_a_mistake_is_one_line_and_exit_status_2(run, arguments, expected_error):
    status, out, err = run(*arguments)
    assert status == 2
    assert err.startswith("error: ") and expected_error in err and err.count("\n") == 1
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


#: For each command below `parity`: its required arguments, and arguments and options of other commands that it refuses.
FOREIGN_ARGUMENTS = {
    "": (["--model", "ctrl"], ["--mutants", "--limits", "--sweep=2", "--gates=2", "--reference=B", "--ops=reference",
                               "--kernels=softmax"]),
    "record": (["--model", "ctrl", "-o", "B"], ["--trace", "--reference=B", "--kernels=softmax", "--gates=2"]),
    "replay": (["B"], ["--model=ctrl", "--seed=0", "--length=32", "--mutants", "--reference-python=x",
                       "--trace", "n_layer=2"]),
    "bitwise": (["--model", "reformer"], ["--dtype=float64", "--device=gpu", "--trace", "--mutants", "--sweep=2",
                                          "--reference-reversible"]),
    "mutants": (["--model", "ctrl"], ["--head=causal_lm", "--layers=2", "--output=x", "--gates=2", "n_layer=2"]),
    "limits": (["--model", "ctrl"], ["--dtype=float32", "--length=32", "--output=x", "--trace", "n_layer=2"]),
    "sweep": (["--model", "ctrl", "--gates", "2"], ["--layers=3", "--batch-size=3", "--mutants", "--output=x",
                                                    "--trace"]),
    "texts": (["--model", "ctrl"], ["--gates=2", "--device=cpu", "--weights=random", "--output=x", "n_layer=2"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "foreign_argument"),
    [(command, argument) for command, (_, arguments) in FOREIGN_ARGUMENTS.items() for argument in arguments],
)
def test_a_command_of_the_gate_refuses_foreign_arguments(run, tmp_path, monkeypatch, command, foreign_argument):
    monkeypatch.chdir(tmp_path)
    status, out, err = run("parity", *command.split(), *FOREIGN_ARGUMENTS[command][0], foreign_argument)
    assert (status, out) == (2, "")
    error_lines = [line for line in err.splitlines() if line.startswith("Error: ")]
    expected_error = "No such option" if foreign_argument.startswith("-") else "Got unexpected extra argument"
    assert len(error_lines) == 1 and err.endswith(error_lines[0] + "\n")
    assert re.match(rf"Error: {expected_error}:? ['(]?{foreign_argument.partition('=')[0]}\b", error_lines[0])
    assert re.match(rf"Usage: .* parity {command} ?\[?[OB]", err) and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_python_m_toolkit_is_the_same_program(run, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = subprocess.run(
        [sys.executable, "-m", "toolkit", "parity", "--help"], capture_output=True, text=True, check=True, cwd=ROOT
    )
    status, out, _ = run("parity", "--help")
    assert status == 0
    assert result.stdout.partition("\n")[2] == out.partition("\n")[2] and "--reference-python PATH" in out
    for command in filter(None, FOREIGN_ARGUMENTS):
        assert command in out and run("parity", command, "--help")[1] != out


#: First lines of the files of a gate.
OF_A_GATE = {
    "parity.json": '{\n "schema": 3,',
    "bitwise.json": '{\n "schema": 1,',
    "junit.xml": '<?xml version="1.0" encoding="utf-8"?>\n<testsuites name="parity" tests="3"',
    "parity.html": "<!doctype html>\n<html><head><title>PARITY: ctrl, parity with the reference</title>",
    "constants.safetensors": 'P\0\0\0\0\0\0\0{"transformer.pos_encoding":{',
}


@pytest.fixture
def without_torch(tmp_path) -> Path:
    """Return a Python without packages."""
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--model", "reformer", "num_hashes=0"], 2, "num_hashes: 0 should be a whole number"),
        (["--model", "ctrl", "n_lyer=3"], 2, "n_lyer: unknown key"),
        (["--model", "ctrl", "--weights", "no-such-folder/x"], 2, "--weights no-such-folder/x"),
        (["--model", "ctrl", "--reference-python", "PYTHON"], 3, "lacks torch, transformers"),
        (["replay", "no-such-bundle"], 2, "no-such-bundle: is not a bundle"),
        (["bitwise", "--model", "reformer", "num_hashes=0"], 2, "num_hashes: 0 should be a whole number"),
        (["bitwise", "--model", "ctrl", "--reference-python", "PYTHON"], 3, "lacks torch, transformers"),
    ],
)
def test_an_aborted_gate_leaves_no_report_of_an_earlier_one(
    run, tmp_path, monkeypatch, without_torch, arguments, status, message
):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder = tmp_path / "out" / "cpu"
    folder.mkdir(parents=True)
    for name in (*OF_A_GATE, "notes.txt"):
        (folder / name).write_text(OF_A_GATE.get(name, "mine"))
    arguments = [without_torch if argument == "PYTHON" else argument for argument in arguments]
    exit_status, _, err = run("parity", *arguments, "--output", tmp_path / "out")
    assert exit_status == status and err.startswith("error: ") and message in err and err.count("\n") == 1
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]  # foreign files stay


@pytest.mark.parametrize("name", OF_A_GATE)
@pytest.mark.parametrize("kind", ["text", "link", "pipe", "bytes"])
def test_a_foreign_file_named_like_a_gates_is_reported_and_nothing_is_removed(run, tmp_path, name, kind):
    folder = tmp_path / "out" / "cpu"
    folder.mkdir(parents=True)
    for file_name, first_line in OF_A_GATE.items():
        (folder / file_name).write_text(first_line)
    path = folder / name
    path.unlink()
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
        (tmp_path / "elsewhere").write_text(OF_A_GATE[name])
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(b"mine" if kind == "text" else bytes(range(256)))
    status, _, err = run("parity", "--model", "ctrl", "--output", tmp_path / "out")
    assert status == 2 and err.count("\n") == 1 and f"{path}: is not of an earlier gate, and would be lost" in err
    assert {path.name for path in folder.iterdir()} == set(OF_A_GATE)


def test_show_prints_a_recipe_that_loads_again(run, tmp_path):
    _, out, _ = run("recipe", "show", "recipes/reformer_cls.yaml", "seed=7")
    (tmp_path / "again.yaml").write_text(out)
    status, second_output, _ = run("recipe", "show", tmp_path / "again.yaml")
    assert status == 0 and second_output == out and "seed: 7" in out


@pytest.mark.parametrize(
    ("error_name", "status", "line"),
    [("ParityDrift", 1, "error: drift"), ("Inconclusive", 3, "error: drift"), ("UserError", 2, "error: drift")],
)
def test_each_kind_of_failure_has_its_exit_status(run, monkeypatch, error_name, status, line):
    from toolkit import errors
    from toolkit.recipe import load

    def fail(*_):
        raise getattr(errors, error_name)("drift")

    monkeypatch.setattr(load, "load_recipe", fail)
    assert run("recipe", "show", "x") == (status, "", f"{line}\n")


def test_an_interruption_is_one_line(run, monkeypatch):
    from toolkit.recipe import load

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(load, "load_recipe", interrupt)
    status, _, err = run("recipe", "show", "x")
    assert status == 130 and err.strip() == "interrupted"


#: Impossible options of `toolkit parity`, and the beginning of the error message.
IMPOSSIBLE = [
    (["--length", "1000000000"], "the configuration, --length and --batch-size: 10,630,530 parameters take 0.6 GB"),
    (["num_hashes=999999999"], "the configuration, --length and --batch-size: "),
    (["--batch-size", "999999999"], "the configuration, --length and --batch-size: "),
    (["--seed", "9" * 30], "Invalid value for '--seed'"),
    (["--output", "/dev/null/x"], "--output /dev/null/x/cpu: cannot be written: Not a directory"),
    (["=3"], "=3: expected KEY=VALUE"),
    (["--time-limit", "nan"], "Invalid value for '--time-limit': nan is not a finite number."),
    (["--time-limit", "inf"], "Invalid value for '--time-limit': inf is not a finite number."),
    (["hidden_size=[1"], "command line: hidden_size:1: not YAML"),
    (["layer_norm_eps=1e-2"], "layer_norm_eps: 0.01 should be a number from 0 to 0.001"),
    (["hash_seed=x"], "hash_seed: 'x' should be a whole number"),
    (["id2label=3"], "id2label: 3 should name the labels 0, 1, 2, ..."),
    (["num_labels=-1"], "num_labels: -1 should be a whole number"),
    (["pad_token_id=9999"], "pad_token_id: 9999 is no id of a vocabulary of 320"),
    (["attn_layers=[[]]"], "attn_layers: [[]] should be a list of 'local' and 'lsh'"),
    (["num_buckets=1.5"], "num_buckets: 1.5 should be an even number"),
    (["axial_pos_embds_dim=[a, b]"], "axial_pos_embds_dim: ['a', 'b'] should be two numbers"),
    (["--reference-python", "/"], "--reference-python: /: is not an executable file"),
]


@pytest.mark.parametrize(
    ("options", "expected_error"), IMPOSSIBLE, ids=[" ".join(options)[:30] for options, _ in IMPOSSIBLE]
)
def test_impossible_options_of_the_gate_are_refused_in_one_line(options, expected_error, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as leave:
        cli.main(["parity", "--model", "reformer", *options])
    assert leave.value.code == 2
    assert f"rror: {expected_error}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\0b", "a" * 256, "x/" * 3000])
@pytest.mark.parametrize(
    "words",
    [
        "recipe check @", "recipe new @", "recipe copy reformer_cls @", "finetune @", "predict @ --text x",
        "compare @ @", "parity --port @ --reference-model @", "parity --model reformer --output @",
        "parity judge @ port.py", "parity record --model reformer --output @",
    ],
)  # fmt: skip
def test_an_impossible_file_name_is_refused(run, words, name):
    status, _, error = run(*(name if word == "@" else word for word in words.split()))
    expected_error = "holds a null character" if "\0" in name else f"has {len(name)} characters; shorten the name"
    assert status == 2 and expected_error in error and "Traceback" not in error


@pytest.mark.parametrize("name", ["a\nb", "a\rb", "a\u2028b", "a\x0bb", "a\x1b[31mb"])
@pytest.mark.parametrize(
    "words",
    [
        "recipe check @", "recipe new @", "recipe copy @", "recipe list @", "finetune @", "predict @ --text x",
        "compare @ @", "evaluate @", "generate @ --prompt x", "export @ --format hf", "parity judge x @",
        "parity --port @ --reference-model @", "parity replay @", "parity --model @", "@",
    ],
)  # fmt: skip
def test_a_name_with_a_line_break_is_told_in_one_line(run, words, name):
    status, _, error = run(*(name if word == "@" else word for word in words.split()))
    [told] = [line for line in error.splitlines() if line.lower().startswith("error: ")]
    assert status == 2 and error.endswith(told + "\n")
    assert name.encode("unicode_escape").decode() in told.replace("\\\\", "\\")


def test_a_file_with_a_line_break_in_its_name_is_told_in_one_line(run, tmp_path):
    (tmp_path / "a\nb.yaml").write_text("task: classification\nnothing: 1\nsomething: 2\n")
    status, _, error = run("recipe", "check", tmp_path / "a\nb.yaml")
    lines = error.splitlines()
    assert status == 2 and len(lines) > 1 and all("/a\\nb.yaml:" in line for line in lines)


def test_an_error_quotes_the_ends_of_a_long_value(run):
    status, _, error = run("recipe", "copy", "x/" * 1500)
    assert status == 2 and error.startswith("error: x/x/") and error.endswith("`toolkit recipe list` shows all\n")
    assert " ... " in error and len(error) < 1100


def test_a_recipe_with_a_name_of_maximum_length_is_reported_missing(run):
    status, _, error = run("recipe", "check", "a" * 252)
    assert status == 2 and "cannot read the recipe: No such file or directory" in error


def test_numbers_of_the_command_line_are_read_as_in_a_recipe():
    """Test 1e-5, which YAML 1.1 reads as a word."""
    config, _ = make_configuration(
        "reformer", "sequence_classification", "mixed", 1, 64, ["layer_norm_eps=1e-5"], "random"
    )
    assert config["layer_norm_eps"] == 1e-5


@pytest.mark.parametrize(
    ("words", "expected_words"),
    [
        ("toolkit fi", ["plain,finetune", "plain,finish"]),
        ("toolkit recipe ch", ["plain,check"]),
        ("toolkit parity mu", ["plain,mutants"]),
        ("toolkit parity --model re", ["plain,reformer"]),
        ("toolkit parity mutants --ker", []),
        ("toolkit finetune x.yaml train.batch", ["plain,train.batch_size="]),
        ("toolkit recipe check x.yaml card.", ["plain,card.license=", "plain,card.language="]),
    ],
)
def test_a_shell_completes_commands_options_and_keys(words, expected_words):
    variables = {"COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1), "_TOOLKIT_COMPLETE": "bash_complete"}
    program = [sys.executable, "-c", "import sys; sys.argv[0] = 'toolkit'; from toolkit.cli import main; main()"]
    result = subprocess.run(program, env={**os.environ, **variables}, capture_output=True, text=True, timeout=120)
    assert result.stdout.split() == expected_words and not result.stderr
