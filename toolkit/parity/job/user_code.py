"""The files of a user's pair: inspected without running them, and run only by the worker of their side.

They are code that the user names on the command line. Nothing else is ever imported: no recipe, checkpoint or map of
names can name one.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from toolkit.errors import ToolkitError, UserError
from toolkit.terminal.failure import describe, is_out_of_memory, raised_in_backward

#: What a side's file may define, and how it is called.
FUNCTIONS = {"build": ("config",), "batch": ("config", "rng"), "loss": ("model", "batch")}
#: And where both sides are trained.
TRAINING = {"optimizer": ("model",)}
#: Paddle's message about an operation that it computes in float32 and not in float64.
NO_KERNEL_IN_DOUBLE = re.compile(
    r"of kernel `(\w+)` is not registered.*Selected wrong DataType `float64`.*DataTypes: [^.]*\bfloat32\b", re.DOTALL
)
#: Libraries whose own lines say nothing about a port.
FRAMEWORKS = ("paddle/", "torch/", "numpy/", "decorator")


class UserCodeError(UserError):
    """A file that is no side of a pair, in one line."""


def located(source: str) -> Path:
    """The file of a side, by a path that ends in ``.py`` or a module's dotted name, which is looked for from the
    current folder on. Raises UserCodeError if there is none."""
    if source.endswith(".py"):
        path = Path(source)
        if not path.is_file():
            raise UserCodeError(f"{source}: no such file")
        return path.absolute()
    if not all(part.isidentifier() for part in source.split(".")):
        raise UserCodeError(f"{source}: is neither a file that ends in .py nor a module's name")
    relative = Path(*source.split("."))
    for place in _places():
        for path in (place / relative.with_suffix(".py"), place / relative / "__init__.py"):
            if path.is_file():
                return path.absolute()
    raise UserCodeError(f"{source}: no module of this name is in {Path.cwd()} or installed")


def functions_of(source: str, wanted: Mapping[str, Sequence[str]] = FUNCTIONS) -> set[str]:
    """Which functions of those ``wanted`` a side's file defines, without running it. Raises UserCodeError if there is
    no such file, it is not Python, has no ``build``, or one that is called otherwise."""
    path = located(source)
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as problem:
        line = f":{problem.lineno}" if isinstance(problem, SyntaxError) and problem.lineno else ""
        raise UserCodeError(f"{source}{line}: is not Python: {getattr(problem, 'msg', problem)}") from None
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in wanted:
            _check_arguments(source, node, wanted[node.name])
            found.add(node.name)
        elif isinstance(node, (ast.ImportFrom, ast.Assign)):
            names = node.names if isinstance(node, ast.ImportFrom) else node.targets
            bound = {
                getattr(one, "asname", None) or getattr(one, "name", None) or getattr(one, "id", "") for one in names
            }
            found |= wanted.keys() & bound
    if "build" in wanted and "build" not in found:
        raise UserCodeError(f"{source}: has no build(config) that gives its model")
    return found


#: What ``build`` has given in this process.
_built: weakref.WeakSet = weakref.WeakSet()


def check_built(source: Any, model: Any, kind: type, called: str) -> None:
    """Check that a side's ``build`` has given a new model.

    Args:
        source: what :func:`load` gave.
        kind: of the model; ``called`` is its name.

    Raises:
        UserCodeError: it is none of that kind, or one that it has given before.
    """
    if not isinstance(model, kind):
        raise UserCodeError(f"{shown(source)}: build() gave {type(model).__name__}; it is to give a {called}")
    if model in _built:
        raise UserCodeError(f"{shown(source)}: build() gave one module twice; it is to make a new one")
    _built.add(model)


def check_real(source: Any, parameters: Iterable[tuple[str, Any]]) -> None:
    """Check that all parameters, by path, are real. Raises UserCodeError if one is not."""
    for path, parameter in parameters:
        if parameter.is_complex():
            raise UserCodeError(
                f"{shown(source)}: {path} is a parameter of complex numbers; keep its real and imaginary parts as two"
            )


def check_recurrent(source: Any, layers: Iterable[tuple[str, Any]]) -> None:
    """Check that no recurrent layers drop what goes from one to the next.

    Args:
        layers: by path, those of torch's or Paddle's recurrent classes.

    Raises:
        UserCodeError: one does. It draws inside its kernel, where no draw can be recorded or given.
    """
    for path, layer in layers:
        if layer.dropout and layer.num_layers > 1:
            raise UserCodeError(
                f"{shown(source)}: {path} ({type(layer).__name__}) has dropout={layer.dropout:g} between its layers, "
                "which is drawn inside a kernel and cannot be given to the other side; compare it with dropout 0"
            )


def _check_arguments(source: str, node: ast.FunctionDef, wanted: Sequence[str]) -> None:
    given = node.args
    required = len(given.args) + len(given.posonlyargs) - len(given.defaults)
    taken = len(given.args) + len(given.posonlyargs)
    if required > len(wanted) or (taken < len(wanted) and given.vararg is None):
        raise UserCodeError(
            f"{source}:{node.lineno}: {node.name} takes {taken} arguments; it is called as "
            f"{node.name}({', '.join(wanted)})"
        )


@functools.cache
def load(source: str) -> ModuleType:
    """Run a side's file, once in a process. Only a worker of that side does so.

    A file's own imports start in its folder, as if it had been run by itself; a module's, in the current folder.

    Raises:
        UserCodeError: it cannot be imported.
    """
    path = located(source)
    with running(path):
        if not source.endswith(".py"):
            _look_first_in(Path.cwd())
            return importlib.import_module(source)
        _look_first_in(path.parent)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None:
            raise UserCodeError(f"{source}: cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[path.stem] = module
        spec.loader.exec_module(module)
        return module


def _look_first_in(folder: Path) -> None:
    if sys.path[0] != str(folder):
        sys.path.insert(0, str(folder))


def shown(source: Any) -> str:
    """A side's file, or a module that was loaded from one, as the user would name it: from the current folder on."""
    return str(getattr(source, "__file__", source)).removeprefix(f"{os.getcwd()}{os.sep}")


@contextlib.contextmanager
def running(source: Any, alone: bool = True, made_by: Any = None) -> Iterator[None]:
    """Report what the user's code raises inside the block in one line: the file line reached last, and the error. Lack
    of memory is not its fault.

    Args:
        source: the file, or the module that was loaded from it.
        alone: nothing else runs inside the block; if other code does, only what a line of the file raises is reported,
            and an operation that Paddle does not compute in float64.
        made_by: function of the file that made what runs inside the block; its line is named if no other is.

    Raises:
        UserCodeError: the code raised something.
    """
    try:
        yield
    except (ToolkitError, MemoryError):
        raise
    except Exception as problem:
        file = str(getattr(source, "__file__", source))
        frames = traceback.extract_tb(problem.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        if isinstance(problem, SyntaxError) and problem.filename == file:
            lines.append(problem.lineno)
        inside = None if is_out_of_memory(problem) else raised_in_backward(problem)
        if inside is not None:
            lines += [line for called, line in inside.calls if called == file][:1]
        lacking = NO_KERNEL_IN_DOUBLE.search(str(problem))
        if not (lines or alone or lacking):
            raise
        if not lines and inspect.isfunction(made_by) and made_by.__code__.co_filename == file:
            lines.append(made_by.__code__.co_firstlineno)
        where = f":{lines[-1]}" if lines else ""
        if lacking:
            raise UserCodeError(
                f"{shown(source)}{where}: Paddle has no float64 kernel of {lacking[1]}; "
                "--dtype float32 judges such a port"
            ) from problem
        said = inside.message if inside is not None and lines else _in_library(frames) + describe(problem)
        raise UserCodeError(f"{shown(source)}{where}: {said}") from problem


def _in_library(frames: Sequence[traceback.FrameSummary]) -> str:
    """The innermost line of a library other than the frameworks, such as PaddleNLP; "" if there is none."""
    called = ((frame.filename.rpartition("site-packages/"), frame.lineno) for frame in frames)
    inside = [(file, line) for (_, found, file), line in called if found and not file.startswith(FRAMEWORKS)]
    return f"{inside[-1][0]}:{inside[-1][1]}: " if inside else ""


def imported() -> list[str]:
    """The user's files that this process has imported: none installed, of Python's or of this project's."""
    root = Path(__file__).resolve().parents[3]
    others = tuple(f"{place}{os.sep}" for place in (sysconfig.get_path("stdlib"), root / "toolkit", root / "models"))
    named = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    files = {name for name in named if "site-packages" not in name and not name.startswith(others)}
    return sorted(name for name in files if os.path.isabs(name) and os.path.isfile(name))  # torch has made-up names


def _places() -> Sequence[Path]:
    return [Path.cwd(), *(Path(place) for place in sys.path if place)]
