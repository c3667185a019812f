"""The files of a user's pair: inspected without running them, and run only by the worker of their side.

The user names this code on the command line. No other code of the user's is ever imported: a recipe, a checkpoint or a
map of parameters cannot name code.
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

#: Names of the arguments of each function that a side's file may define, by the function.
FUNCTIONS = {"build": ("config",), "batch": ("config", "rng"), "loss": ("model", "batch")}
#: The same for the functions that a file may define if both sides are trained.
TRAINING = {"optimizer": ("model",)}
#: Matches Paddle's message about an operation that it computes in float32 and not in float64.
NO_KERNEL_IN_DOUBLE = re.compile(
    r"of kernel `(\w+)` is not registered.*Selected wrong DataType `float64`.*DataTypes: [^.]*\bfloat32\b", re.DOTALL
)
#: Path prefixes of libraries whose source lines do not help to find a port's fault.
FRAMEWORKS = ("paddle/", "torch/", "numpy/", "decorator")


class UserCodeError(UserError):
    """Error of a file that cannot be used as a side of a pair; its message is one line."""


def locate_source(source: str) -> Path:
    """Return the absolute path of the file of a pair's side.

    Args:
        source: path that ends in ``.py``, or dotted name of a module, which is searched in the current folder first.

    Raises:
        UserCodeError: the file does not exist.
    """
    if source.endswith(".py"):
        path = Path(source)
        if not path.is_file():
            raise UserCodeError(f"{source}: no such file")
        return path.absolute()
    if not all(part.isidentifier() for part in source.split(".")):
        raise UserCodeError(f"{source}: is neither a file that ends in .py nor a module's name")
    relative = Path(*source.split("."))
    for place in _search_folders():
        for path in (place / relative.with_suffix(".py"), place / relative / "__init__.py"):
            if path.is_file():
                return path.absolute()
    raise UserCodeError(f"{source}: no module of this name is in {Path.cwd()} or installed")


def functions_of(source: str, signatures: Mapping[str, Sequence[str]] = FUNCTIONS) -> set[str]:
    """Return the names of the functions that a side's file defines, without running the file.

    Args:
        source: path or module name of the file (:func:`locate_source`).
        signatures: names of the arguments of each function to look for, by the function.

    Raises:
        UserCodeError: the file is missing or not Python, lacks ``build``, or a function has other arguments.
    """
    path = locate_source(source)
    try:
        tree = ast.parse(path.read_bytes(), str(path))
    except (SyntaxError, ValueError) as error:
        line = f":{error.lineno}" if isinstance(error, SyntaxError) and error.lineno else ""
        raise UserCodeError(f"{source}{line}: is not Python: {getattr(error, 'msg', error)}") from None
    defined_names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in signatures:
            _check_arguments(source, node, signatures[node.name])
            defined_names.add(node.name)
        elif isinstance(node, (ast.ImportFrom, ast.Assign)):
            names = node.names if isinstance(node, ast.ImportFrom) else node.targets
            bound = {
                getattr(one, "asname", None) or getattr(one, "name", None) or getattr(one, "id", "") for one in names
            }
            defined_names |= signatures.keys() & bound
    if "build" in signatures and "build" not in defined_names:
        raise UserCodeError(f"{source}: has no build(config) that gives its model")
    return defined_names


#: Models that ``build`` has returned in this process.
_known_models: weakref.WeakSet = weakref.WeakSet()


def check_built(source: Any, model: Any, kind: type, kind_name: str) -> None:
    """Check that a side's ``build`` has returned a new model.

    Args:
        source: imported module of the side's file (:func:`load`).
        model: object that ``build`` has returned.
        kind: expected class of the model.
        kind_name: description of this class in the message.

    Raises:
        UserCodeError: the model has another class, or ``build`` has returned it before.
    """
    if not isinstance(model, kind):
        raise UserCodeError(f"{display_path(source)}: build() gave {type(model).__name__}; it is to give a {kind_name}")
    if model in _known_models:
        raise UserCodeError(f"{display_path(source)}: build() gave one module twice; it is to make a new one")
    _known_models.add(model)


def check_real(source: Any, named_parameters: Iterable[tuple[str, Any]]) -> None:
    """Check that no parameter of a side's model is complex.

    Args:
        source: imported module of the side's file.
        named_parameters: path and tensor of each parameter.

    Raises:
        UserCodeError: a parameter is complex. The message has its path.
    """
    for path, parameter in named_parameters:
        if parameter.is_complex():
            raise UserCodeError(
                f"{display_path(source)}: {path} is a parameter of complex numbers; "
                "keep its real and imaginary parts as two"
            )


def _check_arguments(source: str, node: ast.FunctionDef, signatures: Sequence[str]) -> None:
    """Check that a function of a side's file can be called with the expected arguments. Raises UserCodeError if not.

    Args:
        source: path or module name of the file.
        node: definition of the function.
        signatures: names of the expected arguments.
    """
    arguments = node.args
    num_required = len(arguments.args) + len(arguments.posonlyargs) - len(arguments.defaults)
    num_accepted = len(arguments.args) + len(arguments.posonlyargs)
    if num_required > len(signatures) or (num_accepted < len(signatures) and arguments.vararg is None):
        raise UserCodeError(
            f"{source}:{node.lineno}: {node.name} takes {num_accepted} arguments; it is called as "
            f"{node.name}({', '.join(signatures)})"
        )


@functools.cache
def load(source: str) -> ModuleType:
    """Import the file or module of a pair's side once in this process, and return it.

    Only a worker of that side may import it. Imports of a file are searched in its folder first, as in a script, and
    imports of a module in the current folder.

    Args:
        source: path or module name of the file (:func:`locate_source`).

    Raises:
        UserCodeError: it cannot be imported.
    """
    path = locate_source(source)
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
    """Make a folder the first entry of ``sys.path``."""
    if sys.path[0] != str(folder):
        sys.path.insert(0, str(folder))


def display_path(source: Any) -> str:
    """Return the path of a file of user code for messages, relative to the current folder.

    Args:
        source: path of the file, or the module that was loaded from it.
    """
    return str(getattr(source, "__file__", source)).removeprefix(f"{os.getcwd()}{os.sep}")


@contextlib.contextmanager
def running(source: Any, made_by: Any = None, *, alone: bool = True) -> Iterator[None]:
    """Inside the ``with`` block, turn an error of the user's code into a UserCodeError of one line.

    The message has the last source line of the user's file. A lack of memory is not reported as an error of the code.

    Args:
        source: file of the code, or the module that was loaded from it.
        alone: whether only the user's code runs inside the block. Otherwise only errors from a line of the file are
            reported, and operations that Paddle does not compute in float64.
        made_by: function of the file that created the running object; the message has its line if no other line is
            known.

    Raises:
        UserCodeError: the code raised an error.
    """
    try:
        yield
    except (ToolkitError, MemoryError):
        raise
    except Exception as error:
        file = str(getattr(source, "__file__", source))
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if frame.filename == file]
        if isinstance(error, SyntaxError) and error.filename == file:
            lines.append(error.lineno)
        inside = None if is_out_of_memory(error) else raised_in_backward(error)
        if inside is not None:
            lines += [line for code_file, line in inside.calls if code_file == file][:1]
        lacking = NO_KERNEL_IN_DOUBLE.search(str(error))
        if not (lines or alone or lacking):
            raise
        if not lines and inspect.isfunction(made_by) and made_by.__code__.co_filename == file:
            lines.append(made_by.__code__.co_firstlineno)
        where = f":{lines[-1]}" if lines else ""
        if lacking:
            raise UserCodeError(
                f"{display_path(source)}{where}: Paddle has no float64 kernel of {lacking[1]}; "
                "--dtype float32 judges such a port"
            ) from error
        message = inside.message if inside is not None and lines else _in_library(frames) + describe(error)
        raise UserCodeError(f"{display_path(source)}{where}: {message}") from error


def _in_library(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return the innermost line of a library other than the frameworks, such as ``paddlenlp/layers.py:12: ``.

    The result is empty if there is none.
    """
    locations = ((frame.filename.rpartition("site-packages/"), frame.lineno) for frame in frames)
    inside = [(file, line) for (_, separator, file), line in locations if separator and not file.startswith(FRAMEWORKS)]
    return f"{inside[-1][0]}:{inside[-1][1]}: " if inside else ""


def imported_files() -> list[str]:
    """Return the paths of the user's files that this process has imported, sorted.

    Installed packages, Python and this project are left out.
    """
    root = Path(__file__).resolve().parents[3]
    excluded_prefixes = tuple(
        f"{place}{os.sep}" for place in (sysconfig.get_path("stdlib"), root / "toolkit", root / "models")
    )
    module_files = (getattr(module, "__file__", None) or "" for module in list(sys.modules.values()))
    files = {name for name in module_files if "site-packages" not in name and not name.startswith(excluded_prefixes)}
    return sorted(name for name in files if os.path.isabs(name) and os.path.isfile(name))  # torch has made-up names


def _search_folders() -> Sequence[Path]:
    """Return the folders that a module's name is searched in: the current folder, then ``sys.path``."""
    return [Path.cwd(), *(Path(place) for place in sys.path if place)]
