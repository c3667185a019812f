"""Start another Python that imports nothing from the current folder. All code here that starts one uses this.

``python -m`` and ``python -c`` import from the current folder before anything else: a stray ``random.py`` of the user's
would run in place of Python's own. The interpreter may be 3.10, which has no ``-P``; and ``-I`` would hide the user's
own installed packages. So the first line that it runs, which imports nothing, removes that folder.
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
    """Return the command that runs lines of code with an interpreter. Start it with :func:`environment`."""
    return [python, "-c", f"{_FORGET}\n{code}", *arguments]


def module_command(python: str, module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this source tree with an interpreter, under :func:`environment`."""
    return code_command(python, _RUN, _SOURCE, module, *arguments)


def environment() -> dict[str, str]:
    """This process's environment, without empty ``PYTHONPATH`` entries (``$PYTHONPATH:more``), the current folder."""
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
