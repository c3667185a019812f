"""The memory of this process: what of it that was freed stays, and what goes back to the system."""

from __future__ import annotations

import contextlib
import ctypes

#: Parameters of ``mallopt`` in <malloc.h>.
TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks for the next allocation in place of giving them back to the system.

    Paddle's CPU allocator takes every large tensor from ``malloc``, and so does torch's. glibc serves blocks above 32
    MiB at the most by ``mmap``: each operation then pays for fresh, zeroed pages. Measured with Paddle on 4 million
    float32: exp 9.5 ms against 2.9, softmax 12 against 4.4, concat 7.1 against 0.6. On other C libraries this does
    nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(MMAP_MAX, 0)
        libc.mallopt(TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(TOP_PAD, 64 * 2**20)
