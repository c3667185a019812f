"""Test that the reference's elementary functions give the same result in whichever thread is the first caller."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: Forks processes in waves. In each process, four threads make the first call of a function at once, and the result is
#: compared with the second call's. Prints the number of processes with a difference.
WAVES = """
import os, sys
import torch
from toolkit.parity.reference.environment import set_up
torch.set_num_threads(1)  # a process with several cannot fork
x = torch.linspace(0.05, 0.95, 70_000, dtype=getattr(torch, sys.argv[2]))

def differs():
    set_up(4)
    x * 2  # starts the threads
    return not torch.equal(getattr(torch, sys.argv[1])(x), getattr(torch, sys.argv[1])(x))

def fork():
    if process := os.fork():
        return process
    os._exit(differs())

print(sum(status != 0 for _ in range(75) for status in [os.waitpid(one, 0)[1] for one in [fork() for _ in range(8)]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("function", "dtype"), [("sin", "float32"), ("exp", "float64")])
def test_a_first_call_by_several_threads_is_as_accurate_as_a_second(function, dtype):
    """Without :func:`.environment.choose_kernels`, one or two of 600 processes differed in each of four tries."""
    command = [sys.executable, "-c", WAVES, function, dtype]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() == "0"
