"""What lies in the current folder is never run: no child is a Python that looks there, whatever the command."""

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
#: What some child imports, or Python itself when it starts one.
STRAY = {*sys.stdlib_module_names} - {*sys.builtin_module_names} | {
    "numpy", "torch", "paddle", "paddlenlp", "paddle2onnx", "transformers", "safetensors", "sentencepiece", "google",
    "yaml", "click", "rich", "pydantic", "datasets", "filelock", "regex", "numba", "models", "recipes", "sitecustomize",
    "usercustomize",
}  # fmt: skip
#: What Python imports for `-m` before anything of ours can be run.
FOR_M = {"importlib", "warnings", "contextlib", "collections", "keyword", "operator", "reprlib", "functools", "types"}
#: As `pip install` makes of the entry point.
PROGRAM = "from toolkit.__main__ import main\nmain()\n"
#: A gate of seconds.
SMALL = ("--model", "ctrl", "--layers", "1", "--length", "8", "n_embd=8", "n_head=2", "dff=8", "vocab_size=40")


class Place:
    """A folder with stray modules, each of which leaves a mark where it is run, and a program that lies elsewhere."""

    def __init__(self, folder: Path) -> None:
        self.here, self.elsewhere = folder / "here", folder / "elsewhere"
        for made in (self.here, self.elsewhere):
            made.mkdir()
        self.program = self.elsewhere / "toolkit"
        self.program.write_text(PROGRAM)
        for name in STRAY:
            mark = self.elsewhere / f"{name}.ran"
            self.stray(name).write_text(f"open({str(mark)!r}, 'w').close()\nraise ImportError('a stray {name}.py')\n")

    def stray(self, name: str) -> Path:
        return self.here / f"{name}.py"

    def run(self, *command: object, **variables: str) -> subprocess.CompletedProcess:
        """Run a Python's command there; nothing that is stray may have run."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **variables}
        done = subprocess.run(
            [sys.executable, *map(str, command)], cwd=self.here, env=environment, capture_output=True, text=True,
        )  # fmt: skip
        assert not sorted(path.stem for path in self.elsewhere.glob("*.ran")), done.stderr
        return done

    def script(self, code: str, *arguments: object) -> subprocess.CompletedProcess:
        """Run a program that lies elsewhere."""
        (self.elsewhere / "script").write_text(code)
        return self.run(self.elsewhere / "script", *arguments)

    def toolkit(self, *arguments: object, **variables: str) -> subprocess.CompletedProcess:
        return self.run(self.program, *arguments, **variables)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def test_a_stray_module_would_leave_its_mark(place):
    with pytest.raises(AssertionError, match="a stray json"):
        place.run("-c", "import json")


def test_a_command_that_starts_none(place):
    done = place.toolkit("recipe", "list")
    assert done.returncode == 0 and "reformer_cls" in done.stdout, done.stderr


def test_python_m_runs_none_but_those_that_python_itself_imports_for_it(place):
    for name in FOR_M:
        place.stray(name).unlink()
    done = place.run("-m", "toolkit", "recipe", "list")
    assert done.returncode == 0 and "reformer_cls" in done.stdout, done.stderr


def test_the_doctor_and_all_that_it_asks(place):
    done = place.toolkit("doctor", "--reference-python", sys.executable, COLUMNS="300")
    checks = ("paddle", "paddlenlp", "reference")
    rows = [line for line in done.stdout.splitlines() if any(f" {check} " in line for check in checks)]
    assert len(rows) == 3 and all(" ok " in row for row in rows), done.stdout


def test_what_tries_a_sentencepiece_model(place, tmp_path):
    texts = place.elsewhere / "texts"
    texts.write_text("a cat, a dog and a cow\n" * 50)
    sentencepiece.SentencePieceTrainer.train(
        input=str(texts), model_prefix=str(place.elsewhere / "pieces"), vocab_size=20, hard_vocab_limit=False
    )
    code = "import pathlib, sys\nfrom models.reformer.pieces_file import check_pieces\n"
    done = place.script(f"{code}check_pieces(pathlib.Path(sys.argv[1]).read_bytes())", place.elsewhere / "pieces.model")
    assert done.returncode == 0, done.stderr


def test_the_process_that_reads_pickles(place):
    make = "import sys, torch; torch.save({'a': torch.ones(3)}, sys.argv[1])"
    (place.elsewhere / "pickled").mkdir()
    file = place.elsewhere / "pickled/pytorch_model.bin"
    subprocess.run([sys.executable, "-c", make, str(file)], check=True)
    code = "import pathlib, sys\nfrom toolkit.parity.processes.pickles import safetensors_folder\n"
    done = place.script(f"{code}print(safetensors_folder(pathlib.Path(sys.argv[1])))", file.parent)
    assert done.returncode == 0 and list(Path(done.stdout.strip()).glob("*.safetensors")), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["parity", *SMALL, "--reference-python", sys.executable], "PARITY"),
        (["parity", "bitwise", *SMALL], "to the last bit"),
        (["bench", "--model", "ctrl", "--layers", "1", "--length", "8", "--batch-size", "1", "--pairs", "1"], "pair"),
    ],
    ids=["gate", "kernels", "bench"],
)  # fmt: skip
def test_the_gates_processes_and_those_that_are_measured(place, arguments, said):
    done = place.toolkit(*arguments)
    assert done.returncode == 0 and said in done.stdout, (done.stdout, done.stderr)


@pytest.mark.slow
def test_the_processes_of_a_run_and_the_program_that_starts_itself_again(place):
    recipe = write_recipes(place.elsewhere)[0]
    folder = place.elsewhere / "run"
    arguments = ["finetune", recipe, f"train.output_dir={folder}", "train.max_steps=4", "--processes", "2"]
    done = place.toolkit(*arguments, PYTHONPATH=f"{ROOT}")
    assert done.returncode == 0 and (folder / "metrics.json").exists(), done.stderr


@pytest.mark.skipif(importlib.util.find_spec("paddle2onnx") is None, reason="needs paddle2onnx")
def test_what_converts_to_onnx(place):
    """Given no graph, it says so itself."""
    code = "import sys\nfrom pathlib import Path\nfrom toolkit.commands.export.onnx_file import convert_to_onnx\n"
    done = place.script(f"{code}convert_to_onnx(Path(sys.argv[1]), Path(sys.argv[1]))", place.elsewhere)
    assert "Paddle2ONNX cannot convert this model: " in done.stderr and "No module named" not in done.stderr


# -- that there is no other way -------------------------------------------------------------------------------------

#: What starts a process, by its name.
STARTS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"},
    "multiprocessing": {"Process", "Pool", "get_context", "Manager", "set_start_method"},
    "pty": {"spawn", "fork"},
    "asyncio": {"create_subprocess_exec", "create_subprocess_shell"},
}
#: What gives the command of another Python, and what starts one that it is given.
COMMANDS, GIVEN = {"code_command", "module_command"}, {"child_process"}
#: Where something else is started: file and function.
OTHERS = {
    ("toolkit/commands/doctor/gpu.py", "query_driver"): "no Python",
    ("toolkit/machine/scratch.py", "_start_janitor"): "isolated, of the standard library alone",
    ("toolkit/machine/scratch.py", "child_process"): "what it is given",
    ("toolkit/parity/other_frameworks/run.py", "_run_program"): "a command that run_port has from launch",
}


def name_of(function: ast.expr) -> tuple[str, str]:
    """Of `a.b(...)` both names, of `b(...)` the last."""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        return function.value.id, function.attr
    return "", function.id if isinstance(function, ast.Name) else ""


def starts(call: ast.Call) -> bool:
    module, name = name_of(call.func)
    return name in STARTS.get(module, ()) or name in GIVEN or (module == "os" and name.startswith(("exec", "spawn")))


def is_command(value: ast.expr, assigned: dict[str, ast.expr]) -> bool:
    """Whether an expression is the command of another Python, or a name that one was given."""
    if isinstance(value, ast.Name):
        return value.id in assigned and is_command(assigned[value.id], {})
    return isinstance(value, ast.Call) and name_of(value.func)[1] in COMMANDS


def assignments(function: ast.AST) -> dict[str, ast.expr]:
    found = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = [(target, node.value)]
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = list(zip(target.elts, node.value.elts, strict=True))
                found.update({name.id: value for name, value in pairs if isinstance(name, ast.Name)})
    return found


def started_otherwise(source: str) -> list[str]:
    """The functions of a module that start a process in another way."""
    found = []
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and STARTS.get(node.module or "", set()) & {one.name for one in node.names}:
            found.append(f"from {node.module}")
        if not (isinstance(node, ast.Call) and starts(node)):
            continue
        around = [one for one in functions if one.lineno <= node.lineno <= (one.end_lineno or 0)]
        inner = max(around, key=lambda one: one.lineno, default=None)
        if not (node.args and is_command(node.args[0], assignments(inner or tree))):
            found.append(inner.name if inner else "the module")
    return found


def test_no_process_is_started_in_another_way():
    found = set()
    for folder in ("toolkit", "models"):
        for path in (ROOT / folder).rglob("*.py"):
            place = path.relative_to(ROOT).as_posix()
            found |= {(place, function) for function in started_otherwise(path.read_text())}
    assert found == set(OTHERS)


@pytest.mark.parametrize(
    "line",
    [
        "subprocess.run([sys.executable, '-m', 'x'])", "subprocess.Popen(command)", "os.execve(python, [], {})",
        "child_process([python, '-c', code])", "os.system('python x')", "multiprocessing.Process(target=f)",
        "from subprocess import run",
    ],
)  # fmt: skip
def test_another_way_is_found(line):
    assert started_otherwise(f"def f(command):\n    {line}\n")
    assert not started_otherwise("def f():\n    command = module_command(python, 'x')\n    subprocess.run(command)\n")
