"""What a command does not look for garbage in: what it has imported, and, at its end, anything. No time is asserted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: A module that nothing else here imports, with the interpreter's own.
IMPORT = "with collector.pause_garbage_collection(): import wave"
#: Garbage that says when it is found.
GARBAGE = (
    "class Found:\n"
    "    def __del__(self): print('found', flush=True)\n"
    "one = Found(); one.itself = one; del one\n"
)  # fmt: skip


def said(program: str, status: int = 0) -> str:
    """What a process prints that runs this Python with ``collector``."""
    program = f"import gc, sys\nfrom models import collector\n{program}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == status, done.stderr[-2000:]
    return done.stdout


def test_what_a_command_imports_is_never_walked_over_again():
    left = said(f"collector.skip_collection_at_exit()\n{IMPORT}\nprint(gc.get_freeze_count(), gc.isenabled())").split()
    assert int(left[0]) > 1000 and left[1] == "True"


def test_where_nothing_is_imported_garbage_is_found_later():
    program = (
        "collector.skip_collection_at_exit()\nwith collector.pause_garbage_collection():\n    {}\n"
        "print(gc.get_freeze_count(), gc.collect() > 0)"
    )
    assert said(program.format("gc.collect(); one = []; one.append(one); del one")) == "0 True\n"


def test_a_program_of_somebody_else_that_imports_the_ports_keeps_its_collector():
    assert said(f"{IMPORT}\nprint(gc.get_freeze_count(), gc.isenabled())") == "0 True\n"
    assert said(f"gc.disable()\n{IMPORT}\nprint(gc.isenabled())") == "False\n"
    assert said(GARBAGE) == "found\n"


def test_at_the_end_of_a_command_no_garbage_is_looked_for_and_all_else_is_done():
    program = (
        "import atexit, threading, time\ncollector.skip_collection_at_exit()\n"
        "sys.stdout = open(sys.stdout.fileno(), 'w', buffering=2**20, closefd=False)\n"
        "atexit.register(lambda: print('last'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        f"{GARBAGE}print('first')\nsys.exit(3)"
    )
    assert said(program, 3).split() == ["first", "thread", "last"]
    assert "found" in said(program.replace("collector.skip_collection_at_exit()", ""), 3).split()


def test_the_command_line_says_that_it_is_one():
    program = "from toolkit import cli\ntry: cli.main(['--version'])\nfinally:\n" + "".join(
        f"    {line}\n" for line in GARBAGE.splitlines()
    )
    assert "found" not in said(program)


def test_a_worker_of_a_gate_ends_as_a_command_does():
    program = f"from toolkit.parity.processes import worker\n{GARBAGE}worker.run('candidate', print, 'task', [])"
    assert said(program) == ""


def test_what_the_reference_imports_is_never_walked_over_again():
    program = (
        "import sys\nsys.argv = ['', 'result']\nfrom toolkit.parity.reference import __main__\n"
        "print(gc.get_freeze_count() > 100_000, gc.isenabled(), 'torch' in sys.modules)"
    )
    assert said(program) == "True True True\n"
