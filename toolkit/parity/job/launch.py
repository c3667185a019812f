"""How another Python is started: with this source first, and with nothing of the current folder.

``python -m`` and ``python -c`` import from the current folder before anything else: a stray ``random.py`` of the user's
would be run in place of Python's own. The interpreter may be one of 3.10, which knows no ``-P``; and ``-I`` would hide
packages that the user has installed for himself.
"""

from __future__ import annotations

import os
from pathlib import Path

#: Read by glibc from 2.35 on; other C libraries know nothing of it.
HUGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
#: Threads with nothing to do sleep at once, in torch's OpenMP, in Paddle's, and in NumPy's OpenBLAS (after 2^4 cycles,
#: its least; by default after 2^26): the gate's two processes have as many as there are cores each, and those that wait
#: by spinning took half of the other's time. Of the size of a tensor of 64 MB, OpenBLAS's took twice as long as the
#: arithmetic.
SLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}
#: Removes the current folder from where modules are looked for.
FORGET_CURRENT_FOLDER = "import sys; sys.path[:] = [place for place in sys.path if place]"

_RUN = f"""\
{FORGET_CURRENT_FOLDER}
sys.path.insert(0, sys.argv.pop(1))
import runpy
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
_SOURCE = str(Path(__file__).resolve().parents[3])


def module_command(python: str, module: str, *arguments: str) -> list[str]:
    """The command that runs a module of this source with an interpreter, and the module's arguments."""
    return [python, "-c", _RUN, _SOURCE, module, *arguments]


def environment() -> dict[str, str]:
    """That of this process. An empty place in ``PYTHONPATH``, as of ``$PYTHONPATH:more``, means the current folder.

    Memory is asked for in huge pages unless the user has tuned glibc himself: of a large gate's time half goes into
    fresh pages, one after another. What a launcher of several processes has set is left out: a worker is alone.
    """
    places = [place for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PADDLE_")}
    return {HUGE_PAGES[0]: HUGE_PAGES[1], **SLEEP, **inherited, "PYTHONPATH": os.pathsep.join(places)}
