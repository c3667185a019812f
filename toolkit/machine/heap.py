"""The heap of this process: which freed memory it keeps, and which goes back to the system."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

#: Parameters of ``mallopt`` in <malloc.h>.
TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD, MMAP_MAX = -1, -2, -3, -4
#: glibc's default limit on the number of ``mmap`` blocks, and the largest size threshold for them that it accepts.
MMAP_MAX_DEFAULT, LARGE = 65536, 32 * 2**20

#: Small sizes in bytes, one for each of glibc's, and how many blocks of each are kept for small requests: 7 MB in all.
SMALL, EACH = range(24, 2048, 16), 50

_is_kept = False


def keep_freed_memory() -> None:
    """Tell glibc to keep freed blocks for the next allocation instead of returning them to the system.

    Paddle's CPU allocator takes every large tensor from ``malloc``, as does torch's. glibc serves blocks above a size
    of at most 32 MiB by ``mmap``: each operation then pays for fresh, zeroed pages. Measured with Paddle on 4 million
    float32: exp 9.5 ms against 2.9, softmax 12 against 4.4, concat 7.1 against 0.6. On other C libraries this does
    nothing.
    """
    global _is_kept
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        _is_kept = bool(libc.mallopt(MMAP_MAX, 0))
        libc.mallopt(TRIM_THRESHOLD, 2**31 - 1)
        libc.mallopt(TOP_PAD, 64 * 2**20)


@functools.cache
def keep_small_blocks() -> None:
    """Keep free blocks of each small size for the next small requests, which would else take memory beside tensors. To
    be called when all is imported: imports would use them up.

    Paddle aligns each tensor to a page, so glibc cuts it from a larger block and frees both ends. A small request that
    finds no block of its size takes the smallest that is larger: such an end. When the tensor is freed, its hole is too
    small for the next one of its size (glibc's bug 14581). With these blocks, each between two that are never freed, a
    step takes 0.75 of the memory (peak above the imports: Reformer over 4 texts of 1,024 tokens with ``autograd`` 590
    and 440 MB, over 16,384 tokens 669 and 515, a CTRL 208 and 188). On other C libraries this does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
        libc.malloc.argtypes = [ctypes.c_size_t]
        taken = []
        for size in SMALL:
            for _ in range(EACH):
                taken.append(libc.malloc(size))
                libc.malloc(SMALL.start)  # never freed, or its neighbours would become one block
        for block in taken:
            libc.free(block)


@contextlib.contextmanager
def large_blocks_given_back() -> Iterator[None]:
    """Return large tensors to the system when they are freed in the ``with`` block, despite
    :func:`keep_freed_memory`: with tensors of half a gigabyte, the next does not fit into what is kept. Memory kept
    before is returned, too. On other C libraries this does nothing."""
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.malloc_trim(0)
        libc.mallopt(MMAP_THRESHOLD, LARGE)
        libc.mallopt(MMAP_MAX, MMAP_MAX_DEFAULT)
    try:
        yield
    finally:
        with contextlib.suppress(OSError, AttributeError):
            libc.malloc_trim(0)
            libc.mallopt(MMAP_MAX, 0 if _is_kept else MMAP_MAX_DEFAULT)


def zeros_apart(shape: tuple[int, ...], dtype: str, huge_pages: bool = True) -> np.ndarray:
    """Return zeros in their own memory mapping, which is unmapped with them. ``huge_pages`` are for zeros that are all
    to be written; without them a page takes no memory until it is."""
    import numpy as np  # not above: `toolkit doctor` imports this without NumPy

    kind = np.dtype(dtype)
    size = max(1, int(np.prod(shape)) * kind.itemsize)
    if not hasattr(mmap, "MAP_ANONYMOUS"):
        return np.zeros(shape, kind)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if huge_pages and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # of a kernel without them
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, kind, int(np.prod(shape))).reshape(shape)
