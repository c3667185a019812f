"""Test that modules in the current folder never run: no command starts a Python that imports from there."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece
from kills import write_recipes

pytestmark = pytest.mark.new_interpreter

ROOT = Path(__file__).resolve().parents[2]
#: Modules that a child process imports, or Python itself at its start.
STRAY = {*sys.stdlib_module_names} - {*sys.builtin_module_names} | {
    "numpy", "torch", "paddle", "paddlenlp", "paddle2onnx", "transformers", "safetensors", "sentencepiece", "google",
    "yaml", "click", "rich", "pydantic", "datasets", "filelock", "regex", "numba", "models", "recipes", "sitecustomize",
    "usercustomize",
}  # fmt: skip
#: Modules that Python imports for `-m` before our code can run.
FOR_M = {"importlib", "warnings", "contextlib", "collections", "keyword", "operator", "reprlib", "functools", "types"}
#: The script that `pip install` writes for the entry point.
PROGRAM = "from toolkit.__main__ import main\nmain()\n"
#: A gate that takes a few seconds.
SMALL = ("--model", "ctrl", "--layers", "1", "--length", "8", "n_embd=8", "n_head=2", "dff=8", "vocab_size=40")


class Place:
    """A folder with stray modules, which write a marker file when they run, and a program in another folder."""

    def __init__(self, folder: Path) -> None:
        self.here, self.elsewhere = folder / "here", folder / "elsewhere"
        for directory in (self.here, self.elsewhere):
            directory.mkdir()
        self.program = self.elsewhere / "toolkit"
        self.program.write_text(PROGRAM)
        for name in STRAY:
            mark = self.elsewhere / f"{name}.ran"
            self.stray(name).write_text(f"open({str(mark)!r}, 'w').close()\nraise ImportError('a stray {name}.py')\n")

    def stray(self, name: str) -> Path:
        return self.here / f"{name}.py"

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess:
        """Run a Python command in the folder, and check that no stray module has run."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **variables}
        result = subprocess.run(
            [sys.executable, *map(str, command)], cwd=self.here, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert not sorted(path.stem for path in self.elsewhere.glob("*.ran")), result.stderr
        return result

    def script(self, code: str, *arguments: object) -> subprocess.CompletedProcess:
        """Run a program in the other folder."""
        (self.elsewhere / "script").write_text(code)
        return self.run(self.elsewhere / "script", *arguments)

    def toolkit(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
        return self.run(self.program, *arguments, **variables)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def test_a_stray_module_writes_its_marker_file(place):
    with pytest.raises(AssertionError, match="a stray json"):
        place.run("-c", "import json")


def test_a_command_without_child_processes(place):
    result = place.toolkit("recipe", "list")
    assert result.returncode == 0 and "reformer_cls" in result.stdout, result.stderr


def test_python_m_runs_only_modules_that_python_imports_for_it(place):
    for name in FOR_M:
        place.stray(name).unlink()
    result = place.run("-m", "toolkit", "recipe", "list")
    assert result.returncode == 0 and "reformer_cls" in result.stdout, result.stderr


def test_the_doctor_and_its_child_processes(place):
    result = place.toolkit("doctor", "--reference-python", sys.executable, COLUMNS="300")
    checks = ("paddle", "paddlenlp", "reference")
    rows = [line for line in result.stdout.splitlines() if any(f" {check} " in line for check in checks)]
    assert len(rows) == 3 and all(" ok " in row for row in rows), result.stdout


def test_the_process_that_checks_a_sentencepiece_model(place, tmp_path):
    texts = place.elsewhere / "texts"
    texts.write_text("a cat, a dog and a cow\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(texts), model_prefix=str(place.elsewhere / "pieces"), vocab_size=20, hard_vocab_limit=False
    )
    code = "import pathlib, sys\nfrom models.reformer.pieces_file import check_pieces\n"
    result = place.script(
        f"{code}check_pieces(pathlib.Path(sys.argv[1]).read_bytes())", place.elsewhere / "pieces.model"
    )
    assert result.returncode == 0, result.stderr


def test_the_process_that_reads_pickles(place):
    make = "import sys, torch; torch.save({'a': torch.ones(3)}, sys.argv[1])"
    (place.elsewhere / "pickled").mkdir()
    file = place.elsewhere / "pickled/pytorch_model.bin"
    subprocess.run([sys.executable, "-c", make, str(file)], check=True)
    code = "import pathlib, sys\nfrom toolkit.parity.processes.pickles import safetensors_folder\n"
    result = place.script(f"{code}print(safetensors_folder(pathlib.Path(sys.argv[1])))", file.parent)
    assert result.returncode == 0 and list(Path(result.stdout.strip()).glob("*.safetensors")), result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "expected_output"),
    [
        (["parity", *SMALL, "--reference-python", sys.executable], "PARITY"),
        (["parity", "bitwise", *SMALL], "to the last bit"),
        (["bench", "--model", "ctrl", "--layers", "1", "--length", "8", "--batch-size", "1", "--pairs", "1"], "pair"),
    ],
    ids=["gate", "kernels", "bench"],
)  # fmt: skip
def test_the_gates_processes_and_benchmarks(place, arguments, expected_output):
    result = place.toolkit(*arguments)
    assert result.returncode == 0 and expected_output in result.stdout, (result.stdout, result.stderr)


@pytest.mark.slow
def test_the_processes_of_a_run_and_a_restarted_program(place):
    recipe = write_recipes(place.elsewhere)[0]
    folder = place.elsewhere / "run"
    arguments = ["finetune", recipe, f"train.output_dir={folder}", "train.max_steps=4", "--processes", "2"]
    result = place.toolkit(*arguments, PYTHONPATH=f"{ROOT}")
    assert result.returncode == 0 and (folder / "metrics.json").exists(), result.stderr


@pytest.mark.skipif(importlib.util.find_spec("paddle2onnx") is None, reason="needs paddle2onnx")
def test_the_process_that_converts_to_onnx(place):
    """Test a folder without a graph, which the converter itself reports."""
    code = "import sys\nfrom pathlib import Path\nfrom toolkit.commands.export.onnx_file import convert_to_onnx\n"
    result = place.script(f"{code}convert_to_onnx(Path(sys.argv[1]), Path(sys.argv[1]))", place.elsewhere)
    assert "Paddle2ONNX cannot convert this model: " in result.stderr and "No module named" not in result.stderr


# -- no other way to start processes --------------------------------------------------------------------------------

#: Functions that start a process, by module.
STARTS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"},
    "multiprocessing": {"Process", "Pool", "get_context", "Manager", "set_start_method"},
    "pty": {"spawn", "fork"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
}
#: Functions that return the command of another Python, and functions that start a given command.
COMMANDS, STARTS_COMMAND = {"code_command", "module_command"}, {"child_process"}
#: File and function of each other process start.
OTHERS = {
    ("toolkit/commands/doctor/gpu.py", "query_driver"): "no Python",
    ("toolkit/machine/scratch.py", "_start_janitor"): "isolated, of the standard library alone",
    ("toolkit/machine/scratch.py", "child_process"): "what it is given",
    ("toolkit/parity/other_frameworks/run.py", "_run_program"): "a command that run_port has from launch",
}


def name_of(function: ast.expr) -> tuple[str, str]:
    """Return both names of a call `a.b(...)`; the first is empty for `b(...)`."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id, function.attr
    return "", function.id if isinstance(function, ast.Name) else ""


def starts_process(call: ast.Call) -> bool:
    module, name = name_of(call.func)
    return (
        name in STARTS.get(module, ())
        or name in STARTS_COMMAND
        or (module == "os" and name.startswith(("exec", "spawn")))
    )


def is_command(value: ast.expr, assigned_values: dict[str, ast.expr]) -> bool:
    """Return whether an expression is the command of another Python, or a variable with such a command."""
    if isinstance(value, ast.Name):
        return value.id in assigned_values and is_command(assigned_values[value.id], {})
    return isinstance(value, ast.Call) and name_of(value.func)[1] in COMMANDS


def assigned_values(function: ast.AST) -> dict[str, ast.expr]:
    values_by_name = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                values_by_name.update({name.id: value for name, value in pairs if isinstance(name, ast.Name)})
    return values_by_name


def find_other_starts(source: str) -> list[str]:
    """Return the functions of a module that start a process in another way."""
    starting_functions = []
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and STARTS.get(node.module or "", set()) & {
            node_or_alias.name for node_or_alias in node.names
        }:
            starting_functions.append(f"from {node.module}")
        if not (isinstance(node, ast.Call) and starts_process(node)):
            continue
        around = [
            node_or_alias
            for node_or_alias in functions
            if node_or_alias.lineno <= node.lineno <= (node_or_alias.end_lineno or 0)
        ]
        inner = max(around, key=lambda node_or_alias: node_or_alias.lineno, default=None)
        if not (node.args and is_command(node.args[0], assigned_values(inner or tree))):
            starting_functions.append(inner.name if inner else "the module")
    return starting_functions


def test_no_process_is_started_in_another_way():
    other_starts = set()
    for folder in ("toolkit", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            other_starts |= {(place, function) for function in find_other_starts(path.read_text())}
    assert other_starts == set(OTHERS)


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run([sys.executable, '-m', 'x'])", "subprocess.Popen(command)", "os.execve(python, [], {})",
        "child_process([python, '-c', code])", "os.system('python x')", "multiprocessing.Process(target=f)",
        "from subprocess import run",
    ],
)  # fmt: skip
def test_another_way_is_found(line):
    assert find_other_starts(f"def f(command):\n    {line}\n")
    assert not find_other_starts("def f():\n    command = module_command(python, 'x')\n    subprocess.run(command)\n")
