"""Test the memory that a separate process keeps, and the memory that it returns to the system."""

from __future__ import annotations

import platform
import subprocess
import sys

import numpy as np
import pytest

from toolkit.machine.heap import allocate_mapped_zeros

MEGABYTES = """
import numpy as np
from toolkit.machine.heap import keep_freed_memory, return_large_blocks, allocate_mapped_zeros

def megabytes():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 // 2**20

def filled():
    block = np.empty(200 * 2**20, np.uint8)
    block[:] = 1

keep_freed_memory()
before = megabytes()
{body}
print(megabytes() - before)
"""


def memory_growth(body: str) -> int:
    """Return by how many megabytes a process grows during ``body``."""
    code = MEGABYTES.format(body=body)
    return int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_freed_memory_stays_unless_it_is_returned():
    assert memory_growth("filled()") >= 200
    assert memory_growth("with return_large_blocks(): filled(); within = megabytes() - before\nassert within < 50") < 50
    assert memory_growth("filled()\nwith return_large_blocks(): pass") < 50
    assert memory_growth("with return_large_blocks(): pass\nfilled()") >= 200


@pytest.mark.skipif(sys.platform != "linux", reason="its pages are counted by Linux")
def test_mapped_zeros_use_memory_only_when_written_and_return_it():
    assert memory_growth("x = allocate_mapped_zeros((200, 2**20), 'uint8', huge_pages=False); x[7, :9] = 1") < 50
    assert memory_growth("x = allocate_mapped_zeros((200, 2**20), 'uint8'); x[:] = 1") >= 200
    assert memory_growth("x = allocate_mapped_zeros((200, 2**20), 'uint8'); x[:] = 1; del x") < 50


def test_mapped_zeros_are_a_normal_array():
    zeros = allocate_mapped_zeros((3, 4), "float64")
    np.testing.assert_array_equal(zeros, np.zeros((3, 4)), strict=True)
    zeros[1, 2] = 5
    assert zeros.sum() == 5 and allocate_mapped_zeros((0, 4), "float32").shape == (0, 4)


#: Allocates like Paddle: tensors of 4 MiB, 8 alive at a time, between small objects that stay.
TENSORS = """
import ctypes, random, sys
from toolkit.machine import heap
libc = ctypes.CDLL("libc.so.6")
heap.keep_freed_memory()
if sys.argv[1:]:
    heap.reserve_small_blocks()
libc.malloc.restype = ctypes.c_void_p
random.seed(0)
def tensor():
    found = ctypes.c_void_p()
    assert libc.posix_memalign(ctypes.byref(found), ctypes.c_size_t(4096), ctypes.c_size_t(2**22)) == 0
    ctypes.memset(found, 1, 2**22)
    return found
alive = [tensor() for _ in range(8)]
for _ in range(400):
    libc.free(alive.pop(random.randrange(8)))
    small = [libc.malloc(ctypes.c_size_t(random.randrange(64, 2000))) for _ in range(4)]
    alive.append(tensor())
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) // 1024)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_tensors_reuse_memory_of_tensors_between_small_blocks():
    """32 MB of tensors are alive, and 2 MB of small objects."""
    peaks = []
    for arguments in ([], ["kept"]):
        command = [sys.executable, "-c", TENSORS, *arguments]
        peaks.append(int(subprocess.run(command, capture_output=True, text=True, check=True).stdout))
    assert peaks[1] < 100 and 2 * peaks[1] < peaks[0], peaks
