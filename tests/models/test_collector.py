"""Test that the garbage collector skips the imports of a command, and everything at its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: An import of a standard module that nothing else imports.
IMPORT = "with collector.pause_garbage_collection(): import wave"
#: Garbage that prints when it is collected.
GARBAGE = (
    "class Found:\n"
    "    def __del__(self): print('found', flush=True)\n"
    "one = Found(); one.itself = one; del one\n"
)  # fmt: skip


def run_program(program: str, status: int = 0) -> str:
    """Return the output of a process that runs this Python code with `collector`."""
    program = f"import gc, sys\nfrom models import collector\n{program}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert process.returncode == status, process.stderr[-2000:]
    return process.stdout


def test_imports_of_a_command_are_never_scanned_again():
    output_words = run_program(
        f"collector.skip_collection_at_exit()\n{IMPORT}\nprint(gc.get_freeze_count(), gc.isenabled())"
    ).split()
    assert int(output_words[0]) > 1000 and output_words[1] == "True"


def test_garbage_without_an_import_is_found_later():
    program = (
        "collector.skip_collection_at_exit()\nwith collector.pause_garbage_collection():\n    {}\n"
        "print(gc.get_freeze_count(), gc.collect() > 0)"
    )
    assert run_program(program.format("gc.collect(); one = []; one.append(one); del one")) == "0 True\n"


def test_another_program_that_imports_the_ports_keeps_its_collector():
    assert run_program(f"{IMPORT}\nprint(gc.get_freeze_count(), gc.isenabled())") == "0 True\n"
    assert run_program(f"gc.disable()\n{IMPORT}\nprint(gc.isenabled())") == "False\n"
    assert run_program(GARBAGE) == "found\n"


def test_a_command_ends_without_a_garbage_collection():
    program = (
        "import atexit, threading, time\ncollector.skip_collection_at_exit()\n"
        "sys.stdout = open(sys.stdout.fileno(), 'w', buffering=2**20, closefd=False)\n"
        "atexit.register(lambda: print('last'))\n"
        "threading.Thread(target=lambda: (time.sleep(0.2), print('thread'))).start()\n"
        f"{GARBAGE}print('first')\nsys.exit(3)"
    )
    assert run_program(program, 3).split() == ["first", "thread", "last"]
    assert "found" in run_program(program.replace("collector.skip_collection_at_exit()", ""), 3).split()


def test_the_command_line_skips_the_final_collection():
    program = "from toolkit import cli\ntry: cli.main(['--version'])\nfinally:\n" + "".join(
        f"    {line}\n" for line in GARBAGE.splitlines()
    )
    assert "found" not in run_program(program)


def test_a_worker_of_a_gate_ends_like_a_command():
    program = f"from toolkit.parity.processes import worker\n{GARBAGE}worker.run('candidate', print, 'task', [])"
    assert run_program(program) == ""


def test_imports_of_the_reference_are_never_scanned_again():
    program = (
        "import sys\nsys.argv = ['', 'result']\nfrom toolkit.parity.reference import __main__\n"
        "print(gc.get_freeze_count() > 100_000, gc.isenabled(), 'torch' in sys.modules)"
    )
    assert run_program(program) == "True True True\n"
