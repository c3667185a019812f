"""The memory of this process: what of it that was freed stays, and what goes back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import mmap

import numpy as np


def keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks for the next allocation in place of giving them back to the system.

    Paddle's CPU allocator takes every large tensor from ``malloc``, and so does torch's. glibc serves blocks above 32
    MiB at the most by ``mmap``: each operation then pays for fresh, zeroed pages. Measured with Paddle on 4 million
    float32: exp 9.5 ms against 2.9, softmax 12 against 4.4, concat 7.1 against 0.6. On other C libraries this does
    nothing.
    """
    m_trim_threshold, m_top_pad, m_mmap_max = -1, -2, -4  # <malloc.h>
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(m_mmap_max, 0)
        libc.mallopt(m_trim_threshold, 2**31 - 1)
        libc.mallopt(m_top_pad, 64 * 2**20)


def give_back_freed_memory() -> None:
    """Give back to the system what :func:`keep_freed_memory` has kept until now. On other C libraries this does
    nothing."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def zeros_apart(shape: tuple[int, ...], dtype: str, huge_pages: bool = True) -> np.ndarray:
    """Zeros in memory of their own, which goes back to the system when they do.

    Args:
        huge_pages: where all of it is to be written. Otherwise a page takes no memory until it is.
    """
    kind = np.dtype(dtype)
    size = max(1, int(np.prod(shape)) * kind.itemsize)
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(shape, kind)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # of a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, kind, int(np.prod(shape))).reshape(shape)
