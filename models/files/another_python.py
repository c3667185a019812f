"""How another Python is started, by everything here that starts one: with nothing of the current folder.

``python -m`` and ``python -c`` import from the current folder before anything else: a stray ``random.py`` of the user's
would be run in place of Python's own. The interpreter may be one of 3.10, which knows no ``-P``; and ``-I`` would hide
packages that the user has installed for himself. So its first line, which imports nothing, removes that folder.
"""

from __future__ import annotations

import os
from pathlib import Path

_FORGET = "import sys; sys.path[:] = [place for place in sys.path if place]"
_RUN = """\
sys.path.insert(0, sys.argv.pop(1))
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
_SOURCE = str(Path(__file__).resolve().parents[2])


def code_command(python: str, code: str, *arguments: str) -> list[str]:
    """The command that runs some lines with an interpreter, and their arguments. To be given :func:`environment`."""
    return [python, "-c", f"{_FORGET}\n{code}", *arguments]


def module_command(python: str, module: str, *arguments: str) -> list[str]:
    """The command that runs a module with an interpreter, and its arguments; this source is looked through first. To be
    given :func:`environment`."""
    return code_command(python, _RUN, _SOURCE, module, *arguments)


def environment() -> dict[str, str]:
    """That of this process. An empty place in ``PYTHONPATH``, as of ``$PYTHONPATH:more``, means the current folder, and
    is left out."""
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
