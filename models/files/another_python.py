"""Commands that start another Python without imports from the current folder, for all code that starts one.

``python -m`` and ``python -c`` first import from the current folder: a user's file ``random.py`` would replace Python's
module. The interpreter may be 3.10, which has no option ``-P``, and ``-I`` would hide the packages in the user's home
folder. The first line of the code therefore removes the current folder from the path, and imports nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

_REMOVE_CURRENT_FOLDER = "import sys; sys.path[:] = [place for place in sys.path if place]"
_RUN_MODULE = """\
sys.path.insert(0, sys.argv.pop(1))
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
_SOURCE_DIR = str(Path(__file__).resolve().parents[2])


def code_command(python: str, code: str, *arguments: str) -> list[str]:
    """Return a command that runs code with another interpreter. Start it with :func:`clean_environment`.

    Args:
        python: path of the interpreter.
        code: lines of Python code.
        arguments: arguments of the program, ``sys.argv[1:]``.
    """
    return [python, "-c", f"{_REMOVE_CURRENT_FOLDER}\n{code}", *arguments]


def module_command(python: str, module: str, *arguments: str) -> list[str]:
    """Return a command that runs a module of this source tree. Start it with :func:`clean_environment`.

    Args:
        python: path of the interpreter.
        module: name of the module, such as ``toolkit.parity.reference``.
        arguments: arguments of the program, ``sys.argv[1:]``.
    """
    return code_command(python, _RUN_MODULE, _SOURCE_DIR, module, *arguments)


def clean_environment() -> dict[str, str]:
    """Return this process's environment without the current folder in ``PYTHONPATH``.

    An empty entry means the current folder, as in ``$PYTHONPATH:/folder`` if the variable was empty.
    """
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
